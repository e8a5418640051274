"""Timeouts of messages that are out when the broker stops."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker.conftest import NACK, Bench, World
from tests.broker.test_recovery import crash
from tests.eventually import eventually_done
from towline.broker.limits import GRACE_US
from towline.clock import SECOND_US, ManualClock
from towline.frame.layout import limit_of
from towline.model import TopicConfig

GRACE_S = GRACE_US / SECOND_US


async def held(bench: Bench) -> None:
    """One message with a timeout, and one without, with a consumer that does not come back."""
    await bench.send("orders", b"timed", b"any", lane=1, limits=[5 * SECOND_US, 0])
    member = await bench.attach(consumer="c1")
    assert (await bench.pull(member)).bodies == [b"timed", b"any"]


@pytest.mark.parametrize("how", ["closed", "killed"])
@pytest.mark.parametrize("shards", [0, 3])
def test_what_is_out_keeps_its_timeout_through_a_restart(disk: World, tmp_path: Path, how: str, shards: int) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with disk.open(clock) as bench:
            if shards:
                await bench.broker.create_topic(TopicConfig("orders", shards=shards))
            await held(bench)
            await bench.flush()
            left = crash(disk, tmp_path / "crash") if how == "killed" else disk
        # Longer than the timeout; but who was at work then may have been done in time.
        clock.advance(60)
        async with left.open(clock, heartbeat_s=3600) as bench:
            dispatcher = bench.broker.groups.named("orders", "billing")
            await eventually_done(lambda: bool(dispatcher._limits))
            due_us = dispatcher._limits.next_us()
            assert due_us == clock.now_us() + 5 * SECOND_US + GRACE_US
            two = await bench.attach(consumer="c2")
            assert (await bench.pull(two)).bodies == []
            clock.advance(5 + GRACE_S)
            dispatcher._on_time()
            got = await bench.pull(two)
            # In a shard nothing overtakes what is tried again: what is behind it comes along.
            assert (got.bodies, got.attempts) == (([b"timed", b"any"], [2, 1]) if shards else ([b"timed"], [2]))

    asyncio.run(main())


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_what_is_out_is_tried_as_often_as_it_says_through_a_restart(disk: World, tmp_path: Path, how: str) -> None:
    """Though its consumer nacks it before the broker has read its messages again."""

    async def main() -> None:
        async with disk.open() as bench:
            limits = [limit_of(0, 1), 0, limit_of(0, 3)]
            await bench.send("orders", b"once", b"any", b"three", lane=1, limits=limits)
            member = await bench.attach(consumer="c1", max_attempts=1, delays_s=(0.0,))
            got = await bench.pull(member)
            await bench.flush()
            left = crash(disk, tmp_path / "crash") if how == "killed" else disk
        async with left.open() as bench:
            member = await bench.attach(consumer="c1", holding=(got.pull,))
            await bench.act(member, NACK, got, (1, 0, 3), reason="no")
            again = await bench.pull(member)
            assert (again.bodies, again.attempts) == ([b"three"], [2])
            await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 2)

    asyncio.run(main())
