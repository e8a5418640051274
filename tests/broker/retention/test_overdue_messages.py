"""Open messages that are older than retention allows: it waits for them, and not for ever."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest

from tests.broker.conftest import ACK, GIVE_BACK, NACK, Bench, World
from tests.inside.alarms import AlarmRule
from tests.inside.broker import Broker
from tests.inside.ground import SYSTEM, ManualClock
from tests.inside.protocol import PurgeDead
from tests.inside.store import LogSettings, LogStore
from towline.errors import TooLarge

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
        await bench.broker.consumers.detach(member)
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
    await bench.broker.consumers.detach(member)


@pytest.mark.parametrize("state", ["leased", "retrying"])
async def test_it_goes_to_the_dead_letters_of_a_group_that_keeps_what_has_expired(
    aged: World, clock: ManualClock, state: str
) -> None:
    async with aged.open(clock, **SMALL) as bench:
        await leave_open(bench, state, expired_to_dead=True)
        clock.advance(4300)
        await maintain(bench)
        dispatcher = await bench.broker.groups.buried("orders", "billing")
        await maintain(bench)
        assert size_of(bench) < MIB
        assert bench.store.bounds("dead/orders/billing").end == 1
        assert dispatcher.group.lag() == 0


async def test_many_scattered_ones_are_given_up_and_others_stay(aged: World, clock: ManualClock) -> None:
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


async def test_what_failed_together_with_it_and_is_younger_goes_on_waiting(aged: World, clock: ManualClock) -> None:
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


async def test_where_the_size_of_the_store_asks_for_it_the_oldest_go(disk: World, clock: ManualClock) -> None:
    disk.store_clock = clock
    given = SMALL | {"retention_s": 0.0, "retention_bytes": MIB}
    async with disk.open(clock, **given) as bench:
        await leave_open(bench, "retrying")
        clock.advance(1200)
        await maintain(bench)
        assert size_of(bench) > 7 * MIB, "retention waits"
        figures = bench.broker.figures()
        assert 1190 < figures["retention_held_s"] < 1210
        assert 6 * MIB < figures["retention_held_bytes"] < 8 * MIB
        assert figures["retention_held_by"] == "group billing on topic orders"
        alarms = bench.broker.outlook.alarms
        await alarms.put(AlarmRule("held", "retention", 1000))
        await bench.broker.outlook.census.refresh()
        assert [alarm.rule for alarm in alarms.listed().active] == ["held"]
        clock.advance(2401)
        await maintain(bench)
        assert size_of(bench) <= MIB
        figures = bench.broker.figures()
        assert (figures["retention_held_s"], figures["retention_held_bytes"]) == (0, 0)


@pytest.mark.parametrize("archive", ["keeps up", "does nothing"])
def test_the_size_bounds_open_messages_where_an_archive_is_waited_for_as_well(
    disk: World, clock: ManualClock, archive: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        disk.store_clock = clock
        holds = {"holds": "archive", "hold_max_bytes": MIB, "open_max_bytes": 1 << 40}
        async with disk.open(clock, **SMALL | {"retention_s": 0.0, "retention_bytes": MIB} | holds) as bench:
            await leave_open(bench, "retrying")
            if archive == "keeps up":
                lanes = bench.store.streams("lane/")
                await bench.broker.holds.move("archive", {lane: bench.store.bounds(lane).end for lane in lanes})
            await maintain(bench)
            assert size_of(bench) > 7 * MIB, "retention waits"
            assert ("retention waits for archive" in caplog.text) == (archive != "keeps up")
            assert "retention waits for open messages of group billing on topic orders" in caplog.text
            clock.advance(3601)
            await maintain(bench)
            assert size_of(bench) <= (MIB if archive == "keeps up" else 2 * MIB)
            assert bench.broker.group_state("orders", "billing").retrying == 0

    with caplog.at_level(logging.WARNING, "towline.broker"):
        asyncio.run(main())


async def test_open_messages_stay_where_something_else_keeps_the_store_too_large(
    disk: World, clock: ManualClock
) -> None:
    disk.store_clock = clock
    given = SMALL | {"retention_s": 0.0, "retention_bytes": MIB, "open_max_bytes": 0}
    async with disk.open(clock, **given) as bench:
        member = await bench.attach(max_attempts=1, dead_retention_s=30 * 86400.0)
        await bench.send("orders", b"dead")
        await bench.act(member, NACK, await bench.pull(member))
        await bench.broker.groups.buried("orders", "billing")
        other = await bench.attach("slow", delays_s=(30 * 86400.0,))
        await bench.send("slow", b"open")
        await bench.act(other, NACK, await bench.pull(other))
        for _ in range(40):
            await bench.send("other", bytes(200_000))
        clock.advance(25 * 3600)
        for _ in range(3):
            await maintain(bench)
        assert size_of(bench) > 7 * MIB, "the dead letter keeps it"
        assert bench.broker.group_state("slow", "billing").retrying == 1
        figures = bench.broker.figures()
        assert (figures["retention_held_s"], figures["retention_dropped_open"]) == (0, 0)
        await bench.broker.dead_letters.purge(PurgeDead("orders", "billing", 1))
        await maintain(bench)
        assert bench.broker.group_state("slow", "billing").retrying == 0, "now it is the open message"
        assert size_of(bench) <= MIB


async def test_the_size_does_not_ask_for_what_only_its_age_keeps(disk: World, clock: ManualClock) -> None:
    """It is older than retention, but the store is small."""

    disk.store_clock = clock
    async with disk.open(clock, **SMALL | {"retention_s": 7200.0, "retention_bytes": 1 << 30}) as bench:
        await leave_open(bench, "retrying")
        clock.advance(7300)
        await maintain(bench)
        assert bench.broker.group_state("orders", "billing").retrying == 1
        clock.advance(3600)
        await maintain(bench)
        assert bench.broker.group_state("orders", "billing").retrying == 0


def test_open_messages_keep_no_more_than_so_many_bytes(
    disk: World, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        disk.store_clock = clock
        given = SMALL | {"retention_s": 0.0, "retention_bytes": MIB, "open_max_bytes": 4 * MIB}
        async with disk.open(clock, **given) as bench:
            member = await bench.attach(delays_s=(30 * 86400.0,))
            for _ in range(50):
                await bench.send("orders", b"open")
                await bench.act(member, NACK, await bench.pull(member, 1, wait_ms=30_000))
                await bench.send("other", bytes(200_000))
                clock.advance(10)
                await bench.broker.maintain()
                assert size_of(bench) < 6 * MIB
            await maintain(bench)
            state = bench.broker.group_state("orders", "billing")
            assert size_of(bench) > 4 * MIB
            assert 23 < state.retrying < 28, "the oldest went, and no more of them than had to"
            figures = bench.broker.figures()
            assert figures["retention_dropped_open"] == 50 - state.retrying
            assert 3 * MIB < figures["retention_held_bytes"] <= 4 * MIB

    with caplog.at_level(logging.WARNING, "towline.broker"):
        asyncio.run(main())
    assert f"open message(s) are dropped: open messages kept more than {4 * MIB} bytes too many" in caplog.text


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


async def test_what_cannot_become_a_dead_letter_goes_an_hour_later(
    disk: World, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The log takes the message, but not the message and the event that it is a dead letter as one unit."""

    settings = disk.settings(**SMALL)
    limits = LogSettings(segment_bytes=settings.segment_bytes, min_free_bytes=0, queue_bytes=300_000)
    store = await LogStore.open(disk.folder / "data", limits, clock=clock)
    bench = Bench(await Broker.open(store, settings, clock=clock), store)
    try:
        member = await bench.attach(max_attempts=1)
        for size in range(300_000, 0, -20):
            with suppress(TooLarge):
                await bench.send("orders", bytes(size))
                break
        await bench.act(member, NACK, await bench.pull(member))
        for _ in range(40):
            await bench.send("other", bytes(200_000))
        dispatcher = bench.broker.groups.named("orders", "billing")
        clock.advance(600 + 3600 + 1800)
        await maintain(bench)
        await bench.broker.groups.buried("orders", "billing")
        assert "which is too large for the dead letters" in caplog.text
        assert dispatcher.group.dying, "it is waited for"
        assert size_of(bench) > 7 * MIB
        assert bench.broker.figures()["retention_held_by"] == "group billing on topic orders"
        clock.advance(1801)
        await maintain(bench)
        assert not dispatcher.group.dying
        assert "dying messages could not be copied, and are dropped: 1 message(s), lane/orders/mid" in caplog.text
        assert (bench.store.bounds("dead/orders/billing").end, dispatcher.group.lag()) == (0, 0)
        assert size_of(bench) < MIB
        assert bench.broker.figures()["retention_held_s"] == 0
    finally:
        await bench.broker.close()
