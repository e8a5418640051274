"""What a consumer held is taken back bit by bit; others have their turn in between, and see nothing half done."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import ACK, Bench, World
from tests.eventually import eventually_done
from tests.inside.broker import Consumers, Member, dispatcher
from tests.inside.delivery import group
from tests.inside.ground import ManualClock
from tests.inside.ground import clock as time
from tests.inside.protocol import Act
from towline.errors import LeaseLost

COUNT = 400
ODD = list(range(1, COUNT, 2))


@pytest.fixture(autouse=True)
def small_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "TAKE_MAX", 10)
    monkeypatch.setattr(dispatcher, "TAKE_MAX", 10)
    monkeypatch.setattr(time, "SLICE_S", 0.0)


async def holding(bench: Bench, **config: Any) -> tuple[Member, int]:
    """A consumer that holds the odd ones, and its pull."""
    member = await bench.attach(**config)
    await bench.send("orders", *[b"x"] * COUNT)
    got = await bench.pull(member, COUNT)
    await bench.act(member, ACK, got, *[(1, seq, 1) for seq in range(0, COUNT, 2)])
    assert member.in_flight == len(ODD)
    return member, got.pull


async def half_way(bench: Bench, taking: asyncio.Future[Any]) -> None:
    """Until some of it is taken back, and by far not all."""
    found = bench.broker.groups.named("orders", "billing").group
    while not 40 <= found.retries.messages < len(ODD):
        assert not taking.done()
        await asyncio.sleep(0)


async def delivered(bench: Bench, consumer: str = "c2") -> list[tuple[int, int]]:
    """All that there is, and its attempts."""
    member, found = await bench.attach(consumer=consumer), list[tuple[int, int]]()
    while (got := await bench.pull(member, COUNT)).pull:
        found += [(part.first + at, part.attempt) for part in got.parts for at in range(part.count)]
    return sorted(found)


def leaving(consumers: Consumers, member: Member, *, vanished: bool) -> asyncio.Task[Any]:
    return asyncio.ensure_future(consumers.leave(member, vanished=vanished))


@pytest.mark.parametrize("vanished", [False, True])
def test_nothing_is_settled_by_one_that_is_leaving(world: World, vanished: bool) -> None:
    async def scenario(bench: Bench) -> None:
        member, pull = await holding(bench)
        taking = leaving(bench.broker.consumers, member, vanished=vanished)
        await half_way(bench, taking)
        with pytest.raises(LeaseLost):
            await bench.broker.consumers.settle(member, [Act(ACK, pull, [])])
        with pytest.raises(LeaseLost):
            await bench.pull(member)
        assert member.dispatcher.members == {"c1": member}, "it is among them until nothing is left"
        await bench.broker.consumers.sweep()
        await taking
        assert not member.dispatcher.members
        assert not member.dispatcher.group.leases
        assert await delivered(bench) == [(seq, 2 if vanished else 1) for seq in ODD]

    world.run(scenario)


@pytest.mark.parametrize("vanished", [False, True])
def test_one_that_comes_meanwhile_under_the_name_holds_nothing_of_it(world: World, vanished: bool) -> None:
    async def scenario(bench: Bench) -> None:
        member, pull = await holding(bench)
        taking = leaving(bench.broker.consumers, member, vanished=vanished)
        await half_way(bench, taking)
        other = await bench.attach(holding=(pull,))
        assert other.held == []
        assert other.in_flight == 0
        await taking
        assert other.dispatcher.members == {"c1": other}
        assert await delivered(bench, "c1") == [(seq, 2 if vanished else 1) for seq in ODD]

    world.run(scenario)


def test_what_one_that_comes_anew_does_not_hold_goes_back_bit_by_bit(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        member, pull = await holding(bench)
        await bench.send("orders", b"kept")
        kept = await bench.pull(member)
        coming = asyncio.ensure_future(bench.attach(holding=(kept.pull,)))
        await half_way(bench, coming)
        with pytest.raises(LeaseLost):
            await bench.broker.consumers.settle(member, [Act(ACK, pull, [])])
        other = await coming
        assert other.held == [kept.pull]
        assert other.in_flight == 1
        await bench.act(other, ACK, kept)
        assert await delivered(bench) == [(seq, 1) for seq in ODD]

    world.run(scenario)


async def test_all_that_is_too_late_is_taken_bit_by_bit(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock, heartbeat_s=60.0) as bench:
        member, _ = await holding(bench, timeout_s=5.0)
        clock.advance(6)
        member.dispatcher.arm()
        await half_way(bench, asyncio.get_running_loop().create_future())
        await eventually_done(lambda: not member.dispatcher.group.leases)
        assert await delivered(bench) == [(seq, 2) for seq in ODD]


@pytest.mark.parametrize("vanished", [False, True])
async def test_a_crash_half_way_loses_nothing_and_delivers_nothing_twice(
    disk: World, tmp_path: Path, vanished: bool
) -> None:
    clock, after = ManualClock(), tmp_path / "after"
    async with disk.open(clock, heartbeat_s=30.0) as bench:
        member, _ = await holding(bench)
        taking = leaving(bench.broker.consumers, member, vanished=vanished)
        await half_way(bench, taking)
        taken = member.dispatcher.group.retries.messages
        await bench.flush()
        shutil.copytree(disk.folder / "data", after / "data")
        taking.cancel()
    async with World("log", after).open(clock, heartbeat_s=30.0) as bench:
        found = bench.broker.groups.named("orders", "billing").group
        at = found.retries.messages
        assert taken <= at < len(ODD)
        assert found.in_flight == {"c1": len(ODD) - at}
        clock.advance(31)
        await eventually_done(lambda: not bench.broker.groups.named("orders", "billing")._limits.recalling)
        await bench.broker.consumers.sweep()
        assert not bench.broker.consumers._orphans
        attempts = [attempt for _, attempt in await delivered(bench)]
        assert attempts == ([2] * len(ODD) if vanished else [1] * at + [2] * (len(ODD) - at))


async def test_one_that_comes_back_at_the_last_moment_keeps_what_was_not_taken(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock, heartbeat_s=30.0) as bench:
        _, pull = await holding(bench)
    async with disk.open(clock, heartbeat_s=30.0) as bench:
        found = bench.broker.groups.named("orders", "billing")
        await eventually_done(lambda: not found._limits.recalling)
        clock.advance(31)
        sweeping = asyncio.ensure_future(bench.broker.consumers.sweep())
        await half_way(bench, sweeping)
        member = await bench.attach(holding=(pull,))
        assert member.held == [pull]
        await sweeping
        kept, again = member.in_flight, await delivered(bench)
        assert 0 < kept < len(ODD)
        assert kept + len(again) == len(ODD)
        lost = bench.broker.consumers.held(member, [pull]).lost
        assert [(first, 2) for _, _, first, _, _ in lost] == again
        assert not bench.broker.consumers._orphans


def test_an_ephemeral_group_goes_when_nothing_of_its_last_consumer_is_left(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        member, _ = await holding(bench, group="~me", consumer="me", ephemeral=True)
        await bench.broker.consumers.detach(member)
        await eventually_done(lambda: not bench.broker.has_group("orders", "~me"))

    world.run(scenario)
