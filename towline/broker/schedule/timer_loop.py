"""A loop of steps at given times, which can be woken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from towline.clock import SECOND_US, Clock
from towline.errors import TowlineError

__all__ = ["TimerLoop"]

log = logging.getLogger("towline.broker")

TICK_S: Final = 0.02
"""Units of due messages are at least this far apart while messages are due all the time."""
TIMER_MAX_S: Final = 60.0
BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
FOREVER_US: Final = 1 << 63
BLOCKED_S: Final = 1.0
"""A step that waits for something else is repeated this often, should nothing wake the loop."""


class TimerLoop:
    def __init__(self, clock: Clock, what: str) -> None:
        self.soon = asyncio.Event()
        self._clock = clock
        self.what = what
        self._until_us = FOREVER_US

    def not_after(self, time_us: int) -> None:
        """Run a step no later than this."""
        if time_us < self._until_us:
            self.soon.set()

    async def run(self, step: Callable[[], Awaitable[bool]], next_us: Callable[[], int | None]) -> None:
        """Run step after step: at once while there is something to do, else at the time of `next_us`."""
        loop, backoff_s = asyncio.get_running_loop(), BACKOFF_MIN_S
        while True:
            self.soon.clear()
            begin_s, looked_us = loop.time(), self._clock.now_us()
            try:
                busy = await step()
            except Exception as error:
                trace = None if isinstance(error, TowlineError) else error
                log.error("%s failed, and is tried again: %s", self.what, error, exc_info=trace)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            backoff_s = BACKOFF_MIN_S
            at_us = next_us()
            if not busy:
                await self._sleep(FOREVER_US if at_us is None else at_us, looked_us)
            elif at_us is not None and at_us > self._clock.now_us():
                # Not at once: messages that become due meanwhile share a unit.
                await asyncio.sleep(max(begin_s + TICK_S - loop.time(), 0))
            else:
                await asyncio.sleep(0)

    async def _sleep(self, until_us: int, looked_us: int) -> None:
        """Sleep until this time. Work that was due when the step looked, and was not done, waits for something else,
        which wakes us; but work that has become due only since then waits for nothing."""
        blocked = until_us <= looked_us
        wait_s = BLOCKED_S if blocked else min(until_us - self._clock.now_us(), TIMER_MAX_S * SECOND_US) / SECOND_US
        self._until_us = FOREVER_US if blocked else until_us
        try:
            async with asyncio.timeout(max(wait_s, 0)):
                await self.soon.wait()
        except TimeoutError:
            pass
        finally:
            self._until_us = 0
