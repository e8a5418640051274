"""A store that cannot be read for a moment: nobody loses a message by it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.broker.conftest import ACK, Bench, World
from tests.eventually import eventually_done
from towline.clock import ManualClock
from towline.errors import Unavailable


@contextmanager
def unreadable(bench: Bench, error: Exception) -> Iterator[list[object]]:
    """Every read fails; gives a list that grows with them."""
    read, failed = bench.store.read, list[object]()

    async def fail(*asked: object) -> Any:
        failed.append(asked)
        raise error

    bench.store.read = fail  # type: ignore[assignment, method-assign]
    try:
        yield failed
    finally:
        bench.store.read = read  # type: ignore[method-assign]


@pytest.mark.parametrize("wait_ms", [0, 60_000])
def test_a_pull_that_cannot_be_read_holds_nothing_back(world: World, wait_ms: int) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        with unreadable(bench, Unavailable("not now")):
            pull = asyncio.create_task(bench.pull(member, wait_ms=wait_ms)) if wait_ms else None
            await asyncio.sleep(0)
            await bench.send("orders", bytes(5_000), bytes(5_000))
            with pytest.raises(Unavailable, match="not now"):
                await (pull or bench.pull(member))
        assert bench.broker.group_state("orders", "billing").in_flight == 0
        got = await bench.pull(member, wait_ms=60_000)
        assert (len(got.bodies), got.attempts) == (2, [1, 1])
        assert (await bench.act(member, ACK, got)).refused == []

    world.run(scenario)


@pytest.mark.parametrize("error", [Unavailable("not now"), OSError(errno.EMFILE, "too many open files")])
def test_delayed_messages_are_delivered_once_they_can_be_read_again(
    disk: World, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towline.broker.pace.BACKOFF_MIN_S", 0.01)

    async def main() -> None:
        clock = ManualClock()
        async with disk.open(clock) as bench:
            await bench.send("orders", b"later", deliver_at_us=[-10_000_000])
            with unreadable(bench, error) as failed:
                clock.advance(9)
                bench.broker.scheduler.wake()
                await eventually_done(lambda: failed)
            clock.advance(2)
            bench.broker.scheduler.wake()
            got = await bench.pull(await bench.attach(), wait_ms=60_000)
            assert got.bodies == [b"later"]

    asyncio.run(main())
