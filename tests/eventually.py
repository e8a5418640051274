"""Waiting for what is sure to come, however slow the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["DEADLINE_S", "eventually", "eventually_done"]

DEADLINE_S = 60.0


def eventually(check: Callable[[], object], within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


async def eventually_done(check: Callable[[], object], within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.02)
