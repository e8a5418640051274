"""Brokers with stores of their own: all of them are read, and each row is written once, to where it belongs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import towline
from tests.inside.client import Addressed, Publisher, rendezvous
from tests.inside.frame import Frame, encode
from tests.inside.spark import (
    Archive,
    BrokerSource,
    Chosen,
    ReadSource,
    Selection,
    SinkRouting,
    Source,
    archive,
    cut,
    members_of,
    publish,
    reconcile,
    replay,
    trace,
    verify,
)
from tests.spark.session import run_to_end
from tests.system.cluster.conftest import Brokers
from towline.errors import Conflict, NotFound, Unavailable
from towline.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 300
SHARDS = 64
"""So many that each of three brokers is the home of some."""
pytestmark = pytest.mark.timeout(900)  # Spark, maybe on a busy machine


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    made = Brokers(tmp_path_factory.mktemp("brokers"), 3, "--holds", "archive")
    try:
        yield made.start().wait_for()
    finally:
        made.remove()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).removeprefix("test_").replace("_", "-")[:45]


def fill(brokers: Brokers, topic: str, first: int = 0) -> list[int]:
    """Some messages at each broker: at the one with the number n, every third from n on. A client spreads by itself;
    here we want to know."""
    for number in range(3):
        with towline.connect(f"towline://{brokers.address(number)}") as mq:
            bodies = [b"%d" % n for n in range(first + number, first + COUNT, 3)]
            _send_here(mq, topic, bodies)
    return list(range(first, first + COUNT))


def _send_here(mq: towline.Client, topic: str, bodies: list[bytes]) -> None:
    publisher = Publisher(mq)
    publisher.send([Addressed(topic, 1, 0, encode(bodies))])
    publisher.settle()


def numbers(rows: list[Any]) -> list[int]:
    return sorted(int(bytes(row.body)) for row in rows)


def at_each(brokers: Brokers, topic: str) -> list[list[int]]:
    """What lies where, in its order."""
    found: list[list[int]] = []
    for number in range(3):
        place = BrokerSource(ReadSource(url=brokers.url, brokers=(f"b{number}",)))
        try:
            some: list[int] = []
            for lane in place.lanes(Selection((topic,))):
                for span in cut(lane, lane.first, lane.end, 1 << 40):
                    for piece in place.records(span):
                        some += map(int, Frame(piece.frame).bodies(piece.start, piece.start + piece.count))
            found.append(some)
        finally:
            place.close()
    return found


def test_all_brokers_are_read(spark: SparkSession, brokers: Brokers, topic: str) -> None:
    register(spark)
    sent = fill(brokers, topic)
    # One address is enough, as for any client; all of them are as good.
    for url in (brokers.url, f"towline://{brokers.address(1)}"):
        rows = spark.read.format("towline").options(url=url, topic=topic).load().collect()
        assert numbers(rows) == sent
        assert Counter(row.broker for row in rows) == {"b0": 100, "b1": 100, "b2": 100}
    some = spark.read.format("towline").options(url=brokers.url, topic=topic, broker="b0,b2").load()
    assert {row.broker for row in some.select("broker").distinct().collect()} == {"b0", "b2"}
    with pytest.raises(Exception, match="there is no broker b9 in the cluster; there are: "):
        spark.read.format("towline").options(url=brokers.url, topic=topic, broker="b9").load().collect()
    with pytest.raises(Exception, match="there is no topic nothing"):
        spark.read.format("towline").options(url=brokers.url, topic="nothing").load().collect()


def test_a_stream_has_offsets_of_each_broker(spark: SparkSession, brokers: Brokers, topic: str, tmp_path: Path) -> None:
    register(spark)

    def run() -> list[int]:
        live = spark.readStream.format("towline").options(url=brokers.url, topic=topic, progressGroup="spark").load()
        query = live.select("body").writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
        run_to_end(lambda: query.trigger(availableNow=True).start(str(tmp_path / "out")))
        return numbers(spark.read.parquet(str(tmp_path / "out")).collect())

    sent = fill(brokers, topic)
    assert run() == sent
    offsets = next(iter(sorted((tmp_path / "check/offsets").glob("[0-9]*"), reverse=True))).read_text()
    assert offsets.count(f"{topic}/middle@") == 3
    sent += fill(brokers, topic, COUNT)
    assert run() == sent, "it goes on where it was"


def test_rows_are_written_once_to_where_they_belong(
    spark: SparkSession, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    register(spark)
    with towline.connect(brokers.url) as mq:
        mq.create_topic(topic, shards=8)
        ids = [one.id for one in mq.brokers()]
        names = {one.id: one.name for one in mq.brokers()}
    rows = spark.range(COUNT).selectExpr("cast(id as string) as body", "concat('k', id % 50) as key")
    write = rows.repartition(3).write.format("towline").mode("append").options(url=brokers.url, txnId=f"one-{topic}")
    for _ in range(2):  # the second changes nothing
        write.option("topic", topic).save()
    found = spark.read.format("towline").options(url=brokers.url, topic=topic).load().collect()
    assert numbers(found) == list(range(COUNT))
    for row in found:
        assert row.broker == names[rendezvous(f"{topic}/{row.shard}", ids) or ""], "each key at its home"
    plain = f"{topic}-plain"
    for _ in range(2):
        write.option("txnId", f"two-{topic}").option("topic", plain).save()
    lying = at_each(brokers, plain)
    assert sorted(map(len, lying)) == [0, 0, COUNT], "a job has one seat"
    assert sorted(n for some in lying for n in some) == list(range(COUNT))


def test_an_epoch_whose_commit_was_cut_short_is_finished(brokers: Brokers, topic: str) -> None:
    """Published at one home and not at the other, nor at the seat: the next attempt, whose rows come in another order,
    does the rest."""
    with towline.connect(brokers.url) as mq:
        mq.create_topic(topic, shards=6)
        members = members_of(mq)

        def written(order: list[int]) -> list[Any]:
            outlets = SinkRouting(mq, -1, f"sink:{topic}", 4, False, members)
            assert not outlets.done
            for n in order:
                outlets.add(Addressed(topic, n % 6, 6, encode([b"%d" % n])))
            return outlets.settle()

        first = written(list(range(30)))
        assert first[-1].kind == "seat"
        assert len({one.name for one in first[:-1]}) > 1, "keys have several homes"
        publish(mq, -1, f"sink:{topic}", 4, first[:1])
        publish(mq, -1, f"sink:{topic}", 4, written(list(range(29, -1, -1))))
        assert SinkRouting(mq, -1, f"sink:{topic}", 4, False, members).done
        assert sorted(n for some in at_each(brokers, topic) for n in some) == list(range(30))


@pytest.mark.parametrize("change", ["forgotten", "joined"])
def test_the_brokers_of_an_epoch_stay_those_it_was_begun_with(brokers: Brokers, topic: str, change: str) -> None:
    """One is forgotten, or joins, between a commit that was cut short and the next: shards move, the epoch does not."""
    topic = f"{topic[:30]}-{change}"
    with towline.connect(brokers.url) as mq:
        mq.create_topic(topic, shards=SHARDS)
        everybody = members_of(mq)

        def written(members: list[str]) -> tuple[list[Any], list[str]]:
            outlets = SinkRouting(mq, -1, f"sink:{topic}", 4, False, members)
            assert not outlets.done
            for n in range(2 * SHARDS):
                outlets.add(Addressed(topic, n % SHARDS, SHARDS, encode([b"%d" % n])))
            return outlets.settle(), outlets.spread

        homes = {lane: rendezvous(f"{topic}/{lane}", everybody) for lane in range(SHARDS)}
        seat = rendezvous(f"sink:{topic}", everybody)
        assert set(homes.values()) == set(everybody)
        lost = next(one for one in everybody if one != seat)
        before, after = everybody, [one for one in everybody if one != lost]
        if change == "joined":
            before, after = after, before
        first, spread = written(before)
        assert spread == before
        cut = [one for one in first if one.kind == "home" and one.name != lost]
        publish(mq, -1, f"sink:{topic}", 4, cut[:1], b"digest", spread)
        second, spread = written(after)
        assert spread == before
        publish(mq, -1, f"sink:{topic}", 4, second, b"digest", spread)
        assert SinkRouting(mq, -1, f"sink:{topic}", 4, False, after).done
        assert sorted(n for some in at_each(brokers, topic) for n in some) == list(range(2 * SHARDS))


def test_the_jobs_know_all_brokers(spark: SparkSession, brokers: Brokers, topic: str, tmp_path: Path) -> None:
    sent = fill(brokers, topic)
    with towline.connect(brokers.url) as mq, mq.consumer(topic, group="billing", name="ann") as consumer:
        left = set(sent)
        while left:
            batch = consumer.pull(max_messages=100, wait=60)
            left -= {int(message.body) for message in batch}
            batch.ack()
    source, to = Source.of(url=brokers.url, topics=[topic]), str(tmp_path / "archive")
    archive(spark, source, to, hold="archive")
    shelf = Archive.open(to)
    assert verify(spark, shelf, source).problems == []
    found = duckdb.connect().execute(f"select broker, body from '{to}/messages/**/*.parquet'").fetchall()
    assert sorted(int(bytes(body)) for _, body in found) == sent
    assert Counter(broker for broker, _ in found).most_common(1)[0][1] == 100
    frame = trace(spark, shelf, str(tmp_path / "trace"))
    assert {row["status"]: row["count"] for row in frame.groupBy("status").count().collect()} == {"SUCCESS": COUNT}
    assert frame.select("broker").distinct().count() == 3
    assert reconcile(spark, shelf, frame).findings == []
    for number in range(3):
        hold = brokers.folder / str(number) / "config/hold-archive.json"
        assert f'"lane/{topic}/middle":100' in hold.read_text()

    again = Chosen(to_topic=f"{topic}-again")
    for _ in range(2):
        replay(spark, shelf, ReadSource(url=brokers.url), f"job-{topic}", str(tmp_path / "state"), chosen=again)
        (tmp_path / "state/done.json").write_text("[]")  # as if it had been killed before it could note it
    assert sorted(n for some in at_each(brokers, f"{topic}-again") for n in some) == sent
    with pytest.raises(Conflict, match="is the archive of a cluster, and this is one broker"):
        archive(spark, Source.of(path=str(brokers.folder / "0")), to)


def test_a_broker_that_is_away_is_named_and_waited_for(
    spark: SparkSession, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    register(spark)
    fill(brokers, topic)
    url = f"towline://{brokers.address(0)},{brokers.address(1)}"
    options = {"url": url, "topic": topic, "timeout": "2"}
    brokers.terminate(2)
    try:
        brokers.wait_for(2)
        with pytest.raises(Exception, match="broker b2 of the cluster cannot be read, so that"):
            spark.read.format("towline").options(**options).load().collect()
        assert spark.read.format("towline").options(**options, broker="b0,b1").load().count() == 200
        place = BrokerSource(ReadSource(url=url, timeout_s=2))
        assert {lane.broker for lane in place.lanes(Selection((topic,)), absent=True)} == {"b0", "b1"}
        with pytest.raises(Unavailable, match="towline brokers forget"):
            place.lanes(Selection((topic,)))
        with pytest.raises(NotFound):
            place.lanes(Selection(("nothing",)), absent=True)
        place.close()
    finally:
        brokers.start(2).wait_for()
    assert spark.read.format("towline").options(**options | {"timeout": "30"}).load().count() == COUNT
