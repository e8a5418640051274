"""Messages that live for a limited time."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.conftest import ACK, NACK, Bench, World
from tests.eventually import eventually_done
from tests.inside.frame import encode
from tests.inside.ground import ManualClock
from tests.inside.protocol import Browse, HandBack
from towline.model import TopicConfig


def times(mq: Bench, *from_now_s: float | None) -> list[int]:
    now_us = mq.broker.clock.now_us()
    return [0 if seconds is None else now_us + round(seconds * 1e6) for seconds in from_now_s]


def test_expired_messages_are_not_delivered(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach()
        await mq.send("orders", b"a", b"b", b"c", b"d", expires_at_us=times(mq, 60, -1, -1, None))
        await mq.send("orders", b"e", b"f", expires_at_us=times(mq, -1, -2))
        await mq.send("orders", b"g", b"h", expires_at_us=times(mq, 60, 60))
        got = await mq.pull(one)
        assert got.bodies == [b"a", b"d", b"g", b"h"]
        assert not (await mq.act(one, ACK, got)).refused
        assert not (await mq.act(one, ACK, got)).refused, "the same act may be sent twice"
        assert mq.broker.group_state("orders", "billing").lag == 0

    world.run(scenario)


@pytest.mark.parametrize("compress", [False, True])
def test_a_lifetime_is_over_exactly_at_its_time_however_long_the_others_of_the_frame_live(
    world: World, compress: bool
) -> None:
    clock = ManualClock()
    end_us = clock.now_us() + 60_000_000

    async def scenario(mq: Bench) -> None:
        for mixed in (
            {b"for ever": 0, b"now": end_us, b"soon": end_us + 1, b"now as well": end_us},
            {b"alone": end_us},
            {b"first": end_us, b"last": end_us + 1},
        ):
            await mq.send("orders", *mixed, expires_at_us=list(mixed.values()), compress=compress)

        async def living(at_us: int) -> list[bytes]:
            clock.value_us = at_us
            return (await mq.pull(await mq.attach(group=f"at-{at_us}"))).bodies

        everything = [b"for ever", b"now", b"soon", b"now as well", b"alone", b"first", b"last"]
        assert await living(end_us - 1) == everything
        assert await living(end_us) == [b"for ever", b"soon", b"last"]
        assert await living(end_us + 1) == [b"for ever"]

    world.run(scenario, clock=clock)


@pytest.mark.parametrize("compress", [False, True])
def test_a_pull_goes_on_behind_what_is_expired(world: World, compress: bool) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach()
        for _ in range(3):
            await mq.send("orders", *[b"x" * 100] * 10, expires_at_us=times(mq, *[-1] * 10), compress=compress)
        await mq.send("orders", *[b"y" * 100] * 4, expires_at_us=times(mq, None, -1, 60, -1), compress=compress)
        assert (await mq.pull(one, 10)).bodies == [b"y" * 100] * 2
        waiting = asyncio.ensure_future(mq.pull(one, 10, wait_ms=10_000))
        await mq.send("orders", b"old", expires_at_us=times(mq, -1))
        await mq.send("orders", b"new")
        assert (await waiting).bodies == [b"new"]

    world.run(scenario)


def test_a_message_expires_while_it_waits_to_be_tried_again(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach(delays_s=(0.05,))
        await mq.send("orders", b"a", expires_at_us=times(mq, 0.04))
        await mq.act(one, NACK, await mq.pull(one))
        assert (await mq.pull(one, wait_ms=200)).bodies == []
        assert mq.broker.group_state("orders", "billing").lag == 0

    world.run(scenario)


def test_a_message_of_another_broker_expires_here_as_well(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach()
        frame = encode([b"old", b"new"], expires_at_us=times(mq, -1, 3600))
        handed = HandBack("orders", "billing", None, 1, 1, "it failed", 0.0)
        await mq.broker.hand_back(handed, frame)
        got = await mq.pull(one, wait_ms=60_000)
        assert got.bodies == [b"new"]
        assert got.attempts == [2]
        await mq.act(one, ACK, got)
        state = mq.broker.group_state("orders", "billing")
        assert (state.lag, state.retrying) == (0, 0)

    world.run(scenario)


def test_expired_messages_go_to_the_dead_letters_where_a_group_wants_them(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach(expired_to_dead=True)
        await mq.send("orders", b"a", b"b", expires_at_us=times(mq, -1, 60))
        got = await mq.pull(one)
        assert got.bodies == [b"b"]
        await mq.act(one, ACK, got)
        await eventually_done(lambda: mq.broker.group_state("orders", "billing").dead == 1)
        browsed, _ = await mq.broker.browsing.browse(Browse("orders", 0, "billing"))
        assert browsed.end == 1

    world.run(scenario)


def test_a_shard_moves_on_behind_what_is_expired(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        await mq.broker.topics.create(TopicConfig("orders", shards=2))
        one = await mq.attach()
        await mq.send("orders", b"a", b"b", lane=1, expires_at_us=times(mq, -1, -1))
        await mq.send("orders", b"c", lane=1)
        got = await mq.pull(one)
        assert got.bodies == [b"c"]
        await mq.act(one, ACK, got)
        await mq.send("orders", b"d", lane=1)
        assert (await mq.pull(one)).bodies == [b"d"]

    world.run(scenario)
