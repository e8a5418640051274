"""A histogram of durations."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["BOUNDS_S", "Histogram"]

BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Histogram:
    """Counted in one thread, read from any."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """How many took up to each bound and longer than the one before; the last, how many took longer than all."""
        self.total_s = 0.0

    def note(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)
