"""What is staged when nobody comes for it, or when it cannot be read any more."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import Bench, World
from tests.broker.schedule.test_model import lanes
from tests.broker.test_recovery import crash
from tests.inside.frame import encode
from tests.inside.ground import ManualClock
from tests.inside.protocol import FrameHead
from tests.inside.protocol import publications as wire
from towline.errors import NotFound, StoreDamaged
from towline.model import Durability, TopicConfig


async def stage(bench: Bench, *bodies: bytes) -> list[int]:
    data = [encode([body]) for body in bodies]
    staging = bench.broker.staging
    return [(await staging.stage(wire.Stage([FrameHead("orders", 1, len(one))], -1), [one])).record for one in data]


async def maintain(bench: Bench) -> None:
    for _ in range(3):  # what the snapshot before the last one needs is kept
        await bench.broker.maintain()


def log_bytes(world: World) -> int:
    return sum(path.stat().st_size for path in (world.folder / "data" / "log").glob("*.log"))


def damage(world: World) -> None:
    [path] = (world.folder / "data" / "log").glob("*.log")
    with path.open("r+b") as file:
        file.seek(file.read().index(b"damaged"))
        file.write(b"DAMAGED")


ALONE: dict[str, Any] = {
    "segment_bytes": 64 << 10,
    "retention_s": 2 * 86_400.0,
    "maintenance_s": 1e9,
    "heartbeat_s": 1e9,
}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("ahead_s", [0, 20 * 365 * 86_400])
async def test_what_nobody_publishes_is_dropped_after_a_day_also_if_the_clock_was_ahead(
    disk: World, ahead_s: float, restarted: bool
) -> None:
    clock = disk.store_clock = ManualClock()
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(disk.open(clock, **ALONE))

        async def pass_hours(hours: int) -> list[int]:
            """Which records are there then; with a restart between, nothing else happens."""
            nonlocal bench
            for _ in range(0, hours, 4):
                clock.advance(4 * 3600)
                await maintain(bench)
                if restarted:
                    await stack.aclose()
                    bench = await stack.enter_async_context(disk.open(clock, **ALONE))
            return list(bench.broker.staging._state.staged)

        clock.advance(ahead_s)
        ahead = await stage(bench, b"1", b"2")
        clock.advance(-ahead_s)
        late = await stage(bench, b"3")
        assert await pass_hours(20) == [*ahead, *late]
        young = await stage(bench, b"4")
        assert await pass_hours(12) == young
        assert await pass_hours(20) == []
        with pytest.raises(NotFound, match="dropped after a day"):
            await bench.broker.staging.publish(wire.Publish("sink", 0, ahead, -1))
        for _ in range(10):
            for _ in range(4):
                await bench.send("other", bytes(50_000))
            await pass_hours(24)
        assert log_bytes(disk) < 15 * 50_000


@pytest.mark.parametrize("restarted", [False, True])
def test_an_epoch_goes_on_without_a_staged_record_that_is_damaged(
    disk: World, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        clock = disk.store_clock = ManualClock()
        async with AsyncExitStack() as stack:
            bench = await stack.enter_async_context(disk.open(clock, **ALONE))
            records = await stage(bench, b"first", b"damaged", b"last")
            damage(disk)
            with pytest.raises(StoreDamaged, match="is published, but 1 of 3 staged records could not be read"):
                await bench.broker.staging.publish(wire.Publish("sink", 0, records, -1))
            assert (await bench.broker.staging.publish(wire.Publish("sink", 0, records, -1))).duplicate
            following = await stage(bench, b"following")
            assert (await bench.broker.staging.publish(wire.Publish("sink", 1, following, -1))).messages == 1
            for _ in range(10):
                for _ in range(4):
                    await bench.send("other", bytes(50_000))
                clock.advance(86_400)
                await maintain(bench)
                if restarted:
                    await stack.aclose()
                    bench = await stack.enter_async_context(disk.open(clock, **ALONE))
            assert log_bytes(disk) < 15 * 50_000

    with caplog.at_level(logging.ERROR, "towline.broker"):
        asyncio.run(main())
    [said] = [one.getMessage() for one in caplog.records if "goes on without" in one.getMessage()]
    assert said.startswith("epoch 0 of sink sink goes on without what cannot be read: staged record 2 cannot be read: ")


async def test_an_epoch_that_was_decided_before_a_crash_goes_on_though_the_head_of_a_record_is_lost(
    disk: World, tmp_path: Path
) -> None:
    async with disk.open() as bench:
        await bench.broker.topics.create(TopicConfig("orders"))
        records = await stage(bench, b"first", b"damaged", b"last")
        staging = bench.broker.staging
        mark = staging._state.decide("sink", 0, records, b"", 1)
        assert mark is not None
        await staging._record(mark, Durability.FSYNC)
        left = crash(disk, tmp_path / "left")
    damage(left)
    async with left.open() as bench:
        await bench.broker.maintain()
        assert not bench.broker.staging._state.running
        assert sorted(await lanes(bench)) == [b"first", b"last"]
