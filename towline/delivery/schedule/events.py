"""Events of the schedule of delayed messages: the records of the stream `delay/marks`.

Events are MessagePack arrays that begin with the event's number. A field may be added at the end with a default; like a
new event, it needs a new number in `towline/format.py`, and none that is unknown is passed over. That a record was put
into a slot is no event: the record says it itself.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from towline.delivery.schedule.wheel import Place

__all__ = [
    "Cancelled",
    "Dropped",
    "Due",
    "Moved",
    "Run",
    "ScheduleEvent",
    "decode_schedule_event",
    "encode_schedule_event",
]


class Run(NamedTuple):
    """Messages of a record: the level and number of its slot, its own number there, and the first and the end of its
    messages."""

    level: int
    number: int
    seq: int
    start: int
    stop: int

    @property
    def place(self) -> Place:
        return Place(self.level, self.number)

    @property
    def messages(self) -> int:
        return self.stop - self.start


class _Event(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Due(_Event, frozen=True, array_like=True, tag=1):
    """Everything due up to `until_us` has been put into its lane; in the same unit, so that a crash undoes both or
    neither."""

    until_us: int
    next_id: int
    delivered: list[tuple[str, int]] = []
    """Messages delivered, by topic."""
    ahead: list[tuple[int, int, int]] = []
    """(number of the slot, record, messages of it): of these records more was delivered than `until_us` says, because
    too much is due at the same microsecond for one unit."""
    era: int = 0
    """How often the clock has been set back. The first of an era takes `until_us` back to the clock's time, …"""
    floors: list[tuple[int, int]] = []
    """… and for records of earlier ones than these it stays as it was: (era, time)."""
    held: list[Run] = []
    """But these are not in their lanes: they are too large for the store, and wait where they are."""
    released: list[Run] = []
    """These, which were held, are in their lanes, or in other slots."""


class Moved(_Event, frozen=True, array_like=True, tag=2):
    """The records of a slot before `next` were put into other slots, in the same unit."""

    level: int
    number: int
    next: int
    messages: int
    held: list[Run] = []
    """But these were not: they are too large for the store, and wait where they are."""


class Cancelled(_Event, frozen=True, array_like=True, tag=3):
    """Messages of a slot are not to be delivered from there: they were cancelled (`count` of them), or put elsewhere in
    the same unit (`count` is 0)."""

    level: int
    number: int
    topic: str
    count: int
    positions: list[tuple[int, list[int]]]
    """By record, the indices of the messages in it."""
    request: str = ""
    """The name of the request, and its number of messages in all: for a client that asks again because it got no
    answer."""
    answer: int = 0


class Dropped(_Event, frozen=True, array_like=True, tag=4):
    """The topic was deleted: its messages with lower ids than this are not to be delivered."""

    topic: str
    before_id: int


ScheduleEvent = Due | Moved | Cancelled | Dropped

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[ScheduleEvent] = msgspec.msgpack.Decoder(ScheduleEvent)


def encode_schedule_event(event: ScheduleEvent) -> bytes:
    return _ENCODER.encode(event)


def decode_schedule_event(record: bytes) -> ScheduleEvent:
    return _DECODER.decode(record)
