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
"""A time that was written down and is further ahead than this is one of a clock that was wrong."""
_STEP_BYTES = 64 << 10

_T = TypeVar("_T")

SLICE_S: Final = 0.003
"""Work on the event loop that takes long gives others their turn this often."""


def is_ahead(time_us: int, now_us: int) -> bool:
    """Whether what was written down is no time that has been: it would hold on to things until it comes."""
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
    """The time by which things wait for a while: the clock as it was when this was made, and even since, whoever sets
    the clock. What outlives the process, and what people see, is written by the clock as it is: later by `set_us`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_us = self._drift_us()
        self.set_us = 0
        """By how much the clock was set since, as of the last look."""

    def now_us(self) -> int:
        return self._begin_us + round(self._clock.steady_s() * SECOND_US)

    def look(self) -> None:
        """See whether the clock was set."""
        set_us = self._drift_us() - self._begin_us
        if abs(set_us - self.set_us) > SET_US:
            self.set_us = set_us

    def on_clock(self, time_us: int) -> int:
        """When it is that time, by the clock as it is; 0 is never, or at any time."""
        return time_us and time_us + self.set_us

    def _drift_us(self) -> int:
        return self._clock.now_us() - round(self._clock.steady_s() * SECOND_US)


class ManualClock:
    """A clock that stands still until it is told to move."""

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
    """Watches something that ought to get on, and runs out when it stands (almost) still for too long."""

    __slots__ = ("_mark", "_since")

    def __init__(self) -> None:
        self._since: float | None = None
        self._mark = 0

    def is_over(self, now_s: float, limit_s: float, progress: int | None) -> bool:
        """`progress` grows, in bytes, as things get on; None is that there is nothing to wait for. Less than 64 KiB
        within the limit is standing still."""
        if progress is None:
            self._since = None
            return False
        if self._since is None or progress >= self._mark + _STEP_BYTES:
            self._since, self._mark = now_s, progress
        self._mark = min(self._mark, progress)
        return now_s - self._since > limit_s

    def stands_s(self, now_s: float) -> float:
        """For how long it has stood still, when it was looked at last."""
        return 0.0 if self._since is None else now_s - self._since


class TimeSlice:
    """A part of work that takes long: when it is over, others have their turn."""

    __slots__ = ("_end_s",)

    def __init__(self) -> None:
        self._end_s = time.perf_counter() + SLICE_S

    @property
    def over(self) -> bool:
        return time.perf_counter() >= self._end_s

    async def rest(self) -> None:
        """Give way, if it is over."""
        if time.perf_counter() >= self._end_s:
            await _turn()
            self._end_s = time.perf_counter() + SLICE_S


@coroutine
def _turn() -> Generator[None, None, None]:
    """A bare yield: the loop goes round once. (Clients that need no loop do not import asyncio.)"""
    yield


async def in_slices(items: Iterable[_T], part: TimeSlice | None = None) -> AsyncIterator[_T]:
    """All of these. Others run in between, so what is gone through must not be changed by them. It goes on with the
    `part` of what came before it."""
    part = part or TimeSlice()
    for item in items:
        if part.over:
            await part.rest()
        yield item


async def in_steps(work: Generator[None, None, _T], part: TimeSlice | None = None) -> _T:
    """Work that says itself where others may have their turn. Where it is one of many, `part` is that of all."""
    part = part or TimeSlice()
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _T = end.value
            return result
        if part.over:
            await part.rest()
