"""Fetching the messages of a granted pull: reads of the store, lifetimes, and the parts of the answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from towline.broker.consume.message_limits import Limit, limits_of
from towline.errors import BadFrame, Unreadable
from towline.frame import Frame, pick, slice_frame
from towline.frame.layout import BODY, EXPIRES_AT, FLAGS_AT, LIMIT, count_in, unpacked_bytes
from towline.model import Span
from towline.protocol.messages import Part as WirePart
from towline.store import Chunk, Lost, Read, Store

if TYPE_CHECKING:
    from towline.broker.topics.topic import Lane
    from towline.delivery import Part

__all__ = ["Buffers", "Fetched", "at_hand", "collect", "fitting", "next_of", "split", "wire_part"]


def split(frame: Frame, chunk: Chunk, count: int, now_us: int) -> Iterator[tuple[Chunk, bool]]:
    """The first `count` messages of a chunk of this frame, cut into live and expired ones."""
    if not frame.flags & EXPIRES_AT or now_us < frame.earliest_expiry_us:
        yield msgspec.structs.replace(chunk, count=count), False
        return
    if 0 < frame.latest_expiry_us <= now_us:
        yield msgspec.structs.replace(chunk, count=count), True
        return
    times = frame.expires_at_us(chunk.start, chunk.start + count) or [0] * count
    at = 0
    for expired, run in groupby(0 < time_us <= now_us for time_us in times):
        length = sum(1 for _ in run)
        yield msgspec.structs.replace(chunk, first=chunk.first + at, start=chunk.start + at, count=length), expired
        at += length


Buffers = list[bytes | memoryview]

TIMED: Final = EXPIRES_AT | LIMIT
"""Frames with one of these columns are looked into."""

READ_BYTES_MAX: Final = 32 << 20
"""Bytes read for one pull. Where each message lies in a large frame of its own, the rest is for the next one."""
GAP_BYTES: Final = 32 << 10
"""Neighbours with a gap of no more than this are read together."""
SLICE_PART: Final = 4
"""A slice that is smaller than this part of its frame is copied, so that it does not keep all of it in memory."""
PAUSE_BYTES: Final = 1 << 20
PAUSE_PARTS: Final = 250
"""After so much has been read, or so many parts, others may run."""

Run = tuple[int, int, int]
"""Index in the frame, first, count."""


class Fetched(NamedTuple):
    """Messages with their bytes, unreadable ones with the reason, those beyond the limit, expired ones, and the limits
    of messages."""

    parts: list[WirePart]
    buffers: Buffers
    lost: list[tuple[Span, str]]
    left: list[Span]
    expired: list[Span]
    limits: list[Limit]


async def collect(
    store: Store,
    lanes: Sequence[Lane],
    parts: Sequence[Part],
    max_bytes: int,
    now_us: int = 0,
    *,
    scattered: bool = False,
) -> Fetched:
    """Read `parts` in order until `max_bytes` are exceeded, or the store fails to read; one message at least is always
    read. At time 0 nothing is expired. If `scattered`, wire parts may have runs."""
    reading, packing = _Reading(store, lanes, parts), _Packing(max_bytes, now_us, scattered=scattered)
    fetched, stopped, handled, pause_bytes = packing.fetched, False, 0, PAUSE_BYTES
    for number, part in enumerate(parts):
        at = part.first
        while at < part.end and packing.has_room(reading.read_bytes) and not stopped:
            try:
                items = await reading.items(number, at, max(packing.budget, 1))
            except Unreadable:
                if packing.is_empty:
                    raise
                stopped = True  # the messages read so far are not held up by it
                continue
            begin = items[0].first if items else part.end
            if begin > at:
                gone = min(begin, part.end)
                fetched.lost.append((Span(part.lane, at, gone - at), "the store does not have it any more"))
                at = gone
                continue
            for item in items:
                if isinstance(item, Lost):
                    fetched.lost.append((Span(part.lane, item.first, item.count), item.reason))
                    at = item.first + item.count
                elif packing.budget > 0 or packing.is_empty:
                    count = packing.add(part, item)
                    if not count:
                        stopped = True
                        break
                    at = item.first + count
        if at < part.end:
            fetched.left.append(Span(part.lane, at, part.end - at))
        handled += 1
        if handled % PAUSE_PARTS == 0 or reading.read_bytes > pause_bytes:
            pause_bytes = reading.read_bytes + PAUSE_BYTES
            await asyncio.sleep(0)
    packing.close()
    return fetched


class _Reading:
    """The frames of some parts. A read serves all parts that lie in it: fragments are mostly neighbours."""

    __slots__ = ("_kept", "_lanes", "_parts", "_store", "read_bytes")

    def __init__(self, store: Store, lanes: Sequence[Lane], parts: Sequence[Part]) -> None:
        self._store = store
        self._lanes = lanes
        self._parts = parts
        self._kept: dict[int, deque[Chunk]] = {}
        """By lane, the frames read last: whole frames, whatever was asked for."""
        self.read_bytes = 0

    async def items(self, number: int, at: int, max_bytes: int) -> list[Chunk | Lost]:
        """The chunks of a part from `at` on, in order; some of it at least."""
        part = self._parts[number]
        lane = self._lanes[part.lane]
        kept = self._find(part.lane, at) if self._kept else None
        if kept is not None:
            start = at - kept.first + kept.start
            count = min(part.end - at, count_in(kept.frame) - start)
            return [Chunk(at, count, start, kept.frame, kept.appended_at_us, kept.source)]
        recent = lane.recent(at, part.end - at)
        if recent is not None:
            return [recent]
        alone = number + 1 == len(self._parts)
        stop = part.end if alone else self._stop(number)
        read = await self._store.read(lane.stream, at, stop - at, max_bytes)
        self.read_bytes += sum([len(chunk.frame) for chunk in read.chunks])
        if not alone:
            self._kept[part.lane] = deque(read.chunks)
        items: Sequence[Chunk | Lost] = read.chunks
        if read.lost:
            items = sorted([*read.chunks, *read.lost], key=attrgetter("first"))
        return list(items) if stop == part.end else _before(part.end, items)

    def _find(self, lane: int, at: int) -> Chunk | None:
        kept = self._kept.get(lane)
        while kept:
            chunk = kept[0]
            base = chunk.first - chunk.start
            if at < base + count_in(chunk.frame):
                return chunk if at >= base else None
            kept.popleft()
        return None

    def _stop(self, number: int) -> int:
        """The end of the neighbours of a part that are read together with it."""
        first, stop = self._parts[number], self._parts[number].end
        gap = GAP_BYTES // self._lanes[first.lane].look()[2]
        for part in islice(self._parts, number + 1, None):
            if part.lane != first.lane or not 0 <= part.first - stop <= gap:
                break
            stop = part.end
        return stop


def _before(end: int, items: Iterable[Chunk | Lost]) -> list[Chunk | Lost]:
    return [item if item.first + item.count <= end else _shorter(item, end) for item in items if item.first < end]


def _shorter(item: Chunk | Lost, end: int) -> Chunk | Lost:
    count = end - item.first
    return item._replace(count=count) if isinstance(item, Lost) else msgspec.structs.replace(item, count=count)


class _Packing:
    """Builds the wire parts of an answer. Messages of one frame with others between them travel as one part with
    runs."""

    __slots__ = (
        "_attempt",
        "_chunk",
        "_count",
        "_frame",
        "_lane",
        "_now_us",
        "_runs",
        "_scattered",
        "_size_bytes",
        "budget",
        "fetched",
    )

    def __init__(self, max_bytes: int, now_us: int, *, scattered: bool) -> None:
        self.fetched = Fetched([], [], [], [], [], [])
        self.budget = max_bytes
        self._now_us = now_us
        self._scattered = scattered
        self._lane = self._attempt = -1
        self._chunk: Chunk | None = None
        """The frame at hand, …"""
        self._frame: Frame | None = None
        """… opened, if it had to be, …"""
        self._count = 0
        """… its number of messages, …"""
        self._size_bytes = 0
        """… its unpacked size, …"""
        self._runs: list[Run] = []
        """… and its messages that are not in the answer yet."""

    @property
    def is_empty(self) -> bool:
        return not self.fetched.parts and not self._runs

    def has_room(self, read_bytes: int) -> bool:
        if self.budget <= 0:
            return self.is_empty
        return read_bytes < READ_BYTES_MAX or (self.is_empty and not self.fetched.lost and not self.fetched.expired)

    def add(self, part: Part, chunk: Chunk) -> int:
        """Add as many messages of a chunk as fit into the budget, judged by their mean size; one at least. A compressed
        frame goes whole, and is unpacked whole: it does not fit behind others if it is over the budget. Returns how
        many."""
        if self._chunk is None or chunk.frame is not self._chunk.frame:
            if self._runs:
                self.close()
            self._chunk, self._frame, self._count = chunk, None, count_in(chunk.frame)
            self._size_bytes = unpacked_bytes(chunk.frame)
        count = self._fitting(chunk)
        if not count:
            return 0
        if self._now_us and chunk.frame[FLAGS_AT] & TIMED:
            self._add_living(part, chunk, count)
        else:
            self._add(part, chunk, count)
        return count

    def _fitting(self, chunk: Chunk) -> int:
        length, budget = self._size_bytes, self.budget
        if length > budget and length > len(chunk.frame):
            return chunk.count if self.is_empty or (self._runs and self._scattered) else 0
        if length <= budget or chunk.count * length <= budget * self._count:
            return chunk.count
        return max(1, min(chunk.count, budget * self._count // length))

    def _add(self, part: Part, chunk: Chunk, count: int) -> None:
        if count == self._count:
            # A whole frame: nothing is done for each message.
            first, frame, at_us, source = chunk.first, chunk.frame, chunk.appended_at_us, chunk.source
            self.fetched.parts.append(WirePart(part.lane, first, count, 0, len(frame), part.attempt, at_us, source))
            self.fetched.buffers.append(frame)
            self.budget -= self._size_bytes
            return
        if self._runs and (not self._scattered or part.attempt != self._attempt or part.lane != self._lane):
            self.close()
        try:
            self.budget -= self._size(chunk.start, count)
        except BadFrame as error:
            self.fetched.lost.append((Span(part.lane, chunk.first, count), str(error)))
            return
        self._lane, self._attempt = part.lane, part.attempt
        start, first, before = self._runs[-1] if self._runs else (0, 0, 0)
        if before and first + before == chunk.first:
            self._runs[-1] = start, first, before + count
        else:
            self._runs.append((chunk.start, chunk.first, count))

    def _size(self, start: int, count: int) -> int:
        """The approximate wire size of messages of the frame. A compressed frame is sent whole, once for all of
        them."""
        frame, length = self._opened(), len(self._opened().data)
        if frame.compressed:
            return 0 if self._runs else self._size_bytes
        bodies = frame.text_column(BODY)
        assert bodies is not None, "the body column is always there"
        begin, end = frame.ends(bodies, start, start + count)
        return end - begin + (length - bodies.data_length) * count // self._count

    def _opened(self) -> Frame:
        if self._frame is None:
            assert self._chunk is not None, "there is a frame to be opened"
            self._frame = Frame(self._chunk.frame)
        return self._frame

    def _add_living(self, part: Part, chunk: Chunk, count: int) -> None:
        frame = self._opened()
        for piece, expired in split(frame, chunk, count, self._now_us):
            if expired:
                self.fetched.expired.append(Span(part.lane, piece.first, piece.count))
            else:
                self._add(part, piece, piece.count)
                if frame.flags & LIMIT:
                    self.fetched.limits.extend(limits_of(part.lane, frame, piece))

    def close(self) -> None:
        """Add the messages of the frame at hand to the answer."""
        if not self._runs:
            return
        assert self._chunk is not None, "runs are of a frame"
        runs, self._runs = self._runs, []
        frame, source = self._opened(), self._chunk
        start, first, count = runs[0]
        try:
            if len(runs) == 1:
                chunk = Chunk(first, count, start, source.frame, source.appended_at_us, source.source)
                self._put(*wire_part(self._lane, self._attempt, chunk, count))
                return
            data: bytes | memoryview = source.frame
            if not frame.compressed:
                data = pick(frame, [index for start, _, count in runs for index in range(start, start + count)])
                places = accumulate([count for _, _, count in runs], initial=0)
                runs = [(place, first, count) for place, (_, first, count) in zip(places, runs, strict=False)]
        except BadFrame as error:
            self.fetched.lost.extend((Span(self._lane, first, count), str(error)) for _, first, count in runs)
            return
        wire = WirePart(
            *(self._lane, first, sum([count for _, _, count in runs]), runs[0][0], len(data), self._attempt),
            *(source.appended_at_us, source.source, tuple(runs)),
        )
        self._put(wire, [data])

    def _put(self, wire: WirePart, buffers: Buffers) -> None:
        self.fetched.parts.append(wire)
        self.fetched.buffers.extend(buffers)


def at_hand(lanes: Sequence[Lane], parts: Sequence[Part], max_bytes: int) -> tuple[WirePart, Buffers] | None:
    """The result of `collect` if it is one whole frame in the lane's cache without expiry or limits."""
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
    """The next position to read, if only these of its chunks were taken."""
    return read.next if len(chunks) == len(read.chunks) else read.chunks[len(chunks)].first


def wire_part(lane: int, attempt: int, chunk: Chunk, count: int) -> tuple[WirePart, Buffers]:
    """The first `count` messages of a chunk as they go over the wire: a slice, or the whole frame."""
    start, buffers = chunk.start, list[bytes | memoryview]((chunk.frame,))
    length = len(chunk.frame)
    if count != count_in(chunk.frame):
        frame = Frame(chunk.frame)
        if not frame.compressed:
            buffers, start = slice_frame(frame, start, start + count), 0
            length = sum(map(len, buffers))
            if length * SLICE_PART < len(chunk.frame):
                buffers = [b"".join(buffers)]
    return WirePart(lane, chunk.first, count, start, length, attempt, chunk.appended_at_us, chunk.source), buffers
