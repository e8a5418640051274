"""Refusals by a database of the broker's own writes: the messages stay where they are, and are tried again, ever more
rarely. The log reports it, but not each time."""

from __future__ import annotations

import logging
import math
from collections.abc import Container
from typing import Final, Generic, NamedTuple, TypeVar

from towline.clock import Clock
from towline.errors import TooLarge

__all__ = ["Refusals"]

log = logging.getLogger("towline.broker")

K = TypeVar("K")

PAUSE_MIN_S: Final = 10.0
PAUSE_MAX_S: Final = 3600.0
TOLD_S: Final = 60.0
"""The least time between two lines of the log."""


class _Refusal(NamedTuple):
    pause_s: float
    until_s: float


class Refusals(Generic[K]):
    """The refusals of a group, of the schedule, or of all sinks. After a start everything is tried at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[K, _Refusal] = {}
        self._told_s = -math.inf

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def may_try(self, key: K) -> bool:
        held = self._held.get(key)
        return held is None or self._clock.steady_s() >= held.until_s

    def note(self, key: K, what: str, error: TooLarge) -> None:
        now_s, held = self._clock.steady_s(), self._held.get(key)
        pause_s = PAUSE_MIN_S if held is None else min(2 * held.pause_s, PAUSE_MAX_S)
        self._held[key] = _Refusal(pause_s, now_s + pause_s)
        if now_s - self._told_s >= TOLD_S:
            self._told_s = now_s
            others = f", as are {len(self._held) - 1} more" if len(self._held) > 1 else ""
            log.error("%s is kept where it is%s, and tried again in %d s: %s", what, others, pause_s, error)

    def keep(self, keys: Container[K]) -> None:
        """Forget all others."""
        self._held = {key: held for key, held in self._held.items() if key in keys}
