"""A message says itself how often it is tried, which beats the retry policy of the group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.either import do, entered
from towline.errors import BadRequest
from towline.model import RetryPolicy

TWICE = RetryPolicy(2, (0.0,))


async def fail_all(consumer: Any, count: int) -> list[tuple[bytes, int]]:
    """Nack so many deliveries."""
    tried: list[tuple[bytes, int]] = []
    while len(tried) < count:
        for message in await do(consumer.pull(wait=5)):
            tried.append((message.body, message.attempt))
            message.nack("no")
    await do(consumer.flush())
    return tried


async def dead_of(mq: Any, topic: str, count: int) -> dict[bytes, int]:
    """The dead letters, once there are so many, and the attempt that was their last."""
    while (await do(mq.group(topic, "g"))).dead < count:
        await asyncio.sleep(0.01)
    return {letter.body: letter.attempt for letter in await do(mq.dead_letters(topic, "g"))}


async def test_each_is_tried_as_often_as_its_sender_wants(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"once", attempts=1))
        await do(mq.send(topic, b"as the group says"))
        await do(mq.send_many(topic, [b"three", b"times"], attempts=3))
        async with entered(mq.producer()) as producer:
            await do(producer.send(topic, b"as the group says too"))
            await do(producer.send(topic, b"produced", attempts=1, timeout=60))
        async with entered(mq.transaction()) as tx:
            await do(tx.send(topic, b"in a transaction", attempts=3, ttl=3600))
        await do(mq.send(topic, b"delayed", attempts=1, delay=0.01))
        wanted = {
            b"once": 1,
            b"as the group says": 2,
            b"three": 3,
            b"times": 3,
            b"as the group says too": 2,
            b"produced": 1,
            b"in a transaction": 3,
            b"delayed": 1,
        }
        async with entered(mq.consumer(topic, group="g", retry=TWICE)) as consumer:
            tried = await fail_all(consumer, sum(wanted.values()))
        assert sorted(tried) == sorted((body, n + 1) for body, most in wanted.items() for n in range(most))
        assert await dead_of(mq, topic, 8) == wanted


async def test_a_message_tells_its_number_and_keeps_it_when_it_is_sent_again(
    connect: Any, url: str, topic: str
) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"once", attempts=1, timeout=30))
        await do(mq.send(topic, b"any"))
        async with entered(mq.consumer(topic, group="g", retry=TWICE)) as consumer:
            told: dict[bytes, Any] = {}
            while len(told) < 2:
                for message in await do(consumer.pull(wait=5)):
                    told[message.body] = message.max_attempts, message.timeout
                    message.dead("no")
            await do(consumer.flush())
            assert told == {b"once": (1, 30.0), b"any": (None, None)}
            await dead_of(mq, topic, 2)
            await do(mq.resend(topic, "g"))
            # It begins anew, with the number that it had.
            tried = await fail_all(consumer, 3)
            assert sorted(tried) == [(b"any", 1), (b"any", 2), (b"once", 1)]


async def test_a_consumer_that_vanishes_counts_as_an_attempt(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"any", b"thing"]))
        await do(mq.send(topic, b"once", attempts=1))
        often = RetryPolicy(1_000, (0.0,))
        seen: set[bytes] = set()
        async with entered(mq.consumer(topic, group="g", name="slow", lease_timeout=0.2, retry=often)) as consumer:
            while b"once" not in seen:
                seen |= set((await do(consumer.pull(wait=5))).bodies())
            assert await dead_of(mq, topic, 1) == {b"once": 1}


async def test_wrong_numbers_are_refused(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        for wrong in (0, -1, 10_001, 1.5, True):
            with pytest.raises(BadRequest, match=f"attempts={wrong}"):
                await do(mq.send(topic, b"x", attempts=wrong))
