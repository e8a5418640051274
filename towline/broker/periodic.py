"""Periodic work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from towline.errors import TowlineError

__all__ = ["every"]

log = logging.getLogger("towline.broker")


async def every(seconds: float, what: str, task: Callable[[], Awaitable[None]]) -> None:
    """Do it again and again. A failure is logged, and does not end it."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await task()
        except TowlineError as error:
            log.error("%s failed: %s", what, error)
        except Exception:
            log.exception("%s failed", what)
