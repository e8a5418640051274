"""Searches of the console and of REST: a few at once, since all that one finds is in memory until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

__all__ = ["SearchTurns"]

AT_ONCE: Final = 8
OF_ONE: Final = 2
"""Of one caller or login, so that nobody takes all turns."""


class SearchTurns:
    def __init__(self, at_once: int = AT_ONCE, of_one: int = OF_ONE) -> None:
        self._all = asyncio.Semaphore(at_once)
        self._of_one = of_one
        self._own: dict[str, tuple[asyncio.Semaphore, int]] = {}
        """Of those who search or wait for their turn, and how many times each does."""

    @asynccontextmanager
    async def turn(self, whose: str) -> AsyncIterator[None]:
        own, count = self._own.get(whose) or (asyncio.Semaphore(self._of_one), 0)
        self._own[whose] = own, count + 1
        try:
            async with own, self._all:
                yield
        finally:
            _, count = self._own[whose]
            if count == 1:
                del self._own[whose]
            else:
                self._own[whose] = own, count - 1
