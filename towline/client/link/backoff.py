"""Back-off between attempts."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["Backoff"]


class Backoff:
    """No wait before the first new try, then doubling up to a limit, with jitter: clients that lost the same broker do
    not come back in step."""

    def __init__(
        self,
        first_s: float = 0.05,
        max_s: float = 2.0,
        chance: Callable[[], float] = random.random,
        *,
        eager: bool = True,
    ) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._chance = chance
        self._eager = eager
        self._tries = 0

    def next_s(self) -> float:
        tries, self._tries = self._tries, self._tries + 1
        if self._eager:
            if tries == 0:
                return 0.0
            tries -= 1
        return min(self._max_s, self._first_s * 2.0 ** min(tries, 30)) * (0.5 + self._chance() / 2)

    def reset(self) -> None:
        self._tries = 0
