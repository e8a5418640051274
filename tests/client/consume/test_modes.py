"""At-most-once groups and messages that expire, through the clients."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.either import do, each, entered
from towline.errors import BadRequest


async def test_an_at_most_once_consumer_needs_no_acks(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"%d" % number for number in range(300)]))
        options = {"group": "g", "mode": "at-most-once", "idle_timeout": 0.2}
        async with entered(mq.consumer(topic, **options)) as consumer:
            batch = await do(consumer.pull(100, wait=60))
            await do(batch.ack())
            first = batch.messages[0]
            first.ack()
            assert first.settled
            rest = [message.body async for message in each(consumer)]
            assert consumer.in_flight == consumer.lost == 0
        assert batch.bodies() + rest == [b"%d" % number for number in range(300)]
        async with entered(mq.consumer(topic, **options)) as consumer:
            assert not await do(consumer.pull(wait=0))


async def test_what_nobody_consumed_in_time_is_not_delivered(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(f"{topic}-ordered", shards=4))
        for name in (topic, f"{topic}-ordered"):
            await do(mq.send(name, b"a", key="k", ttl=0.001))
            await do(mq.send_many(name, [b"b", b"c"], keys=["k", "k"], ttl=60))
            async with entered(mq.producer()) as producer:
                await do(producer.send(name, b"d", key="k"))
                await do(producer.send(name, b"e", key="k", ttl=60))
                await do(producer.send(name, b"f", key="k"))
            seen: list[tuple[bytes, bool]] = []
            async with entered(mq.consumer(name, group="g")) as consumer:
                while len(seen) < 5:
                    batch = await do(consumer.pull(wait=60))
                    seen += [(message.body, message.expires_at is not None) for message in batch]
                    await do(batch.ack())
            assert seen == [(b"b", True), (b"c", True), (b"d", False), (b"e", True), (b"f", False)]
        for wrong in (0, -1, 1e12):
            with pytest.raises(BadRequest, match="ttl"):
                await do(mq.send(topic, b"x", ttl=wrong))


async def test_leaving_a_loop_loses_nothing_that_is_delivered_at_most_once(connect: Any, url: str, topic: str) -> None:
    options = {"group": "g", "mode": "at-most-once", "idle_timeout": 0.2}
    seen: list[bytes] = []
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"%d" % number for number in range(20)]))
        for _ in range(2):
            async with entered(mq.consumer(topic, **options)) as consumer:
                async for message in each(consumer):
                    seen.append(message.body)
                    if len(seen) % 3 == 0:
                        break
        async with entered(mq.consumer(topic, **options)) as consumer:
            async for batch in each(consumer.batches()):
                seen += batch.bodies()
    assert seen == [b"%d" % number for number in range(20)]
