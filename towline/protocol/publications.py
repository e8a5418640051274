"""Requests and answers of sinks, which write many messages exactly once (the Spark connector).

Frames are *staged*: kept out of sight. A *sink* publishes what was staged for one of its epochs, all of it, once: the
same epoch again changes nothing, whatever is staged for it by then. It is the same if it has the same number and the
same digest of its contents, if both have one; an older one is known by its digest alone. Another one under the same
number is a `Conflict`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from towline.protocol.messages import ANSWERS, REQUESTS, Answer, FrameHead, Request

__all__ = ["AskSink", "MoveHold", "Publish", "Published", "Report", "SinkState", "Stage", "Staged", "Unstage"]

_Name = Annotated[str, msgspec.Meta(max_length=100)]
_Sink = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
_Stream = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Records = Annotated[list[_Natural], msgspec.Meta(max_length=200_000)]
_Lane = Annotated[int, msgspec.Meta(ge=0, le=1023)]


class Report(Request, frozen=True, array_like=True):
    """The progress of a reader that keeps its own, by (lane, number), so that the lag of the group shows it. It never
    goes back. The group is made if need be, and must have no consumers. Answered by `Done`."""

    kind = 73
    topic: _Name
    group: _Name
    positions: Annotated[list[tuple[_Lane, _Natural]], msgspec.Meta(max_length=1024)]


class Stage(Request, frozen=True, array_like=True):
    """Keep frames, which follow as attachments, out of sight until they are published, or dropped after a day."""

    kind = 74
    frames: Annotated[list[FrameHead], msgspec.Meta(min_length=1, max_length=1_000)]
    durability: Annotated[int, msgspec.Meta(ge=-1, le=2)] = -1


class Staged(Answer, frozen=True, array_like=True):
    """The number by which they are published or dropped."""

    kind = 202
    record: int


class Publish(Request, frozen=True, array_like=True):
    """Put staged frames into their lanes, in this order, as the whole of an epoch of a sink."""

    kind = 75
    sink: _Sink
    epoch: _Natural
    records: _Records
    durability: Annotated[int, msgspec.Meta(ge=-1, le=2)] = -1
    topic: _Name = ""
    """Where brokers share a store: a topic of the broker that is addressed."""
    digest: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    """Of the contents of the epoch; empty is not known."""
    members: Annotated[list[_Name], msgspec.Meta(max_length=1_000)] = []  # noqa: RUF012 - a Struct copies it
    """The brokers over which the epoch is spread, in a cluster."""


class Published(Answer, frozen=True, array_like=True):
    """Durable. `duplicate`: the epoch was published before; the frames staged now are dropped."""

    kind = 203
    messages: int
    duplicate: bool = False


class Unstage(Request, frozen=True, array_like=True):
    """Drop staged frames; those that are being published, or were, stay. Answered by `Done`."""

    kind = 76
    records: _Records
    topic: _Name = ""


class AskSink(Request, frozen=True, array_like=True):
    """The last epoch of a sink."""

    kind = 77
    sink: _Sink
    topic: _Name = ""


class SinkState(Answer, frozen=True, array_like=True):
    """The last epoch that was published, or is being published now; -1 if there is none."""

    kind = 205
    epoch: int
    at_us: int = 0
    members: list[str] = []  # noqa: RUF012 - a Struct copies it
    """As `Publish` gave them for this epoch."""


class MoveHold(Request, frozen=True, array_like=True):
    """The progress of a holder that retention waits for (`--holds NAME`), by stream; it does not wait for streams that
    are not named. Answered by `Done`, when it is on disk."""

    kind = 78
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=50)]
    positions: Annotated[dict[_Stream, _Natural], msgspec.Meta(max_length=1_000_000)]


REQUESTS.update({cls.kind: cls for cls in (Report, Stage, Publish, Unstage, AskSink, MoveHold)})
ANSWERS.update({cls.kind: cls for cls in (Staged, Published, SinkState)})
