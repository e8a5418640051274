"""Dead letters that fit a filter: looked for from the newest on, for a moment at a time, however many there are."""

from __future__ import annotations

from typing import Final

from towline.client.aio import Client
from towline.client.message import DeadLetter
from towline.clock import SYSTEM

__all__ = ["Sifting"]

SPEND_S: Final = 0.4
"""So long is looked before something is shown."""
PAGE: Final = 1_000
FOUND_MAX: Final = 500


class Sifting:
    def __init__(self, topic: str, group: str, reason: str, key: str) -> None:
        self._topic = topic
        self._group = group
        self._reason = reason
        self._key = key
        self._start = 0
        self._until: int | None = None
        """All from here on were looked at."""
        self.found: list[DeadLetter] = []
        """The newest first."""
        self.looked = self.total = 0

    @property
    def over(self) -> bool:
        """Whether there is nothing more to look at, or enough was found."""
        return self.looked >= self.total or len(self.found) >= FOUND_MAX

    @property
    def told(self) -> str:
        most = f"the newest {self.looked:,} of {self.total:,}" if self.looked < self.total else f"all {self.total:,}"
        return f"{len(self.found):,} found in {most}"

    async def go_on(self, mq: Client) -> None:
        """Look further, for a moment."""
        if self._until is None:
            page = await mq.dead_letters(self._topic, self._group, first=0, max_messages=1, max_bytes=1)
            self._start, self._until, self.total = page.start, page.end, page.end - page.start
        deadline_s = SYSTEM.steady_s() + SPEND_S
        while not self.over and SYSTEM.steady_s() < deadline_s:
            first = max(self._until - PAGE, self._start)
            letters = await self._read(mq, first, self._until)
            self.found += [one for one in reversed(letters) if self._fits(one)][: FOUND_MAX - len(self.found)]
            self.looked += self._until - first
            self._until = first

    async def _read(self, mq: Client, first: int, until: int) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        while first < until:
            page = await mq.dead_letters(self._topic, self._group, first=first, max_messages=until - first)
            letters += page
            if page.next <= first:
                break
            first = page.next
        return letters

    def _fits(self, one: DeadLetter) -> bool:
        return not one.resent and self._reason in one.reason and self._key in ("", one.key)
