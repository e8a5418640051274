"""What the log says of messages that went to the dead letters: the first at once, then a line every few seconds."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from towline.clock import Clock

__all__ = ["Obituary"]

log = logging.getLogger("towline.broker")

EVERY_S: Final = 10.0
REASON_SHOWN: Final = 200


class Obituary:
    """Of one group. However many messages die, and of whatever reasons, no line follows another within `EVERY_S`."""

    def __init__(self, label: str, clock: Clock) -> None:
        self._label = label
        self._clock = clock
        self._count = 0
        self._reason = ""
        self._told_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def note(self, count: int, reason: str) -> None:
        """So many died; `reason` is that of one of them."""
        self._count += count
        self._reason = reason
        if self._timer is not None:
            return
        since_s = EVERY_S if self._told_s is None else self._clock.steady_s() - self._told_s
        if since_s >= EVERY_S:
            self.tell()
        else:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S - since_s, self.tell)

    def tell(self) -> None:
        """Say what was not said yet: when it is time, and at the end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._count:
            log.warning(
                "%s: %d message(s) went to the dead letters, the last because of: %s",
                self._label,
                self._count,
                self._reason[:REASON_SHOWN] or "(no reason given)",
            )
            self._count, self._told_s = 0, self._clock.steady_s()
