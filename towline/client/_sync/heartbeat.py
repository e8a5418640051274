# Generated from towline/client/_async/heartbeat.py by scripts/unasync.py: change it there.
"""The heartbeat of a consumer: the thread that sends it while the user's code is busy."""

from __future__ import annotations

import time
from collections.abc import Callable

from towline.client.concurrency.threads import Event, Worker

__all__ = ["Heartbeat"]


class Heartbeat:
    """Calls `tend` again and again; it returns how many seconds later it wants to be called again, at the latest."""

    def __init__(self, tend: Callable[[], float], name: str) -> None:
        self._tend = tend
        self._nudged = Event()
        self._stopped = False
        self._sleeps_until = 0.0
        self._worker = Worker(name, self._run)

    def nudge(self, by: float) -> None:
        """Call `tend` by this time."""
        if self._sleeps_until > by:
            self._sleeps_until = 0.0
            self._nudged.set()

    def stop(self) -> None:
        self._stopped = True
        self._nudged.set()
        self._worker.end()

    def _run(self) -> None:
        wait_s = 0.0
        while True:
            self._sleeps_until = time.monotonic() + wait_s
            self._nudged.wait(wait_s)
            self._sleeps_until = 0.0
            self._nudged.clear()
            if self._stopped:
                return
            wait_s = self._tend()
