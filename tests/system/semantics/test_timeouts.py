"""A message that is worked on for too long: the handler is interrupted, and it counts as failed."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

import towline
from tests.client.either import do, each, entered
from tests.eventually import eventually_done
from tests.inside.client import HandlerTimeout
from towline.errors import BadRequest, LeaseLost
from towline.model import RetryPolicy

QUICK = RetryPolicy(3, (0.01,))


async def test_with_message_is_interrupted_when_its_time_is_over(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"slow", timeout=0.5))
        await do(mq.send(topic, b"quick", timeout=5))
        await do(mq.send(topic, b"any"))
        done: dict[bytes, tuple[int, float | None]] = {}
        late: set[str] = set()
        async with entered(mq.consumer(topic, group="g", retry=RetryPolicy(100, (0.01,)))) as consumer:
            async for message in each(consumer):
                try:
                    with message:
                        if message.body == b"slow" and message.attempt == 1:
                            await spin(connect)
                except HandlerTimeout as error:
                    late.add(f"{message.body.decode()}: {error}")
                else:
                    done[message.body] = message.attempt, message.timeout
                if len(done) == 3:
                    break
        assert "slow: the message was worked on for longer than 0.5 s" in late
        # At least the second attempt: a machine that stands still in the middle of it costs another.
        assert done[b"slow"][0] >= 2
        assert {body: timeout for body, (_, timeout) in done.items()} == {b"any": None, b"quick": 5.0, b"slow": 0.5}


async def spin(connect: Any) -> None:
    """For ever: a coroutine that waits, or a thread that works."""
    if connect is towline.aio.connect:
        await asyncio.Event().wait()
    while True:
        time.sleep(0.001)


async def test_timeouts_travel_by_every_way_of_sending(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"one", timeout=100))
        await do(mq.send_many(topic, [b"many", b"many"], timeout=200))
        async with entered(mq.producer()) as producer:
            await do(producer.send(topic, b"none"))
            await do(producer.send(topic, b"producer", timeout=300))
        async with entered(mq.transaction()) as tx:
            await do(tx.send(topic, b"none"))
            await do(tx.send(topic, b"tx", timeout=400, ttl=60))
        await do(mq.send(topic, b"delayed", timeout=500, delay=0.01))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            seen: list[tuple[bytes, float | None, bool]] = []
            while len(seen) < 8:
                batch = await do(consumer.pull(wait=60))
                seen += [(message.body, message.timeout, message.expires_at is not None) for message in batch]
        assert seen == [
            (b"one", 100, False),
            (b"many", 200, False),
            (b"many", 200, False),
            (b"none", None, False),
            (b"producer", 300, False),
            (b"none", None, False),
            (b"tx", 400, True),
            (b"delayed", 500, False),
        ]
        for wrong in (0, -1, 1e9):
            with pytest.raises(BadRequest, match="timeout"):
                await do(mq.send(topic, b"x", timeout=wrong))


async def test_the_broker_takes_away_what_its_consumer_does_not_end(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"stuck", b"other"], timeout=2))
        await do(mq.send(topic, b"patient"))
        async with (
            entered(mq.consumer(topic, group="g", retry=QUICK)) as one,
            entered(mq.consumer(topic, group="g")) as two,
        ):
            batch = await do(one.pull(3, wait=60))
            stuck, other, patient = batch
            other.ack()
            await do(one.flush())
            again = await do(two.pull(wait=60))
            assert [(message.body, message.attempt) for message in again] == [(b"stuck", 2)]
            await do(again.ack())
            patient.ack()
            await do(one.flush())
            stuck.ack()
            await do(one.flush())
            assert stuck.lost
            assert one.lost
        trace = await do(mq.trace(again[0].id))
        steps = [step for group in trace.groups for step in group.steps]
        assert any(step.reason.startswith("timeout: not settled within 2 s") for step in steps), steps


async def test_who_settles_a_batch_learns_what_of_it_was_lost(connect: Any, url: str, topic: str) -> None:
    """One message of each batch has a limit, and is taken away; the rest is settled all the same."""
    reports: list[towline.LostLease] = []
    ways = ("ack", "nack", "up-to", "singly")
    async with entered(connect(url)) as mq:
        async with entered(mq.producer()) as producer:
            for number in range(5):
                for way in ways:
                    limit = 1.0 if number == 2 else None
                    await do(producer.send(f"{topic}-{way}", b"%d" % number, timeout=limit))
        async with AsyncExitStack() as stack:
            ones, batches = {}, {}
            for way in ways:
                opening = mq.consumer(f"{topic}-{way}", group="g", retry=QUICK, on_lost=reports.append)
                one = ones[way] = await stack.enter_async_context(entered(opening))
                batches[way] = await do(one.pull(5, wait=20, min_messages=5))
            for way in ways:
                one, batch = ones[way], batches[way]
                two = await stack.enter_async_context(entered(mq.consumer(f"{topic}-{way}", group="g")))
                [again] = await do(two.pull(wait=20))
                assert (again.body, again.attempt) == (b"2", 2)
                if way == "singly":
                    for message in batch:
                        message.ack()
                    await do(one.flush())
                else:
                    await do(mq.send(f"{topic}-{way}", b"5"))
                    last = await do(one.pull(wait=20)) if way == "up-to" else batch
                    with pytest.raises(LeaseLost, match=r"^1 of [56] messages .* within 1 s.* rest is settled"):
                        await do(last.nack("no") if way == "nack" else last.ack(up_to=way == "up-to"))
                    assert not reports
                assert [message.lost for message in batch] == [False, False, True, False, False]
                assert one.lost == 1
                assert one.in_flight == 0
                again.ack()
                await do(two.flush())
                state = await do(mq.group(f"{topic}-{way}", "g"))
                assert state.lag == {"singly": 0, "ack": 1, "nack": 5, "up-to": 0}[way]
        assert [(lost.count, lost.reason) for lost in reports] == [(1, "timeout: not settled within 1 s")]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("limit", ["message", "group", "handler"])
async def test_handlers_of_an_app_are_interrupted(url: str, topic: str, kind: str, limit: str) -> None:
    app = towline.App(url)
    seen: list[int] = []
    interrupted = threading.Event()

    def handle(message: towline.Message) -> None:
        seen.append(message.attempt)
        if message.attempt == 1:
            try:
                while True:
                    time.sleep(0.001)
            finally:
                interrupted.set()

    async def handle_async(message: towline.Message) -> None:
        seen.append(message.attempt)
        if message.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                interrupted.set()

    options: dict[str, Any] = {"timeout": 0.1} if limit == "handler" else {}
    app.on(topic, group="g", retry=QUICK, **options)(handle if kind == "sync" else handle_async)
    async with towline.aio.connect(url) as mq:
        if limit == "group":
            await mq.create_topic(topic)
            await mq.put_group(towline.GroupConfig(topic, "g", retry=QUICK, timeout_s=0.3))
        sent = await mq.send(topic, b"a", timeout=0.1 if limit == "message" else None)
        async with app, asyncio.timeout(60):
            while len(seen) < 2 or (await mq.group(topic, "g")).lag:
                await asyncio.sleep(0.01)
            # The broker takes it away at the same time, so the next attempt may begin before this one is interrupted.
            assert await asyncio.to_thread(interrupted.wait, 20)
            trace = await mq.trace(sent.id)
        # On a machine that stands still for a moment the second attempt is too late as well.
        assert seen[:2] == [1, 2]
        reasons = [step.reason for group in trace.groups for step in group.steps if step.reason]
        assert reasons, trace
        assert reasons[0].startswith("timeout: "), reasons


async def test_a_dead_letter_that_is_sent_again_keeps_its_timeout(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"a", timeout=7, key="k"))
        async with entered(mq.consumer(topic, group="g", retry=RetryPolicy(1, (0.01,)))) as consumer:
            (message,) = await do(consumer.pull(wait=60))
            message.nack("no")
            await do(consumer.flush())
            letters = await eventually_done(lambda: do(mq.dead_letters(topic, "g")))
            assert letters[0].timeout == 7
            await do(mq.resend(topic, "g"))
            (again,) = await do(consumer.pull(wait=60))
            assert (again.body, again.timeout) == (b"a", 7)
