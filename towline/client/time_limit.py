"""Interrupting whoever works on a message for longer than it may take.

A coroutine is cancelled. A thread cannot be stopped from outside; the best that Python has is to raise an exception in
it, which comes between two bytecodes: code that waits in the operating system (a read, a sleep, a query) sees it when
it is back. What must be stopped in time for certain belongs into a process of its own.
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

__all__ = ["HandlerTimeout", "TimeLimit", "begin_limit", "raise_in"]

_IDLE_S: Final = 60.0


class HandlerTimeout(TimeoutError):
    """The message was worked on for longer than it may take."""


def raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Have a thread raise this when it comes to its next bytecode; None takes it back, if it did not come to it yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )


class TimeLimit:
    """A limit on what is done from here on until `end`."""

    __slots__ = ("fired", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.fired = False

    def end(self, error: BaseException | None) -> HandlerTimeout | None:
        """It is done. What to raise instead of `error`, if the limit is why it ended."""
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
    __slots__ = ("_done", "_guard", "_thread")

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self._thread = threading.get_ident()
        self._guard = threading.Lock()
        self._done = False
        _WATCH.add(self, time.monotonic() + seconds)

    def fire(self) -> None:
        """In the watch's thread."""
        with self._guard:
            if not self._done:
                self.fired = True
                raise_in(self._thread, HandlerTimeout)

    def end(self, error: BaseException | None) -> HandlerTimeout | None:
        while True:
            try:
                with self._guard:
                    self._done = True
                if self.fired:
                    raise_in(self._thread, None)
                break
            except HandlerTimeout:
                # It came in this very moment.
                continue
        return self._timeout() if isinstance(error, HandlerTimeout) else None


class _Watch:
    """One thread for all limits of a process, made when it is needed. It never waits for anybody."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, _ThreadLimit]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def add(self, limit: _ThreadLimit, at: float) -> None:
        with self._changed:
            heapq.heappush(self._heap, (at, next(self._numbers), limit))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="towline-time-limits", daemon=True)
                self._thread.start()
            elif self._heap[0][2] is limit:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._heap or self._heap[0][0] > time.monotonic():
                    wait_s = self._heap[0][0] - time.monotonic() if self._heap else _IDLE_S
                    if not self._changed.wait(wait_s) and not self._heap:
                        self._thread = None
                        return
                limit = heapq.heappop(self._heap)[2]
            limit.fire()


_WATCH: Final = _Watch()


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
    return _ThreadLimit(seconds) if task is None else _TaskLimit(seconds, task)
