"""Retention of whole segments from the front, as far as limits ask for it and pins allow it. Decides; does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from towline.clock import TimeSlice
from towline.store.eras import Times
from towline.store.log.format.index import ROW
from towline.store.log.format.segment import Sealed
from towline.store.log.read.streams import Stream, Streams

__all__ = ["Verdict", "what_may_go"]


class Verdict(NamedTuple):
    """The number of segments from the front that may go, and why the next one that should have gone may not."""

    segments: int
    held_back: str
    holders: tuple[str, ...] = ()
    surplus_bytes: int = 0


async def what_may_go(
    streams: Streams,
    sealed: Sequence[Sealed],
    *,
    active_bytes: int,
    times: Times,
    max_age_us: int,
    max_bytes: int,
    pinned: Mapping[str, int],
) -> Verdict:
    if not sealed:
        return Verdict(0, "")
    needed_from = await _first_needed(streams)
    pin_segment, pin_reason, holder = await _first_pinned(streams, pinned)
    total = active_bytes + sum(segment.size_bytes for segment in sealed)
    for count, segment in enumerate(sealed):
        aged = bool(max_age_us) and times.time_of(segment.number, segment.last_at_us) < times.now_us - max_age_us
        if segment.number >= needed_from and not aged and not (max_bytes and total > max_bytes):
            return Verdict(count, "")
        if segment.number >= pin_segment:
            return Verdict(count, pin_reason, (holder,), max(total - max_bytes, 0) if max_bytes else 0)
        total -= segment.size_bytes
    return Verdict(len(sealed), "")


async def _first_needed(streams: Streams) -> int:
    """The first segment that holds a readable record; all before it are trimmed as a whole. Later appends go to later
    ones."""
    lowest, part = _NONE, TimeSlice()
    for stream in list(streams.values()):
        lowest = min(lowest, _segment_of(stream, stream.first))
        if part.over:
            await part.rest()
    return lowest


async def _first_pinned(streams: Streams, pinned: Mapping[str, int]) -> tuple[int, str, str]:
    """The first segment that holds a record at or behind its stream's pin, why it is held, and the stream."""
    lowest, reason, holder, part = _NONE, "", "", TimeSlice()
    for name, seq in pinned.items():
        if part.over:
            await part.rest()
        stream = streams.get(name)
        if stream is None:
            continue
        number = _segment_of(stream, max(seq, stream.first))
        if number < lowest:
            lowest, reason, holder = number, f"record {max(seq, stream.first)} of {name} is held", name
    return lowest, reason, holder


def _segment_of(stream: Stream, seq: int) -> int:
    """The first sealed segment with a record of this stream at or behind `seq`; beyond all if there is none."""
    rows = stream.rows
    for at in range(0, len(rows), ROW):
        if rows[at + 3] > seq:
            return rows[at]
    return _NONE


_NONE = 1 << 62
