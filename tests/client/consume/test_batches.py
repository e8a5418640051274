"""Going through a topic batch by batch, the next one under way meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.client.either import do, each, entered
from tests.inside.client import Reject, Retry
from towline.model import RetryPolicy

AT_ONCE = RetryPolicy(max_attempts=3, delays_s=(0,))


async def test_all_batches_come_in_order_and_are_acked_by_their_block(connect: Any, url: str, topic: str) -> None:
    bodies = [b"%d" % number for number in range(1000)]
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, bodies))
        async with entered(mq.consumer(topic, group="g", max_messages=64, idle_timeout=0.1)) as consumer:
            seen: list[bytes] = []
            async for batch in each(consumer.batches()):
                assert 0 < len(batch) <= 64
                async with entered(batch):
                    seen += batch.bodies()
            assert seen == bodies
            await do(consumer.flush())
        assert (await do(mq.group(topic, "g"))).lag == 0


async def test_what_a_block_fails_with_is_the_reason_and_what_was_acked_before_stays_acked(
    connect: Any, url: str, topic: str
) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"good", b"bad", b"worse"]))
        async with entered(mq.consumer(topic, group="g", retry=AT_ONCE, idle_timeout=60)) as consumer:
            seen: Counter[bytes] = Counter()

            async def check(batch: Any) -> None:
                async with entered(batch):
                    for message in batch:
                        seen[message.body] += 1
                        if message.body != b"good":
                            raise ValueError("no such order")
                        message.ack()

            async for batch in each(consumer.batches()):
                with pytest.raises(ValueError, match="no such order"):
                    await check(batch)
                break
            assert seen == {b"good": 1, b"bad": 1}
            async for batch in each(consumer.batches()):
                for message in batch:
                    seen[message.body] += 1
                    assert message.attempt == 2
                    message.dead("never")
                if seen.total() == 4:
                    break
            await do(consumer.flush())
        assert seen == {b"good": 1, b"bad": 2, b"worse": 1}
        letters = await do(mq.dead_letters(topic, "g"))
        assert sorted([letter.body async for letter in each(letters)]) == [b"bad", b"worse"]


async def test_a_block_may_ask_for_another_try_or_give_its_batch_up(connect: Any, url: str, topic: str) -> None:
    slow = RetryPolicy(max_attempts=3, delays_s=(600,))
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"one", b"two"]))
        async with entered(mq.consumer(topic, group="g", retry=slow, idle_timeout=60)) as consumer:
            seen: list[tuple[bytes, int]] = []

            async def fail(batch: Any) -> None:
                async with entered(batch):
                    seen.extend((message.body, message.attempt) for message in batch)
                    raise Retry("not yet", delay=0.05) if batch[0].attempt == 1 else Reject("never")

            async for batch in each(consumer.batches()):
                with pytest.raises((Retry, Reject)):
                    await fail(batch)
                if len(seen) == 4:
                    break
            await do(consumer.flush())
        assert sorted(seen) == [(b"one", 1), (b"one", 2), (b"two", 1), (b"two", 2)]
        letters = await do(mq.dead_letters(topic, "g"))
        assert sorted([(letter.body, letter.reason) async for letter in each(letters)]) == [
            (b"one", "never"), (b"two", "never"),
        ]  # fmt: skip


async def test_a_loop_over_messages_may_follow(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"%d" % number for number in range(10)]))
        async with entered(mq.consumer(topic, group="g", max_messages=5, idle_timeout=0.1)) as consumer:
            seen: list[bytes] = []
            async for batch in each(consumer.batches()):
                async with entered(batch):
                    seen += batch.bodies()
                break
            async for message in each(consumer):
                async with entered(message):
                    seen.append(message.body)
            assert seen == [b"%d" % number for number in range(10)]
