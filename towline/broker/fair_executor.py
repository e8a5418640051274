"""Threads for slow work: a few at a time, one for each origin, and all origins by turns.

The threads are of their own: one that blocks holds up neither the pool that all else shares nor the end of the program.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

__all__ = ["FairExecutor"]

_T = TypeVar("_T")


class FairExecutor:
    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._busy: set[str] = set()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """The longest waiting origin first."""

    async def run(self, origin: str, work: Callable[..., _T], *arguments: Any) -> _T:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(origin, deque()).append(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._end(origin)
            raise
        running: asyncio.Future[_T] = loop.create_future()

        def ended(future: asyncio.Future[_T]) -> None:
            self._end(origin)
            if not future.cancelled():
                future.exception()

        # The place is taken for as long as the thread is, also when nobody waits for it any more.
        running.add_done_callback(ended)
        try:
            threading.Thread(target=_carry_out, args=(running, work, arguments), daemon=True).start()
        except RuntimeError as error:  # as many as allowed
            running.set_exception(error)
        return await asyncio.shield(running)

    def _end(self, origin: str) -> None:
        self._free += 1
        self._busy.discard(origin)
        self._next()

    def _next(self) -> None:
        for origin in list(self._waiting) if self._free else ():
            if origin in self._busy:
                continue
            queue = self._waiting.pop(origin)
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    self._free -= 1
                    self._busy.add(origin)
                    turn.set_result(None)
                    break
            if queue:
                self._waiting[origin] = queue
            if not self._free:
                return


def _carry_out(future: asyncio.Future[_T], work: Callable[..., _T], arguments: tuple[Any, ...]) -> None:
    try:
        tell = partial(future.set_result, work(*arguments))
    except Exception as error:
        tell = partial(future.set_exception, error)
    with suppress(RuntimeError):  # the loop has ended
        future.get_loop().call_soon_threadsafe(tell)
