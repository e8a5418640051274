"""A client, or a consumer of one, that is opened by `await` or `async with`."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, TypeVar

__all__ = ["Opening"]


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
