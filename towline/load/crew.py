"""Workers as processes of their own: started, let go at the same moment, and gathered."""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO

import msgspec

from towline.errors import Timeout, TowlineError
from towline.load import worker
from towline.load.job import Job, Report, Tally

__all__ = ["Worker", "run"]

_REPORT = msgspec.json.Decoder(Report)

Step = Callable[[int], None]


class Worker:
    """The other end of a worker process. It connects at once, and begins at `go`."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.done = 0
        self.tally: Tally | None = None
        # Unbuffered, or a report could wait in a buffer where `select` does not see it.
        self.process = subprocess.Popen(  # noqa: S603 our own module
            [sys.executable, "-m", worker.__name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._orders: IO[bytes] = self.process.stdin
        self.reports: IO[bytes] = self.process.stdout
        self._order(msgspec.json.encode(job))

    def _order(self, line: bytes) -> None:
        self._orders.write(line + b"\n")
        self._orders.flush()

    def go(self) -> None:
        self._order(b"go")

    def hear(self) -> Report:
        """The next report; it waits for one."""
        line = self.reports.readline()
        if not line:
            raise TowlineError(f"a {self.job.role} worker ended with exit code {self.process.wait()}")
        report = _REPORT.decode(line)
        if report.error:
            raise TowlineError(report.error)
        self.done, self.tally = report.done or self.done, report.tally
        return report

    def close(self) -> None:
        """It is killed if it has not ended by itself."""
        if self.process.poll() is None and self.tally is None:
            self.process.kill()
        self._orders.close()
        self.process.wait()
        self.reports.close()


def run(jobs: Sequence[Job], step: Step | None = None, *, timeout_s: float = 600.0) -> list[Tally]:
    """Run workers on these jobs, all at once; `step` is called with the progress of the last one."""
    workers: list[Worker] = []
    try:
        workers.extend(map(Worker, jobs))
        for each in workers:
            each.hear()
        for each in workers:
            each.go()
        return _gather(workers, step, time.monotonic() + timeout_s)
    finally:
        for each in workers:
            each.close()


def _gather(workers: Sequence[Worker], step: Step | None, deadline_s: float) -> list[Tally]:
    with selectors.DefaultSelector() as selector:
        for each in workers:
            selector.register(each.reports, selectors.EVENT_READ, each)
        while selector.get_map():
            ready = selector.select(deadline_s - time.monotonic())
            if not ready:
                raise Timeout("the benchmark took too long")
            for key, _ in ready:
                reporter: Worker = key.data
                reporter.hear()
                if step is not None and reporter is workers[-1]:
                    step(reporter.done)
                if reporter.tally is not None:
                    selector.unregister(key.fileobj)
    return [each.tally for each in workers if each.tally is not None]
