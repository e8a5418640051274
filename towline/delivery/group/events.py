"""Events of a group: the records of its pull log.

Events are MessagePack arrays that begin with the event's number. A field may be added at the end with a default;
like a new event, it needs a new number in `towline/format.py`, and none that is unknown is passed over.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

__all__ = [
    "Acked",
    "Buried",
    "Event",
    "Failed",
    "GaveUp",
    "Moved",
    "Overrun",
    "Part",
    "Paused",
    "Pulled",
    "Released",
    "Resent",
    "Resumed",
    "Returned",
    "Skipped",
    "Started",
    "decode_event",
    "encode_event",
    "shifted",
]


class Part(NamedTuple):
    """`count` messages of a lane from `first` on, in their delivery number `attempt` (the first is 1)."""

    lane: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple's own count is of no use here
    attempt: int

    @property
    def end(self) -> int:
        return self.first + self.count


class _Event(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    at_us: int


class Started(_Event, frozen=True, array_like=True, tag=1):
    """The group begins at these sequence numbers of its lanes."""

    positions: tuple[int, ...]
    open: tuple[Part, ...] = ()
    """Messages before them that are to be delivered all the same: a group before this one had not settled them."""


class Pulled(_Event, frozen=True, array_like=True, tag=2):
    pull: int
    consumer: str
    deadline_us: int
    """The deadline of the pull; 0 is never."""
    parts: tuple[Part, ...]


class Acked(_Event, frozen=True, array_like=True, tag=3):
    pull: int
    parts: tuple[Part, ...]


class Failed(_Event, frozen=True, array_like=True, tag=4):
    pull: int
    parts: tuple[Part, ...]
    due_us: int
    reason: str


class GaveUp(_Event, frozen=True, array_like=True, tag=5):
    pull: int
    parts: tuple[Part, ...]
    reason: str
    taken: bool = False
    """Taken away from the consumer, rather than nacked by it."""


class Returned(_Event, frozen=True, array_like=True, tag=6):
    pull: int
    parts: tuple[Part, ...]
    taken: bool = False
    """Taken away because the consumer left, rather than given back by it."""


class Released(_Event, frozen=True, array_like=True, tag=7):
    pull: int
    parts: tuple[Part, ...]
    reason: str


class Buried(_Event, frozen=True, array_like=True, tag=8):
    parts: tuple[Part, ...]
    dead_first: int


class Skipped(_Event, frozen=True, array_like=True, tag=9):
    pull: int
    parts: tuple[Part, ...]
    reason: str


class Overrun(_Event, frozen=True, array_like=True, tag=10):
    """Retention dropped these before the group came to them."""

    parts: tuple[Part, ...]


class Resent(_Event, frozen=True, array_like=True, tag=11):
    """Dead letters, by (first, count), that were sent again on the group's own lanes."""

    dead: tuple[tuple[int, int], ...]


class Moved(_Event, frozen=True, array_like=True, tag=12):
    """The group continues at these sequence numbers, by (lane, number)."""

    moves: tuple[tuple[int, int], ...]
    reason: str = ""


class Paused(_Event, frozen=True, array_like=True, tag=13):
    """The group is paused: pulls get nothing. A setting of the group makes it so; this is for the trace."""

    reason: str = ""


class Resumed(_Event, frozen=True, array_like=True, tag=14):
    """The group, paused since then for that reason, is resumed."""

    since_us: int
    reason: str = ""


Event = (
    Started
    | Pulled
    | Acked
    | Failed
    | GaveUp
    | Returned
    | Released
    | Buried
    | Skipped
    | Overrun
    | Resent
    | Moved
    | Paused
    | Resumed
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def shifted(event: Event, by_us: int) -> Event:
    """The same event by a clock that is ahead by so much."""
    times = {name: getattr(event, name, 0) for name in ("at_us", "due_us", "deadline_us")}
    return msgspec.structs.replace(event, **{name: time_us + by_us for name, time_us in times.items() if time_us})


def encode_event(event: Event) -> bytes:
    return _ENCODER.encode(event)


def decode_event(record: bytes) -> Event:
    return _DECODER.decode(record)
