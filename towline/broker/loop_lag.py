"""Lag of the broker's event loop: its longest stalls, and the work behind them.

Background work runs in steps, each from one wait to the next. The steps are timed where the work is started, so
requests pay nothing for it. A step counts by the processor time that it took: on a busy machine anything may stand
still for longer. Besides, a timer measures how late the loop calls it, whatever the cause.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter, thread_time
from typing import Any, Final, TypeVar

from towline.store import Histogram

__all__ = ["GARBAGE", "LAG_S", "STALL_S", "LoopLag"]

log = logging.getLogger("towline.broker")

STALL_S: Final = 0.02
"""The limit for a step of background work."""
LAG_S: Final = 0.25
"""A timer that comes this late is logged, whatever the cause."""
TICK_S: Final = 0.1
RECENT_S: Final = 300.0
"""The longest steps are those of the last period of this length and of the one under way."""
REMIND_S: Final = 60.0
REQUESTS: Final = "requests of clients"
GARBAGE: Final = "the collection of garbage"

_T = TypeVar("_T")


class LoopLag:
    def __init__(self) -> None:
        self.lags = Histogram()
        """Delays of the timer."""
        self.stalls = 0
        """Steps beyond the limit."""
        self._longest: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._lag = self._lag_before = (0.0, "")
        self._tick: tuple[float, str] = (0.0, "")
        """The longest step since the last tick, and its work."""
        self._garbage_s = self._garbage_begin_s = self._garbage_begin_cpu_s = 0.0
        self._inner_s = 0.0
        """The end of the last step that was reported."""
        self._remind_s: dict[str, float] = {}
        self._unreported: dict[str, int] = {}

    # Figures

    def longest(self) -> dict[str, float]:
        """By the name of the work, the processor time of its longest recent step."""
        names = sorted(self._longest.keys() | self._before.keys())
        return {name: max(self._longest.get(name, 0.0), self._before.get(name, 0.0)) for name in names}

    def figures(self) -> dict[str, object]:
        lag_s, culprit = max(self._lag, self._lag_before)
        return {"loop_stalls": self.stalls, "loop_lag_s": round(lag_s, 4), "loop_lag_by": culprit}

    # Steps

    def timed(self, name: str, work: Coroutine[Any, Any, _T]) -> Coroutine[Any, Any, _T]:
        """The coroutine, with its steps timed, to be run as a task."""
        return _Timed(self, name, work)

    def called(self, name: str, work: Callable[..., object], *values: object) -> None:
        """The function, timed, to be called by a timer."""
        begin_s, begin_cpu_s = perf_counter(), thread_time()
        try:
            work(*values)
        finally:
            self.note(name, begin_s, thread_time() - begin_cpu_s)

    def note(self, name: str, begin_s: float, cpu_s: float) -> None:
        """A step that began then is over."""
        end_s = perf_counter()
        if cpu_s > self._longest.get(name, 0.0):
            self._longest[name] = cpu_s
        if end_s - begin_s > self._tick[0] and self._inner_s <= begin_s:
            self._tick = end_s - begin_s, name
        if cpu_s >= STALL_S and self._inner_s <= begin_s:
            # The step around it took as long, and is not to blame.
            self._inner_s = end_s
            self.stalls += 1
            self._tell(
                name,
                "%s held the event loop for %.0f ms of processor time: whoever sent or pulled meanwhile waited. If it "
                "comes again and again, spread topics and groups over more brokers",
                *(name, 1000 * cpu_s),
            )

    async def loop(self) -> None:
        """Measure how late a timer is, again and again."""
        gc.callbacks.append(self._on_garbage)
        try:
            end_s = perf_counter() + RECENT_S
            while True:
                due_s, cpu_s = perf_counter() + TICK_S, thread_time()
                self._tick, self._garbage_s = (0.0, ""), 0.0
                await asyncio.sleep(TICK_S)
                now_s = perf_counter()
                self._note_lag(max(now_s - due_s, 0.0), thread_time() - cpu_s)
                if now_s >= end_s:
                    end_s = now_s + RECENT_S
                    self._before, self._longest = self._longest, {}
                    self._lag_before, self._lag = self._lag, (0.0, "")
        finally:
            gc.callbacks.remove(self._on_garbage)

    def _note_lag(self, lag_s: float, cpu_s: float) -> None:
        self.lags.note(lag_s)
        if lag_s < STALL_S:
            return
        culprit = self._culprit(lag_s, cpu_s)
        self._lag = max(self._lag, (lag_s, culprit))
        if lag_s >= LAG_S:
            self._tell(
                "",
                "the event loop was held for %.0f ms, by %s: whoever sent or pulled meanwhile waited",
                *(1000 * lag_s, culprit),
            )

    def _culprit(self, lag_s: float, cpu_s: float) -> str:
        if cpu_s < lag_s / 2:
            return "the machine: the broker did not get the processor"
        if self._garbage_s > lag_s / 2:
            return GARBAGE
        took_s, name = self._tick
        return name if took_s > lag_s / 2 else REQUESTS

    def _on_garbage(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._garbage_begin_s, self._garbage_begin_cpu_s = perf_counter(), thread_time()
        else:
            self._garbage_s = max(perf_counter() - self._garbage_begin_s, self._garbage_s)
            self.note(GARBAGE, self._garbage_begin_s, thread_time() - self._garbage_begin_cpu_s)

    def _tell(self, kind: str, text: str, *values: object) -> None:
        """Log a stall, not more often than once a minute of each kind."""
        now_s = perf_counter()
        if now_s < self._remind_s.get(kind, 0.0):
            self._unreported[kind] = self._unreported.get(kind, 0) + 1
            return
        self._remind_s[kind] = now_s + REMIND_S
        more = self._unreported.pop(kind, 0)
        log.warning("%s%s", text % values, f" (and {more} times more since this was said last)" if more else "")


class _Timed(Coroutine[Any, Any, _T], Generator[Any, Any, _T]):
    """A coroutine whose steps are timed. One that is ended before its first step closes the inner one, too."""

    __slots__ = ("_lag", "_name", "_work")

    def __init__(self, lag: LoopLag, name: str, work: Coroutine[Any, Any, _T]) -> None:
        self._lag, self._name, self._work = lag, name, work

    def send(self, value: Any) -> Any:
        return self._step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._work.throw, *error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, _T]:
        return self

    def _step(self, step: Callable[..., Any], *values: Any) -> Any:
        begin_s, begin_cpu_s = perf_counter(), thread_time()
        try:
            return step(*values)
        finally:
            self._lag.note(self._name, begin_s, thread_time() - begin_cpu_s)
