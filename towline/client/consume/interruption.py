"""Interrupting a thread. It cannot be stopped from outside; the best that Python has is to raise an exception in it,
which comes between two bytecodes: code that waits in the operating system (a read, a sleep, a query) sees it when it is
back. Anything may be there between two bytecodes, so the place of the thread is checked before:

* Inside this client, an import or a log call, it would leave locks held and work half done: it is waited until the
  thread is back in the code that called.
* In a finaliser or a callback of a weak reference, Python swallows it; and code may catch what it should not. So it is
  raised again, until the work has ended; but not in code that is handling an exception, which is tidying up.

Work that must be stopped in time for certain belongs into a process of its own.
"""

from __future__ import annotations

import ctypes
import heapq
import inspect
import itertools
import sys
import threading
import time
from types import FrameType
from typing import Final

__all__ = ["Interruption"]

_IDLE_S: Final = 60.0
_LOOK_S: Final = 0.005
"""How soon to look again at a thread that is where it must not be interrupted."""
_AGAIN_S: Final = 0.05
_AGAIN_MAX_S: Final = 1.0
_DEPTH_MAX: Final = 1_000
_ENDED_MAX: Final = 1_000

_CLIENT: Final = "towline.client."
_CALLERS: Final = frozenset({"towline.client.app.threads", "towline.client.telemetry"})
"""Modules that call the user's code."""
_DELICATE: Final = frozenset({"importlib._bootstrap", "importlib._bootstrap_external", "logging", "weakref"})


class Interruption:
    """Raises `error` in the thread that makes this, from the time it is `start`ed for until `end`. `frame` is the one
    whose work is to be interrupted."""

    __slots__ = ("_again_s", "_at", "_done", "_error", "_frame", "_guard", "_thread", "fired")

    def __init__(self, error: type[BaseException], frame: FrameType | None) -> None:
        self.fired = False
        self._error = error
        self._thread = threading.get_ident()
        self._guard = threading.Lock()
        self._done = False
        self._again_s = _AGAIN_S
        self._frame = frame
        self._at = -1 if frame is None else frame.f_lasti

    def start(self, at: float) -> None:
        """From this time on, by the monotonic clock."""
        _WATCH.add(self, at)

    def end(self) -> None:
        """The work is over: from here on nothing is raised any more. In the thread itself."""
        while True:
            try:
                with self._guard:
                    self._done = True
                    self._frame = None
                if self.fired:
                    _raise_in(self._thread, None)
                _WATCH.ended += 1
                return
            except self._error:
                # It came in this very moment.
                continue

    @property
    def over(self) -> bool:
        return self._done

    def ended_unseen(self, frame: FrameType) -> bool:
        """Whether the work in this frame must have ended, though `end` was not called: it begins anew at the same
        place."""
        return self._frame is frame and self._at == frame.f_lasti

    def look(self) -> float | None:
        """In the watch's thread: raise it if this is the moment. Returns when to look again, in seconds; None if it is
        over."""
        with self._guard:
            if self._done:
                return None
            # From here on for half a switch interval no other thread runs: what is seen stays true.
            time.sleep(0)
            until = time.monotonic() + sys.getswitchinterval() / 2
            innermost = sys._current_frames().get(self._thread)
            if innermost is None:
                return None
            within, free = _place(innermost, self._frame)
            if not free or (self.fired and _is_tidying_up(self._thread, self._error)):
                return _LOOK_S
            if not within and _is_coroutine(self._frame):
                # Other coroutines have the thread now.
                return _LOOK_S
            if not within and self.fired:
                # Nobody knows whether it is still at it.
                return None
            if time.monotonic() > until:
                return 0.0
            _raise_in(self._thread, self._error)
            self.fired = True
            again_s, self._again_s = self._again_s, min(2 * self._again_s, _AGAIN_MAX_S)
            return again_s


def _place(innermost: FrameType, work: FrameType | None) -> tuple[bool, bool]:
    """Whether a thread is within some work, and whether it may be interrupted where it is."""
    frame: FrameType | None = innermost
    for _ in range(_DEPTH_MAX):
        if frame is None:
            break
        if frame is work:
            return True, True
        name = frame.f_globals.get("__name__", "")
        if name in _CALLERS:
            break
        if name in _DELICATE or name.startswith(_CLIENT):
            return True, False
        frame = frame.f_back
    return False, True


def _is_coroutine(work: FrameType | None) -> bool:
    return work is not None and bool(work.f_code.co_flags & inspect.CO_COROUTINE)


def _is_tidying_up(thread: int, error: type[BaseException]) -> bool:
    """Whether a thread is handling this error: within `except`, `finally`, or the end of a `with`."""
    found: object = sys._current_exceptions().get(thread)
    # Up to Python 3.11 it is the three of `sys.exc_info`.
    handled = found[1] if isinstance(found, tuple) else found
    for _ in range(_DEPTH_MAX):
        if not isinstance(handled, BaseException):
            return False
        if isinstance(handled, error):
            return True
        handled = handled.__context__
    return False


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Have a thread raise this when it comes to its next bytecode; None takes it back, if it did not come to it yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )


class _Watch:
    """One thread for all interruptions of a process, made when it is needed. It never waits for anybody."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Interruption]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self.ended = 0
        """About how many of those that wait need not be looked at any more."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, interruption: Interruption, at: float) -> None:
        with self._changed:
            if self.ended > max(_ENDED_MAX, len(self._heap) // 2):
                # Most work ends long before its time, which may be an hour.
                self._heap = [entry for entry in self._heap if not entry[2].over]
                heapq.heapify(self._heap)
                self.ended = 0
            heapq.heappush(self._heap, (at, next(self._numbers), interruption))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="towline-interruptions", daemon=True)
                self._thread.start()
            elif self._heap[0][2] is interruption:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._heap or self._heap[0][0] > time.monotonic():
                    wait_s = self._heap[0][0] - time.monotonic() if self._heap else _IDLE_S
                    if not self._changed.wait(wait_s) and not self._heap:
                        self._thread = None
                        return
                interruption = heapq.heappop(self._heap)[2]
            again_s = interruption.look()
            if again_s is not None:
                with self._changed:
                    at = time.monotonic() + again_s
                    heapq.heappush(self._heap, (at, next(self._numbers), interruption))


_WATCH: Final = _Watch()
