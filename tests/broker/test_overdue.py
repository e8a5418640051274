"""Open messages that are older than retention allows: it waits for them, and not for ever."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.broker.conftest import ACK, GIVE_BACK, NACK, Bench, World
from towline.alarms.rule import AlarmRule
from towline.clock import SYSTEM, ManualClock

SMALL: dict[str, Any] = {
    "segment_bytes": 64 << 10,
    "retention_s": 600.0,
    "open_max_s": 3600.0,
    "heartbeat_s": 1e6,
    "capacity_bytes": 64 << 20,
}
MIB = 1 << 20


def size_of(bench: Bench) -> int:
    return sum(bench.store.bounds(stream).size_bytes for stream in bench.store.streams("lane/"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SYSTEM.now_us())


@pytest.fixture
def aged(world: World, clock: ManualClock) -> World:
    world.store_clock = clock
    return world


async def leave_open(bench: Bench, state: str, **config: Any) -> tuple[Any, Any]:
    """A message that is leased, given back or will be tried again, and 8 MiB behind it."""
    member = await bench.attach(delays_s=(30 * 86400.0,), **config)
    await bench.send("orders", b"open")
    got = await bench.pull(member, 1)
    if state != "leased":
        await bench.act(member, NACK if state == "retrying" else GIVE_BACK, got)
        await bench.broker.detach(member)
    for _ in range(40):
        await bench.send("other", bytes(200_000))
    return member, got


async def maintain(bench: Bench) -> None:
    for _ in range(3):
        await bench.broker.maintain()


@pytest.mark.parametrize("state", ["leased", "retrying", "given back"])
def test_an_abandoned_message_does_not_hold_the_store_back_for_ever(
    aged: World, clock: ManualClock, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with aged.open(clock, **SMALL) as bench:
            member, got = await leave_open(bench, state)
            clock.advance(2000)
            await maintain(bench)
            if aged.kind == "log":
                assert size_of(bench) > 7 * MIB, "retention waits"
            assert bench.broker.group_state("orders", "billing").lag == 1
            figures = bench.broker.figures()
            assert 1390 < figures["retention_held_s"] < 1410
            assert figures["retention_held_by"] == "group billing on topic orders"
            assert "retention waits for open messages of group billing on topic orders" in caplog.text
            alarms = bench.broker.outlook.alarms
            await alarms.put(AlarmRule("held", "retention", 1200))
            await bench.broker.outlook.census.refresh()
            assert [alarm.rule for alarm in alarms.listed().active] == ["held"]
            clock.advance(2300)
            await maintain(bench)
            assert size_of(bench) < MIB
            figures = bench.broker.figures()
            assert (figures["retention_held_s"], figures["retention_dropped_open"]) == (0, 1)
            await bench.broker.outlook.census.refresh()
            assert not alarms.listed().active
            assert "1 open message(s) are dropped" in caplog.text
            if state == "leased":
                refused = (await bench.act(member, ACK, got)).refused
                assert [code for _, code, _ in refused] == ["lease-lost"]
            await check_empty(bench)
        if aged.kind == "memory":
            return
        async with aged.open(clock, **SMALL) as bench:
            await check_empty(bench)

    with caplog.at_level(logging.WARNING, "towline.broker"):
        asyncio.run(main())


async def check_empty(bench: Bench) -> None:
    state = bench.broker.group_state("orders", "billing")
    assert (state.lag, state.in_flight, state.retrying) == (0, 0, 0)
    member = await bench.attach(consumer="c2")
    await bench.send("orders", b"fresh")
    got = await bench.pull(member)
    assert got.bodies == [b"fresh"]
    await bench.act(member, ACK, got)
    await bench.broker.detach(member)


@pytest.mark.parametrize("state", ["leased", "retrying"])
def test_it_goes_to_the_dead_letters_of_a_group_that_keeps_what_has_expired(
    aged: World, clock: ManualClock, state: str
) -> None:
    async def main() -> None:
        async with aged.open(clock, **SMALL) as bench:
            await leave_open(bench, state, expired_to_dead=True)
            clock.advance(4300)
            await maintain(bench)
            dispatcher = await bench.broker.groups.buried("orders", "billing")
            await maintain(bench)
            assert size_of(bench) < MIB
            assert bench.store.bounds("dead/orders/billing").end == 1
            assert dispatcher.group.lag() == 0

    asyncio.run(main())


def test_many_scattered_ones_are_given_up_and_others_stay(aged: World, clock: ManualClock) -> None:
    async def main() -> None:
        async with aged.open(clock, **SMALL) as bench:
            member = await bench.attach(delays_s=(30 * 86400.0,))
            await bench.send("orders", *(b"%d" % n for n in range(3000)))
            got = await bench.pull(member, 3000)
            await bench.act(member, ACK, got, *((1, n, 1) for n in range(0, 3000, 2)))
            await bench.act(member, NACK, got)
            clock.advance(4000)
            await bench.send("orders", b"young")
            await bench.act(member, NACK, await bench.pull(member, 1))
            assert bench.broker.group_state("orders", "billing").retrying == 1501
            clock.advance(300)
            await maintain(bench)
            assert bench.broker.group_state("orders", "billing").retrying == 1
            clock.advance(31 * 86400)
            assert (await bench.pull(member)).bodies == [b"young"]

    asyncio.run(main())


def test_what_failed_together_with_it_and_is_younger_goes_on_waiting(aged: World, clock: ManualClock) -> None:
    async def main() -> None:
        async with aged.open(clock, **SMALL) as bench:
            member = await bench.attach(delays_s=(30 * 86400.0,))
            await bench.send("orders", b"old")
            clock.advance(1200)
            await bench.send("orders", b"young", b"younger")
            await bench.act(member, NACK, await bench.pull(member, wait_ms=30_000))
            clock.advance(3100)
            await maintain(bench)
            state = bench.broker.group_state("orders", "billing")
            assert (state.retrying, state.lag) == (2, 2)
            assert (await bench.pull(member)).bodies == [], "it is not due"
            clock.advance(31 * 86400)
            assert (await bench.pull(member)).bodies == [b"young", b"younger"]

    asyncio.run(main())


def test_where_the_size_of_the_store_asks_for_it_the_oldest_go(disk: World, clock: ManualClock) -> None:
    async def main() -> None:
        disk.store_clock = clock
        given = SMALL | {"retention_s": 0.0, "retention_bytes": MIB}
        async with disk.open(clock, **given) as bench:
            await leave_open(bench, "retrying")
            await maintain(bench)
            assert size_of(bench) > 7 * MIB, "retention waits"
            clock.advance(3601)
            await maintain(bench)
            assert size_of(bench) <= MIB

    asyncio.run(main())


def test_a_line_of_the_log_names_a_few_of_many_messages_that_are_gone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with world.open() as bench:
            await bench.send("orders", *[b"x"] * 400)
            member = await bench.attach(delays_s=(0,))
            got = await bench.pull(member, 400)
            await bench.act(member, ACK, got, *[(1, number, 1) for number in range(0, 400, 2)])
            await bench.act(member, NACK, got)
            stream = "lane/orders/middle"
            await bench.store.trim(stream, bench.store.bounds(stream).end)
            member.dispatcher.observe()
            await bench.pull(member)

    asyncio.run(run())
    said, *_ = [one.getMessage() for one in caplog.records if "cannot be delivered" in one.getMessage()]
    assert "100 message(s), lane/orders/middle 1 to 1, lane/orders/middle 3 to 3" in said
    assert "and 95 more ranges: " in said
    assert len(said) < 400
