"""Concurrency of the blocking client: what `tasks` has, of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Event
from threading import RLock as Lock
from threading import get_ident as current
from time import sleep
from typing import Any, Final, Protocol, TypeVar

__all__ = [
    "IN_TASKS",
    "Condition",
    "Event",
    "Lock",
    "Worker",
    "current",
    "gather",
    "opened",
    "outcome_of",
    "sleep",
    "to_thread",
]

T = TypeVar("T")
U = TypeVar("U")

IN_TASKS: Final = False
THREADS_MAX: Final = 16


class Worker:
    """Work in the background, which keeps no process from ending."""

    def __init__(self, name: str, work: Callable[..., None], *given: Any) -> None:
        self._thread = threading.Thread(target=work, args=given, name=name, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def end(self, timeout: float = 5.0) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


def gather(function: Callable[[T], U], items: Iterable[T]) -> list[U]:
    some = list(items)
    if len(some) < 2:
        return [function(one) for one in some]
    with ThreadPoolExecutor(min(len(some), THREADS_MAX), thread_name_prefix="towline-gather") as pool:
        return list(pool.map(function, some))


def outcome_of(given: T) -> T:
    return given


def to_thread(function: Callable[..., T], *given: Any) -> T:
    """An event loop must not wait for a disk; a thread may."""
    return function(*given)


class Openable(Protocol):
    def start(self) -> None: ...


Opened = TypeVar("Opened", bound=Openable)


def opened(thing: Opened) -> Opened:
    thing.start()
    return thing
