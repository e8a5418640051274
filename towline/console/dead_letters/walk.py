"""A walk over the dead letters of a group, from the newest on, for a moment at a time, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from towline.client._async.client import Client
from towline.client.consume.message import DeadLetter
from towline.clock import SYSTEM
from towline.console.dead_letters.pages import LetterPages
from towline.errors import TooLarge

__all__ = ["Walk"]

PAGE: Final = 1_000
STEP_BYTES: Final = 64 << 20
"""That are read at a time. Where letters are large, fewer are looked at in a step."""


class Walk:
    def __init__(self, topic: str, group: str) -> None:
        self._topic = topic
        self._group = group
        self._newest: LetterPages | None = None
        self._step = PAGE
        self.looked = self.total = 0

    @property
    def over(self) -> bool:
        return self._newest is not None and self.looked >= self.total

    async def go_on(self, mq: Client, spend_s: float, see: Callable[[list[DeadLetter]], bool]) -> None:
        """Go on for so long, or until `see`, which is called with some letters at a time, the oldest of them first,
        returns that it has enough."""
        deadline_s = SYSTEM.steady_s() + spend_s
        enough = False
        while not enough and not self.over and SYSTEM.steady_s() < deadline_s:
            newest = self._newest or LetterPages(mq, self._topic, self._group, STEP_BYTES)
            try:
                letters = await newest.page(self.looked, self._step)
            except TooLarge:
                if self._step == 1:
                    raise
                self._step = max(self._step // 8, 1)
                continue
            enough = see(letters[::-1])
            self._newest = newest
            self.looked += len(letters)
            self.total = newest.total if letters else self.looked
