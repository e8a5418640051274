"""Waiting for what is sure to come, however slow the machine is: the one loop that asks again and again."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

__all__ = ["DEADLINE_S", "eventually", "eventually_done"]

DEADLINE_S = 60.0
_AGAIN_S = 0.01


def eventually(ask: Callable[[], Any], within_s: float = DEADLINE_S, *, holds: Callable[[Any], object] = bool) -> Any:
    """The answer, once it holds."""
    deadline = time.monotonic() + within_s
    while not holds(answer := ask()):
        assert time.monotonic() < deadline, f"it did not come true in time; the last answer was {answer!r}"
        time.sleep(_AGAIN_S)
    return answer


async def eventually_done(
    ask: Callable[[], Any], within_s: float = DEADLINE_S, *, holds: Callable[[Any], object] = bool
) -> Any:
    """The same; the answer may have to be awaited."""
    deadline = time.monotonic() + within_s
    while True:
        answer = ask()
        if inspect.isawaitable(answer):
            answer = await answer
        if holds(answer):
            return answer
        assert time.monotonic() < deadline, f"it did not come true in time; the last answer was {answer!r}"
        await asyncio.sleep(_AGAIN_S)
