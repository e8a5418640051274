"""Consumers and broken connections, on both clients, against a broker that breaks them by script."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.either import do, each, entered
from tests.client.peer import Peer, Visitor, pulled
from tests.inside.client import LostLease
from tests.inside.protocol import Act, Beat, Detach, Done, Pull, Pulled, Request, Settle, Settled
from towline.errors import LeaseLost

KEPT_S = 0.5
"""How long a broker keeps what a consumer holds whose connection broke."""


def consuming(consumer_script: Callable[[Peer, Visitor], None], **welcome: Any) -> Callable[[Peer], None]:
    """A client that makes one consumer: its first connection idles, the second is the consumer's."""

    def script(peer: Peer) -> None:
        client = peer.accept()
        client.meet(**welcome)
        visitor = peer.accept()
        visitor.greet(**welcome)
        visitor.attach()
        consumer_script(peer, visitor)

    return script


def leaves(visitor: Visitor) -> None:
    visitor.expect(Detach)
    visitor.answer(Done())


async def test_a_consumer_comes_back_with_what_it_holds(connect: Any) -> None:
    def script(peer: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a", b"b"]))
        visitor.hang_up()
        visitor = peer.accept()
        visitor.greet()
        assert visitor.attach(held=[41]).holding == [41]
        settle = visitor.expect(Settle)
        assert [(act.what, act.pull, act.spans) for act in settle.acts] == [(0, 41, [])]
        assert settle.subscription == 7
        visitor.answer(Settled())
        leaves(visitor)

    with Peer(consuming(script)) as peer:
        async with entered(connect(peer.url)) as mq, entered(mq.consumer("orders", group="g")) as consumer:
            batch = await do(consumer.pull())
            assert batch.bodies() == [b"a", b"b"]
            await do(batch.ack())
            assert consumer.lost == 0


async def test_what_is_not_held_any_more_is_dropped(connect: Any) -> None:
    lost: list[LostLease] = []
    begun = threading.Event()

    def script(peer: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a", b"b", b"c"]))
        # The next is asked for while the first is worked on; instead of an answer the connection breaks.
        visitor.expect(Pull)
        assert begun.wait(60)
        visitor.hang_up()
        visitor = peer.accept()
        visitor.greet()
        assert visitor.attach(held=[]).holding == [41]
        visitor.expect(Pull)
        visitor.answer(*pulled(42, [b"d"], first=3))
        while not isinstance(request := visitor.next(), Detach):
            if isinstance(request, Settle | Pull) and request.acts:
                assert {act.pull for act in request.acts} == {42}
            visitor.answer(Settled() if isinstance(request, Settle) else Pulled(0, []))
        visitor.answer(Done())

    with Peer(consuming(script)) as peer:
        async with entered(connect(peer.url)) as mq:
            opening = mq.consumer("orders", group="g", max_messages=3, on_lost=lost.append, ack_interval=0.01)
            async with entered(opening) as consumer:
                seen = []
                async for message in each(consumer):
                    seen.append(message.body)
                    if message.body == b"a":
                        begun.set()
                        while not message.lost:
                            await asyncio.sleep(0.01)
                    message.ack()
                    if message.body == b"d":
                        break
                assert seen == [b"a", b"d"]
                assert [(one.pull, one.count) for one in lost] == [(41, 3)]
                assert consumer.lost == 3


async def test_an_unanswered_ack_is_told_again(connect: Any) -> None:
    def script(peer: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a", b"b", b"c"]))
        first = visitor.expect(Settle)
        visitor.hang_up()
        visitor = peer.accept()
        visitor.greet()
        visitor.attach(held=[41])
        assert visitor.expect(Settle).acts == first.acts
        assert [(act.what, act.spans, act.reason) for act in first.acts] == [
            (1, [(1, 1, 1)], "bad"),
            (0, [(1, 0, 1)], ""),
        ]
        visitor.answer(Settled())
        leaves(visitor)

    with Peer(consuming(script)) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.consumer("orders", group="g", ack_interval=60)) as consumer,
        ):
            a, b, _ = await do(consumer.pull())
            a.ack()
            b.nack("bad")
            await do(consumer.flush())


async def test_a_refused_ack_raises_and_the_batch_is_lost(connect: Any) -> None:
    def script(_: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a"]))
        visitor.expect(Settle)
        visitor.answer(Settled([(0, "lease-lost", "too late")]))
        leaves(visitor)

    with Peer(consuming(script)) as peer:
        async with entered(connect(peer.url)) as mq, entered(mq.consumer("orders", group="g")) as consumer:
            batch = await do(consumer.pull())
            with pytest.raises(LeaseLost, match="too late"):
                await do(batch.ack())
            assert batch.lost


async def test_a_consumer_that_was_given_up_attaches_again(connect: Any) -> None:
    """The broker did not hear of it for too long. Its name is its own, so nobody can have taken its place."""
    lost: list[LostLease] = []

    def script(_: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a"]))
        visitor.expect(Pull)
        visitor.fail("lease-lost", "not heard of for too long")
        assert visitor.attach().holding == []
        visitor.expect(Pull)
        visitor.answer(*pulled(42, [b"a"]))
        leaves(visitor)

    with Peer(consuming(script)) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.consumer("orders", group="g", on_lost=lost.append)) as consumer,
        ):
            first = await do(consumer.pull())
            second = await do(consumer.pull(wait=60))
            assert first.lost
            assert not second.lost
            assert [(one.pull, one.count) for one in lost] == [(41, 1)]


async def test_a_consumer_with_a_name_tells_the_user_first(connect: Any) -> None:
    """Another one may have come under the same name: the two would take the messages from each other for ever."""

    def script(_: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.fail("lease-lost", "replaced by another of the same name")
        visitor.attach()
        visitor.expect(Pull)
        visitor.answer(*pulled(42, [b"a"]))
        leaves(visitor)

    with Peer(consuming(script)) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.consumer("orders", group="g", name="me")) as consumer,
        ):
            with pytest.raises(LeaseLost, match="same name"):
                await do(consumer.pull())
            assert (await do(consumer.pull(wait=60))).bodies() == [b"a"]


async def test_a_busy_consumer_beats(connect: Any) -> None:
    """The handler is busy, and nothing is asked: only the heartbeat speaks."""
    beats: list[Request] = []

    def script(_: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a"]))
        while len(beats) < 4:
            beats.append(visitor.next())
            visitor.answer(Done())
        leaves(visitor)

    with Peer(consuming(script, heartbeat_s=2)) as peer:
        async with entered(connect(peer.url)) as mq, entered(mq.consumer("orders", group="g")) as consumer:
            await do(consumer.pull())
            while len(beats) < 4:
                await asyncio.sleep(0.01)
    assert all(isinstance(beat, Beat) for beat in beats)


async def test_a_busy_consumer_notices_the_break_and_comes_back_by_itself(connect: Any) -> None:
    back: list[float] = []
    tried = threading.Event()

    def script(peer: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a"]))
        # This process may be held up now and then, so it has several tries.
        while len(back) < 30 and min(back, default=1) >= KEPT_S:
            visitor.hang_up()
            broke = time.monotonic()
            visitor = peer.accept()
            visitor.greet()
            visitor.attach(held=[41])
            back.append(time.monotonic() - broke)
        tried.set()
        leaves(visitor)

    with Peer(consuming(script)) as peer:
        async with entered(connect(peer.url)) as mq, entered(mq.consumer("orders", group="g")) as consumer:
            await do(consumer.pull())
            while not tried.is_set():
                await asyncio.sleep(0.01)
    assert min(back) < KEPT_S


async def test_a_silent_broker_is_given_up_by_the_heartbeat(connect: Any) -> None:
    back = []

    def script(peer: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a"]))
        again = peer.accept()
        again.greet(heartbeat_s=2)
        again.attach(held=[41])
        back.append(True)
        leaves(again)

    with Peer(consuming(script, heartbeat_s=2)) as peer:
        async with entered(connect(peer.url)) as mq, entered(mq.consumer("orders", group="g")) as consumer:
            await do(consumer.pull())
            while not back:
                await asyncio.sleep(0.01)


async def test_prefetched_messages_nobody_saw_are_given_back(connect: Any) -> None:
    def script(_: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a"]))
        visitor.expect(Pull)
        visitor.answer(*pulled(42, [b"b"], first=1))
        acts: list[Act] = []
        while not isinstance(request := visitor.next(), Detach):
            acts += getattr(request, "acts", [])
            visitor.answer(Settled() if isinstance(request, Settle) else Pulled(0, []))
        assert (3, 42) in [(act.what, act.pull) for act in acts]
        assert (0, 41) in [(act.what, act.pull) for act in acts]
        visitor.answer(Done())

    with Peer(consuming(script)) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.consumer("orders", group="g", max_messages=1, ack_interval=60)) as consumer,
        ):
            async for message in each(consumer):
                message.ack()
                while consumer.in_flight != 1:
                    await asyncio.sleep(0.01)
                break


async def test_the_last_messages_are_handed_out_before_more_is_asked_for(connect: Any) -> None:
    """A batch that is not full was the last of a backlog: the next pull waits for the handler, and carries the ack."""

    def script(_: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a"]))
        acts = list[Act]()
        while not isinstance(request := visitor.expect(Settle, Pull), Pull):  # the heartbeat may come in between
            assert isinstance(request, Settle)
            acts += request.acts
            visitor.answer(Settled())
        acts += request.acts
        assert [(act.what, act.pull, act.spans) for act in acts] == [(0, 41, [])]
        visitor.answer(Pulled(0, []))
        leaves(visitor)

    with Peer(consuming(script)) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.consumer("orders", group="g", idle_timeout=0.0, ack_interval=60)) as consumer,
        ):
            seen = []
            async for message in each(consumer):
                with message:
                    seen.append(message.body)
            assert seen == [b"a"]
