"""One suite for both clients: `do` awaits what must be awaited, `entered` and `each` enter and iterate either kind."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["do", "each", "entered"]


async def do(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def entered(thing: Any) -> AsyncIterator[Any]:
    if hasattr(thing, "__aenter__"):
        async with thing as opened:
            yield opened
    else:
        with thing as opened:
            yield opened


async def each(things: Any) -> AsyncIterator[Any]:
    if hasattr(things, "__aiter__"):
        async for thing in things:
            yield thing
    else:
        for thing in things:
            yield thing
