"""Holds: others for whom retention waits, such as an archive.

A hold has a name in the settings (`holds`) and a small document in the store, `hold-NAME.json`, with the progress of
its holder, by stream: written by a request (`MoveHold`), or as a file in the folder itself. Retention keeps the records
behind that; but not for longer, and not for more, than `hold_max_s` and `hold_max_bytes`, so that a job that died
cannot fill the disk. Both are logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from towline.clock import SECOND_US, Clock
from towline.errors import BadName, NotFound
from towline.model import DEAD_STREAMS, LANE_STREAMS, OWN_STREAMS, PULL_STREAMS

if TYPE_CHECKING:
    from towline.settings import BrokerSettings
    from towline.store import Store

__all__ = ["Holds"]

log = logging.getLogger("towline.broker")

KINDS: Final = (LANE_STREAMS, PULL_STREAMS, DEAD_STREAMS, OWN_STREAMS)
REMIND_S: Final = 3600.0


class Hold(msgspec.Struct):
    at_us: int = 0
    positions: dict[str, int] = {}


class Holds:
    def __init__(self, store: Store, clock: Clock, settings: BrokerSettings) -> None:
        self._store, self._clock = store, clock
        self._names = [name.strip() for name in settings.holds.split(",") if name.strip()]
        for name in self._names:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,49}", name):
                raise BadName(f"holds: {name[:80]!r}: use 1 to 50 letters, digits, dots and hyphens")
        self.max_us = round(settings.hold_max_s * SECOND_US)
        self.max_bytes = settings.hold_max_bytes
        self._reminded: dict[str, float] = {}

    async def pins(self) -> dict[str, int]:
        """By stream, the first record that a holder still needs."""
        pins: dict[str, int] = {}
        for name in self._names:
            hold = await self._load(name)
            if hold is None:
                self._remind(name, f"retention waits for {name}, which has not said yet how far it has come")
                positions = {stream: 0 for kind in KINDS for stream in self._store.streams(kind)}
            else:
                positions = hold.positions
            for stream, at in positions.items():
                pins[stream] = min(at, pins.get(stream, at))
        return pins

    async def move(self, name: str, positions: Mapping[str, int]) -> None:
        """The progress of a holder; of streams that are not named, retention waits for nothing."""
        if name not in self._names:
            known = ", ".join(self._names) or "none"
            raise NotFound(f"retention waits for no hold {name[:50]!r} here ({known}): start the broker with --holds")
        hold = Hold(self._clock.now_us(), dict(positions))
        await self._store.save(f"hold-{name}.json", msgspec.json.encode(hold))

    async def _load(self, name: str) -> Hold | None:
        document = await self._store.load(f"hold-{name}.json")
        if document is None:
            return None
        try:
            return msgspec.json.decode(document, type=Hold)
        except msgspec.MsgspecError as error:
            self._remind(name, f"hold-{name}.json cannot be read, so that retention waits for all of it: {error}")
            return None

    def waits(self, why: str) -> None:
        """Retention was kept from dropping something."""
        self._remind("", f"retention waits for {', '.join(self._names)}: {why}; is the job running?")

    def broke(self, what: str) -> None:
        """A limit was reached: retention did not wait."""
        log.error(
            "%s dropped although %s has not come to it: a hold lasts %d s and %d bytes beyond retention",
            *(what, ", ".join(self._names), self.max_us // SECOND_US, self.max_bytes),
        )

    def _remind(self, about: str, text: str) -> None:
        """Log it, and again every hour."""
        now_s = self._clock.steady_s()
        if now_s >= self._reminded.get(about, now_s):
            self._reminded[about] = now_s + REMIND_S
            log.warning("%s", text)
