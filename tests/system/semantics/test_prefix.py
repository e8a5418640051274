"""Subscribing by prefix: all topics under it, and those that are made later."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import towline
from tests.client.either import do, each, entered
from tests.eventually import eventually_done
from towline.errors import BadName, LeaseLost
from towline.model import RetryPolicy

QUICK = RetryPolicy(3, (0.01,))


async def test_a_prefix_takes_in_what_is_there_and_what_comes(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, entered(connect(url)) as other:
        await do(mq.create_topic(f"{topic}.ordered", shards=2))
        await do(mq.send(f"{topic}.a", b"a0"))
        await do(mq.send(f"{topic}.ordered", b"o0", key="k"))
        await do(mq.send(f"{topic}-else", b"not for us"))
        async with entered(mq.consumer(f"{topic}.*", group="g", retry=QUICK)) as consumer:
            assert consumer.topic == f"{topic}.*"
            seen = []
            for _ in range(2):
                batch = await do(consumer.pull(wait=60))
                seen += [(message.topic, message.body) for message in batch]
                assert {message.topic for message in batch} == {batch[0].topic}
                await do(batch.ack())
            assert sorted(seen) == [(f"{topic}.a", b"a0"), (f"{topic}.ordered", b"o0")]

            async def send_later() -> None:
                await asyncio.sleep(0.05)
                await do(other.send(f"{topic}.new", b"n0", key="k"))

            sending = asyncio.create_task(send_later())
            if connect is towline.connect:
                await sending
            [message] = await do(consumer.pull(wait=20))
            await sending
            assert (message.topic, message.body, message.id) == (f"{topic}.new", b"n0", f"{topic}.new/middle/0")
            message.nack("not yet", delay=0.0)
            [again] = await do(consumer.pull(wait=60))
            assert (again.topic, again.attempt) == (f"{topic}.new", 2)
            again.ack()
            await do(consumer.flush())
            groups = await do(mq.groups(f"{topic}.*"))
            assert {group.config.topic: group.lag for group in groups} == {
                f"{topic}.a": 0,
                f"{topic}.new": 0,
                f"{topic}.ordered": 0,
            }
        for wrong in ("Orders.*", "orders.*.x", ".*"):
            with pytest.raises(BadName):
                async with entered(mq.consumer(wrong, group="g")):
                    pass


async def test_topics_take_turns_and_iteration_settles_each_at_its_own(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        names = [f"{topic}.{name}" for name in "abc"]
        for name in names:
            await do(mq.send_many(name, [b"%d" % number for number in range(300)]))
        order: list[str] = []
        seen = 0
        async with entered(mq.consumer(f"{topic}.*", group="g", max_messages=100)) as consumer:
            async for message in each(consumer):
                with message:
                    if not order or order[-1] != message.topic:
                        order.append(message.topic)
                seen += 1
                if seen == 900:
                    break
        assert sorted(order[:3]) == names, "one after the other"
        # More turns, if the machine stood still for so long that a consumer takes less at a time.
        assert min(Counter(order)[name] for name in names) >= 3, order
        assert [group.lag for group in await do(mq.groups(f"{topic}.*"))] == [0, 0, 0]


async def test_acking_up_to_a_pull_reaches_over_topics(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        for name in "abc":
            await do(mq.send(f"{topic}.{name}", name.encode()))
        async with entered(mq.consumer(f"{topic}.*", group="g")) as consumer:
            batches = [await do(consumer.pull(1, wait=60)) for _ in range(3)]
            await do(batches[1].ack(up_to=True))
            lags = [group.lag for group in await do(mq.groups(f"{topic}.*"))]
            assert sum(lags) == 1
            await do(batches[2].ack())
            await do(mq.delete_topic(f"{topic}.a"))
            await do(mq.send(f"{topic}.a", b"anew"))
            [message] = await do(consumer.pull(wait=60))
            assert message.body == b"anew"
            message.ack()


async def test_an_app_handles_topics_that_come_later(url: str, topic: str) -> None:
    app = towline.App(url)
    seen: list[tuple[str, int]] = []
    done = asyncio.Event()

    @app.on(f"{topic}.*", group="g", concurrency=4, retry=QUICK)
    async def handle(message: towline.Message) -> None:
        seen.append((message.topic, message.attempt))
        if message.topic.endswith(".late") and message.attempt == 1:
            raise ValueError("once more")
        if len(seen) == 3:
            done.set()

    async with towline.aio.connect(url) as mq:
        await mq.send(f"{topic}.early", b"x")
        async with app:
            await eventually_done(lambda: seen)
            await mq.send(f"{topic}.late", b"x")
            await done.wait()
    assert seen == [(f"{topic}.early", 1), (f"{topic}.late", 1), (f"{topic}.late", 2)]


async def test_a_pull_waits_for_a_number_of_messages_of_one_topic(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        for name in "ab":
            await do(mq.send_many(f"{topic}.{name}", [b"1", b"2"]))
        await do(mq.send_many(f"{topic}.full", [b"x"] * 3))
        async with entered(mq.consumer(f"{topic}.*", group="g")) as consumer:
            enough = await do(consumer.pull(wait=20, min_messages=3))
            assert {message.topic for message in enough} == {f"{topic}.full"}
            assert len(enough) == 3
            await do(enough.ack())
            # Nobody has so many: when the time is over, what there is, a topic at a time.
            few = [await do(consumer.pull(wait=0.05, min_messages=3)) for _ in range(2)]
            assert [len(batch) for batch in few] == [2, 2]
            assert {batch[0].topic for batch in few} == {f"{topic}.a", f"{topic}.b"}
            for batch in few:
                await do(batch.ack())
            await do(mq.send_many(f"{topic}.a", [b"3", b"4"]))
            await do(mq.send_many(f"{topic}.new", [b"1"] * 5))
            assert {message.topic for message in await do(consumer.pull(wait=20, min_messages=4))} == {f"{topic}.new"}
            # What was too little for one pull is enough for the next.
            assert len(await do(consumer.pull(wait=20))) == 2
            assert not await do(consumer.pull(wait=0))


async def test_a_pull_that_waits_for_a_number_is_woken_by_the_last_of_them(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, towline.aio.connect(url) as other:
        await do(mq.send_many(f"{topic}.a", [b"1", b"2"]))
        async with entered(mq.consumer(f"{topic}.*", group="g")) as consumer:
            if connect is towline.aio.connect:
                waiting = asyncio.create_task(consumer.pull(wait=60, min_messages=4))
            else:
                waiting = asyncio.create_task(asyncio.to_thread(consumer.pull, wait=60, min_messages=4))
            for body in (b"3", b"4"):
                await asyncio.sleep(0.05)
                assert not waiting.done()
                await other.send(f"{topic}.a", body)
            assert (await waiting).bodies() == [b"1", b"2", b"3", b"4"]


async def test_an_ack_up_to_a_pull_that_is_lost_acks_nothing_elsewhere(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        for name in "ab":
            await do(mq.send(f"{topic}.{name}", name.encode()))
        async with entered(mq.consumer(f"{topic}.*", group="g")) as consumer:
            _, second = [await do(consumer.pull(1, wait=20)) for _ in range(2)]
            await do(mq.seek(second[0].topic, "g", "latest"))
            with pytest.raises(LeaseLost):
                await do(second.ack(up_to=True))
            lags = {group.config.topic: group.lag for group in await do(mq.groups(f"{topic}.*"))}
            assert lags.pop(second[0].topic) == 0
            assert list(lags.values()) == [1], "still held"
