"""Delivery events in, an Arrow batch out: a row for each part of an event.

A *part* is a run of messages of one lane: an event that speaks of two runs has two rows, of none, one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from towline.delivery.group.events import (
    Acked,
    Buried,
    Event,
    Failed,
    GaveUp,
    Moved,
    Overrun,
    Part,
    Paused,
    Pulled,
    Released,
    Resent,
    Resumed,
    Returned,
    Skipped,
    Started,
)
from towline.format import not_understood
from towline.frame import Frame
from towline.model import LANES, lane_name
from towline.spark.arrow.from_frames import TIME, Origin, Records

__all__ = ["EVENTS", "begins_group", "event_batch"]

EVENTS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("group", pa.string()),
        ("number", pa.int64()),
        ("at", TIME),
        ("event", pa.string()),
        ("pull", pa.int64()),
        ("consumer", pa.string()),
        ("lane", pa.string()),
        ("first", pa.int64()),
        ("count", pa.int64()),
        ("attempt", pa.int32()),
        ("reason", pa.string()),
        ("deadline_at", TIME),
        ("due_at", TIME),
        ("taken", pa.bool_()),
        ("dead_first", pa.int64()),
        ("broker", pa.string()),
    ]
)
"""Events of messages `first` to `first + count` of a lane in a group; `number` is the event's in the pull log. Lanes
named `own-…` are the group's own, for dead letters that were sent again. Of `resent`, first and count are numbers of
dead letters; of `started` and `moved`, `first` is the group's new position, and there is no count; `paused` and
`resumed` have neither."""

_EVENTS: msgspec.msgpack.Decoder[list[Event]] = msgspec.msgpack.Decoder(list[Event])
_NAMES: Final = {
    Started: "started",
    Pulled: "pulled",
    Acked: "acked",
    Failed: "failed",
    GaveUp: "gaveup",
    Returned: "returned",
    Released: "released",
    Buried: "buried",
    Skipped: "skipped",
    Overrun: "overrun",
    Resent: "resent",
    Moved: "moved",
    Paused: "paused",
    Resumed: "resumed",
}


class _Run(NamedTuple):
    lane: str | None
    first: int | None
    count: int | None  # type: ignore[assignment]  # a tuple's own count is of no use here
    attempt: int | None


def event_batch(origin: Origin, pieces: Sequence[Records], columns: pa.Schema = EVENTS, shards: int = 0) -> Any:
    """The events of `pieces`, which are frames of a pull log, as one batch of these columns."""
    rows: dict[str, list[Any]] = {name: [] for name in EVENTS.names if name not in ("topic", "group", "broker")}
    for piece in pieces:
        for number, event in enumerate(_events_of(piece), piece.first):
            for run in _runs(event, shards):
                _add(rows, number, event, run)
    total = len(rows["number"])
    fixed = {"topic": origin.topic, "group": origin.group, "broker": origin.broker or None}
    arrays = []
    for field in columns:
        if field.name in fixed:
            value = fixed[field.name]
            arrays.append(
                pa.nulls(total, field.type) if value is None else pa.repeat(pa.scalar(value, field.type), total)
            )
        elif field.type == TIME:
            arrays.append(pa.array(rows[field.name], pa.int64()).view(TIME))
        else:
            arrays.append(pa.array(rows[field.name], field.type))
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * total, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def begins_group(piece: Records) -> bool:
    """Whether its first event is the first of a group."""
    return isinstance(_events_of(piece)[0], Started)


def _events_of(piece: Records) -> list[Event]:
    bodies = Frame(piece.frame).bodies(piece.start, piece.start + piece.count)
    try:
        return _EVENTS.decode(b"\xdd" + len(bodies).to_bytes(4, "big") + b"".join(bodies))
    except msgspec.MsgspecError as error:
        # Their frame has a checksum, and that is right.
        raise not_understood(f"one of the events {piece.first} to {piece.first + piece.count - 1}", error) from None


def _runs(event: Event, shards: int) -> Iterator[_Run]:
    if isinstance(event, Started):
        return (_Run(_lane(lane, shards), seq, None, None) for lane, seq in enumerate(event.positions))
    if isinstance(event, Moved):
        return (_Run(_lane(lane, shards), seq, None, None) for lane, seq in event.moves)
    if isinstance(event, Resent):
        return (_Run(None, first, count, None) for first, count in event.dead)
    if isinstance(event, (Paused, Resumed)):
        return iter((_Run(None, None, None, None),))
    return (_run_of(part, shards) for part in event.parts)


def _run_of(part: Part, shards: int) -> _Run:
    return _Run(_lane(part.lane, shards), part.first, part.count, part.attempt)


def _lane(lane: int, shards: int) -> str:
    known = (shards or len(LANES)) + len(LANES)
    return lane_name(lane, shards) if lane < known else str(lane)


def _add(rows: dict[str, list[Any]], number: int, event: Event, run: _Run) -> None:
    rows["number"].append(number)
    rows["at"].append(event.at_us)
    rows["event"].append(_NAMES[type(event)])
    rows["pull"].append(getattr(event, "pull", 0) or None)
    rows["consumer"].append(getattr(event, "consumer", None))
    rows["lane"].append(run.lane)
    rows["first"].append(run.first)
    rows["count"].append(run.count)
    rows["attempt"].append(run.attempt)
    rows["reason"].append(getattr(event, "reason", None) or None)
    rows["deadline_at"].append(getattr(event, "deadline_us", 0) or None)
    rows["due_at"].append(getattr(event, "due_us", 0) or None)
    rows["taken"].append(getattr(event, "taken", None))
    rows["dead_first"].append(getattr(event, "dead_first", None))
