"""A clock that is set forward or back while messages wait for their time."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import NACK, Bench, World
from tests.broker.schedule.test_model import lanes
from tests.inside.alarms import AlarmRule
from tests.inside.ground import SECOND_US, ManualClock
from tests.inside.protocol import Measure, MoveDelayed

AHEAD_S = 7200.0
YEARS_S = 20 * 365 * 86_400.0
DAY_US = 86_400 * SECOND_US


class TwoClocks(ManualClock):
    """The steady one goes on by itself; the other one can be set."""

    def __init__(self) -> None:
        super().__init__()
        self.steady = 0.0

    def steady_s(self) -> float:
        return self.steady

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.steady += seconds

    def set(self, by_s: float) -> None:
        self.value_us += round(by_s * SECOND_US)


@pytest.mark.parametrize("then", ["goes on", "starts again", "starts again without its snapshot"])
@pytest.mark.parametrize("maintained", [False, True])
async def test_a_clock_that_was_ahead_and_is_set_right_holds_no_new_message_back(
    disk: World, then: str, maintained: bool
) -> None:
    clock = TwoClocks()
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(disk.open(clock))
        broker = bench.broker

        async def restart() -> None:
            nonlocal bench, broker
            if then == "goes on":
                return
            await stack.aclose()
            for path in (disk.folder / "data" / "config").glob("delayOffset*") if "without" in then else ():
                path.unlink()
            bench = await stack.enter_async_context(disk.open(clock))
            broker = bench.broker

        async def seen_after(seconds: float) -> list[bytes]:
            clock.advance(seconds)
            await broker.scheduler.catch_up()
            if maintained:
                await broker.maintain()
            return sorted(await lanes(bench))

        # One parcel, of which a part is due while the clock is ahead, and a slot that both parts share.
        hour_us = 3600 * SECOND_US
        times = [-hour_us, -2 * hour_us - 300_000, -2 * hour_us - 900_000]
        await bench.send("orders", b"hour", b"early", b"late", deliver_at_us=times)
        clock.set(AHEAD_S)
        assert await seen_after(0.5) == [b"early", b"hour"]
        await bench.send("orders", b"while ahead", deliver_at_us=[-660 * SECOND_US])
        clock.set(-AHEAD_S)
        await restart()
        # It waits in another slot of the same stream.
        await bench.send("orders", b"minutes", deliver_at_us=[-180 * SECOND_US])
        [soon] = (await bench.send("orders", b"soon", deliver_at_us=[-10 * SECOND_US])).firsts
        [moved] = (await bench.send("orders", b"moved", deliver_at_us=[-DAY_US])).firsts
        await broker.delayed.move(MoveDelayed("orders", [moved], "", -20 * SECOND_US))
        assert soon < moved
        await restart()
        there = [b"early", b"hour"]
        assert await seen_after(9) == there
        assert await seen_after(2) == sorted([*there, b"soon"])
        await restart()
        assert await seen_after(10) == sorted([*there, b"soon", b"moved"])
        # What was taken in by the clock that was ahead is due by it, and none of it is early by the right one.
        rest = [*there, b"soon", b"moved", b"minutes"]
        assert await seen_after(160) == sorted(rest)
        assert await seen_after(AHEAD_S - 181.5) == sorted(rest)
        assert await seen_after(2) == sorted([*rest, b"late"])
        assert await seen_after(600) == sorted([*rest, b"late"])
        assert await seen_after(60) == sorted([*rest, b"late", b"while ahead"])
        assert "without" in then or not broker.scheduler.schedule.counts
        assert not broker.scheduler.schedule.floors


def test_a_jump_of_the_clock_is_told_with_its_size_and_what_it_means(
    disk: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        clock = TwoClocks()
        async with disk.open(clock) as bench:
            scheduler = bench.broker.scheduler
            await bench.send("orders", b"x", deliver_at_us=[-SECOND_US])
            scheduler.watch_clock()
            clock.advance(3600)
            scheduler.watch_clock()
            assert not caplog.records
            clock.set(AHEAD_S)
            scheduler.watch_clock()
            await scheduler.catch_up()
            clock.set(-AHEAD_S)
            scheduler.watch_clock()
            scheduler.watch_clock()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    told = [record.message for record in caplog.records]
    assert [text[:38] for text in told] == [
        "the clock jumped 7,200.000 s forward: ",
        "the clock was set back by 7,200.000 s:",
        "delayed messages were delivered by a c",
    ]


@pytest.mark.parametrize("kept", [{"retention_s": 2 * 86_400.0}, {"retention_s": 0.0, "retention_bytes": 500_000}])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("meanwhile", ["nothing else waits", "something else is due", "it is read into memory"])
async def test_what_was_delayed_by_a_clock_that_was_far_ahead_does_not_keep_the_log(
    disk: World, meanwhile: str, restarted: bool, kept: dict[str, Any]
) -> None:
    small = kept | {"segment_bytes": 64 << 10, "maintenance_s": 1e9, "heartbeat_s": 1e9}
    seen: dict[bytes, tuple[str, int, int]] = {}

    clock = disk.store_clock = TwoClocks()
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(disk.open(clock, **small))

        async def restart() -> None:
            nonlocal bench
            if restarted:
                await stack.aclose()
                bench = await stack.enter_async_context(disk.open(clock, **small))

        async def look() -> list[bytes]:
            await bench.broker.scheduler.catch_up()
            for body, at in (await lanes(bench)).items():
                assert seen.setdefault(body, at) == at, (body, "was delivered twice")
            return sorted(body for body in seen if len(body) < 10)

        async def pass_days(days: int) -> None:
            for _ in range(days):
                for _ in range(4):
                    await bench.send("other", os.urandom(50_000))
                clock.advance(86_400)
                for _ in range(2):
                    await look()
                    await bench.broker.maintain()

        if meanwhile == "something else is due":
            await bench.send("orders", b"soon", deliver_at_us=[-SECOND_US])
        clock.set(YEARS_S)
        # Two parcels of one slot; if time goes on, the first message of them is delivered by the wrong clock.
        await bench.send("orders", b"1", b"2", deliver_at_us=[-5_000_000, -5_200_000])
        await bench.send("orders", b"3", deliver_at_us=[-5_100_000])
        there = []
        if meanwhile == "it is read into memory":
            for seconds in (4, 1.05):
                clock.advance(seconds)
                there = await look()
            assert there == [b"1"]
        clock.set(-YEARS_S)
        await restart()
        await pass_days(10)
        assert sum(path.stat().st_size for path in (disk.folder / "data" / "log").glob("*.log")) < 15 * 50_000
        if meanwhile == "something else is due":
            there = [b"soon"]
        await restart()
        await pass_days(1)
        assert await look() == there
        # By the time that they were given they come, once.
        clock.advance(YEARS_S - 11 * 86_400 - 10)
        assert await look() == there
        clock.advance(20)
        await look()
        await restart()
        assert await look() == sorted({*there, b"1", b"2", b"3"})
        assert not bench.broker.scheduler.schedule.counts


@pytest.mark.parametrize("kind", ["memory", "log"])
@pytest.mark.parametrize("off_s", [YEARS_S, -YEARS_S])
def test_the_age_of_what_a_wrong_clock_has_stamped_counts_from_when_it_was_set_right(
    kind: str, off_s: float, tmp_path: Path
) -> None:
    world = World(kind, tmp_path)
    given = {"retention_s": 600.0, "maintenance_s": 1e9, "heartbeat_s": 1e9}

    async def check(bench: Bench, age_s: float, held_s: float) -> None:
        broker = bench.broker
        await broker.maintain()
        assert broker.figures()["retention_held_s"] == pytest.approx(held_s, abs=5)
        [one] = [one for one in (await broker.measure(Measure("orders"))).groups if one.group == "billing"]
        assert (broker.clock.now_us() - one.oldest_at_us) / SECOND_US == pytest.approx(age_s, abs=5)
        await broker.outlook.census.refresh()
        assert [alarm.rule for alarm in broker.outlook.alarms.listed().active] == (["old"] if age_s > 1800 else [])

    async def main() -> None:
        clock = world.store_clock = TwoClocks()
        async with AsyncExitStack() as stack:
            bench = await stack.enter_async_context(world.open(clock, **given))
            await bench.broker.outlook.alarms.put(AlarmRule("old", "age", 1800, topic="orders"))
            await bench.send("other", b"before")
            member = await bench.attach(delays_s=(30 * 86400.0,))
            clock.set(off_s)
            await bench.send("orders", b"open")
            await bench.act(member, NACK, await bench.pull(member, 1))
            await check(bench, 0, 0)
            clock.set(-off_s)
            await bench.send("other", b"after")
            await check(bench, 0, 0)
            for age_s in (500, 1000, 2000):
                clock.advance(age_s / 2 if age_s > 500 else 500)
                # Of a clock that was behind nothing is known any more once all from before is gone.
                if kind == "log" and (off_s > 0 or age_s == 500):
                    await stack.aclose()
                    bench = await stack.enter_async_context(world.open(clock, **given))
                await check(bench, age_s, max(age_s - 600, 0))

    asyncio.run(main())


async def test_one_message_stamped_far_behind_does_not_keep_the_oldest_from_being_given_up(disk: World) -> None:
    small = {"segment_bytes": 64 << 10, "retention_s": 0.0, "retention_bytes": 1 << 20, "open_max_s": 3600.0}

    clock = disk.store_clock = TwoClocks()
    async with disk.open(clock, heartbeat_s=1e9, maintenance_s=1e9, **small) as bench:
        await bench.send("other", b"before")
        member = await bench.attach(delays_s=(30 * 86400.0,))
        clock.set(-YEARS_S)
        await bench.send("orders", b"open")
        clock.set(YEARS_S)
        await bench.act(member, NACK, await bench.pull(member, 1))
        for _ in range(40):
            await bench.send("other", bytes(200_000))
        clock.advance(7300)
        for _ in range(3):
            await bench.broker.maintain()
        assert bench.broker.figures()["retention_dropped_open"] == 1
        assert sum(path.stat().st_size for path in (disk.folder / "data" / "log").glob("*.log")) < 2 << 20


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_producer_heard_by_a_clock_that_was_ahead_keeps_no_others_from_being_forgotten(
    disk: World, restarted: bool
) -> None:
    given = {"maintenance_s": 1e9, "heartbeat_s": 1e9}

    clock = disk.store_clock = TwoClocks()
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(disk.open(clock, **given))
        clock.set(YEARS_S)
        await bench.send("orders", b"ahead", producer_id=1, producer_seq=1)
        clock.set(-YEARS_S)
        await bench.send("orders", b"now", producer_id=2, producer_seq=1)
        for _ in range(3):
            await bench.broker.maintain()
            if restarted:
                await stack.aclose()
                bench = await stack.enter_async_context(disk.open(clock, **given))
            assert bench.broker.figures()["remembered_producers"] == 2
            clock.advance(3 * 86_400)
        await bench.broker.maintain()
        assert bench.broker.figures()["remembered_producers"] == 0
