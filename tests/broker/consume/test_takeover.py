"""Leases that end: consumers that vanish, fall silent, take too long or leave; on both stores."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.broker.conftest import ACK, GIVE_BACK, Bench, World
from tests.eventually import eventually_done
from tests.inside.broker import Member, ScheduleJournal
from tests.inside.ground import SECOND_US, ManualClock, TimeSlice
from tests.inside.protocol import Act, Attach, Held, Pull, Seek
from towline.errors import DiskFull, LeaseLost
from towline.model import GroupConfig


def test_a_vanished_consumers_messages_go_to_another_before_its_heartbeats_are_missed(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a", b"b")
        one, two = await bench.attach(consumer="c1"), await bench.attach(consumer="c2")
        got = await bench.pull(one)
        bench.broker.consumers.disconnected(one)
        again = await bench.pull(two, wait_ms=20_000)
        assert (again.bodies, again.attempts) == ([b"a", b"b"], [2, 2])
        with pytest.raises(LeaseLost):
            await bench.act(one, ACK, got)
        assert bench.broker.group_state("orders", "billing").lag == 2

    world.run(scenario, reconnect_grace_s=0.1, heartbeat_s=60.0)


def test_a_consumer_that_comes_back_in_time_keeps_what_it_works_on(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a", b"b")
        one = await bench.attach()
        first, second = await bench.pull(one, 1), await bench.pull(one, 1)
        bench.broker.consumers.disconnected(one)
        back = await bench.attach(holding=(first.pull,))
        assert back.held == [first.pull]
        assert (await bench.act(back, ACK, first)).refused == []
        got = await bench.pull(back)
        assert (got.bodies, got.attempts) == ([b"b"], [1])
        assert (await bench.act(back, ACK, second)).refused[0][1] == "conflict"

    world.run(scenario, reconnect_grace_s=10.0)


def test_a_silent_consumer_loses_its_lease(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a")
        one = await bench.attach(consumer="c1")
        await bench.pull(one)
        two = await bench.attach(consumer="c2")
        pull = asyncio.create_task(bench.pull(two, wait_ms=20_000))
        while not pull.done():
            bench.broker.consumers.beat(two)
            await asyncio.sleep(0.01)
        assert (await pull).attempts == [2]

    world.run(scenario, heartbeat_s=1.5)


def test_a_pull_that_is_not_settled_in_time_is_taken_away(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"slow")
        one = await bench.attach(consumer="c1", timeout_s=0.05)
        two = await bench.attach(consumer="c2")
        got = await bench.pull(one)
        again = await bench.pull(two, wait_ms=20_000)
        assert (again.bodies, again.attempts) == ([b"slow"], [2])
        assert (await bench.act(one, ACK, got)).refused[0][1] in {"conflict", "lease-lost"}

    world.run(scenario)


def test_a_pull_is_taken_away_in_time_though_nobody_waits(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"slow")
        await bench.pull(await bench.attach(timeout_s=0.05))
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").retrying == 1)

    world.run(scenario)


def test_a_consumer_leaving_in_order_gives_back_at_once_without_an_attempt(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a")
        one, two = await bench.attach(consumer="c1"), await bench.attach(consumer="c2")
        await bench.pull(one)
        await bench.broker.consumers.detach(one)
        got = await bench.pull(two)
        assert (got.bodies, got.attempts) == ([b"a"], [1])

    world.run(scenario)


def test_messages_given_back_come_again_in_the_same_attempt(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a", b"b")
        member = await bench.attach()
        got = await bench.pull(member)
        await bench.act(member, GIVE_BACK, got, (1, 0, 1))
        again = await bench.pull(member)
        assert (again.bodies, again.attempts) == ([b"a"], [1])

    world.run(scenario)


@contextmanager
def full(bench: Bench) -> Iterator[list[object]]:
    """Not even a delivery event has room; gives a list of what was refused."""
    append, refused = bench.store.append, list[object]()

    def refuse(unit: Any, durability: Any) -> Any:
        refused.append(unit)
        raise DiskFull("no room")

    bench.store.append = refuse  # type: ignore[method-assign]
    try:
        yield refused
    finally:
        bench.store.append = append  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["vanishes", "leaves"])
def test_what_a_consumer_held_that_went_while_the_disk_was_full_comes_back(world: World, how: str) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a", b"b")
        gone = await bench.attach(consumer="gone")
        await bench.pull(gone)
        await bench.flush()
        with full(bench) as refused:
            if how == "vanishes":
                bench.broker.consumers.disconnected(gone)
            else:
                with pytest.raises(DiskFull):
                    await bench.broker.consumers.detach(gone)
            await eventually_done(lambda: refused)
        got = await bench.pull(await bench.attach(consumer="other"), wait_ms=60_000)
        # Who left in order has tried nothing.
        assert (got.bodies, got.attempts) == ([b"a", b"b"], [2, 2] if how == "vanishes" else [1, 1])

    world.run(scenario, reconnect_grace_s=0.01, heartbeat_s=3600.0)


async def test_what_a_consumer_of_before_a_restart_held_comes_back_from_a_full_disk(disk: World) -> None:
    async with disk.open() as bench:
        await bench.send("orders", b"a")
        await bench.pull(await bench.attach(consumer="gone"))
    async with disk.open(heartbeat_s=0.2) as bench:
        with full(bench) as refused:
            await eventually_done(lambda: refused)
        member = await bench.attach(consumer="other")
        member.last_seen_s = math.inf
        assert (await bench.pull(member, wait_ms=60_000)).bodies == [b"a"]


async def _one_that_stops(bench: Bench, clock: ManualClock, how: str) -> tuple[Member, int]:
    """A broker that stops while a consumer holds its only attempt; whatever happens then, nothing is taken from it."""
    await bench.send("orders", b"a")
    member = await bench.attach(max_attempts=1, timeout_s=5.0)
    got = await bench.pull(member)
    if how == "it broke before":
        bench.broker.consumers.disconnected(member)
    bench.broker.release_waiters()
    if how == "it breaks":
        bench.broker.consumers.disconnected(member)
        assert member.grace is None
    clock.advance(60)
    await bench.broker.consumers.sweep()
    dispatcher = bench.broker.groups.named("orders", "billing")
    dispatcher._on_time()
    if member.grace is not None:
        await bench.broker.consumers._vanish([member])
    assert got.pull in dispatcher.group.leases
    assert not member.fenced
    return member, got.pull


@pytest.mark.parametrize("how", ["it breaks", "it broke before", "it is silent"])
def test_a_broker_that_stops_takes_nothing_from_its_consumers(world: World, how: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with world.open(clock, heartbeat_s=30.0, reconnect_grace_s=60.0) as bench:
            _, pull = await _one_that_stops(bench, clock, how)
        if world.kind == "memory":
            return
        clock.advance(600)
        async with world.open(clock, heartbeat_s=30.0) as bench:
            # Its time was over while nobody could settle anything: it has that of a heartbeat to come back.
            clock.advance(25)
            bench.broker.groups.named("orders", "billing")._on_time()
            await bench.broker.consumers.sweep()
            back = await bench.attach(holding=(pull,))
            assert back.held == [pull]
            assert (await bench.broker.consumers.settle(back, [Act(ACK, pull)])).refused == []
            state = bench.broker.group_state("orders", "billing")
            assert (state.lag, state.dying, state.dead) == (0, 0, 0)

    asyncio.run(main())


async def test_who_comes_back_after_a_start_and_does_not_settle_is_timed_out(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock, heartbeat_s=30.0) as bench:
        _, pull = await _one_that_stops(bench, clock, "it breaks")
    async with disk.open(clock, heartbeat_s=30.0) as bench:
        dispatcher = bench.broker.groups.named("orders", "billing")
        await bench.attach(holding=(pull,))
        clock.advance(31)
        dispatcher._on_time()
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 1)


async def test_the_time_to_come_back_begins_when_the_broker_has_started(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the start takes."""

    clock = ManualClock()
    async with disk.open(clock, heartbeat_s=30.0) as bench:
        _, pull = await _one_that_stops(bench, clock, "it breaks")
    recover = ScheduleJournal.recover

    async def slowly(agenda: ScheduleJournal, part: TimeSlice) -> None:
        clock.advance(600)
        await recover(agenda, part)

    monkeypatch.setattr(ScheduleJournal, "recover", slowly)
    async with disk.open(clock, heartbeat_s=30.0) as bench:
        await bench.broker.consumers.sweep()
        assert (await bench.attach(holding=(pull,))).held == [pull]


async def test_a_silent_consumer_keeps_its_lease_until_its_time_is_over(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock, heartbeat_s=30.0) as bench:
        await bench.send("orders", b"a")
        member = await bench.attach()
        got = await bench.pull(member)
        leases = bench.broker.groups.named("orders", "billing").group.leases
        clock.advance(0.9 * 30.0)
        await bench.broker.consumers.sweep()
        assert got.pull in leases
        assert not member.fenced
        clock.advance(0.2 * 30.0)
        await bench.broker.consumers.sweep()
        assert got.pull not in leases


def test_a_broken_connection_costs_nothing_before_its_grace_is_over(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a")
        member = await bench.attach()
        got = await bench.pull(member)
        broke_s = asyncio.get_running_loop().time()
        bench.broker.consumers.disconnected(member)
        assert member.grace is not None
        assert member.grace.when() >= broke_s + 20.0
        await asyncio.sleep(0)
        await bench.broker.consumers.sweep()
        assert got.pull in bench.broker.groups.named("orders", "billing").group.leases

    world.run(scenario, reconnect_grace_s=20.0)


@pytest.mark.parametrize("how", ["a pull is late", "a message is late", "it is moved"])
async def test_a_beat_is_answered_with_what_was_taken_away(world: World, how: str) -> None:
    clock = ManualClock()
    async with world.open(clock, heartbeat_s=3600.0) as bench:
        limits = [SECOND_US, 0, 0] if how == "a message is late" else None
        await bench.send("orders", b"a", b"b", b"c", limits=limits)
        member = await bench.attach(timeout_s=5.0 if how == "a pull is late" else 0.0)
        other = await bench.attach(consumer="c2")
        got, held = await bench.pull(member, 2), await bench.pull(other, 1)
        named = [got.pull, held.pull, 12345]
        assert bench.broker.consumers.held(member, named) == Held([got.pull], [])
        clock.advance(10)
        if how == "it is moved":
            await bench.broker.groups.seek(Seek("orders", "billing", "latest"))
        else:
            bench.broker.groups.named("orders", "billing")._on_time()
        answer = bench.broker.consumers.held(member, named)
        late = 1 if how == "a message is late" else 2
        assert answer.held == ([got.pull] if late == 1 else [])
        assert [each[:4] for each in answer.lost] == [(got.pull, 1, 0, late)]
        assert ("timeout" in answer.lost[0][4]) == (how != "it is moved")
        await bench.broker.consumers.kick("orders", "billing", "c1")
        with pytest.raises(LeaseLost):
            bench.broker.consumers.held(member, named)


def test_a_beat_of_a_consumer_by_prefix_is_answered_for_each_topic(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders.a", b"a")
        await bench.send("orders.b", b"b")
        fan = await bench.broker.consumers.fan(Attach("orders.*", "billing", "c1"), may=lambda _: True)
        pulls = {
            (answer := (await bench.broker.consumers.pull(fan, Pull(0, 9, 1 << 20)))[0]).topic: answer.pull
            for _ in "ab"
        }
        named = sorted(pulls.values())
        assert sorted(bench.broker.consumers.held(fan, named).held) == named
        await bench.broker.consumers.kick("orders.a", "billing", "c1")
        assert bench.broker.consumers.held(fan, named).held == [pulls["orders.b"]]

    world.run(scenario)


async def _an_unnamed_one(bench: Bench) -> Member:
    return await bench.attach(group="~me", consumer="me", start="latest", ephemeral=True)


@pytest.mark.parametrize("how", ["it breaks", "it is silent"])
async def test_an_ephemeral_group_waits_a_heartbeat_for_a_consumer_that_vanished(world: World, how: str) -> None:
    clock = ManualClock()
    async with world.open(clock, heartbeat_s=30.0, reconnect_grace_s=0.0) as bench:
        await bench.send("orders", b"early")
        member = await _an_unnamed_one(bench)
        await bench.send("orders", b"a", b"b")
        first = await bench.pull(member, 1)
        await bench.act(member, ACK, first)
        for _ in range(2):  # the time begins anew each time
            await vanish(bench, clock, member, how)
            clock.advance(29)
            await bench.broker.consumers.sweep()
            member = await _an_unnamed_one(bench)
            clock.advance(29)
            await bench.broker.consumers.sweep()
        assert (await bench.pull(member)).bodies == [b"b"]
        await vanish(bench, clock, member, how)
        clock.advance(31)
        await bench.broker.consumers.sweep()
        assert not bench.broker.has_group("orders", "~me")
        assert not bench.broker.consumers._deserted
        await bench.send("orders", b"c")
        assert (await bench.pull(await _an_unnamed_one(bench))).bodies == []


async def vanish(bench: Bench, clock: ManualClock, member: Member, how: str) -> None:
    if how == "it breaks":
        bench.broker.consumers.disconnected(member)
    else:
        clock.advance(31)
        await bench.broker.consumers.sweep()
    await eventually_done(lambda: member.fenced)


@pytest.mark.parametrize("how", ["it detaches", "it is kicked"])
async def test_an_ephemeral_group_goes_at_once_with_a_consumer_that_leaves(world: World, how: str) -> None:
    clock = ManualClock()
    async with world.open(clock, heartbeat_s=30.0) as bench:
        member = await _an_unnamed_one(bench)
        if how == "it detaches":
            await bench.broker.consumers.detach(member)
        else:
            await bench.broker.consumers.kick("orders", "~me", "me")
        await eventually_done(lambda: not bench.broker.has_group("orders", "~me"))


async def test_an_ephemeral_group_that_was_deleted_by_hand_is_not_waited_for(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock, heartbeat_s=30.0, reconnect_grace_s=0.0) as bench:
        await vanish(bench, clock, await _an_unnamed_one(bench), "it breaks")
        await bench.broker.groups.delete("orders", "~me")
        clock.advance(1)
        await vanish(bench, clock, await _an_unnamed_one(bench), "it breaks")
        clock.advance(29.5)
        await bench.broker.consumers.sweep()
        assert bench.broker.has_group("orders", "~me")


BY_PREFIX = Attach("orders.*", "~me", "me", GroupConfig("any", "~me", start="latest", ephemeral=True))


@pytest.mark.parametrize("away_s", [29.0, 31.0])
@pytest.mark.parametrize("noticed", ["at once", "late"])
async def test_new_topics_are_noted_for_a_heartbeat_for_an_unnamed_consumer_by_prefix(
    disk: World, away_s: float, noticed: str
) -> None:
    clock = ManualClock()
    async with disk.open(clock, heartbeat_s=30.0, reconnect_grace_s=0.0) as bench:
        consumers = bench.broker.consumers
        fan = await consumers.fan(BY_PREFIX, may=lambda topic: True)
        if noticed == "late":
            await bench.send("orders.first", b"a")
        consumers.disconnected(fan)
        if noticed == "at once":
            await bench.send("orders.first", b"a")
        clock.advance(away_s)
        await consumers.sweep()
        back = await consumers.fan(BY_PREFIX, may=lambda topic: True)
        pulled, _ = await consumers.pull(back, Pull(0, 10, 1 << 20))
        assert [part.count for part in pulled.parts] == ([1] if away_s < 30 else [])
        assert not consumers._subscriptions._away


def test_an_unnamed_consumer_by_prefix_that_is_back_before_the_break_is_noticed_gets_new_topics_whole(
    disk: World,
) -> None:
    async def scenario(bench: Bench) -> None:
        consumers = bench.broker.consumers
        old = await consumers.fan(BY_PREFIX, may=lambda topic: True)
        await bench.send("orders.first", b"a")
        back = await consumers.fan(BY_PREFIX, may=lambda topic: True)
        consumers.disconnected(old)
        pulled, _ = await consumers.pull(back, Pull(0, 10, 1 << 20))
        assert [part.count for part in pulled.parts] == [1]

    disk.run(scenario)
