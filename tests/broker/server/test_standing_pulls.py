"""Pulls that stand: several answers under one number, and all that ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.broker.process import BrokerProcess
from tests.broker.raw_client import RawClient, open_pulled
from tests.eventually import eventually, eventually_done
from tests.inside.broker import HOLD_WRITING, Broker, Server
from tests.inside.protocol import (
    Act,
    Attach,
    Attached,
    Detach,
    Done,
    Failed,
    GroupInfo,
    GroupState,
    Pull,
    Pulled,
    Settle,
    Settled,
    decode_answer,
    encode_envelope,
)
from tests.inside.store import MemoryStore, Read
from towline.errors import Stopping
from towline.model import GroupConfig

Told = tuple[int, list[bytes], bool]
NOTHING: list[bytes] = []
WAIT_MS = 300_000


def told(client: RawClient) -> Told:
    """The next answer, which is to a pull: its number, the messages, and whether there are more answers to come."""
    envelope = client.read_envelope()
    assert envelope is not None, "the broker closed the connection"
    answer = decode_answer(envelope)
    assert isinstance(answer, Pulled), answer
    return envelope.number, open_pulled(envelope)[1], answer.more


def until_waiting(other: RawClient) -> None:
    """Asked by another client than the one that waits."""
    eventually(lambda: other.call(GroupInfo("t", "g"), GroupState).members[0].waiting)


def standing(subscription: int, answers: int = 10, wait_ms: int = WAIT_MS, **fields: Any) -> Pull:
    return Pull(subscription, 100, 1 << 20, wait_ms, answers=answers, **fields)


@asynccontextmanager
async def pair(server: Server) -> AsyncIterator[tuple[RawClient, RawClient]]:
    """A consumer and a producer."""
    client = await asyncio.to_thread(RawClient.hello, server.port)
    producer = await asyncio.to_thread(RawClient.hello, server.port)
    with client, producer:
        yield client, producer


def in_thread(use: Callable[[RawClient, RawClient], None]) -> Callable[[Server, Broker], Any]:
    """A scenario of a consumer and a producer."""

    async def scenario(server: Server, broker: Broker) -> None:
        async with pair(server) as (client, producer):
            await asyncio.to_thread(use, client, producer)

    return scenario


def test_one_pull_is_answered_as_often_as_it_says(run: Callable[..., None]) -> None:
    def use(client: RawClient, producer: RawClient) -> None:
        subscription = client.attach("t")
        number = client.post(standing(subscription, answers=3))
        client.knock()
        for body, more in [(b"a", True), (b"b", True), (b"c", False)]:
            producer.send("t", [body])
            assert told(client) == (number, [body], more)
        producer.send("t", [b"d"])
        client.knock()
        assert client.pull(subscription) == [b"d"], "nothing comes unasked"

    run(in_thread(use))


def test_much_at_once_is_the_last_answer(run: Callable[..., None]) -> None:
    def use(client: RawClient, producer: RawClient) -> None:
        subscription = client.attach("t")
        number = client.post(Pull(subscription, 4, 1 << 20, WAIT_MS, answers=10))
        client.knock()
        producer.send("t", [b"a"])
        assert told(client) == (number, [b"a"], True)
        producer.send("t", [b"b", b"c"])
        assert told(client) == (number, [b"b", b"c"], False)

    run(in_thread(use))


def test_it_ends_when_its_time_is_over(run: Callable[..., None]) -> None:
    def use(client: RawClient, producer: RawClient) -> None:
        subscription = client.attach("t")
        number = client.post(standing(subscription, wait_ms=1_000))
        client.knock()
        producer.send("t", [b"a"])
        assert told(client) == (number, [b"a"], True)
        assert told(client) == (number, NOTHING, False)
        assert client.call(GroupInfo("t", "g"), GroupState).members[0].waiting is False

    run(in_thread(use))


def test_another_pull_ends_it(run: Callable[..., None]) -> None:
    def use(client: RawClient, producer: RawClient) -> None:
        subscription = client.attach("t")
        first = client.post(standing(subscription))
        client.knock()
        producer.send("t", [b"a"])
        assert told(client) == (first, [b"a"], True)
        second = client.post(standing(subscription))
        assert told(client) == (first, NOTHING, False)
        until_waiting(producer)
        producer.send("t", [b"b"])
        assert told(client) == (second, [b"b"], True)

    run(in_thread(use))


def test_a_pull_that_does_not_stand_is_ended_by_no_other(run: Callable[..., None]) -> None:
    def use(client: RawClient, producer: RawClient) -> None:
        subscription = client.attach("t")
        number = client.post(standing(subscription, answers=1))
        assert client.call(Pull(subscription, 1, 1, 0), Failed).code == "conflict"
        producer.send("t", [b"a"])
        assert told(client) == (number, [b"a"], False)

    run(in_thread(use))


def test_what_comes_with_a_pull_that_is_ended_at_once_is_carried_out(run: Callable[..., None]) -> None:
    def use(client: RawClient, producer: RawClient) -> None:
        subscription = client.attach("t")
        producer.send("t", [b"a"])
        pull, _ = client.pull_with_id(subscription)
        acts = [Act(0, pull), Act(0, 4711)]
        # In one write: the broker takes the second before the first has begun.
        pulls = [standing(subscription, acts=acts), Pull(subscription, 1, 1, 0)]
        client.write(b"".join(encode_envelope(100 + at, one) for at, one in enumerate(pulls)))
        first, second = client.read(), client.read()
        assert first is not None
        assert isinstance(first[1], Pulled)
        assert (first[0], first[1].pull, first[1].more) == (100, 0, False)
        assert [(at, code) for at, code, _ in first[1].refused] == [(1, "lease-lost")]
        assert second == (101, Pulled(0, []))
        assert client.call(GroupInfo("t", "g"), GroupState).in_flight == 0

    run(in_thread(use))


@pytest.mark.parametrize("mode", ["at-least-once", "at-most-once"])
def test_what_it_reads_when_another_pull_comes_is_its_last_answer(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()
    read = MemoryStore.read

    async def slowly(self: MemoryStore, stream: str, first: int, max_count: int, max_bytes: int) -> Read:
        reading.set()
        await go_on.wait()
        return await read(self, stream, first, max_count, max_bytes)

    async def scenario(server: Server, broker: Broker) -> None:
        large, loop = bytes(10_000), asyncio.get_running_loop()
        config = GroupConfig("t", "g", mode=mode)

        def begin(client: RawClient, producer: RawClient) -> int:
            subscription = client.call(Attach("t", "g", "c", config), Attached).subscription
            client.post(standing(subscription))
            client.knock()
            producer.send("t", [large])
            return subscription

        def go_on_with(client: RawClient, subscription: int) -> None:
            first = client.number - 1
            second = client.post(standing(subscription, wait_ms=0))
            third = client.post(standing(subscription))
            refused = client.read()
            assert refused is not None
            assert refused[0] == third, "one may wait for the end of another, no more"
            assert isinstance(refused[1], Failed)
            loop.call_soon_threadsafe(go_on.set)
            assert told(client) == (first, [large], False)
            assert told(client) == (second, NOTHING, False)

        monkeypatch.setattr(MemoryStore, "read", slowly)
        async with pair(server) as (client, producer):
            subscription = await asyncio.to_thread(begin, client, producer)
            await reading.wait()
            await asyncio.to_thread(go_on_with, client, subscription)

    run(scenario)


def test_detaching_ends_it(run: Callable[..., None]) -> None:
    def use(client: RawClient, producer: RawClient) -> None:
        subscription = client.attach("t")
        number = client.post(standing(subscription))
        client.knock()
        producer.send("t", [b"a"])
        assert told(client) == (number, [b"a"], True)
        detach = client.post(Detach(subscription))
        answers = dict([client.read() or (0, Done()), client.read() or (0, Done())])
        assert answers == {number: Pulled(0, []), detach: Done()}
        assert client.pull(client.attach("t", consumer="other")) == [b"a"], "it is given back"

    run(in_thread(use))


def test_who_takes_over_ends_it(run: Callable[..., None]) -> None:
    def use(client: RawClient, producer: RawClient) -> None:
        number = client.post(standing(client.attach("t")))
        client.knock()
        producer.send("t", [b"a"])
        assert told(client) == (number, [b"a"], True)
        subscription = producer.attach("t")
        assert told(client) == (number, NOTHING, False)
        assert producer.pull(subscription) == [b"a"]

    run(in_thread(use))


def test_many_topics_answer_once_and_another_pull_ends_that(run: Callable[..., None]) -> None:
    def use(client: RawClient, producer: RawClient) -> None:
        producer.send("shop.orders", [b"a"])
        subscription = client.attach("shop.*")
        producer.send("shop.stock", [b"b"])
        number = client.post(standing(subscription))
        assert told(client)[::2] == (number, False)
        number = client.post(standing(subscription))
        assert told(client)[::2] == (number, False)
        first = client.post(standing(subscription))
        client.knock()
        second = client.post(standing(subscription))
        assert told(client) == (first, NOTHING, False)
        producer.send("shop.stock", [b"c"])
        assert told(client) == (second, [b"c"], False)

    run(in_thread(use))


def test_one_who_does_not_read_gets_one_answer_more(run: Callable[..., None]) -> None:
    async def scenario(server: Server, broker: Broker) -> None:
        def begin(client: RawClient, producer: RawClient) -> None:
            large, small = client.attach("large"), client.attach("small")
            client.post(standing(small))
            client.knock()
            producer.send("large", [bytes(15 << 20)])
            client.post(Pull(large, 100, 100 << 20, 0))

        def send(producer: RawClient) -> None:
            for number in range(3):
                producer.send("small", [b"%d" % number])

        def read(client: RawClient) -> list[Told]:
            assert len(told(client)[1]) == 1
            answers = [told(client)]
            client.knock()
            return answers

        async with pair(server) as (client, producer):
            await asyncio.to_thread(begin, client, producer)
            await eventually_done(lambda: any(one._held & HOLD_WRITING for one in server._line.connections))
            await asyncio.to_thread(send, producer)
            assert await asyncio.to_thread(read, client) == [(4, [b"0"], False)]

    run(scenario, max_pending_bytes=256 << 20)


def test_a_broker_that_stops_answers_it() -> None:
    with BrokerProcess() as broker, RawClient.hello(broker.port) as client, RawClient.hello(broker.port) as producer:
        number = client.post(standing(client.attach("t")))
        client.knock()
        producer.send("t", [b"a"])
        assert told(client) == (number, [b"a"], True)
        broker.stop()
        assert client.last_words() == [Pulled(0, []), Failed(Stopping.code, str(Stopping()))]
        for one in (client, producer):
            one.socket.close()
        assert broker.wait() == 0


def test_what_it_brings_is_settled_meanwhile(run: Callable[..., None]) -> None:
    def use(client: RawClient, producer: RawClient) -> None:
        subscription = client.attach("t")
        client.post(standing(subscription))
        client.knock()
        pulls = []
        for number in range(5):
            producer.send("t", [b"%d" % number])
            envelope = client.read_envelope()
            assert envelope is not None
            pulls.append(open_pulled(envelope)[0])
        assert client.call(Settle(subscription, [Act(0, pull) for pull in pulls]), Settled) == Settled()
        state = client.call(GroupInfo("t", "g"), GroupState)
        assert (state.in_flight, state.lag, state.members[0].waiting) == (0, 0, True)

    run(in_thread(use))
