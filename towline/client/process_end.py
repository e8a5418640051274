"""The end of the process: open producers and consumers are flushed, or the loss is reported.

Python ends in two steps, and both are used. When the main thread has ended, a broker in this process can still do all
its work, but other threads may go on sending; when those have ended as well, executors are closed already.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - what ends executors must be registered before us: the last comes first
import logging
import os
import threading
import time
from typing import Any, Final, Protocol
from weakref import WeakSet

__all__ = ["Holder", "forget", "watch"]

log = logging.getLogger("towline.client")

TIME_S: Final = 10.0
"""How long the end of the process may be held up in all."""


class Holder(Protocol):
    """A producer or consumer that is open."""

    def end(self, timeout_s: float, *, final: bool) -> None:
        """Send what is held. After the `final` time nothing will be sent."""

    def forked(self) -> None:
        """This is a child process: what is held belongs to the parent. Its locks may be held for ever."""


_lock = threading.Lock()
_holders: WeakSet[Any] = WeakSet()
_left_s = TIME_S
_registered = False


def watch(holder: Holder) -> None:
    """Flush it when the process ends."""
    global _registered  # noqa: PLW0603 - a process ends once
    with _lock:
        _holders.add(holder)
        if _registered:
            return
        _registered = True
    atexit.register(_end, final=True)
    # Where there is no such step, the other one has to do.
    register = getattr(threading, "_register_atexit", atexit.register)
    try:
        register(_end, final=False)
    except RuntimeError:
        # The main thread has ended.
        pass


def forget(holder: Holder) -> None:
    """It was closed."""
    with _lock:
        _holders.discard(holder)


def _end(*, final: bool) -> None:
    global _left_s  # noqa: PLW0603
    with _lock:
        holders = list(_holders)
    begun = time.monotonic()
    try:
        for number, holder in enumerate(holders):
            left_s = max(begun + _left_s - time.monotonic(), 0.0)
            try:
                # One whose broker is away leaves time for the others.
                holder.end(left_s / (len(holders) - number), final=final)
            except Exception:
                log.exception("%r: the end of the process", holder)
    finally:
        _left_s = max(begun + _left_s - time.monotonic(), 0.0)


def _forked() -> None:
    global _lock, _holders, _left_s
    parents = list(_holders)
    _lock, _holders, _left_s = threading.Lock(), WeakSet(), TIME_S
    for holder in parents:
        holder.forked()


os.register_at_fork(after_in_child=_forked)
