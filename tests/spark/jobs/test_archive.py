"""The archive holds what the log holds, exactly, for whoever reads it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import towline
from tests.broker.process import BrokerProcess
from tests.inside.frame import encode
from tests.inside.ground import ManualClock
from tests.inside.spark import Archive, Options, Source, Writable, archive, verify
from tests.inside.store import Append, LogStore
from tests.spark.jobs.history import NOON, SECOND, Group, Writer, play
from towline.errors import Conflict, NotFound, StoreDamaged
from towline.model import dead_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = 86_400 * SECOND
SMALL = Options(compact_files=0, task_rows=100)


def query(text: str) -> list[tuple[Any, ...]]:
    return duckdb.connect().execute(text).fetchall()


def rows_of(folder: Path) -> list[tuple[str, int, bytes]]:
    found = query(f"select topic, seq, body from '{folder}/messages/**/*.parquet' order by topic, lane, seq")
    return [(topic, seq, bytes(body)) for topic, seq, body in found]


def test_every_reader_sees_what_was_sent(spark: SparkSession, mq: towline.Client, tmp_path: Path) -> None:
    bodies = [f"body {n}".encode() for n in range(2_000)]
    for priority in ("high", "middle"):
        mq.send_many("orders", bodies, keys=[f"key-{n}" for n in range(2_000)], priority=priority)
    mq.send("other", b"one", headers={"kind": "odd", "æ": "ø"})
    to = tmp_path / "archive"
    done = archive(spark, Source.of(path=str(tmp_path / "data")), str(to), SMALL)
    assert (done.rows, done.commits) == (4_001, 1)

    assert rows_of(to) == [("orders", n, body) for _ in range(2) for n, body in enumerate(bodies)] + [
        ("other", 0, b"one")
    ]
    arrow = pyarrow.dataset.dataset(to / "messages", partitioning="hive").to_table()
    frame = spark.read.parquet(f"file://{to}/messages")
    assert arrow.num_rows == frame.count() == 4_001
    assert {row.key for row in frame.filter("topic = 'orders'").select("key").collect()} == {
        f"key-{n}" for n in range(2_000)
    }
    odd = frame.filter("topic = 'other'").first()
    assert odd is not None
    assert odd.headers == {"kind": "odd", "æ": "ø"}
    assert (odd.size, odd.source) == (3, "127.0.0.1")
    assert verify(spark, Archive.open(str(to)), Source.of(path=str(tmp_path / "data"))).problems == []


def test_the_network_gives_the_same_archive_as_the_folder(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    mq.send_many("orders", [b"x"] * 500)
    with mq.consumer("orders", group="billing") as consumer:
        consumer.pull(max_messages=300, wait=60).ack()
    for name, where in (("a", {"path": str(tmp_path / "data")}), ("b", {"url": f"towline://127.0.0.1:{broker.port}"})):
        archive(spark, Source.of(**where), str(tmp_path / name), SMALL)
    one, two = (Archive.open(str(tmp_path / name)) for name in "ab")
    assert [(e.path, e.rows, e.checksum) for e in one.files()] == [(e.path, e.rows, e.checksum) for e in two.files()]
    assert one.files("events")


def test_a_hold_is_moved_over_the_network(spark: SparkSession, tmp_path: Path) -> None:
    import msgspec

    with BrokerProcess(store=f"file:{tmp_path / 'data'}", durability="os", holds="archive") as broker:
        source = Source.of(url=f"towline://127.0.0.1:{broker.port}")
        with towline.connect(source.door.url) as mq:
            mq.send_many("orders", [b"x"] * 50)
        with pytest.raises(NotFound, match="start the broker with --holds"):
            archive(spark, source, str(tmp_path / "none"), SMALL, hold="other")
        archive(spark, source, str(tmp_path / "archive"), SMALL, hold="archive")
        found = msgspec.json.decode((tmp_path / "data/config/hold-archive.json").read_bytes())
    assert found["positions"]["lane/orders/middle"] == 50


def test_a_second_run_adds_what_is_new_and_small_files_are_joined(
    spark: SparkSession, mq: towline.Client, tmp_path: Path
) -> None:
    to, source = str(tmp_path / "archive"), Source.of(path=str(tmp_path / "data"), topics=["orders"])
    for number in range(4):
        mq.send_many("orders", [b"%d" % number] * 50)
        mq.send("else", b"not wanted")
        archive(spark, source, to, Options(compact_files=3))
    found = Archive.open(to)
    assert [(e.stream, e.first, e.end) for e in found.files()] == [
        ("lane/orders/middle", 0, 150),
        ("lane/orders/middle", 150, 200),
    ]
    assert [body for _, _, body in rows_of(tmp_path / "archive")] == [b"%d" % n for n in range(4) for _ in range(50)]
    assert verify(spark, found, source).problems == []
    assert archive(spark, source, to).rows == 0


def test_days_are_apart_and_the_manifest_is_folded(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.inside.spark.manifest.FOLD_AT", 3)
    to, source = str(tmp_path / "archive"), Source.of(path=str(tmp_path / "data"))
    for day in range(4):
        writer = Writer(tmp_path / "data", ManualClock(NOON + day * DAY))
        writer.send("orders", "middle", [b"morning"] * 10)
        writer.clock.value_us += DAY // 2  # noon in the seed is UTC: half a day on is the next one
        writer.send("orders", "middle", [b"night"] * 10)
        writer.write()
        archive(spark, source, to, SMALL)
    found = Archive.open(to)
    days = {path.name for path in (tmp_path / "archive/messages/topic=orders").iterdir()}
    assert days == {f"day=2026-05-0{n}" for n in range(1, 6)}
    assert (found.number, found.positions) == (4, {"lane/orders/middle": 80})
    assert len(list((tmp_path / "archive/_manifest").glob("0*.json"))) < 3
    assert verify(spark, found, source).problems == []


def test_events_dead_letters_and_what_was_sent_again_are_archived(
    spark: SparkSession, mq: towline.Client, tmp_path: Path
) -> None:
    mq.send_many("orders", [b"bad", b"good"])
    with mq.consumer("orders", group="billing", name="ann") as consumer:
        for message in consumer.pull(max_messages=2, wait=60):
            if message.body == b"bad":
                message.dead("no good")
            else:
                message.ack()
        while not mq.group("orders", "billing").dead:
            consumer.pull(max_messages=1, wait=0.05)
        mq.resend("orders", "billing")
        consumer.pull(max_messages=1, wait=60).ack()
    to = tmp_path / "archive"
    archive(spark, Source.of(path=str(tmp_path / "data")), str(to), SMALL)
    events = query(f"select event, consumer from '{to}/events/**/*.parquet' order by number")
    assert {event for event, _ in events} >= {"started", "pulled", "acked", "gaveup", "buried", "resent"}
    assert {consumer for event, consumer in events if event == "pulled"} == {"ann"}
    assert query(f"select origin, reason from '{to}/dead/**/*.parquet'") == [("orders/middle/0", "no good")]
    assert query(f"select origin from '{to}/own/**/*.parquet'") == [("orders/middle/0",)]


def test_verify_finds_what_is_wrong(spark: SparkSession, mq: towline.Client, tmp_path: Path) -> None:
    mq.send_many("orders", [b"%d" % n for n in range(300)])
    to, source = str(tmp_path / "archive"), Source.of(path=str(tmp_path / "data"))
    archive(spark, source, to, Options(compact_files=0, task_rows=100))
    first, second, third = [tmp_path / "archive" / entry.path for entry in Archive.open(to).files()]
    table = pq.read_table(first)
    swapped = table.take([1, 0, *range(2, len(table))])
    pq.write_table(swapped, first)
    third.rename(third.with_name("middle-stray.parquet"))
    mq.send("orders", b"new")
    found = verify(spark, Archive.open(to), source)
    assert found.behind == 1
    assert any("the file is missing" in problem and third.name in problem for problem in found.problems)
    assert any("does not know this file" in problem for problem in found.problems)
    assert sum(first.name in problem for problem in found.problems) == 2, "by the manifest, and by the log"
    assert not any(second.name in problem for problem in found.problems)


def test_one_job_at_a_time_and_only_where_an_archive_is(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "data")
    writer.send("orders", "middle", [b"x"])
    writer.write()
    with Writable.opened(str(tmp_path / "archive")), pytest.raises(Conflict, match="another job writes"):
        archive(spark, Source.of(path=str(tmp_path / "data")), str(tmp_path / "archive"))
    with pytest.raises(NotFound, match="is not an archive"):
        Archive.open(str(tmp_path))
    with pytest.raises(NotFound, match="is not the folder of a log store"):
        archive(spark, Source.of(path=str(tmp_path)), str(tmp_path / "archive"))


def test_a_commit_cut_short_is_finished_by_whoever_comes_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path / "data")
    writer.send("orders", "middle", [b"%d" % n for n in range(250)])
    writer.write()
    to, source = tmp_path / "archive", Source.of(path=str(tmp_path / "data"))
    with monkeypatch.context() as broken:
        broken.setattr(Writable, "finish", lambda _: None)
        archive(spark, source, str(to), SMALL)
        (to / "_tmp" / "left-over.parquet").touch()
    assert not list(to.glob("messages/**/*.parquet"))
    assert archive(spark, source, str(to), SMALL).rows == 0
    assert len(rows_of(to)) == 250
    assert not list((to / "_tmp").glob("*"))
    assert verify(spark, Archive.open(str(to)), source).problems == []


def test_what_retention_dropped_first_is_an_error_unless_it_may_be_skipped(spark: SparkSession, tmp_path: Path) -> None:
    async def trim(before: int) -> None:
        store = await LogStore.open(tmp_path / "data")
        await store.trim("lane/orders/middle", before)
        await store.close()

    to, source = str(tmp_path / "archive"), Source.of(path=str(tmp_path / "data"))
    writer = Writer(tmp_path / "data")
    for number in range(6):
        writer.send("orders", "middle", [b"%d" % number] * 10)
        writer.write()
        if number == 2:
            archive(spark, source, to, SMALL)
    asyncio.run(trim(45))
    with pytest.raises(StoreDamaged, match="records 30 to 44 before they were archived"):
        archive(spark, source, to, SMALL)
    done = archive(spark, source, to, Options(compact_files=0, skip_lost=True))
    assert (done.rows, done.lost) == (15, 15)
    found = verify(spark, Archive.open(to), source)
    assert (found.problems, found.lost, found.compared) == ([], 15, 15)


def test_a_group_that_was_made_anew_has_lost_nothing(spark: SparkSession, mq: towline.Client, tmp_path: Path) -> None:
    """Its pull log counts on behind that of another group, which was longer: the archive goes on, and says why."""
    to, source = str(tmp_path / "archive"), Source.of(path=str(tmp_path / "data"))

    def consume(group: str, pulls: int) -> None:
        with mq.consumer("orders", group=group) as consumer:
            for _ in range(pulls):
                consumer.pull(max_messages=1, wait=60).ack()

    mq.send_many("orders", [b"x"] * 50)
    consume("billing", 3)
    archive(spark, source, to, SMALL)
    consume("other", 30)
    for group in ("billing", "other"):
        mq.delete_group("orders", group)
    consume("billing", 5)
    for _ in range(2):
        archive(spark, source, to, SMALL)
    assert verify(spark, Archive.open(to), source).problems == []
    [lost] = Archive.open(to).lost
    assert (lost.stream, lost.reason) == ("pull/orders/billing", "the group was made anew, and counts on from there")


def test_before_dead_letters_of_a_consumer_without_a_group_it_is_not_said_that_it_was_made_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It looks the same when retention dropped them."""

    async def trim(before: int) -> None:
        store = await LogStore.open(tmp_path / "data")
        await store.trim(dead_stream("orders", "~me"), before)
        await store.close()

    to, source = str(tmp_path / "archive"), Source.of(path=str(tmp_path / "data"))
    writer = Writer(tmp_path / "data")
    for number in range(3):
        frame = encode([b"%d" % number] * 10, produced_at_us=writer.clock.value_us)
        writer.units.append((writer.clock.value_us, [Append(dead_stream("orders", "~me"), frame, 10)]))
        writer.write()
        if number == 0:
            archive(spark, source, to, SMALL)
    asyncio.run(trim(15))
    done = archive(spark, source, to, SMALL)
    assert (done.rows, done.lost) == (15, 5)
    [lost] = Archive.open(to).lost
    assert lost.reason == "retention dropped it, or the consumer was made anew, and counts on from there"


def test_a_purged_topic_is_passed_over(spark: SparkSession, mq: towline.Client, tmp_path: Path) -> None:
    mq.send_many("orders", [b"x"] * 10)
    mq.send_many("other", [b"y"] * 3)
    assert mq.purge("orders").messages == 10
    to, source = tmp_path / "archive", Source.of(path=str(tmp_path / "data"))
    assert archive(spark, source, str(to), SMALL).rows == 3
    mq.send("orders", b"after it")
    assert archive(spark, source, str(to), SMALL).rows == 1
    assert rows_of(to) == [("orders", 10, b"after it"), *[("other", n, b"y") for n in range(3)]]


def test_following_ends_when_it_is_told_to(spark: SparkSession, mq: towline.Client, tmp_path: Path) -> None:
    mq.send("orders", b"first")
    stop, seen = threading.Event(), []

    def told(done: Any, left: int) -> None:
        seen.append((done.rows, left))
        if done.rows == 1:
            mq.send("orders", b"second")
        else:
            stop.set()

    source = Source.of(path=str(tmp_path / "data"))
    done = archive(spark, source, str(tmp_path / "archive"), follow_s=0.01, stop=stop, told=told)
    assert (done.rows, seen) == (2, [(1, 0), (2, 0)])


def test_a_large_generated_history_is_archived_whole(spark: SparkSession, tmp_path: Path) -> None:
    import random

    writer = Writer(tmp_path / "data")
    play(writer, Group(writer, "orders", "billing", random.Random(5)), 200)
    writer.write()
    to, source = str(tmp_path / "archive"), Source.of(path=str(tmp_path / "data"))
    archive(spark, source, to, SMALL)
    found = verify(spark, Archive.open(to), source)
    assert (found.problems, found.behind) == ([], 0)
    assert found.compared == found.rows > 3_000
