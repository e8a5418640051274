"""Time, as everything in Towline sees it: microseconds since 1970 in UTC, and a steady clock for waiting.

Nothing else reads the machine's clock, so a test can put any time it likes in its place.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Generator, Iterable
from types import coroutine
from typing import Final, Protocol, TypeVar

__all__ = [
    "SECOND_US",
    "SET_US",
    "STEP_US",
    "SYSTEM",
    "Clock",
    "ManualClock",
    "Patience",
    "SteadyClock",
    "SystemClock",
    "TimeSlice",
    "in_slices",
    "in_steps",
    "is_ahead",
]

SECOND_US = 1_000_000
SET_US = SECOND_US
"""A clock that is off by more than this from what it would be was set."""
STEP_US: Final = 3600 * SECOND_US
"""A recorded time that is further ahead than this was written by a clock that was wrong."""
_STEP_BYTES = 64 << 10

_T = TypeVar("_T")

SLICE_S: Final = 0.003
"""Work on the event loop that takes long gives others their turn this often."""


def is_ahead(time_us: int, now_us: int) -> bool:
    """Whether a recorded time lies in the future: waiting for it would last until then."""
    return time_us > now_us + STEP_US


class Clock(Protocol):
    def now_us(self) -> int:
        """Wall time in microseconds since the epoch."""

    def steady_s(self) -> float:
        """Seconds on a clock that never steps; only differences mean anything."""


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000

    def steady_s(self) -> float:
        return time.monotonic()


class SteadyClock:
    """A clock for waits: the wall clock as it was when this was made, and even since, whoever sets the clock. Times
    that outlive the process, and those that people see, are written by the wall clock: later by `set_us`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_us = self._drift_us()
        self.set_us = 0
        """By how much the clock was set since, as of the last look."""

    def now_us(self) -> int:
        return self._begin_us + round(self._clock.steady_s() * SECOND_US)

    def look(self) -> None:
        """Notice whether the clock was set."""
        set_us = self._drift_us() - self._begin_us
        if abs(set_us - self.set_us) > SET_US:
            self.set_us = set_us

    def on_clock(self, time_us: int) -> int:
        """A time of this clock by the wall clock; 0 is never, or at any time."""
        return time_us and time_us + self.set_us

    def _drift_us(self) -> int:
        return self._clock.now_us() - round(self._clock.steady_s() * SECOND_US)


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_us: int = 1_700_000_000 * SECOND_US) -> None:
        self.value_us = now_us

    def now_us(self) -> int:
        return self.value_us

    def steady_s(self) -> float:
        return self.value_us / SECOND_US

    def advance(self, seconds: float) -> None:
        self.value_us += round(seconds * SECOND_US)


SYSTEM = SystemClock()


class Patience:
    """A stall detector: it runs out when its work stands (almost) still for too long."""

    __slots__ = ("_mark", "_since")

    def __init__(self) -> None:
        self._since: float | None = None
        self._mark = 0

    def is_over(self, now_s: float, limit_s: float, progress: int | None) -> bool:
        """`progress` grows, in bytes, as the work goes on; None while there is nothing to wait for. Less than 64 KiB
        within the limit is standing still."""
        if progress is None:
            self._since = None
            return False
        if self._since is None or progress >= self._mark + _STEP_BYTES:
            self._since, self._mark = now_s, progress
        self._mark = min(self._mark, progress)
        return now_s - self._since > limit_s

    def stands_s(self, now_s: float) -> float:
        """For how long the work has stood still, as of the last look."""
        return 0.0 if self._since is None else now_s - self._since


class TimeSlice:
    """A share of time on the event loop: when it is over, other tasks run."""

    __slots__ = ("_end_s",)

    def __init__(self) -> None:
        self._end_s = time.perf_counter() + SLICE_S

    @property
    def over(self) -> bool:
        return time.perf_counter() >= self._end_s

    async def rest(self) -> None:
        """Yield to the loop, if the slice is over."""
        if time.perf_counter() >= self._end_s:
            await _turn()
            self._end_s = time.perf_counter() + SLICE_S


@coroutine
def _turn() -> Generator[None, None, None]:
    """A bare yield: the loop goes round once. (Clients that need no loop do not import asyncio.)"""
    yield


async def in_slices(items: Iterable[_T], part: TimeSlice | None = None) -> AsyncIterator[_T]:
    """All of these. Other tasks run in between, so the iterable must not be changed by them. The slice of the work
    before continues as `part`."""
    part = part or TimeSlice()
    for item in items:
        if part.over:
            await part.rest()
        yield item


async def in_steps(work: Generator[None, None, _T], part: TimeSlice | None = None) -> _T:
    """Run work that yields where other tasks may run. Where it is one of many, `part` is the slice of all."""
    part = part or TimeSlice()
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _T = end.value
            return result
        if part.over:
            await part.rest()
