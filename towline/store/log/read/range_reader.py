"""Reading a range of a stream: find the frames, fetch neighbours together, verify, and answer.

Cached pages are read by the event loop at once (`RWF_NOWAIT`); only reads from the disk go through a thread. Every
frame's checksum is verified on every read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from crc32c import crc32c

from towline.errors import Unreadable
from towline.frame.spare import SPARE
from towline.store.log.format.index import ENTRY
from towline.store.log.format.record import MAGIC, STAMP, frame_intact, seed
from towline.store.log.format.segment import OpenFile, SegmentFiles
from towline.store.log.read.streams import EntriesOf, Stream, first_ending_after
from towline.store.log.stats import LogStats
from towline.store.log.write.disk import DiskIo, not_now
from towline.store.spi import Chunk, Lost, Read

__all__ = ["StreamReader", "Wanted", "cut", "extents", "plan"]

_log = logging.getLogger("towline.store")

_U32 = 0xFFFFFFFF
_EXTENT_MAX = 1 << 20
_GAP_MAX = 16 << 10
_AT_ONCE_MAX = 8 << 20
_SPARE_MIN = 64 << 10
_REPORTED_MAX = 10_000


class Wanted(NamedTuple):
    """A frame to be read, and which of its records. Segment 0 is a hole: records of which no frame is left."""

    segment: int
    position: int
    length: int
    base: int
    first: int
    taken: int
    at_us: int


class Extent(NamedTuple):
    """Frames that are fetched with one call."""

    segment: int
    position: int
    length: int
    frames: list[Wanted]


def plan(stream: Stream, first: int, max_count: int, max_bytes: int, entries_of: EntriesOf) -> list[Wanted]:
    """The frames and holes to be read from record `first` on, which is within the bounds."""
    wanted: list[Wanted] = []
    stop, taken_bytes = min(first + max_count, stream.end), 0
    for segment, entries in stream.runs_from(first, entries_of):
        for at in range(ENTRY * first_ending_after(entries, first), len(entries), ENTRY):
            base, place, size, at_us = entries[at : at + ENTRY]
            if first < base and first < stop:
                wanted.append(Wanted(0, 0, 0, first, first, min(base, stop) - first, 0))
                first += wanted[-1].taken
            taken_bytes += size >> 32
            if first >= stop or (wanted and taken_bytes > max_bytes):
                return wanted
            taken = min(base + (size & _U32), stop) - first
            wanted.append(Wanted(segment, place >> 32, place & _U32, base, first, taken, at_us))
            first += taken
    if first < stop:
        wanted.append(Wanted(0, 0, 0, first, first, stop - first, 0))
    return wanted


def extents(wanted: Sequence[Wanted]) -> list[Extent]:
    """Join frames of the same segment with little or nothing between them."""
    joined: list[Extent] = []
    segment = begin = end = 0
    frames: list[Wanted] = []
    for frame in wanted:
        if not frame.segment:
            continue
        stop = frame.position + frame.length
        if frame.segment != segment or not 0 <= frame.position - end <= _GAP_MAX or stop - begin > _EXTENT_MAX:
            if frames:
                joined.append(Extent(segment, begin, end - begin, frames))
            segment, begin, frames = frame.segment, frame.position, []
        frames.append(frame)
        end = stop
    if frames:
        joined.append(Extent(segment, begin, end - begin, frames))
    return joined


class StreamReader:
    """Reads for all streams of a store; belongs to the event loop."""

    def __init__(
        self, files: SegmentFiles, entries_of: EntriesOf, io: DiskIo, stats: LogStats, executor: Executor
    ) -> None:
        self._files = files
        self._entries_of = entries_of
        self._io = io
        self._stats = stats
        self._executor = executor
        self._reported: set[tuple[str, int]] = set()

    async def read(self, stream: Stream, first: int, max_count: int, max_bytes: int) -> Read:
        wanted = plan(stream, first, max_count, max_bytes, self._entries_of)
        wide = extents(wanted)
        found: dict[int, Chunk] = {}
        failed: dict[int, Unreadable] = {}
        slow: list[tuple[Extent, OpenFile]] = []
        at_once = sum([extent.length for extent in wide]) <= _AT_ONCE_MAX
        for extent in wide:
            try:
                file = self._files.acquire(extent.segment)
            except OSError as error:
                failed[extent.frames[0].first] = not_now(error, self._files.path(extent.segment))
                break
            if at_once and self._read_cached(stream, extent, file, found):
                self._files.release(file)
            else:
                slow.append((extent, file))
        if slow:
            await self._read_slowly(stream, slow, found, failed)
        if failed:
            wanted = _before(wanted, failed)
        return self._answer(stream, first, wanted, found)

    def _read_cached(self, stream: Stream, extent: Extent, file: OpenFile, found: dict[int, Chunk]) -> bool:
        """Returns whether it could be read without the disk."""
        buffer = _room(extent.length)
        try:
            got = self._io.pread_cached(file.fd, buffer, extent.position)
        except OSError:
            return False
        if got != extent.length:
            return False
        cut(stream, extent, buffer.toreadonly(), found)
        return True

    async def _read_slowly(
        self,
        stream: Stream,
        slow: list[tuple[Extent, OpenFile]],
        found: dict[int, Chunk],
        failed: dict[int, Unreadable],
    ) -> None:
        self._stats.slow_reads += 1
        work = asyncio.get_running_loop().run_in_executor(self._executor, self._fetch, stream, slow)
        # A caller that gives up must not close a file under the thread that reads it.
        work.add_done_callback(lambda _: self._files.release_all([file for _, file in slow]))
        fetched, missed = await asyncio.shield(work)
        found.update(fetched)
        failed.update(missed)

    def _fetch(
        self, stream: Stream, slow: list[tuple[Extent, OpenFile]]
    ) -> tuple[dict[int, Chunk], dict[int, Unreadable]]:
        """In a thread: the frames that could be read, and the first that could not."""
        found: dict[int, Chunk] = {}
        for extent, file in slow:
            buffer = _room(extent.length)
            try:
                got = self._io.pread_into(file.fd, buffer, extent.position)
                cut(stream, extent, buffer[:got].toreadonly(), found)
            except OSError:
                failed = self._fetch_singly(stream, extent, file, found)
                if failed:
                    return found, failed
        return found, {}

    def _fetch_singly(
        self, stream: Stream, extent: Extent, file: OpenFile, found: dict[int, Chunk]
    ) -> dict[int, Unreadable]:
        """Some sector of the extent cannot be read: get the frames before it."""
        for frame in extent.frames:
            buffer = _room(frame.length)
            try:
                got = self._io.pread_into(file.fd, buffer, frame.position)
            except OSError as error:
                return {frame.first: not_now(error, self._files.path(frame.segment))}
            single = Extent(frame.segment, frame.position, frame.length, [frame])
            cut(stream, single, buffer[:got].toreadonly(), found)
        return {}

    def _answer(self, stream: Stream, first: int, wanted: Sequence[Wanted], found: dict[int, Chunk]) -> Read:
        chunks: list[Chunk] = []
        lost: list[Lost] = []
        for frame in wanted:
            chunk = found.get(frame.first)
            if chunk is not None:
                chunks.append(chunk)
                continue
            reason = "its bytes are damaged" if frame.segment else "no intact record holds it"
            lost.append(Lost(frame.first, frame.taken, reason))
            self._report(stream, frame)
        return Read(chunks, lost, wanted[-1].first + wanted[-1].taken if wanted else first)

    def _report(self, stream: Stream, frame: Wanted) -> None:
        """Log it once."""
        key = (stream.name, frame.base)
        if key in self._reported or len(self._reported) >= _REPORTED_MAX:
            return
        self._reported.add(key)
        self._stats.lost_ranges += 1
        last = frame.first + frame.taken - 1
        if frame.segment:
            where = f"the frame in segment {frame.segment} at {frame.position} is damaged"
        else:
            where = "no intact record holds them"
        _log.error("records %d to %d of %s are lost: %s", frame.first, last, stream.name, where)


def _before(wanted: Sequence[Wanted], failed: dict[int, Unreadable]) -> list[Wanted]:
    """The frames before the first that could not be read; that one's error if there are none."""
    first = min(failed)
    before = [frame for frame in wanted if frame.first < first]
    if not before:
        raise failed[first]
    return before


def _room(length: int) -> memoryview:
    """Memory to read into. A large read goes into memory that was used before: new memory is filled with zeros
    first."""
    return SPARE.view(length)[:length] if length >= _SPARE_MIN else memoryview(bytearray(length))


def cut(stream: Stream, extent: Extent, buffer: memoryview, found: dict[int, Chunk]) -> None:
    """Cut the frames out of the bytes of an extent; a frame that does not verify is left out."""
    for frame in extent.frames:
        at = frame.position - extent.position
        if at + frame.length > len(buffer):
            return
        stamp = STAMP.unpack_from(buffer, at)
        magic, checksum, length, frame_length, name_length, _, source_length, _, _, base, *_, source = stamp
        named = at + STAMP.size + name_length
        if (
            magic != MAGIC
            or length != frame.length
            or base != frame.base
            or crc32c(buffer[at + 8 : named], seed(frame.segment, frame.position)) != checksum
            or buffer[at + STAMP.size : named] != stream.encoded
        ):
            continue
        begin = at + stream.head_length
        content = buffer[begin : begin + frame_length]
        if frame_intact(content):
            found[frame.first] = Chunk(
                frame.first,
                frame.taken,
                frame.first - frame.base,
                content,
                frame.at_us,
                source[:source_length],
                frame.segment,
            )
