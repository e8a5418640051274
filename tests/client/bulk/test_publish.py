"""Staged frames: out of sight until a sink publishes them, then all of them, once, whatever stops in between."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import towline
from tests.broker.access.declared import declared
from tests.broker.process import BrokerProcess
from tests.inside.client import Addressed, Publisher
from tests.inside.delivery import DIGESTS_MAX, Publications, PublicationsSnapshot, StagedHead, decode_publish_mark
from tests.inside.frame import encode
from towline.errors import Conflict, NotFound, Refused


def at(topic: str, *bodies: bytes, lane: int = 1, shards: int = 0, token: bytes = b"") -> Addressed:
    return Addressed(topic, lane, shards, encode(list(bodies), token=token))


def staged(publisher: Publisher, *parcels: list[Addressed]) -> list[int]:
    before = len(publisher.records)
    for frames in parcels:
        publisher.stage(frames)
    publisher.settle()
    return publisher.records[before:]


def bodies(mq: towline.Client, topic: str, lane: str | int = "middle") -> list[bytes]:
    return [message.body for message in mq.browse(topic, lane, max_messages=1000)]  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'data'}"


def connect(broker: BrokerProcess, **options: str) -> towline.Client:
    return towline.connect(f"towline://127.0.0.1:{broker.port}", **options)  # type: ignore[arg-type]


def test_staged_messages_are_seen_once_published_and_in_order(folder: str) -> None:
    with BrokerProcess(store=folder) as broker, connect(broker) as mq:
        mq.create_topic("serial", shards=4)
        publisher = Publisher(mq)
        records = staged(
            publisher,
            [at("orders", b"1", b"2"), at("stock", b"s", lane=0)],
            [at("orders", b"3"), at("serial", b"o", lane=3, shards=4)],
        )
        assert [topic.config.name for topic in mq.topics() if any(lane.end for lane in topic.lanes)] == []
        assert publisher.sink("sink").epoch == -1
        assert publisher.publish("sink", 7, records).messages == 5
        assert bodies(mq, "orders") == [b"1", b"2", b"3"]
        assert bodies(mq, "stock", "high") == [b"s"]
        assert bodies(mq, "serial", 3) == [b"o"]
        assert publisher.sink("sink").epoch == 7


def test_an_epoch_is_published_once_whatever_is_staged_for_it_again(folder: str) -> None:
    with BrokerProcess(store=folder) as broker, connect(broker) as mq:
        publisher = Publisher(mq)
        first = staged(publisher, [at("orders", b"1")], [at("orders", b"2")])
        publisher.publish("sink", 0, first)
        again = staged(publisher, [at("orders", b"2", b"1")])
        for epoch_records in (first, again, []):
            assert publisher.publish("sink", 0, epoch_records).duplicate
        assert bodies(mq, "orders") == [b"1", b"2"]
        # What was staged for nothing is gone, and cannot be published by another.
        with pytest.raises(NotFound, match="is not here"):
            publisher.publish("other", 0, again)
        other = staged(publisher, [at("orders", b"3")])
        publisher.publish("other", 0, other)
        assert bodies(mq, "orders") == [b"1", b"2", b"3"]


def test_what_is_dropped_is_never_seen_and_what_is_published_cannot_be_dropped(folder: str) -> None:
    with BrokerProcess(store=folder) as broker, connect(broker) as mq:
        publisher = Publisher(mq)
        kept, dropped = staged(publisher, [at("orders", b"kept")], [at("orders", b"dropped")])
        publisher.unstage([dropped])
        with pytest.raises(NotFound):
            publisher.publish("sink", 0, [kept, dropped])
        publisher.publish("sink", 0, [kept])
        publisher.unstage([kept, dropped])
        assert bodies(mq, "orders") == [b"kept"]


def test_sinks_and_staged_records_survive_a_kill(folder: str) -> None:
    with BrokerProcess(store=folder, durability="os") as broker, connect(broker) as mq:
        publisher = Publisher(mq)
        publisher.publish("sink", 3, staged(publisher, [at("orders", b"1")]))
        waiting = staged(publisher, [at("orders", b"2")], [at("orders", b"3")])
        broker.process.kill()
    with BrokerProcess(store=folder, durability="os") as broker, connect(broker) as mq:
        publisher = Publisher(mq)
        assert publisher.sink("sink").epoch == 3
        assert publisher.publish("sink", 3, []).duplicate
        publisher.publish("sink", 4, waiting)
        assert bodies(mq, "orders") == [b"1", b"2", b"3"]
        broker.stop()
        broker.wait()
    # After an orderly stop as well: from the snapshot.
    with BrokerProcess(store=folder) as broker, connect(broker) as mq:
        assert Publisher(mq).sink("sink").epoch == 4
        assert bodies(mq, "orders") == [b"1", b"2", b"3"]


def test_only_the_token_that_staged_may_publish(tmp_path: Path) -> None:
    with (
        BrokerProcess(**declared(tmp_path, shop="s3cret-of-the-shop", thief="s3cret-of-the-thief")) as broker,
        connect(broker, token="shop", secret="s3cret-of-the-shop") as mq,
        connect(broker, token="thief", secret="s3cret-of-the-thief") as thief,
    ):
        records = staged(Publisher(mq), [at("orders", b"1", token=b"shop")])
        with pytest.raises(Refused, match="under another token"):
            Publisher(thief).publish("sink", 0, records)
        Publisher(thief).unstage(records)
        assert Publisher(mq).publish("sink", 0, records).messages == 1


def test_a_memory_store_gives_back_what_was_published() -> None:
    with BrokerProcess(capacity_bytes=1 << 20) as broker, connect(broker) as mq:
        publisher = Publisher(mq)
        with mq.consumer("orders", group="g") as consumer:
            for epoch in range(20):
                records = staged(publisher, [at("orders", bytes(100_000))])
                publisher.publish("sink", epoch, records)
                consumer.pull(wait=60).ack()
                consumer.flush()


def test_progress_told_from_outside_shows_as_lag(folder: str) -> None:
    with BrokerProcess(store=folder) as broker, connect(broker) as mq:
        mq.send_many("orders", [b"x"] * 10)
        publisher = Publisher(mq)
        publisher.report("orders", "spark", {"middle": 4})
        assert mq.group("orders", "spark").lag == 6
        publisher.report("orders", "spark", {"middle": 2, "high": 0})
        assert mq.group("orders", "spark").lag == 6
        publisher.report("orders", "spark", {"middle": 99})
        assert mq.group("orders", "spark").lag == 0
        with mq.consumer("orders", group="spark") as consumer:
            consumer.pull(wait=0)
            with pytest.raises(Conflict, match="has consumers"):
                publisher.report("orders", "spark", {"middle": 10})


def test_an_epoch_is_the_same_only_if_its_contents_are(folder: str) -> None:
    with BrokerProcess(store=folder, durability="os") as broker, connect(broker) as mq:
        publisher = Publisher(mq)
        for epoch in range(3):
            publisher.publish("sink", epoch, staged(publisher, [at("orders", b"%d" % epoch)]), b"digest-%d" % epoch)
        publisher.publish("old", 0, [])  # by somebody who knows nothing of digests
        broker.process.kill()
    for _ in range(2):  # as the marks tell it, and then as the snapshot does
        with BrokerProcess(store=folder, durability="os") as broker, connect(broker) as mq:
            publisher = Publisher(mq)
            others = staged(publisher, [at("orders", b"another")])
            for epoch in range(3):
                assert publisher.publish("sink", epoch, [], b"digest-%d" % epoch).duplicate
                with pytest.raises(Conflict, match=f"epoch {epoch} of sink sink was published before, with other"):
                    publisher.publish("sink", epoch, others, b"another")
            assert publisher.publish("sink", 2, []).duplicate
            with pytest.raises(Conflict, match="sink sink has published epoch 2 already; what was in epoch 1 is not"):
                publisher.publish("sink", 1, others)
            assert publisher.publish("old", 0, others, b"something").duplicate
            assert bodies(mq, "orders") == [b"0", b"1", b"2"]
            broker.stop()
            broker.wait()


def test_an_epoch_that_is_being_published_is_known_by_its_contents_and_the_last_hundred_are() -> None:
    state = Publications()
    for epoch in range(DIGESTS_MAX + 5):
        mark = state.decide("sink", epoch, [], b"", 1, b"digest-%d" % epoch, ["a", "b"])
        assert mark is not None
        state.apply(mark)
    assert state.decide("sink", 5, [], b"", 1, b"digest-5") is None
    with pytest.raises(Conflict, match="what was in epoch 4 is not remembered"):
        state.decide("sink", 4, [], b"", 1, b"digest-4")
    state.staged_at(7, StagedHead(1, b"", b"", [("orders", 1, 1)]))
    begun = state.decide("sink", 1_000, [7], b"", 1, b"begun", ["a"])
    assert begun is not None
    state.apply(begun)
    restored = Publications()
    restored.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(state.snapshot(8, 1)), type=PublicationsSnapshot))
    for one in (state, restored):
        assert one.last_epoch("sink").members == ["a"]
        assert one.decide("sink", 1_000, [], b"", 1, b"begun") is None
        assert one.decide("sink", 104, [], b"", 1, b"digest-104") is None
        with pytest.raises(Conflict, match="with other contents"):
            one.decide("sink", 1_000, [], b"", 1, b"other")


def test_what_an_older_version_remembers_is_understood() -> None:
    """Sinks, epochs under way and marks had no digests."""
    old = msgspec.msgpack.encode([3, 2, [[1, [2, 1, 9, b""]]], [["busy", [4, [1], 0]]], [["sink", [7, 99]]]])
    state = Publications()
    state.restore(msgspec.msgpack.decode(old, type=PublicationsSnapshot))
    mark = decode_publish_mark(msgspec.msgpack.encode([1, 5, "other", 3, []]))
    state.apply(mark)
    for sink, epoch in (("busy", 4), ("sink", 7), ("other", 3)):
        assert state.decide(sink, epoch, [], b"", 1, b"digest") is None
        with pytest.raises(Conflict):
            state.decide(sink, epoch - 1, [], b"", 1, b"digest")
