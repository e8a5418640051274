"""The wheel of delayed messages: slots, each a stream, seconds near and days far.

A slot of a level holds what is due within its span. A message goes to the finest level whose wheel reaches as far as
its time, counted from `until`: the time up to which everything has been delivered. When a slot comes near, all of it
fits into the finer level, and is moved there. What lies beyond even the coarsest wheel goes to its last slot, and is
looked at again when that comes near.

Only a slot of seconds must hold nothing that is due later. Where the messages of a frame lie so far apart that nearly
each would go to another slot, some go together to the slot of the first (see `record`): when that comes near, the
others are moved to their own slots, together with those of other frames.

So there are some 1,000 streams whatever the number of messages, and each message is moved at most once a level, and
once more.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from towline.clock import SECOND_US
from towline.model import DELAY_STREAMS

__all__ = ["LEVELS", "Place", "is_over", "level_end_us", "place_of", "ripe_at_us", "slot_stream", "span_end_us"]


class Level(NamedTuple):
    width_us: int
    slots: int


LEVELS: Final = (
    Level(SECOND_US, 128),
    Level(60 * SECOND_US, 128),
    Level(3600 * SECOND_US, 256),
    Level(86400 * SECOND_US, 512),
    Level(128 * 86400 * SECOND_US, 8),
)
_TOP: Final = len(LEVELS) - 1


class Place(NamedTuple):
    """A slot: its level, and its number counted from 1970. Of the slots that share a stream only one is in use at a
    time, unless the clock was set back."""

    level: int
    number: int

    @property
    def begin_us(self) -> int:
        return self.number * LEVELS[self.level].width_us

    @property
    def end_us(self) -> int:
        return (self.number + 1) * LEVELS[self.level].width_us

    @property
    def stream(self) -> str:
        return slot_stream(self.level, self.number)


def slot_stream(level: int, number: int) -> str:
    return f"{DELAY_STREAMS}{level}/{number % LEVELS[level].slots}"


def place_of(at_us: int, until_us: int) -> Place:
    """The slot of a message that is due at `at_us`, when all up to `until_us` has been delivered."""
    assert at_us > until_us, (at_us, until_us)
    for level, (width_us, slots) in enumerate(LEVELS):
        number = at_us // width_us
        if number - until_us // width_us < slots:
            return Place(level, number)
    return Place(_TOP, until_us // LEVELS[_TOP].width_us + LEVELS[_TOP].slots - 1)


def span_end_us(place: Place, until_us: int) -> int:
    """The end of the span of this slot: a message due before it, and after one of the slot, goes to this slot as
    well."""
    width_us, slots = LEVELS[place.level]
    if place.level == _TOP and place.number - until_us // width_us >= slots - 1:
        return 1 << 63
    return place.end_us


def level_end_us(level: int, until_us: int) -> int:
    """From this time on, messages go to a coarser level."""
    width_us, slots = LEVELS[level]
    return 1 << 63 if level == _TOP else (until_us // width_us + slots) * width_us


def ripe_at_us(place: Place) -> int:
    """From the moment that all before this time has been delivered, the whole slot fits into the finer level, and
    nothing new goes to it."""
    assert place.level > 0, place
    width_us, slots = LEVELS[place.level - 1]
    return ((place.end_us - 1) // width_us - slots + 1) * width_us


def is_over(place: Place, until_us: int) -> bool:
    """Whether everything in the slot, which must be one of seconds, has been delivered."""
    return place.level == 0 and place.end_us <= until_us + 1
