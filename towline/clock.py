"""Time, as everything in Towline sees it: microseconds since 1970 in UTC, and a steady clock for waiting.

Nothing else reads the machine's clock, so a test can put any time it likes in its place.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SECOND_US", "SYSTEM", "Clock", "ManualClock", "SystemClock"]

SECOND_US = 1_000_000


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
