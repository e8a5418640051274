"""Concurrency of the asyncio client: locks, events, conditions, tasks.

A lock guards what awaits nothing, and all tasks run in one thread: it is always free.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import current_task as current
from asyncio import sleep, to_thread
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from threading import RLock as Lock
from types import TracebackType
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

__all__ = [
    "IN_TASKS",
    "Condition",
    "Event",
    "Lock",
    "Opening",
    "Worker",
    "current",
    "gather",
    "outcome_of",
    "sleep",
    "to_thread",
]

T = TypeVar("T")
U = TypeVar("U")

IN_TASKS: Final = True


class Condition:
    def __init__(self) -> None:
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        change, self._change = self._change, asyncio.get_running_loop().create_future()
        if not change.done():
            change.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:
        await asyncio.wait([self._change], timeout=timeout)


class Event:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.is_set, self.set, self.clear = self._event.is_set, self._event.set, self._event.clear

    async def wait(self, timeout: float | None = None) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            pass
        return self.is_set()


class Worker:
    """Work in the background."""

    def __init__(self, name: str, work: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> None:
        self._task = asyncio.get_running_loop().create_task(work(*given), name=name)

    @property
    def done(self) -> bool:
        return self._task.done()

    async def end(self, timeout: float = 5.0) -> None:
        """Let it end, and wait for so long. A thread must know by itself that it is to end; a task is cancelled."""
        if self._task is not current():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=timeout)


async def gather(function: Callable[[T], Awaitable[U]], items: Iterable[T]) -> list[U]:
    """What it gives for each, all at the same time."""
    return await asyncio.gather(*map(function, items))


async def outcome_of(given: T | Awaitable[T]) -> T:
    """The result of a user's function, which may be a coroutine function here."""
    return await given if inspect.isawaitable(given) else given


class Openable(Protocol):
    async def start(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


Opened = TypeVar("Opened", bound=Openable)


class Opening(Generic[Opened]):
    """What is about to be opened: await it, or enter it with `async with`."""

    def __init__(self, thing: Opened) -> None:
        self._thing = thing

    def __enter__(self) -> NoReturn:
        raise TypeError("this is for asyncio: use `async with` instead of `with`")

    def __exit__(self, *_: object) -> None:
        """Never reached, but without it Python would not get as far as our message."""

    def __await__(self) -> Generator[Any, None, Opened]:
        yield from self._thing.start().__await__()
        return self._thing

    async def __aenter__(self) -> Opened:
        await self._thing.start()
        return self._thing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._thing.__aexit__(kind, error, traceback)
