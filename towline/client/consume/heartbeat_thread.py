"""A thread that looks after a consumer's connection while the user's code is busy with something else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Heartbeat"]


class Heartbeat:
    """Calls `tend` again and again; it says how many seconds later it wants to be called again, at the latest."""

    def __init__(self, tend: Callable[[], float], name: str) -> None:
        self._tend = tend
        self._nudged = threading.Event()
        self._stopped = False
        self._sleeps_until = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def nudge(self, by: float) -> None:
        """There is something to look after by this time."""
        if self._sleeps_until > by:
            self._sleeps_until = 0.0
            self._nudged.set()

    def stop(self) -> None:
        self._stopped = True
        self._nudged.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

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
