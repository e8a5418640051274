"""A time limit on an answer of the database."""

from __future__ import annotations

import asyncio
from types import TracebackType

__all__ = ["within"]


class within:  # noqa: N801 - read as a word: async with within(2.0)
    """As `asyncio.timeout`; and where the driver has taken a cancellation for an error of the connection, or swallowed
    it, it is a cancellation again: a task that is cancelled must end."""

    __slots__ = ("_cancelling", "_task", "_timeout")

    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "used in a task"
        self._task = task
        self._cancelling = task.cancelling()
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, traceback)
        if (error is None or isinstance(error, Exception)) and self._task.cancelling() > self._cancelling:
            raise asyncio.CancelledError from error
