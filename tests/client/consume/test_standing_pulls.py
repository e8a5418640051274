"""Pulls that stand, through both clients: fewer requests than messages, and nothing lost or seen twice."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

import towline
from tests.client.conftest import Served
from tests.client.consume.test_reconnect import consuming
from tests.client.either import do, each, entered
from tests.client.peer import Peer, Visitor, pulled
from tests.inside.client import Buffer, Call, Connection
from tests.inside.protocol import Detach, Done, Pull, Pulled, Settle, Settled

COUNT = 1_000


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[Pull]:
    """All that are asked for in this process."""
    asked: list[Pull] = []
    submit = Connection.submit

    def noted(self: Connection, call: Call) -> list[Buffer]:
        if isinstance(call.request, Pull):
            asked.append(call.request)
        return submit(self, call)

    monkeypatch.setattr(Connection, "submit", noted)
    return asked


@pytest.fixture
def url(shared_broker: Served) -> str:
    return f"towline://{shared_broker.address}"


def one_by_one(url: str, topic: str, count: int = COUNT) -> threading.Thread:
    """Somebody sends so many messages, each by itself."""

    def work() -> None:
        with towline.connect(url) as mq:
            for number in range(count):
                mq.send(topic, b"%d" % number)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


async def test_messages_sent_one_by_one_need_far_fewer_pulls(
    connect: Any, url: str, topic: str, pulls: list[Pull]
) -> None:
    seen: list[bytes] = []
    async with entered(connect(url)) as mq:
        async with entered(mq.consumer(topic, group="g", idle_timeout=60)) as consumer:
            sender = one_by_one(url, topic)
            async for message in each(consumer):
                seen.append(message.body)
                message.ack()
                if len(seen) == COUNT:
                    break
            await asyncio.to_thread(sender.join)
            assert consumer.lost == 0
        state = await do(mq.group(topic, "g"))
        assert (state.lag, state.in_flight) == (0, 0), "all is acked when the consumer is closed"
    assert seen == [b"%d" % number for number in range(COUNT)]
    assert 2 * len(pulls) < COUNT


async def test_pulls_of_ones_own_go_on_where_an_iteration_was_left(
    connect: Any, url: str, topic: str, pulls: list[Pull]
) -> None:
    seen: list[bytes] = []
    async with entered(connect(url)) as mq:
        async with entered(mq.consumer(topic, group="g", idle_timeout=60)) as consumer:
            sender = one_by_one(url, topic)
            while len(seen) < COUNT:
                async for message in each(consumer):
                    seen.append(message.body)
                    message.ack()
                    if len(seen) % 50 == 0:
                        break
                if len(seen) < COUNT:
                    batch = await do(consumer.pull(2, wait=60))
                    assert 1 <= len(batch) <= 2
                    seen += batch.bodies()
                    await do(batch.ack())
            await asyncio.to_thread(sender.join)
        state = await do(mq.group(topic, "g"))
        assert (state.lag, state.in_flight) == (0, 0)
    assert sorted(map(int, seen)) == list(range(COUNT))
    assert any(pull.answers > 1 for pull in pulls)


async def test_two_consumers_that_stand_share_the_work(connect: Any, url: str, topic: str) -> None:
    seen: list[bytes] = []

    async def work(mq: Any) -> None:
        async with entered(mq.consumer(topic, group="g", idle_timeout=3)) as consumer:
            async for message in each(consumer):
                seen.append(message.body)
                message.ack()

    def in_thread() -> None:
        async def main() -> None:
            async with entered(connect(url)) as mq:
                await work(mq)

        asyncio.run(main())

    threads = [threading.Thread(target=in_thread) for _ in range(2)]
    for thread in threads:
        thread.start()
    sender = one_by_one(url, topic, 400)
    for thread in (*threads, sender):
        await asyncio.to_thread(thread.join)
    async with entered(connect(url)) as mq:
        state = await do(mq.group(topic, "g"))
        assert (state.lag, state.in_flight) == (0, 0)
    assert sorted(map(int, seen)) == list(range(400))


async def test_a_connection_that_breaks_while_a_pull_stands_loses_nothing(connect: Any) -> None:
    def script(peer: Peer, visitor: Visitor) -> None:
        number = 0
        while True:
            number += 1
            pull = _next_pull(visitor)
            answer, frame = pulled(number, [b"%d" % number], first=number)
            if pull.answers > 1:
                break
            visitor.answer(answer, frame)
        visitor.answer(msgspec.structs.replace(answer, more=True), frame)
        visitor.hang_up()
        visitor = peer.accept()
        visitor.greet()
        attach = visitor.attach(held=[number])
        assert set(attach.holding) <= set(range(1, number + 1))
        again = _next_pull(visitor)
        assert (again.answers, again.acts) == (pull.answers, [])
        for following in (number + 1, number + 2):
            answer, frame = pulled(following, [b"last"], first=following)
            visitor.answer(msgspec.structs.replace(answer, more=following == number + 1), frame)
        _until_gone(visitor)

    with Peer(consuming(script)) as peer:
        async with entered(connect(peer.url)) as mq, entered(mq.consumer("orders", group="g")) as consumer:
            seen = []
            async for message in each(consumer):
                seen.append(message.body)
                message.ack()
                if seen.count(b"last") == 2:
                    break
            assert seen[:-2] == [b"%d" % number for number in range(1, len(seen) - 1)]


def _next_pull(visitor: Visitor) -> Pull:
    """What is settled on the way is answered."""
    while True:
        request = visitor.next()
        if isinstance(request, Pull):
            return request
        visitor.answer(Settled() if isinstance(request, Settle) else Done())


def _until_gone(visitor: Visitor) -> None:
    while True:
        request = visitor.next()
        kinds: dict[Any, Any] = {Settle: Settled(), Pull: Pulled(0, [])}
        visitor.answer(kinds.get(type(request), Done()))
        if isinstance(request, Detach):
            return
