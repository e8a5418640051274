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
from towline.errors import DiskFull, LeaseLost


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
        await bench.broker.detach(one)
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
                    await bench.broker.detach(gone)
            await eventually_done(lambda: refused)
        got = await bench.pull(await bench.attach(consumer="other"), wait_ms=60_000)
        # Who left in order has tried nothing.
        assert (got.bodies, got.attempts) == ([b"a", b"b"], [2, 2] if how == "vanishes" else [1, 1])

    world.run(scenario, reconnect_grace_s=0.01, heartbeat_s=3600.0)


def test_what_a_consumer_of_before_a_restart_held_comes_back_from_a_full_disk(disk: World) -> None:
    async def main() -> None:
        async with disk.open() as bench:
            await bench.send("orders", b"a")
            await bench.pull(await bench.attach(consumer="gone"))
        async with disk.open(heartbeat_s=0.2) as bench:
            with full(bench) as refused:
                await eventually_done(lambda: refused)
            member = await bench.attach(consumer="other")
            member.last_seen_s = math.inf
            assert (await bench.pull(member, wait_ms=60_000)).bodies == [b"a"]

    asyncio.run(main())
