"""Time limits of handlers: a coroutine is cancelled, a thread has an exception raised in it."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Final

from towline.client.consume.interruption import Interruption

if TYPE_CHECKING:
    import asyncio

__all__ = ["HandlerTimeout", "TimeLimit", "begin_limit"]


class HandlerTimeout(TimeoutError):
    """The message was worked on for longer than it may take."""


class TimeLimit:
    """A limit on the work from here on until `end`."""

    __slots__ = ("fired", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.fired = False

    def end(self, error: BaseException | None) -> HandlerTimeout | None:
        """The work is done. Returns the error to raise instead of `error`, if the limit is why it ended."""
        raise NotImplementedError

    def _timeout(self) -> HandlerTimeout:
        return HandlerTimeout(f"the message was worked on for longer than {self.seconds:g} s")


class _TaskLimit(TimeLimit):
    __slots__ = ("_cancelling", "_handle", "_task")

    def __init__(self, seconds: float, task: asyncio.Task[object]) -> None:
        super().__init__(seconds)
        self._task = task
        self._cancelling = task.cancelling()
        self._handle = task.get_loop().call_later(max(seconds, 0.0), self._fire)

    def _fire(self) -> None:
        self.fired = True
        self._task.cancel()

    def end(self, error: BaseException | None) -> HandlerTimeout | None:
        self._handle.cancel()
        if not self.fired:
            return None
        import asyncio

        # Somebody else may have cancelled the task as well: then it goes on being cancelled.
        ours = self._task.uncancel() <= self._cancelling
        return self._timeout() if ours and isinstance(error, asyncio.CancelledError) else None


class _ThreadLimit(TimeLimit):
    __slots__ = ("_interruption",)

    def __init__(self, seconds: float, work: FrameType) -> None:
        super().__init__(seconds)
        thread = threading.get_ident()
        if (before := _LATEST.get(thread)) is not None and before.ended_unseen(work):
            before.end()
        self._interruption = _LATEST[thread] = Interruption(HandlerTimeout, work)
        self._interruption.start(time.monotonic() + seconds)

    def end(self, error: BaseException | None) -> HandlerTimeout | None:
        self._interruption.end()
        self.fired = self._interruption.fired
        _LATEST.pop(threading.get_ident(), None)
        return self._timeout() if isinstance(error, HandlerTimeout) else None


_LATEST: Final[dict[int, Interruption]] = {}
"""By thread."""


def begin_limit(seconds: float, *, in_tasks: bool) -> TimeLimit:
    """From now on, this thread, or the task that runs here, may take so many seconds."""
    task = None
    if in_tasks:
        import asyncio

        try:
            task = asyncio.current_task()
        except RuntimeError:
            # Handed on to a thread.
            pass
    return _ThreadLimit(seconds, _caller()) if task is None else _TaskLimit(seconds, task)


def _caller() -> FrameType:
    """The frame that works on the message: the first outside of ours."""
    frame = sys._getframe()
    while frame.f_globals.get("__name__") in _OURS and frame.f_back is not None:
        frame = frame.f_back
    return frame


_OURS: Final = frozenset({__name__, "towline.client.consume.message", "towline.client.consume.message_block"})
