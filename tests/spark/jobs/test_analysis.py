"""Trace, report and reconcile on a generated history whose truth is known."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import towline
from tests.broker.process import BrokerProcess
from tests.inside.delivery import Acked, Part, Pulled, Started
from tests.inside.ground import ManualClock
from tests.inside.spark import (
    Archive,
    Options,
    Reconciled,
    Source,
    Window,
    _keys,
    archive,
    reconcile,
    render,
    report,
    trace,
    write_tables,
)
from tests.spark.jobs.history import MIDDLE, NOON, SECOND, Group, Life, Writer, play
from towline.errors import BadRequest, Conflict, NotFound, StoreDamaged
from towline.model import GroupConfig, RetryPolicy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Known(NamedTuple):
    archive: Archive
    frame: DataFrame
    groups: dict[str, Group]
    end_us: int


@pytest.fixture(scope="module")
def known(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """Two groups on topics of their own, each with everything that can happen to a message."""
    folder = tmp_path_factory.mktemp("history")
    writer = Writer(folder / "data")
    groups = {name: Group(writer, name, f"{name}-group", random.Random(name)) for name in ("orders", "stock")}
    for group in groups.values():
        play(writer, group, 150)
    writer.write()
    archive(
        spark, Source.of(path=str(folder / "data")), str(folder / "archive"), clock=ManualClock(writer.clock.value_us)
    )
    shelf = Archive.open(str(folder / "archive"))
    return Known(shelf, trace(spark, shelf, str(folder / "trace")), groups, writer.clock.value_us)


def micros(time: datetime | None) -> int:
    from datetime import UTC

    return 0 if time is None else round(time.replace(tzinfo=UTC).timestamp() * 1_000_000)


def test_the_trace_is_the_life_of_every_message(known: Known) -> None:
    rows = known.frame.collect()
    assert len(rows) == sum(len(group.lives) for group in known.groups.values())
    for row in rows:
        life = known.groups[row.topic].lives[row.seq]
        seen = Life(
            micros(row.sent_at),
            row.status,
            row.attempts,
            row.failures,
            row.acks,
            micros(row.first_pulled_at),
            micros(row.last_pulled_at),
            micros(row.settled_at),
            row.consumer,
            row.reason,
        )
        assert seen == life, row.id
        assert (row.id, row.key) == (f"{row.topic}/middle/{row.seq}", f"key-{row.seq}")
        if life.settled_us and life.last_pulled_us:
            assert row.processing_us == life.settled_us - life.last_pulled_us
        assert row.waiting_us == (life.first_pulled_us - life.sent_us if life.first_pulled_us else None)


def test_the_report_adds_up(spark: SparkSession, known: Known, tmp_path: Path) -> None:
    found = report(spark, known.archive, known.frame, now_us=known.end_us)
    for group in found.groups:
        lives = known.groups[group["topic"]].lives.values()
        by_status = Counter(life.status for life in lives)
        assert {status: group[status.lower()] for status in by_status} == by_status
        assert group["failures"] == sum(life.failures for life in lives)
        assert group["attempts"] == sum(life.pulls for life in lives)
        totals = sorted(life.settled_us - life.sent_us for life in lives if life.settled_us)
        assert group["total_p50_us"] == pytest.approx(totals[len(totals) // 2], rel=0.05)
        rows = [row for row in found.series if row["topic"] == group["topic"]]
        assert sum(row["messages"] for row in rows) == len(lives)
        open_ = sum(not life.settled_us for life in lives)
        assert rows[-1]["backlog"] == open_
        reasons = Counter(life.reason for life in lives if life.reason)
        assert {row["reason"]: row["messages"] for row in found.failures if row["topic"] == group["topic"]} == reasons
        consumers = Counter(life.consumer for life in lives if life.consumer)
        told = {row["consumer"]: row["messages"] for row in found.consumers if row["topic"] == group["topic"]}
        assert told == consumers
        worst = max((row for row in found.keys if row["topic"] == group["topic"]), key=lambda row: row["worst_us"])
        assert worst["worst_us"] == totals[-1]
    names = write_tables(found, str(tmp_path), "csv") + write_tables(found, str(tmp_path), "parquet")
    assert {"hours.csv", "hours.parquet", "keys.csv"} <= set(names)
    assert (tmp_path / "groups.csv").read_text().count("\n") == 3
    page = render(found, "A <title>")
    assert "A &lt;title&gt;" in page
    assert page.count("<svg") == 1 + 4 * 2
    assert not re.search(r'(src|href)="|url\(|<script|@import', page), "the page loads nothing"


@pytest.mark.parametrize("different", [1_000, 4], ids=["many keys", "few keys"])
def test_the_slowest_keys_are_those_of_the_slowest_messages(spark: SparkSession, different: int) -> None:
    totals = [(number * 7_919) % 5_000 for number in range(5_000)]
    rows = [("orders", "billing", f"key-{number % different}", total) for number, total in enumerate(totals)]
    frame = spark.createDataFrame(rows, "topic string, group string, key string, total_us long")
    floor = sorted(totals)[4_950]
    found = _keys(spark, frame, [{"topic": "orders", "group": "billing", "total_p99_us": floor}])
    by_key: dict[str, list[int]] = {}
    for _, _, key, total in rows:
        by_key.setdefault(key, []).append(total)
    slowest = sorted(by_key, key=lambda key: -max(by_key[key]))[:15]
    assert [row["key"] for row in found] == slowest
    for row in found:
        mine = by_key[row["key"]]
        assert (row["messages"], row["worst_us"]) == (len(mine), max(mine))
        assert row["mean_us"] == pytest.approx(sum(mine) / len(mine))


def test_what_went_wrong_is_found(spark: SparkSession, known: Known) -> None:
    found = reconcile(spark, known.archive, known.frame, late_s=0.001, now_us=known.end_us)
    assert not found.sound
    counts = {(finding.what, finding.topic): finding.count for finding in found.findings}
    for topic, group in known.groups.items():
        lives = list(group.lives.values())
        assert counts["lost", topic] == sum(life.status == "GONE" for life in lives)
        assert counts["dead", topic] == sum(life.status == "DEAD" for life in lives)
        late = sum(life.status == "SUCCESS" and life.settled_us - life.sent_us > 1_000 for life in lives)
        assert counts["late", topic] == late
        pending = sum(
            life.status in ("NEW", "RUNNING", "FAIL") and life.sent_us + 1_000 < known.end_us for life in lives
        )
        assert counts.get(("pending", topic), 0) == pending
        assert counts.get(("repeated", topic), 0) == sum(life.acks > 1 for life in lives)
    lost = next(finding for finding in found.findings if (finding.what, finding.topic) == ("lost", "orders"))
    gone = sorted(seq for seq, life in known.groups["orders"].lives.items() if life.status == "GONE")
    assert lost.samples == [f"orders/middle/{seq}" for seq in gone[:10]]


def told(found: Reconciled) -> dict[str, list[str]]:
    return {finding.what: finding.samples for finding in found.findings}


def small(spark: SparkSession, folder: Path, *settled: tuple[int, int], keys: str, lane: str = "middle") -> Any:
    """A message for each letter of `keys`, one a second; `settled` are numbers and the second in which it was acked."""
    writer = Writer(folder / "data")
    number = MIDDLE if lane == "middle" else int(lane)
    writer.tell("orders", "billing", Started(NOON, (0,) * 6))
    for seq, key in enumerate(keys):
        writer.send("orders", lane, [key.encode()], [key])
        writer.tell("orders", "billing", Pulled(writer.clock.value_us, seq + 1, "ann", 0, (Part(number, seq, 1, 1),)))
        writer.clock.value_us += SECOND
    for seq, at in sorted(settled, key=lambda pair: pair[1]):
        writer.clock.value_us = NOON + at * SECOND
        writer.tell("orders", "billing", Acked(writer.clock.value_us, seq + 1, (Part(number, seq, 1, 1),)))
    writer.write()
    if lane != "middle":
        (folder / "data/config/topics.json").write_text('{"topics": [{"name": "orders", "shards": 1}]}')
    archive(spark, Source.of(path=str(folder / "data")), str(folder / "archive"))
    shelf = Archive.open(str(folder / "archive"))
    return shelf, trace(spark, shelf, str(folder / "trace"))


def test_what_was_sent_twice_and_what_never_came_is_found(spark: SparkSession, tmp_path: Path) -> None:
    shelf, frame = small(spark, tmp_path, *((seq, 10) for seq in range(5)), keys="abcab")
    assert reconcile(spark, shelf, frame).sound
    found = reconcile(spark, shelf, frame, identity="key+body")
    assert told(found) == {
        "duplicated": ["orders/middle/0 = orders/middle/3", "orders/middle/1 = orders/middle/4"],
    }
    expected = spark.createDataFrame([("a",), ("b",), ("c",), ("lost",)], "key string")
    assert told(reconcile(spark, shelf, frame, expected=expected)) == {"unsent": ["lost"]}
    with pytest.raises(BadRequest, match="give key, body"):
        reconcile(spark, shelf, frame, identity="colour")


def test_a_hole_in_a_lane_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """A frame of four is damaged: the archive passes over it when told to, and reconcile misses its messages."""
    writer = Writer(tmp_path / "data")
    writer.tell("orders", "billing", Started(NOON, (0,) * 6))
    for text in (b"first", b"damage me", b"last"):
        writer.send("orders", "middle", [text] * 4)
    writer.tell("orders", "billing", Pulled(NOON, 1, "ann", 0, (Part(MIDDLE, 0, 12, 1),)))
    writer.tell("orders", "billing", Acked(NOON, 1, (Part(MIDDLE, 0, 12, 1),)))
    writer.write()
    [log] = [path for path in (tmp_path / "data").rglob("*.log") if b"damage me" in path.read_bytes()]
    log.write_bytes(log.read_bytes().replace(b"damage me", b"damage it", 1))
    source = Source.of(path=str(tmp_path / "data"))
    with pytest.raises(StoreDamaged, match="records 4 to 7 cannot be read"):
        archive(spark, source, str(tmp_path / "none"))
    archive(spark, source, str(tmp_path / "archive"), Options(skip_lost=True))
    shelf = Archive.open(str(tmp_path / "archive"))
    found = reconcile(spark, shelf, trace(spark, shelf, str(tmp_path / "trace")))
    assert [(one.what, one.topic, one.count) for one in found.findings] == [("missing", "orders", 4)]
    assert (found.sent, found.sound) == (8, False)


def test_order_is_that_of_the_messages_of_a_key(spark: SparkSession, tmp_path: Path) -> None:
    shelf, frame = small(spark, tmp_path, (0, 12), (1, 11), (2, 10), (3, 13), keys="aaba", lane="0")
    assert told(reconcile(spark, shelf, frame)) == {"disordered": ["orders/0/1"]}
    assert reconcile(spark, shelf, frame, order="none").sound
    assert reconcile(spark, shelf, frame, late_s=5, order="none", strict=True).findings[0].what == "late"


def test_a_window_bounds_all_of_it(spark: SparkSession, tmp_path: Path) -> None:
    shelf, frame = small(spark, tmp_path, (0, 10), (1, 10), (2, 10), keys="abcd")
    window = Window(NOON + SECOND, NOON + 3 * SECOND)
    assert [row.key for row in trace(spark, shelf, str(tmp_path / "some"), window=window).orderBy("seq").collect()] == [
        "b",
        "c",
    ]
    frame = trace(spark, shelf, str(tmp_path / "again"), window=window)
    assert reconcile(spark, shelf, frame, window=window).sent == 2
    with pytest.raises(Conflict, match="is not empty"):
        trace(spark, shelf, str(tmp_path / "again"))
    with pytest.raises(NotFound, match="no messages"):
        trace(spark, shelf, str(tmp_path / "none"), window=Window(NOON * 2))


def test_a_group_that_consumes_at_most_once_is_traced_as_far_as_that_goes(
    spark: SparkSession, mq: towline.Client, tmp_path: Path
) -> None:
    """Settled when it was given out; what it was not given is found."""
    mq.send_many("orders", [b"%d" % n for n in range(30)])
    with mq.consumer("orders", group="once", mode="at-most-once", start="earliest") as consumer:
        got = 0
        while got < 20:
            got += len(consumer.pull(max_messages=20 - got, wait=60))
    archive(spark, Source.of(path=str(tmp_path / "data")), str(tmp_path / "archive"))
    shelf = Archive.open(str(tmp_path / "archive"))
    frame = trace(spark, shelf, str(tmp_path / "trace"))
    rows = frame.orderBy("seq").collect()
    assert [row.status for row in rows] == ["SUCCESS"] * 20 + ["NEW"] * 10
    assert {(row.attempts, row.acks, row.failures) for row in rows[:20]} == {(1, 1, 0)}
    [summed] = report(spark, shelf, frame).groups
    assert (summed["success"], summed["new"], summed["retried"]) == (20, 10, 0)
    found = reconcile(spark, shelf, frame, late_s=0.0, now_us=time.time_ns() // 1_000)
    assert {one.what: one.count for one in found.findings if one.what != "late"} == {"pending": 10}
    assert found.settled == 20


def test_a_real_brokers_history_is_traced_like_the_broker_does(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    mq.create_topic("orders")
    mq.put_group(GroupConfig("orders", "billing", retry=RetryPolicy(2, (0.01,))))
    mq.send_many("orders", [b"%d" % n for n in range(60)], keys=[f"key-{n}" for n in range(60)])
    with mq.consumer("orders", group="billing", name="ann") as consumer:
        while mq.group("orders", "billing").dead < 6:
            for message in consumer.pull(max_messages=10, wait=0.05):
                if message.seq % 10 == 3:
                    message.nack("no threes")
                elif message.seq < 50 or message.seq % 2:
                    message.ack()
        mq.resend("orders", "billing", [0, 1])
        again = 0
        while again < 2:
            for message in consumer.pull(max_messages=2, wait=60):
                message.ack()
                again += 1
    while mq.group("orders", "billing").in_flight:  # what it did not settle has gone back
        time.sleep(0.01)
    traced = [mq.trace(f"orders/middle/{number}", group="billing") for number in range(60)]
    broker.stop()
    assert broker.wait() == 0, broker.errors  # all that it did is on the disk now
    archive(spark, Source.of(path=str(tmp_path / "data")), str(tmp_path / "archive"))
    frame = trace(spark, Archive.open(str(tmp_path / "archive")), str(tmp_path / "trace"))
    rows = {row.id: row for row in frame.collect()}
    assert len(rows) == 60
    for number, one in enumerate(traced):
        assert rows[f"orders/middle/{number}"].status == one.groups[0].status, number
