"""Reading without consuming: browsing, positions by time, searching, traces of messages, the broker's figures."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from towline.protocol.base import MANY, Answer, AnyLane, Lane, Name, Natural, Request, Text
from towline.protocol.consume import Part

__all__ = [
    "Browse",
    "Browsed",
    "Find",
    "Found",
    "Locate",
    "Located",
    "Stat",
    "Stated",
    "Trace",
    "TraceCursor",
    "TraceStep",
    "Traced",
]


class Browse(Request, frozen=True, array_like=True):
    """Read messages without consuming them: of a lane (`group` empty), or the dead letters of a group."""

    kind = 16
    topic: Name
    lane: Lane = 0
    group: Name = ""
    first: Natural = 0
    max_messages: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 100
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] = 1 << 20


class Browsed(Answer, frozen=True, array_like=True):
    """The messages, those among them that were re-sent already (dead letters only: (first, count) ranges), and the next
    position."""

    kind = 144
    parts: list[Part]
    next: int
    first: int
    end: int
    settled: list[tuple[int, int]] = []  # noqa: RUF012 - a Struct copies it


class Locate(Request, frozen=True, array_like=True):
    """The sequence number of the first message of a lane that was appended at this time or later."""

    kind = 18
    topic: Name
    lane: Lane
    time_us: Natural


class Located(Answer, frozen=True, array_like=True):
    kind = 146
    seq: int


class Stat(Request, frozen=True, array_like=True):
    kind = 19


class Stated(Answer, frozen=True, array_like=True):
    """Figures of the broker, by name."""

    kind = 147
    figures: dict[str, Any]


class Find(Request, frozen=True, array_like=True):
    """Messages of a lane from number `first` on: with this key (if one is given), appended at `since_us` or later and
    before `until_us` (if it is given)."""

    kind = 52
    topic: Name
    lane: Lane
    key: Text = ""
    first: Natural = 0
    since_us: Natural = 0
    until_us: Natural = 0
    max_messages: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 100
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] = 1 << 20


class Found(Answer, frozen=True, array_like=True):
    """If `next` is before `end`, there may be more from there on."""

    kind = 180
    parts: list[Part]
    next: int
    end: int


class TraceCursor(msgspec.Struct, frozen=True, array_like=True):
    """The state of a trace: the next event, copies of the message sent again as (lane, number), the message's dead
    letters, its last event, whether nothing was missing so far, and when the message was appended."""

    at: Natural
    copies: Annotated[list[tuple[AnyLane, Natural]], msgspec.Meta(max_length=MANY)]
    dead: Annotated[list[Natural], msgspec.Meta(max_length=MANY)]
    last: Name
    whole: bool
    since_us: Natural = 0


class TraceStep(msgspec.Struct, frozen=True, array_like=True):
    """One event in the life of a message: pulled, acked, failed, gaveup, returned, released, buried, skipped, overrun,
    resent; or started: the group began behind it. Or it happened to the group while it was not done with the message:
    paused, resumed."""

    at_us: int
    what: str
    pull: int = 0
    consumer: str = ""
    attempt: int = 0
    reason: str = ""
    due_us: int = 0
    """Its next attempt, or the deadline of the pull; 0 is none."""
    dead: int = -1
    """The number of its dead letter, or of the one that was sent again."""
    copy: bool = False
    """It concerns the copy that was sent again, on the group's own lane."""


class Trace(Request, frozen=True, array_like=True):
    """The trace of a message in a group. Asked again with the answer's cursor, as long as there is one. A trace ends
    with the ack, unless the `whole` pull log is to be read: a group that was set back may have consumed it again."""

    kind = 53
    topic: Name
    group: Name
    lane: Lane
    seq: Natural
    whole: bool = False
    cursor: TraceCursor | None = None


class Traced(Answer, frozen=True, array_like=True):
    """`status` is NEW, RUNNING, SUCCESS, FAIL, DEAD, GONE, or BEFORE (the group began behind it), as of now; it counts
    once there is no cursor. `whole` is false if events are missing because retention dropped them."""

    kind = 181
    status: str
    attempt: int
    due_us: int
    steps: list[TraceStep]
    whole: bool
    cursor: TraceCursor | None = None
