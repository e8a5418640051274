"""From what delivery has decided to the bytes a consumer gets."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from towline.broker.expiry import FLAGS_AT, split
from towline.broker.lane import Lane
from towline.broker.limits import Limit, limits_of
from towline.delivery import Part
from towline.errors import BadFrame, Unreadable
from towline.frame import Frame, slice_frame
from towline.frame.layout import EXPIRES_AT, LIMIT, count_in, unpacked_bytes
from towline.model import Span
from towline.protocol.messages import Part as WirePart
from towline.store import Chunk, Lost, Read, Store

__all__ = ["Buffers", "Parcel", "at_hand", "collect", "fitting", "next_of", "wire_part"]

Buffers = list[bytes | memoryview]

TIMED: Final = EXPIRES_AT | LIMIT
"""Frames with one of these columns are looked into."""


class Parcel(NamedTuple):
    """What was read of some parts: messages with their bytes, what is unreadable and why, what was too much, what is
    expired, and how long messages may take and how often they are tried."""

    parts: list[WirePart]
    buffers: Buffers
    lost: list[tuple[Span, str]]
    left: list[Span]
    expired: list[Span]
    limits: list[Limit]


async def collect(
    store: Store, lanes: Sequence[Lane], parts: Sequence[Part], max_bytes: int, now_us: int = 0
) -> Parcel:
    """Read `parts` in order until `max_bytes` are exceeded, or the store does not bring more; one message at least is
    always read. At time 0 nothing is expired."""
    parcel = Parcel([], [], [], [], [], [])
    budget, stopped = max_bytes, False
    for part in parts:
        lane, at = lanes[part.lane], part.first
        while at < part.end and (budget > 0 or not parcel.parts) and not stopped:
            recent = lane.recent(at, part.end - at)
            if recent is not None:
                items: list[Chunk | Lost] = [recent]
            else:
                try:
                    read = await store.read(lane.stream, at, part.end - at, max(budget, 1))
                except Unreadable:
                    if not parcel.parts:
                        raise
                    stopped = True  # what was read so far is not held up by it
                    continue
                items = sorted([*read.chunks, *read.lost], key=attrgetter("first")) if read.lost else list(read.chunks)
            begin = items[0].first if items else part.end
            if begin > at:
                gone = min(begin, part.end)
                parcel.lost.append((Span(part.lane, at, gone - at), "the store does not have it any more"))
                at = gone
                continue
            for item in items:
                if isinstance(item, Lost):
                    parcel.lost.append((Span(part.lane, item.first, item.count), item.reason))
                    at = item.first + item.count
                elif budget > 0 or not parcel.parts:
                    count = _fitting(item, budget, alone=not parcel.parts)
                    if not count:
                        stopped = True
                        break
                    if now_us and item.frame[FLAGS_AT] & TIMED:
                        budget -= _add_living(parcel, part, item, count, now_us)
                    else:
                        budget -= _add(parcel, part, item, count)
                    at = item.first + count
        if at < part.end:
            parcel.left.append(Span(part.lane, at, part.end - at))
    return parcel


def at_hand(lanes: Sequence[Lane], parts: Sequence[Part], max_bytes: int) -> tuple[WirePart, Buffers] | None:
    """What `collect` comes to if all of it is one frame that came just now and asks for nothing special."""
    lane, first, count, attempt = parts[0]
    chunk = lanes[lane].recent(first, count) if len(parts) == 1 else None
    if chunk is None or chunk.first + chunk.count < first + count or unpacked_bytes(chunk.frame) > max_bytes:
        return None
    if chunk.frame[FLAGS_AT] & TIMED:
        return None
    return wire_part(lane, attempt, chunk, chunk.count)


def fitting(chunks: Sequence[Chunk], max_bytes: int) -> Sequence[Chunk]:
    """The first of these chunks that take no more than so many bytes, unpacked; one at least. A store counts bytes as
    they are stored."""
    left = max_bytes
    for number, chunk in enumerate(chunks):
        left -= unpacked_bytes(chunk.frame)
        if left < 0 and number and unpacked_bytes(chunk.frame) > len(chunk.frame):
            return chunks[:number]
    return chunks


def next_of(read: Read, chunks: Sequence[Chunk]) -> int:
    """Where to read on, if only these of its chunks were taken."""
    return read.next if len(chunks) == len(read.chunks) else read.chunks[len(chunks)].first


def _fitting(chunk: Chunk, budget: int, *, alone: bool) -> int:
    """How many messages of a chunk fit into the budget, judged by their mean size; one at least. A compressed frame
    goes whole, and is unpacked whole: all of it or nothing fits, unless it is alone."""
    size = unpacked_bytes(chunk.frame)
    if size <= budget:
        return chunk.count
    if size > len(chunk.frame):
        return chunk.count if alone else 0
    total: int = Frame(chunk.frame).count
    if chunk.count * len(chunk.frame) <= budget * total:
        return chunk.count
    return max(1, min(chunk.count, budget * total // len(chunk.frame)))


def _add(parcel: Parcel, part: Part, chunk: Chunk, count: int) -> int:
    try:
        wire, buffers = wire_part(part.lane, part.attempt, chunk, count)
    except BadFrame as error:
        parcel.lost.append((Span(part.lane, chunk.first, count), str(error)))
        return 0
    parcel.parts.append(wire)
    parcel.buffers.extend(buffers)
    return max(wire.length, unpacked_bytes(chunk.frame) if len(buffers) == 1 else 0)


def _add_living(parcel: Parcel, part: Part, chunk: Chunk, count: int, now_us: int) -> int:
    length = 0
    for piece, expired in split(chunk, count, now_us):
        if expired:
            parcel.expired.append(Span(part.lane, piece.first, piece.count))
        else:
            length += _add(parcel, part, piece, piece.count)
            if piece.frame[FLAGS_AT] & LIMIT:
                parcel.limits.extend(limits_of(part.lane, piece))
    return length


def wire_part(lane: int, attempt: int, chunk: Chunk, count: int) -> tuple[WirePart, Buffers]:
    """The first `count` messages of a chunk as they go over the wire: a slice, or the whole frame."""
    start, buffers = chunk.start, list[bytes | memoryview]((chunk.frame,))
    length = len(chunk.frame)
    if count != count_in(chunk.frame):
        frame = Frame(chunk.frame)
        if not frame.compressed:
            buffers, start = slice_frame(frame, start, start + count), 0
            length = sum(map(len, buffers))
    return WirePart(lane, chunk.first, count, start, length, attempt, chunk.appended_at_us, chunk.source), buffers
