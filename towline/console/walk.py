"""A walk over the dead letters of a group, from the newest on, for a moment at a time, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from towline.client.aio import Client
from towline.client.message import DeadLetter
from towline.clock import SYSTEM

__all__ = ["Walk"]

PAGE: Final = 1_000


class Walk:
    def __init__(self, topic: str, group: str) -> None:
        self._topic = topic
        self._group = group
        self._start = 0
        self._until: int | None = None
        """All from here on were looked at."""
        self.looked = self.total = 0

    @property
    def over(self) -> bool:
        return self._until is not None and self.looked >= self.total

    async def go_on(self, mq: Client, spend_s: float, see: Callable[[list[DeadLetter]], bool]) -> None:
        """Go on for so long, or until `see`, which is given some letters at a time, the oldest of them first, says that
        it has enough."""
        if self._until is None:
            page = await mq.dead_letters(self._topic, self._group, first=0, max_messages=1, max_bytes=1)
            self._start, self._until, self.total = page.start, page.end, page.end - page.start
        deadline_s = SYSTEM.steady_s() + spend_s
        enough = False
        while not enough and not self.over and SYSTEM.steady_s() < deadline_s:
            first = max(self._until - PAGE, self._start)
            enough = see(await self._read(mq, first, self._until))
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
