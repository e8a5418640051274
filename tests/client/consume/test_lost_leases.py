"""A consumer learns within a heartbeat that it has lost messages, whatever it does meanwhile; on both clients."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import towline
from tests.client.conftest import ROOT
from tests.client.consume.test_reconnect import consuming, leaves
from tests.client.either import do, each, entered
from tests.client.peer import Peer, Visitor, pulled
from tests.eventually import eventually_done
from tests.inside.client import Connection, HeartbeatTimer, LostLease, PullLimits, Subscription
from tests.inside.protocol import (
    ACK,
    GIVE_BACK,
    Act,
    Attach,
    Attached,
    Beat,
    Done,
    Held,
    Pull,
    Pulled,
    Settle,
    Settled,
    Welcome,
)
from tests.unit.client.test_lease import lease_of
from towline import Message
from towline.errors import LeaseLost
from towline.model import GroupConfig

HEARTBEAT_S = 1.5


async def rob(mq: Any, topic: str, consumer: Any, how: str) -> None:
    """Take from a consumer what it holds; of what has a time, that runs out by itself."""
    if how == "is kicked out":
        await do(mq.kick(topic, "g", consumer.name))
    elif how == "is moved":
        await do(mq.seek(topic, "g", "earliest"))


@pytest.mark.parametrize("how", ["is kicked out", "is moved", "took too long", "took too long with a message"])
@pytest.mark.parametrize("name", [None, "me"])
async def test_a_busy_consumer_is_told_what_it_has_lost(connect: Any, topic: str, how: str, name: str | None) -> None:
    lost: list[LostLease] = []
    timeout = 0.2 if how == "took too long with a message" else None
    async with entered(connect(f"memory:{topic}?heartbeat_s={HEARTBEAT_S}")) as mq:
        options = {"lease_timeout": 0.3 if how == "took too long" else 0.0, "on_lost": lost.append}
        async with entered(mq.consumer(topic, group="g", name=name, **options)) as consumer:
            await do(mq.send_many(topic, [b"a", b"b"], timeout=timeout))
            batch = await do(consumer.pull(wait=60, min_messages=2))
            assert not any(message.lost for message in batch)
            await rob(mq, topic, consumer, how)
            await eventually_done(lambda: all(message.lost for message in batch))
            await eventually_done(lambda: lost)
            assert [(one.topic, one.count) for one in lost] == [(topic, 2)]
            assert consumer.lost == 2
            with pytest.raises(LeaseLost):
                await do(batch.ack())


@pytest.mark.parametrize("how", ["is kicked out", "took too long with a message"])
async def test_an_iteration_passes_over_what_was_lost(connect: Any, topic: str, how: str) -> None:
    bodies: list[bytes] = []
    async with entered(connect(f"memory:{topic}?heartbeat_s={HEARTBEAT_S}")) as mq:
        await do(mq.send_many(topic, [b"a", b"b", b"c"], timeout=0.2 if how != "is kicked out" else None))
        async with entered(mq.consumer(topic, group="g", prefetch=0)) as consumer:
            async for message in each(consumer):
                bodies.append(message.body)
                if message.attempt == 1 and len(bodies) == 1:
                    await rob(mq, topic, consumer, how)
                    await eventually_done(lambda message=message: message.lost)  # type: ignore[misc]
                message.ack()  # of one that is lost it says nothing
                if len(bodies) == 4:
                    break
            await do(consumer.flush())
        assert bodies == [b"a", b"a", b"b", b"c"]
        assert (await do(mq.group(topic, "g"))).lag == 0


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_an_app_drops_the_work_on_what_it_has_lost(topic: str, kind: str) -> None:
    begun: list[int] = []
    dropped: list[str] = []
    app = towline.App(f"memory:{topic}?heartbeat_s={HEARTBEAT_S}")

    def first(message: Message) -> bool:
        begun.append(message.attempt)
        return len(begun) == 1

    if kind == "coroutine":

        @app.on(topic, group="g")
        async def later(message: Message) -> None:
            try:
                while first(message):
                    await asyncio.sleep(3600)
            except BaseException as error:
                dropped.append(type(error).__name__)
                raise
    else:

        @app.on(topic, group="g")
        def now(message: Message) -> None:
            try:
                while first(message):
                    while True:
                        pass
            except BaseException as error:
                dropped.append(type(error).__name__)
                raise

    async with towline.aio.connect(f"memory:{topic}?heartbeat_s={HEARTBEAT_S}") as mq:
        await mq.send(topic, b"x")
        async with app:
            await eventually_done(lambda: begun)
            [member] = (await mq.group(topic, "g")).members
            await mq.kick(topic, "g", member.consumer)
            await eventually_done(lambda: dropped)
            await eventually_done(lambda: mq.group(topic, "g"), holds=lambda state: not state.lag)
            figures = app.figures()[f"{topic}/g"]
            assert (figures["done"], figures["failed"], figures["timed_out"]) == (1, 0, 0)
    assert begun == [1, 1], "who was kicked out is not to blame"
    assert dropped == ["CancelledError" if kind == "coroutine" else "Interrupted"]


CONSUMERS = {
    "blocking": """
import time, towline
with towline.connect({url!r}) as mq, mq.consumer("orders", group="g", name={name!r}) as consumer:
    message, = consumer.pull(wait=60)
    print("has it", flush=True)
    while not message.lost:
        time.sleep(0.01)
    print("lost", flush=True)
""",
    "aio": """
import asyncio, towline
async def main():
    async with towline.aio.connect({url!r}) as mq, mq.consumer("orders", group="g", name={name!r}) as consumer:
        async for message in consumer:
            print("has it", flush=True)
            while not message.lost:
                await asyncio.sleep(0.01)
            print("lost", flush=True)
            return
asyncio.run(main())
""",
    "app": """
import asyncio, sys, towline
app = towline.App({url!r})
@app.on("orders", group="g")
async def handle(message):
    print("has it", flush=True)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        print("lost", flush=True)
        app.stop()
        raise
app.run()
""",
}


@pytest.mark.parametrize("kind", CONSUMERS)
def test_a_process_that_stood_still_for_too_long_drops_its_work(serve: Callable[..., Any], kind: str) -> None:
    url = f"towline://{serve('--store', 'memory:', '--heartbeat-s', '1').address}"
    code = CONSUMERS[kind].format(url=url, name="me" if kind == "aio" else None)
    with (
        towline.connect(url) as mq,
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        ) as process,
    ):
        try:
            assert process.stdout is not None
            mq.send("orders", b"x")
            assert process.stdout.readline() == "has it\n"
            process.send_signal(signal.SIGSTOP)
            with mq.consumer("orders", group="g") as other:
                [message] = other.pull(wait=60)
                assert message.attempt == 2
                message.ack()
                process.send_signal(signal.SIGCONT)
                assert process.stdout.readline() == "lost\n"
        finally:
            process.kill()


# Against a broker by script


async def test_a_beat_names_what_is_held_and_is_answered_with_what_is_lost(connect: Any) -> None:
    lost: list[LostLease] = []
    handed_out = threading.Event()

    def script(_: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a", b"b", b"c"]))
        while (beat := visitor.next()) == Beat(7, []):
            visitor.answer(Done())
        assert beat == Beat(7, [41])
        assert handed_out.wait(60)
        visitor.answer(Held([41], [(41, 1, 1, 1, "timeout")]))
        settle = visitor.expect(Settle)
        assert [(act.what, act.pull) for act in settle.acts] == [(ACK, 41)]
        visitor.answer(Settled([], [(41, 1, 1, 1, "timeout")]))
        leaves(visitor)

    with Peer(consuming(script, heartbeat_s=2)) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.consumer("orders", group="g", on_lost=lost.append)) as consumer,
        ):
            batch = await do(consumer.pull())
            handed_out.set()
            await eventually_done(lambda: lost)
            assert [message.lost for message in batch] == [False, True, False]
            assert not batch.lost
            with pytest.raises(LeaseLost, match="1 of 3 messages were taken away"):
                await do(batch.ack())
            assert (consumer.lost, len(lost), lost[0].reason) == (1, 1, "timeout")


async def test_a_beat_of_one_who_was_given_up_is_told_to_the_user_once(connect: Any) -> None:
    lost: list[LostLease] = []
    handed_out = threading.Event()

    def script(_: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a"]))
        visitor.expect(Beat)
        assert handed_out.wait(60)
        visitor.fail(LeaseLost.code, "was replaced by another of the same name")
        while not isinstance(request := visitor.next(), Pull):
            if isinstance(request, Beat):
                visitor.fail(LeaseLost.code, "was replaced by another of the same name")
            else:
                assert isinstance(request, Attach)
                visitor.answer(Attached(8, [], GroupConfig("orders", "g")))
        visitor.answer(Pulled(0, []))
        leaves(visitor)

    with Peer(consuming(script, heartbeat_s=2)) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.consumer("orders", group="g", name="me", on_lost=lost.append)) as consumer,
        ):
            [message] = await do(consumer.pull())
            handed_out.set()
            await eventually_done(lambda: lost)
            assert message.lost
            with pytest.raises(LeaseLost, match="same name"):
                await do(consumer.pull())
            assert not await do(consumer.pull(wait=0))


async def test_who_has_no_contact_with_the_broker_drops_everything_and_gives_it_back(connect: Any) -> None:
    lost: list[LostLease] = []

    def script(peer: Peer, visitor: Visitor) -> None:
        visitor.expect(Pull)
        visitor.answer(*pulled(41, [b"a", b"b"]))
        # Silence: the connection is given up, but the broker does not answer on the next one either.
        again = peer.accept()
        while not lost:
            asyncio.run(asyncio.sleep(0.01))
        again.greet(heartbeat_s=1)
        assert again.attach(held=[41]).holding == [41]
        settle = again.expect(Settle)
        assert [(act.what, act.pull, act.spans) for act in settle.acts] == [(GIVE_BACK, 41, [])]
        again.answer(Settled([(0, LeaseLost.code, "it is not yours")]))
        leaves(again)

    with Peer(consuming(script, heartbeat_s=1)) as peer:
        async with (
            entered(connect(peer.url)) as mq,
            entered(mq.consumer("orders", group="g", on_lost=lost.append)) as consumer,
        ):
            batch = await do(consumer.pull())
            await eventually_done(lambda: batch.lost)
            await eventually_done(lambda: consumer.link.connection.ready and not consumer.subscription.holds)
            assert [one.count for one in lost] == [2], "told once"


# By injected time


class Still:
    """A link that nothing goes over."""

    def __init__(self, heartbeat_s: float) -> None:
        self.connection = Connection()
        self.connection.welcome = Welcome(1, "peer", 1, 1 << 20, heartbeat_s)
        self.connection.ready = True
        self.last_sent = self.last_received = 0.0

    def give_up(self, error: Exception) -> None:
        raise error


def holding(timeout_s: float = 0.0) -> tuple[Subscription, Any]:
    subscription = Subscription(
        "orders", "g", "me", GroupConfig("orders", "g", timeout_s=timeout_s),
        unique=False, timeout_s=5, limits=PullLimits(), prefetch=1, idle_timeout_s=None, ack_interval_s=0.1,
        on_lost=None,
    )  # fmt: skip
    lease, _, _ = lease_of(3)
    lease._nacks, lease._dirty_leases = subscription.nacks, subscription._dirty
    subscription._leases[lease.pull] = lease
    return subscription, lease


def test_silence_is_judged_by_what_went_both_ways() -> None:
    subscription, lease = holding()
    link = Still(30.0)
    pulse = HeartbeatTimer(link, subscription)
    begun = pulse._contact_at
    link.last_sent, link.last_received = begun + 100, begun + 90
    pulse.judge(begun + 119)
    assert not lease.lost
    link.connection.ready = False  # a new socket on which nothing was answered yet says nothing
    link.last_sent = link.last_received = begun + 119
    pulse.judge(begun + 121)
    assert lease.lost
    assert subscription.losses.messages == 3
    assert list(subscription.nacks) == [Act(GIVE_BACK, 41)]


def test_what_was_acked_before_the_silence_is_told_all_the_same() -> None:
    subscription, lease = holding()
    lease.messages()[1].ack()
    subscription.judge(0.0, 31.0)
    assert [message.lost for message in lease.messages()] == [True, False, True]
    acts = [act for portion in subscription._take_portions() for act in portion]
    assert acts == [Act(ACK, 41, [(1, 1, 1)]), Act(GIVE_BACK, 41, [(1, 0, 1), (1, 2, 1)])]


def test_what_is_not_settled_in_time_is_lost_without_a_word_from_the_broker() -> None:
    subscription, lease = holding(timeout_s=5.0)
    lease.ends_at = 100.0
    subscription.judge(99.9, 0.0)
    assert not lease.lost
    subscription.judge(100.2, 0.0)
    assert lease.lost
    assert not subscription.holds, "the broker takes it away by itself"
    first, *_ = lease.messages()
    first.ack()
    first.nack("late")
    assert not subscription.nacks


def test_a_busy_consumer_asks_for_what_it_holds_though_it_sends_other_things() -> None:
    subscription, _ = holding()
    link = Still(30.0)
    pulse = HeartbeatTimer(link, subscription)
    asked = []
    for now in range(1_000, 1_040):
        link.last_sent = link.last_received = float(now)
        if (beat := pulse.due(float(now))) is not None:
            asked.append(now)
            assert beat.request == Beat(0, [41])
    assert asked == [1_000, 1_010, 1_020, 1_030]
