"""Reasons of dead letters, counted from the newest on, for a moment at a time."""

from __future__ import annotations

from collections import Counter
from typing import Final

from towline.client._async.client import Client
from towline.client.consume.message import DeadLetter
from towline.console.dead_letters.walk import Walk

__all__ = ["Reasons"]

DISTINCT_MAX: Final = 10_000
"""Distinct reasons that are counted: some hold the number of the order that failed."""


class Reasons:
    """The reasons of one group's dead letters that were not sent again; a reason is its first line, without the stack
    behind it."""

    def __init__(self, topic: str, group: str) -> None:
        self._walk = Walk(topic, group)
        self.counts: Counter[str] = Counter()
        self.others = 0
        """Of reasons beyond the distinct ones that are counted."""

    @property
    def over(self) -> bool:
        return self._walk.over

    @property
    def told(self) -> str:
        """The progress in words; empty when all were counted."""
        return "" if self.over else f"counting: the newest {self._walk.looked:,} of {self._walk.total:,} so far"

    async def go_on(self, mq: Client, spend_s: float) -> None:
        """Count further, for a moment."""
        await self._walk.go_on(mq, spend_s, self._see)

    def _see(self, letters: list[DeadLetter]) -> bool:
        for letter in letters:
            if not letter.resent:
                self._note(letter.reason.partition("\n")[0])
        return False

    def _note(self, reason: str) -> None:
        if reason in self.counts or len(self.counts) < DISTINCT_MAX:
            self.counts[reason] += 1
        else:
            self.others += 1
