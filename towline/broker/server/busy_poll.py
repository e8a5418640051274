"""Busy polling for a moment while a client sends and waits in turns.

A process that sleeps has to be woken, and on an idle processor that takes longer than answering a small request. So
when requests of one client follow one another quickly, the loop goes round a few times more before it sleeps. Any other
traffic costs nothing: where several are at work, they need the processor themselves.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

__all__ = ["BusyPoll"]

QUICK_S: Final = 0.00025
"""Requests that follow one another within this time are worth staying awake for."""
STAY_S: Final = 0.00015
_PROCESSORS: Final = os.cpu_count() or 1


class BusyPoll:
    __slots__ = ("_awake", "_heard_at", "_heard_from", "_loop", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heard_at = 0.0
        self._heard_from: object = None
        self._until = 0.0
        self._awake = _PROCESSORS == 1
        """On a single processor the client could not run meanwhile: never stay awake."""

    def heard(self, client: object) -> None:
        """A request has come."""
        now = time.perf_counter()
        again = client is self._heard_from and now - self._heard_at < QUICK_S
        self._heard_at = now
        self._heard_from = client
        if again:
            self._until = now + STAY_S
            if not self._awake:
                self._awake = True
                self._loop.call_soon(self._look)

    def _look(self) -> None:
        if time.perf_counter() < self._until:
            self._loop.call_soon(self._look)
        else:
            self._awake = False
