"""Time, as everything in Towline sees it: microseconds since 1970 in UTC, and a steady clock for waiting.

Nothing else reads the machine's clock, so a test can put any time it likes in its place.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SECOND_US", "SET_US", "SYSTEM", "Clock", "ManualClock", "SteadyClock", "SystemClock"]

SECOND_US = 1_000_000
SET_US = SECOND_US
"""A clock that is off by more than this from what it would be was set."""


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
