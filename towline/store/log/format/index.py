"""The consume logs of one sealed segment, in one file beside it.

A consume log is a run of entries, one per frame, 32 bytes each: four u64

    base sequence | position << 32 | record length
                  | frame length << 32 | count
                  | append time in microseconds

The runs of the segment that is being written are in memory. When it is sealed they go to its index file:

    header    see `HEADER`
    streams   ALL streams of the store, four u64 each: name's place << 16 | name's length, the trim mark, the next
              sequence number when the segment began, and when it ended
    runs      the streams with frames in this segment, five u64 each: number in `streams`, first entry << 32 | entries,
              first sequence, end sequence, bytes of frames
    names     back to back in UTF-8, padded with zeros to a multiple of 8
    entries   run after run

Why this and not one consume-log file per stream: ten thousand streams would be ten thousand files to open, append to
and fsync; here there is one file per segment, written once and never changed. Retention deletes two files. The newest
index is the checkpoint of a restart: it knows the numbering of every stream, also of those with no record left. All of
it is a cache: it can be rebuilt from its segment (and the index before).
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from towline.store.log.format.segment import Segment, opened
from towline.store.log.write.disk import REAL, DiskIo, reading

__all__ = [
    "ENTRY",
    "ROW",
    "Directory",
    "IndexCache",
    "Known",
    "Run",
    "load_directory",
    "map_entries",
    "pack_entry",
    "write_index",
]

MAGIC: Final = b"TWX1"
HEADER: Final = struct.Struct("<4sIQQqqIIQIIQ")
"""magic, crc of the header behind it and of streams, runs and names, segment, length of the segment, first and last
append time, number of streams, of runs, of entries, crc of the entries, length of the names, reserved (0)."""

_TAIL: Final = struct.Struct("<QQqqIIQIIQ")

ENTRY: Final = 4
ROW: Final = 5
pack_entry = struct.Struct("<4Q").pack
_STREAM: Final = 4
_U32: Final = 0xFFFFFFFF


class Known:
    """The numbering of a stream."""

    __slots__ = ("begin", "end", "first")

    def __init__(self, first: int = 0, begin: int = 0, end: int = 0) -> None:
        self.first = first
        """The trim mark: no record before it can be read."""
        self.begin = begin
        """The next number when the segment began."""
        self.end = end


class Run(NamedTuple):
    """The part of a stream that is in one segment."""

    stream: str
    start: int
    entries: int
    base: int
    end: int
    frame_bytes: int


class Directory(NamedTuple):
    """All of an index but its entries."""

    segment: int
    log_length: int
    first_at_us: int
    last_at_us: int
    names: list[str]
    streams: memoryview
    runs: memoryview
    entries_at: int
    entries: int
    entries_crc: int

    def known(self) -> Iterator[tuple[str, int, int, int]]:
        """Name, trim mark, begin and end of every stream."""
        rows = self.streams.tolist()
        return zip(self.names, rows[1::_STREAM], rows[2::_STREAM], rows[3::_STREAM], strict=True)

    def run_rows(self) -> Iterator[Run]:
        rows = self.runs.tolist()
        for at in range(0, len(rows), ROW):
            number, place, base, end, frame_bytes = rows[at : at + ROW]
            yield Run(self.names[number], place >> 32, place & _U32, base, end, frame_bytes)


def write_index(
    io: DiskIo,
    path: Path,
    segment: Segment,
    known: Mapping[str, Known],
) -> list[Run]:
    """Write the index of a segment and of all streams as they are at its end; returns the place of each run."""
    streams, rows, names, numbers = array("Q"), array("Q"), bytearray(), {}
    for number, (name, state) in enumerate(known.items()):
        raw = name.encode()
        streams.extend((len(names) << 16 | len(raw), state.first, state.begin, state.end))
        names += raw
        numbers[name] = number
    names += b"\0" * (-len(names) & 7)
    written, start = [], 0
    entries_crc = 0
    for name, entries in segment.runs.items():
        end = entries[-4] + (entries[-2] & _U32)
        run = Run(name, start, len(entries) // ENTRY, entries[0], end, _frame_bytes(entries))
        rows.extend((numbers[name], start << 32 | run.entries, run.base, run.end, run.frame_bytes))
        written.append(run)
        entries_crc = crc32c(memoryview(entries).cast("B"), entries_crc)
        start += run.entries
    counts = len(numbers), len(written), start
    times = segment.first_at_us, segment.last_at_us
    tail = _TAIL.pack(segment.number, segment.used, *times, *counts, entries_crc, len(names), 0)
    directory = b"".join((tail, streams.tobytes(), rows.tobytes(), bytes(names)))
    parts: list[bytes | memoryview] = [MAGIC + crc32c(directory).to_bytes(4, "little") + directory]
    io.replace(path, parts + [memoryview(entries) for entries in segment.runs.values()])
    return written


def _frame_bytes(entries: array[int]) -> int:
    # The counts of one segment add up to less than 2**32, so they do not spill into the lengths above them.
    return sum(entries[2::ENTRY]) >> 32


def load_directory(path: Path) -> Directory | None:
    """The directory of an index, or None if it is missing, cut or damaged."""
    try:
        with reading(path), opened(path) as (fd, size):
            head = REAL.pread(fd, HEADER.size, 0)
            if len(head) < HEADER.size or head[:4] != MAGIC:
                return None
            _, checksum, segment, log_length, *times, n_streams, n_runs, n_entries, entries_crc, names_length, _ = (
                HEADER.unpack(head)
            )
            streams_length, runs_length = n_streams * _STREAM * 8, n_runs * ROW * 8
            entries_at = HEADER.size + streams_length + runs_length + names_length
            if entries_at + n_entries * ENTRY * 8 != size:
                return None
            body = REAL.pread(fd, entries_at - HEADER.size, HEADER.size)
    except FileNotFoundError:
        return None
    if crc32c(body, crc32c(head[8:])) != checksum:
        return None
    view = memoryview(body)
    streams = view[:streams_length].cast("Q")
    runs = view[streams_length : streams_length + runs_length].cast("Q")
    raw = body[streams_length + runs_length :]
    names = [raw[place >> 16 : (place >> 16) + (place & 0xFFFF)].decode() for place in streams.tolist()[::_STREAM]]
    return Directory(segment, log_length, times[0], times[1], names, streams, runs, entries_at, n_entries, entries_crc)


class IndexCache:
    """The entries of sealed segments: mapped files, those last used, up to a number of bytes, because pages that were
    read count as this process's memory. A map goes when the last view of it does."""

    def __init__(
        self, path_of: Callable[[int], Path], rebuild: Callable[[int], Mapping[str, array[int]]], limit_bytes: int
    ) -> None:
        self._path_of = path_of
        self._rebuild = rebuild
        self._limit_bytes = limit_bytes
        self._maps: OrderedDict[int, memoryview | Mapping[str, array[int]]] = OrderedDict()
        self._mapped_bytes = 0
        self._verified: set[int] = set()

    def entries(self, segment: int, stream: str, start: int, count: int) -> memoryview:
        """A run of a stream, as numbers: entry i is at `4 * i`. If its file turns out to be damaged, the segment is
        read again in its place."""
        found = self._maps.get(segment)
        if found is None:
            found = self._load(segment)
        else:
            self._maps.move_to_end(segment)
        if isinstance(found, memoryview):
            return found[start * ENTRY : (start + count) * ENTRY]
        return memoryview(found.get(stream, array("Q")))

    def forget(self, segment: int) -> None:
        found = self._maps.pop(segment, None)
        self._mapped_bytes -= found.nbytes if isinstance(found, memoryview) else 0
        self._verified.discard(segment)

    def close(self) -> None:
        self._maps.clear()

    def _load(self, segment: int) -> memoryview | Mapping[str, array[int]]:
        mapped = map_entries(self._path_of(segment), verify=segment not in self._verified)
        found = self._maps[segment] = self._rebuild(segment) if mapped is None else mapped
        self._verified.add(segment)
        self._mapped_bytes += found.nbytes if isinstance(found, memoryview) else 0
        while self._mapped_bytes > self._limit_bytes and len(self._maps) > 1:
            _, dropped = self._maps.popitem(last=False)
            self._mapped_bytes -= dropped.nbytes if isinstance(dropped, memoryview) else 0
        return found


def map_entries(path: Path, verify: bool = True) -> memoryview | None:
    """All entries of an index, as numbers, or None if it is missing, cut or damaged."""
    directory = load_directory(path)
    if directory is None:
        return None
    try:
        with reading(path), opened(path) as (fd, _):
            if verify and _checksum(fd, directory.entries_at) != directory.entries_crc:
                return None
            view = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        return None  # retention has dropped it in this very moment
    return view[directory.entries_at :].cast("Q")


def _checksum(fd: int, position: int) -> int:
    """Of all from `position` on. Read, not mapped: it would make the whole file count as memory in use."""
    checksum = 0
    while data := os.pread(fd, 1 << 20, position):
        checksum = crc32c(data, checksum)
        position += len(data)
    return checksum
