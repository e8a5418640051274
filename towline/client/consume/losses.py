"""Messages that a consumer held and lost: counted at once, told when nothing is locked."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from towline.client.consume.lease import LostLease

__all__ = ["Losses"]

log = logging.getLogger("towline.client")


class Losses:
    def __init__(self, topic: str, group: str, on_lost: Callable[[LostLease], None] | None) -> None:
        self.messages = 0
        """So many in all."""
        self._topic = topic
        self._group = group
        self._on_lost = on_lost
        self._untold: deque[LostLease] = deque()

    def note(self, pull: int, count: int, reason: str) -> None:
        if count:
            self.messages += count
            self._untold.append(LostLease(self._topic, self._group, pull, count, reason))

    def report(self) -> None:
        """Tell the user. Drivers call this where the user's code may do anything: under no lock."""
        while self._untold:
            lost = self._untold.popleft()
            log.warning("%s, group %s: %d messages lost: %s", lost.topic, lost.group, lost.count, lost.reason)
            if self._on_lost is not None:
                self._on_lost(lost)
