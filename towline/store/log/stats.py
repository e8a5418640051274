"""Counters of a log store, for the broker's metrics."""

from __future__ import annotations

from towline.store.histogram import Histogram

__all__ = ["LogStats"]


class LogStats:
    """Plain counters: read them at any time."""

    __slots__ = (
        "bytes_written",
        "fsync_times",
        "fsyncs",
        "groups",
        "inline_groups",
        "last_fsync_s",
        "lost_ranges",
        "slow_reads",
    )

    def __init__(self) -> None:
        self.bytes_written = 0
        self.groups = 0
        self.inline_groups = 0
        """Groups that the event loop wrote itself."""
        self.fsyncs = 0
        self.last_fsync_s = 0.0
        self.fsync_times = Histogram()
        self.slow_reads = 0
        """Reads that had to wait for the disk."""
        self.lost_ranges = 0
        """Damaged ranges that readers came across."""

    def note_fsync(self, seconds: float) -> None:
        self.fsyncs += 1
        self.last_fsync_s = seconds
        self.fsync_times.note(seconds)
