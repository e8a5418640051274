"""Staged frames: out of sight until a sink publishes them, then all of them, once, whatever stops in between."""

from __future__ import annotations

from pathlib import Path

import pytest

import towline
from tests.server.process import BrokerProcess
from towline.client.publishing import Addressed, Publisher
from towline.errors import Conflict, NotFound, Refused
from towline.frame import encode


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
        assert publisher.epoch("sink") == -1
        assert publisher.publish("sink", 7, records).messages == 5
        assert bodies(mq, "orders") == [b"1", b"2", b"3"]
        assert bodies(mq, "stock", "high") == [b"s"]
        assert bodies(mq, "serial", 3) == [b"o"]
        assert publisher.epoch("sink") == 7


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
        assert publisher.epoch("sink") == 3
        assert publisher.publish("sink", 3, []).duplicate
        publisher.publish("sink", 4, waiting)
        assert bodies(mq, "orders") == [b"1", b"2", b"3"]
        broker.stop()
        broker.wait()
    # After an orderly stop as well: from the snapshot.
    with BrokerProcess(store=folder) as broker, connect(broker) as mq:
        assert Publisher(mq).epoch("sink") == 4
        assert bodies(mq, "orders") == [b"1", b"2", b"3"]


def test_only_the_token_that_staged_may_publish(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("shop = s3cret-of-the-shop\nthief = s3cret-of-the-thief\n")
    tokens.chmod(0o600)
    with (
        BrokerProcess(tokens_file=str(tokens)) as broker,
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
