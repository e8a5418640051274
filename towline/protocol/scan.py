"""Requests and answers for reading whole streams (the Spark connector).

A stream is named as the store names it: `lane/orders/middle`, `pull/orders/billing`, `dead/orders/billing`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from towline.protocol.messages import ANSWERS, REQUESTS, Answer, Part, Request

__all__ = ["LocateIn", "LocatedIn", "Scan", "Scanned", "StreamState", "Streams", "Survey"]

_Stream = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Scan(Request, frozen=True, array_like=True):
    """Records `first` to `end` of a stream, frame by frame as they are stored, up to `max_bytes`; one at least."""

    kind = 70
    stream: _Stream
    first: _Natural
    end: _Natural
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] = 4 << 20


class Scanned(Answer, frozen=True, array_like=True):
    """The frames from `first` on; the next position; and the lost ranges, as (first, count, reason). It ends early if
    the stream does."""

    kind = 198
    parts: list[Part]
    next: int
    lost: list[tuple[int, int, str]] = []  # noqa: RUF012 - a Struct copies it


class StreamState(msgspec.Struct, frozen=True, array_like=True):
    """The records of a stream that can be read: `first` up to but not including `end`."""

    name: str
    first: int
    end: int
    size_bytes: int


class Survey(Request, frozen=True, array_like=True):
    """The streams whose names begin with `prefix`, in the order of their names, behind the name `after`."""

    kind = 71
    prefix: Annotated[str, msgspec.Meta(max_length=300)] = ""
    after: Annotated[str, msgspec.Meta(max_length=300)] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 10_000


class Streams(Answer, frozen=True, array_like=True):
    kind = 199
    streams: list[StreamState]
    more: bool = False


class LocateIn(Request, frozen=True, array_like=True):
    """The first record of a stream that was appended at this time or later; its end if there is none."""

    kind = 72
    stream: _Stream
    time_us: _Natural


class LocatedIn(Answer, frozen=True, array_like=True):
    kind = 200
    seq: int


REQUESTS.update({cls.kind: cls for cls in (Scan, Survey, LocateIn)})
ANSWERS.update({cls.kind: cls for cls in (Scanned, Streams, LocatedIn)})
