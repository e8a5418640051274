"""A loop of the schedule never sleeps past what is due."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from towline.broker.schedule.timer_loop import FOREVER_US, TimerLoop
from towline.clock import Clock

DUE_US = 1_000_000


class Creeping(Clock):
    """Time goes on by some microseconds with each look at it."""

    def __init__(self, now_us: int, step_us: int) -> None:
        self.at_us = now_us
        self.step_us = step_us

    def now_us(self) -> int:
        self.at_us += self.step_us
        return self.at_us

    def steady_s(self) -> float:
        return self.at_us / 1e6


async def run_until(
    pace: TimerLoop, step: Callable[[], Awaitable[bool]], next_us: Callable[[], int | None], over: asyncio.Event
) -> float:
    """How long it took."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    task = asyncio.create_task(pace.run(step, next_us))
    await asyncio.wait_for(over.wait(), 30)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return loop.time() - begin


def test_what_becomes_due_between_the_look_and_the_sleep_is_not_slept_over() -> None:
    async def main(ahead_us: int) -> None:
        clock, over = Creeping(DUE_US - ahead_us, 10), asyncio.Event()
        looks = 0

        async def step() -> bool:
            nonlocal looks
            looks += 1
            if clock.now_us() < DUE_US:
                return False
            over.set()
            return False

        pace = TimerLoop(clock, "this")
        took_s = await run_until(pace, step, lambda: None if over.is_set() else DUE_US, over)
        assert took_s < 0.9, "it waited for a whole second"
        assert looks < 100

    for ahead_us in range(5, 100, 5):
        asyncio.run(main(ahead_us))


async def test_what_is_due_but_cannot_be_done_yet_is_waited_for_without_a_busy_loop() -> None:
    clock, over = Creeping(DUE_US + 50, 1), asyncio.Event()
    looks, free = 0, False

    async def step() -> bool:
        nonlocal looks
        looks += 1
        if free:
            over.set()
        return False

    pace = TimerLoop(clock, "this")

    def let_go() -> None:
        nonlocal free
        free = True
        pace.not_after(DUE_US)

    asyncio.get_running_loop().call_later(0.2, let_go)
    took_s = await run_until(pace, step, lambda: DUE_US, over)
    assert took_s < 0.9, "what it waited for woke it"
    assert looks <= 4, "it did not look again and again"


async def test_with_nothing_to_come_it_sleeps_until_it_is_told() -> None:
    clock, over = Creeping(0, 1), asyncio.Event()
    looks = 0

    async def step() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            over.set()
        return False

    pace = TimerLoop(clock, "this")
    asyncio.get_running_loop().call_later(0.05, pace.not_after, FOREVER_US - 1)
    await run_until(pace, step, lambda: None, over)
    assert looks == 2
