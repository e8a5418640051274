"""The foreman between a worker and the crew: start, stop, and progress."""

from __future__ import annotations

import gc
import sys
import time

import msgspec

from towline.errors import TowlineError
from towline.load.job import Job, Report

__all__ = ["Foreman", "say"]

REPORT_NS = 200_000_000
CALM_NS = 1_000_000_000
"""Where single messages are timed, a report now and then would be among the slowest of a hundred."""


class Foreman:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.begin_ns = 0
        self._report_ns = CALM_NS if job.role in ("paced", "handle") else REPORT_NS
        self._next_report_ns = 0

    def ready(self) -> None:
        """Report it, and wait until all the others are ready as well."""
        say(Report(ready=True))
        if sys.stdin.buffer.readline() != b"go\n":
            raise TowlineError("the benchmark was called off")
        gc.collect()
        self.begin_ns = time.perf_counter_ns()
        self._next_report_ns = self.begin_ns + self._report_ns

    def came_to(self, done: int) -> None:
        now_ns = time.perf_counter_ns()
        if now_ns >= self._next_report_ns:
            self._next_report_ns = now_ns + self._report_ns
            say(Report(done=done))

    def is_over(self, done: int) -> bool:
        job = self.job
        if job.count and done >= job.count:
            return True
        return bool(job.seconds) and time.perf_counter_ns() - self.begin_ns >= job.seconds * 1e9


def say(report: Report) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()
