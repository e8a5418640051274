"""Dead letters by a filter: searched from the newest on, for a moment at a time, however many there are."""

from __future__ import annotations

from typing import Final

from towline.client._async.client import Client
from towline.client.consume.message import DeadLetter
from towline.console.dead_letters.walk import Walk

__all__ = ["LetterFilter"]

FOUND_MAX: Final = 500


class LetterFilter:
    def __init__(self, topic: str, group: str, reason: str, key: str) -> None:
        self._walk = Walk(topic, group)
        self._reason = reason
        self._key = key
        self.found: list[DeadLetter] = []
        """The newest first."""

    @property
    def over(self) -> bool:
        """Whether the search is over, or enough was found."""
        return self._walk.over or len(self.found) >= FOUND_MAX

    @property
    def total(self) -> int:
        """Of all that are to be searched."""
        return self._walk.total

    @property
    def told(self) -> str:
        looked, total = self._walk.looked, self._walk.total
        most = f"the newest {looked:,} of {total:,}" if looked < total else f"all {total:,}"
        enough = "; more may follow" if len(self.found) >= FOUND_MAX and looked < total else ""
        return f"{len(self.found):,} found in {most}{enough}"

    @property
    def which(self) -> str:
        """The numbers of letters to send again."""
        if self._walk.over:
            return f"the {len(self.found):,} that fit the filter"
        return f"all that fit the filter ({self.told})"

    async def go_on(self, mq: Client, spend_s: float) -> None:
        """Search further, for a moment."""
        await self._walk.go_on(mq, spend_s, self._see)

    def _see(self, letters: list[DeadLetter]) -> bool:
        self.found += [one for one in reversed(letters) if self.fits(one)][: FOUND_MAX - len(self.found)]
        return len(self.found) >= FOUND_MAX

    def fits(self, one: DeadLetter) -> bool:
        return not one.resent and self._reason in one.reason and self._key in ("", one.key)
