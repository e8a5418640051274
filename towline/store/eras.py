"""Eras of a store: in each of them the stamps of frames run forward. A new one begins when the clock was set.

Frames lie in the order in which they were appended, and so do their stamps, unless the clock was wrong in between. A
stamp that is ahead of the present clock, or behind that of an earlier frame, counts as the beginning of the next era
that is neither: so no message is taken for older than it is, and none is kept for ever.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from towline.clock import SECOND_US, STEP_US

__all__ = ["ERAS", "Era", "Eras", "Times", "decode_eras", "encode_eras"]

log = logging.getLogger("towline.store")

ERAS: Final = "eras.json"
"""The document of a store that has no segments to derive them from."""
GAP_US: Final = 86_400 * SECOND_US
ERAS_MAX: Final = 64


class Era(NamedTuple):
    """The serial number of its first frame (or segment), its first stamp and its last."""

    begin: int
    first_us: int
    last_us: int


class Eras:
    """All eras of a store, the oldest first."""

    __slots__ = ("_eras", "_high_us", "last_us")

    def __init__(self, eras: Iterable[Era] = ()) -> None:
        self._eras: list[Era] = []
        self.last_us = 0
        """The last stamp."""
        self._high_us = 0
        """The end of the era before this one, if that is ahead."""
        for era in eras:
            self.note(*era)

    @property
    def all(self) -> list[Era]:
        return [*self._eras[:-1], self._eras[-1]._replace(last_us=self.last_us)] if self._eras else []

    def breaks(self, now_us: int) -> bool:
        """Whether the next frame begins a new era. A clock that goes back by a step or less makes none: stamps stand
        still until it has caught up."""
        last_us = self.last_us
        return now_us < last_us - STEP_US or now_us - last_us > GAP_US or last_us < self._high_us <= now_us

    def is_ahead(self, now_us: int) -> bool:
        """Whether the last stamp is so far ahead of the clock that it counts as now, until another era begins."""
        return now_us < self.last_us - STEP_US

    def stamp(self, now_us: int) -> int:
        """The stamp of a frame appended now, in this era."""
        self.last_us = max(self.last_us, now_us)
        return self.last_us

    def begin(self, serial: int, now_us: int, where: str) -> None:
        """A new era begins with this serial number."""
        if now_us < self.last_us - STEP_US:
            log.warning(
                "%s: the clock says %s, and the last stamp is %s: the clock was wrong then, or it is now. From here on "
                "stamps follow it again, and retention by age counts what is stamped ahead of it as appended now",
                *(where, _text(now_us), _text(self.last_us)),
            )
        elif self.last_us and now_us - self.last_us > GAP_US:
            log.info("%s: the clock says %s, and the last stamp is %s", where, _text(now_us), _text(self.last_us))
        self.note(serial, now_us, now_us)

    def note(self, serial: int, first_us: int, last_us: int) -> None:
        """Frames from this serial number on have these stamps."""
        if self._eras and not self.breaks(first_us):
            self.last_us = max(self.last_us, last_us)
            return
        if self._eras:
            self._high_us = self.last_us if first_us < self.last_us else 0
            self._eras = [era for era in self.all if era.begin < serial][1 - ERAS_MAX :]
        self._eras.append(Era(serial, first_us, last_us))
        self.last_us = last_us

    def times(self, now_us: int) -> Times:
        """The eras by the present clock."""
        if self.last_us <= now_us + STEP_US:
            now_us = max(now_us, self.last_us)
        sound, floor_us = list[bool](), 0
        for _, first_us, last_us in self.all:
            sound.append(floor_us <= first_us <= now_us)
            if sound[-1]:
                floor_us = last_us if last_us <= now_us else first_us
        ends, end_us = list[int](), now_us
        for era, is_sound in zip(reversed(self._eras), reversed(sound), strict=True):
            ends.append(end_us)
            end_us = era.first_us if is_sound else end_us
        return Times(now_us, [era.begin for era in self._eras], sound, ends[::-1])


class Times(NamedTuple):
    """The times of frames, as far as their stamps can be believed. In the order of serial numbers they never go
    back."""

    now_us: int
    begins: list[int]
    sound: list[bool]
    """Whether the stamps of an era are right, as far as they are not behind its end."""
    ends: list[int]
    """The beginning of the next sound era, or now: the time that wrong stamps count as."""

    def within(self, serial: int) -> tuple[bool, int]:
        """Whether the era of this serial number is sound, and its end."""
        if not self.begins:
            return True, self.now_us
        at = max(bisect_right(self.begins, serial) - 1, 0)
        return self.sound[at], self.ends[at]

    def time_of(self, serial: int, stamp_us: int) -> int:
        sound, end_us = self.within(serial)
        return min(stamp_us, end_us) if sound else end_us


def encode_eras(eras: Eras) -> bytes:
    return msgspec.json.encode(eras.all)


def decode_eras(document: bytes, last_us: int) -> list[Era]:
    """`last_us` is the last stamp of the store, which may be younger than the document."""
    eras = msgspec.json.decode(document, type=list[Era])
    return [*eras[:-1], *(era._replace(last_us=max(last_us, era.first_us)) for era in eras[-1:])]


def _text(time_us: int) -> str:
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us):%Y-%m-%d %H:%M:%S}Z"
    except OverflowError:
        return f"{time_us} us"
