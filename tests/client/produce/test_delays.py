"""Delayed messages, on both clients and every broker."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.client.either import do, entered
from towline.errors import BadRequest, Conflict, NotFound


async def test_a_delayed_message_comes_when_it_is_due(connect: Any, url: str, topic: str) -> None:
    async with (
        entered(connect(url, token="appid-1;sid-2")) as mq,
        entered(mq.consumer(topic, group="g")) as consumer,
    ):
        begin_s = time.time()
        receipt = await do(mq.send(topic, b"later", key="k", priority="high", headers={"a": "b"}, delay=0.3))
        assert (receipt.topic, receipt.lane) == (topic, "delay")
        assert receipt.id == f"{topic}/delay/{receipt.seq}"
        batch = await do(consumer.pull(wait=60.0))
        assert time.time() - begin_s >= 0.3
        (message,) = batch
        assert (message.body, message.key, message.headers) == (b"later", "k", {"a": "b"})
        assert (message.priority, message.token) == ("high", "appid-1;sid-2")
        assert begin_s * 1e6 - 1e6 < message.produced_at_us < message.appended_at_us - 250_000
        await do(batch.ack())


async def test_many_messages_have_one_delay_or_each_its_own(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, entered(mq.consumer(topic, group="g")) as consumer:
        soon = datetime.now(UTC) + timedelta(seconds=1.6)
        receipts = await do(mq.send_many(topic, [b"c", b"a", b"b"], delays=[soon, None, 0.8]))
        assert [receipt.lane for receipt in receipts] == ["delay"] * 3
        assert [receipt.seq - receipts[0].seq for receipt in receipts] == [0, 1, 2]
        both = await do(mq.send_many(topic, [b"now", b"too"], delays=[None, 0]))
        assert [receipt.lane for receipt in both] == ["middle"] * 2
        await do(mq.send_many(topic, [b"d", b"e"], deliver_at=time.time() + 2.4))
        got: list[bytes] = []
        while len(got) < 7:
            batch = await do(consumer.pull(wait=60.0))
            assert batch, got
            got += batch.bodies()
            await do(batch.ack())
        assert got[-4:] == [b"b", b"c", b"d", b"e"]
        assert set(got[:3]) == {b"now", b"too", b"a"}


async def test_messages_with_and_without_a_delay_share_a_batch_of_the_producer(
    connect: Any, url: str, topic: str
) -> None:
    async with entered(connect(url)) as mq, entered(mq.consumer(topic, group="g")) as consumer:
        async with entered(mq.producer(linger_ms=5000)) as producer:
            first = await do(producer.send(topic, b"now"))
            second = await do(producer.send(topic, b"later", delay=0.3))
            third = await do(producer.send(topic, b"level", delay_level=1))
            await do(producer.flush())
        assert {one.result().lane for one in (first, second, third)} == {"delay"}
        got: list[bytes] = []
        while len(got) < 3:
            got += (await do(consumer.pull(wait=60.0))).bodies()
        assert got == [b"now", b"later", b"level"]


async def test_what_waits_can_be_listed_cancelled_and_moved(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, entered(mq.consumer(topic, group="g")) as consumer:
        far = await do(mq.send(topic, b"far", key="a", priority="low", deliver_at=datetime(2099, 5, 1, tzinfo=UTC)))
        receipts = await do(mq.send_many(topic, [b"x", b"yy"], keys=["b", "a"], delay=3600))
        level = await do(mq.send(topic, b"level", delay_level=18))
        waiting = await do(mq.delayed(topic))
        assert [entry.id for entry in waiting] == [receipts[0].id, receipts[1].id, level.id, far.id]
        assert [entry.key for entry in waiting] == ["b", "a", None, "a"]
        assert waiting[-1].deliver_at == datetime(2099, 5, 1, tzinfo=UTC)
        assert (waiting[-1].priority, waiting[1].size_bytes) == ("low", 2)
        assert abs(waiting[0].deliver_at_us - (time.time() + 3600) * 1e6) < 60e6
        assert [entry.id for entry in await do(mq.delayed(topic, after=waiting[1], max_messages=1))] == [level.id]
        assert (await do(mq.topic(topic))).delayed == 4
        assert (await do(mq.stat()))["delayed"] >= 4

        assert await do(mq.cancel(topic, key="a", dry_run=True)) == 2
        assert await do(mq.cancel(topic, far)) == 1
        assert await do(mq.cancel(topic, key="a")) == 1
        assert await do(mq.cancel(topic, key="nobody")) == 0
        with pytest.raises(Conflict, match="does not wait any more"):
            await do(mq.cancel(topic, far.id))
        with pytest.raises(NotFound, match="never was"):
            await do(mq.cancel(topic, id=1 << 50))
        assert await do(mq.reschedule(topic, key="b", delay=0.1)) == 1
        batch = await do(consumer.pull(wait=60.0))
        assert batch.bodies() == [b"x"]
        with pytest.raises(Conflict, match="does not wait any more"):
            await do(mq.reschedule(topic, receipts[0], delay=5))
        assert await do(mq.reschedule(topic, level.seq, deliver_at=1.0)) == 1
        batch = await do(consumer.pull(wait=60.0))
        assert batch.bodies() == [b"level"]
        assert (await do(mq.topic(topic))).delayed == 0


async def test_what_cannot_be_is_refused_with_the_reason(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        for wrong, reason in (
            ({"delay": 1, "delay_level": 1}, "one of them"),
            ({"delay": -1}, "seconds"),
            ({"delay": 1e12}, "100 years"),
            ({"delay_level": 0}, "from 1 on"),
            ({"delay_level": 19}, "levels 1 to 18"),
            ({"deliver_at": datetime(2099, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is what is wrong
            ({"deliver_at": datetime(9999, 1, 1, tzinfo=UTC)}, "100 years"),
        ):
            with pytest.raises(BadRequest, match=reason):
                await do(mq.send(topic, b"x", **wrong))
        with pytest.raises(BadRequest, match="1 delays for 2"):
            await do(mq.send_many(topic, [b"x", b"y"], delays=[1.0]))
        with pytest.raises(BadRequest, match="instead of"):
            await do(mq.send_many(topic, [b"x"], delays=[1.0], delay=1))
        await do(mq.send(topic, b"x"))
        for which in ({}, {"id": 1, "key": "k"}, {"key": ""}):
            with pytest.raises(BadRequest):
                await do(mq.cancel(topic, **which))
        with pytest.raises(BadRequest, match="delayed message of topic"):
            await do(mq.cancel(topic, "orders/middle/5"))
        with pytest.raises(BadRequest, match="say when"):
            await do(mq.reschedule(topic, 1))
