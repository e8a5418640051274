"""Streams of a folder without its broker: their bounds, their times, and any range of them.

For readers in other processes, while a broker has the folder open or after it. As in `inspect`, nothing is locked and
nothing is changed, and writes of a live broker under way are not taken for damage.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from towline.clock import SYSTEM
from towline.store.eras import Eras
from towline.store.log.format.index import ENTRY, Run, load_directory, map_entries, pack_entry
from towline.store.log.format.record import FORGET, FRAME, Record
from towline.store.log.format.scan import Scanner
from towline.store.log.format.segment import index_path
from towline.store.log.offline.inspect import Grown, list_segments, log_folder, opened
from towline.store.log.read.range_reader import Wanted, cut, extents
from towline.store.log.read.streams import Stream, first_at, first_ending_after
from towline.store.log.write.disk import REAL
from towline.store.spi import Chunk, Lost

__all__ = ["Chunk", "Lost", "OfflineStreams", "Place", "Seen", "read_range"]

_U32: Final = 0xFFFFFFFF
_GONE: Final = "it is not kept any more"
_DAMAGED: Final = "its bytes are damaged"
_MAPPED_MAX: Final = 8


class Place(NamedTuple):
    """The place from which to look for a record: a segment, and a position in it at which one begins, or 0."""

    segment: int = 0
    position: int = 0


ANYWHERE: Final = Place()


class Seen:
    """One stream as of the last look."""

    __slots__ = ("_grown", "_rows", "end", "first", "frame_bytes", "name", "whole")

    def __init__(self, name: str) -> None:
        self.name = name
        self.first = 0
        self.end = 0
        self.frame_bytes = 0
        self.whole = False
        """Whether a frame of it was seen: before, all that came earlier is gone."""
        self._rows: dict[int, Run] = {}
        self._grown: dict[int, array[int]] = {}

    def segments(self) -> list[int]:
        return sorted({*self._rows, *self._grown})

    def entries(self, folder: Path, segment: int) -> Sequence[int]:
        """The consume log of the stream in one segment."""
        if segment in self._grown:
            return self._grown[segment]
        run = self._rows.get(segment)
        mapped = None if run is None else _entries_of(folder, segment)
        if run is None or mapped is None:
            return ()
        return mapped[run.start * ENTRY : (run.start + run.entries) * ENTRY]

    def add_run(self, segment: int, run: Run) -> None:
        self._grown.pop(segment, None)
        self._rows[segment] = run

    def add_record(self, segment: int, record: Record) -> None:
        grown_ = self._grown.setdefault(segment, array("Q"))
        while grown_ and record.base < grown_[-4] + (grown_[-2] & _U32):
            del grown_[-ENTRY:]  # a later record of the same number is the valid one
        place, size = record.position << 32 | record.length, len(record.frame) << 32 | record.count
        grown_.frombytes(pack_entry(record.base, place, size, record.at_us))

    def forget(self, segment: int) -> int:
        """The segment is gone; returns the end of its records."""
        run, entries = self._rows.pop(segment, None), self._grown.pop(segment, None)
        if run is not None:
            return run.end
        return entries[-4] + (entries[-2] & _U32) if entries else 0

    def count_bytes(self) -> int:
        return sum(run.frame_bytes for run in self._rows.values()) + sum(
            sum(entries[2::ENTRY]) >> 32 for entries in self._grown.values()
        )


class OfflineStreams:
    """The `wanted` streams of a folder. Looking again costs only what is new."""

    def __init__(self, path: Path, wanted: Callable[[str], bool]) -> None:
        self._folder = log_folder(path)
        self._wanted = wanted
        self._sealed: set[int] = set()
        self._positions: dict[int, int] = {}
        self.streams: dict[str, Seen] = {}

    def look(self) -> dict[str, Seen]:
        """The present streams, by name."""
        logs, indexes = list_segments(self._folder)
        for number in sorted({*self._sealed, *self._positions} - set(logs)):
            self._drop(number)
        for number in sorted({*logs, *indexes}):
            if number in self._sealed:
                continue
            try:
                sealed = self._add_sealed(number, with_log=number in logs)
                if not sealed and number in logs and not self._add_growing(number):
                    break
            except FileNotFoundError:
                continue  # retention was faster
        for seen in self.streams.values():
            seen.frame_bytes = seen.count_bytes()
        return self.streams

    def _seen(self, name: str) -> Seen:
        seen = self.streams.get(name)
        if seen is None:
            seen = self.streams[name] = Seen(name)
        return seen

    def _drop(self, number: int) -> None:
        self._sealed.discard(number)
        self._positions.pop(number, None)
        for seen in self.streams.values():
            seen.first = max(seen.first, seen.forget(number))

    def _add_sealed(self, number: int, with_log: bool) -> bool:
        directory = load_directory(index_path(self._folder, number))
        if directory is None:
            return False
        if with_log:
            if map_entries(index_path(self._folder, number)) is None:
                return False
            self._positions.pop(number, None)
            self._sealed.add(number)
        for name in self.streams.keys() - set(directory.names):
            if max(self.streams[name].segments(), default=0) <= number:
                del self.streams[name]  # it was forgotten; others came to be in a later segment
        for name, trimmed, begin, end in directory.known():
            if not self._wanted(name) or name.endswith("/"):
                continue
            seen = self._seen(name)
            seen.first = max(seen.first, trimmed, 0 if seen.whole else begin if with_log else end)
            seen.end = max(seen.end, end)
        for run in directory.run_rows() if with_log else ():
            if self._wanted(run.stream):
                seen = self._seen(run.stream)
                seen.whole = True
                seen.add_run(number, run)
        return True

    def _add_growing(self, number: int) -> bool:
        """Returns whether all of it was seen, so that later segments may be looked at."""
        position = self._positions.get(number, 0)
        with opened(self._folder, number) as (fd, _):
            growing = Grown(self._folder, fd, number, position)
            for record in growing:
                self._positions[number] = max(self._positions.get(number, 0), record.position + record.length)
                if not self._wanted(record.stream):
                    continue
                if record.kind == FORGET:
                    self.streams.pop(record.stream, None)
                    continue
                seen = self._seen(record.stream)
                if record.kind != FRAME:
                    seen.first = max(seen.first, record.base)
                    continue
                if not seen.whole:
                    # Earlier records are gone, unless this is where the stream began.
                    seen.first, seen.whole = max(seen.first, min(record.base, seen.end) or record.base), True
                seen.add_record(number, record)
                seen.end = max(seen.end, record.base + record.count)
        return growing.is_left

    def locate(self, name: str, time_us: int) -> int:
        """The first record of a stream that was appended at this time or later; its end if there is none."""
        seen, eras = self.streams[name], Eras()
        for segment in seen.segments():
            entries = seen.entries(self._folder, segment)
            eras.note(segment, entries[3], entries[-1])
        times = eras.times(SYSTEM.now_us())
        for segment in seen.segments():
            entries = seen.entries(self._folder, segment)
            at = first_at(segment, entries, time_us, times)
            if at < len(entries) // ENTRY:
                return max(entries[ENTRY * at], seen.first)
        return seen.end

    def place_of(self, name: str, seq: int) -> Place:
        """The place from which to look for a record."""
        seen = self.streams[name]
        for segment in seen.segments():
            entries = seen.entries(self._folder, segment)
            at = first_ending_after(entries, seq)
            if at < len(entries) // ENTRY:
                return Place(segment, entries[ENTRY * at + 1] >> 32)
        return Place()


def read_range(path: Path, name: str, first: int, end: int, place: Place = ANYWHERE) -> Iterator[Chunk | Lost]:
    """Records `first` to `end` of a stream, in order and without a gap: chunks, and lost ranges in between. It begins
    to look at `place`, which was found when the range was planned."""
    folder = log_folder(path)
    stream, at, seen_any = Stream(name), first, False
    for number in list_segments(folder)[0]:
        if number < place.segment or at >= end:
            continue
        try:
            with opened(folder, number) as (fd, size):
                for chunk in _of_segment(folder, fd, number, size, stream, at, end, place):
                    if chunk.first > at:
                        yield Lost(at, chunk.first - at, _DAMAGED if seen_any else _GONE)
                    seen_any = True
                    yield chunk
                    at = chunk.first + chunk.count
        except FileNotFoundError:
            continue
    if at < end:
        yield Lost(at, end - at, _DAMAGED if seen_any else _GONE)


def _of_segment(  # noqa: PLR0917 - all of it says where
    folder: Path, fd: int, number: int, size: int, stream: Stream, first: int, end: int, place: Place
) -> Iterator[Chunk | Lost]:
    run = _run_of(folder, number, stream.name)
    entries = None if run is None else _entries_of(folder, number)
    if run is None or entries is None:
        position = place.position if number == place.segment else 0
        yield from _scanned(Scanner(REAL, fd, number, size), position, stream.name, first, end)
    elif run.entries:
        own = entries[run.start * ENTRY : (run.start + run.entries) * ENTRY]
        yield from _indexed(fd, number, own, stream, first, end)


def _scanned(scanner: Scanner, position: int, name: str, first: int, end: int) -> Iterator[Chunk | Lost]:
    """Of a segment without an index: record by record. When the range was planned, its units were seen to be whole."""
    for record in scanner.records(position):
        if not isinstance(record, Record) or record.kind != FRAME or record.stream != name:
            continue
        if record.base >= end:
            return
        begin, stop = max(record.base, first), min(record.base + record.count, end)
        if begin >= stop:
            continue
        if not record.intact:
            yield Lost(begin, stop - begin, _DAMAGED)
        else:
            yield Chunk(begin, stop - begin, begin - record.base, record.frame, record.at_us, record.source)
        first = stop


def _indexed(  # noqa: PLR0917 - as above
    fd: int, number: int, entries: Sequence[int], stream: Stream, first: int, end: int
) -> Iterator[Chunk | Lost]:
    wanted: list[Wanted] = []
    for at in range(ENTRY * first_ending_after(entries, first), len(entries), ENTRY):
        base, location, size, at_us = entries[at : at + ENTRY]
        if base >= end:
            break
        begin = max(base, first)
        taken = min(base + (size & _U32), end) - begin
        wanted.append(Wanted(number, location >> 32, location & _U32, base, begin, taken, at_us))
    for extent in extents(wanted):
        found: dict[int, Chunk] = {}
        cut(stream, extent, memoryview(REAL.pread(fd, extent.length, extent.position)), found)
        for frame in extent.frames:
            yield found.get(frame.first) or Lost(frame.first, frame.taken, _DAMAGED)


def _run_of(folder: Path, number: int, name: str) -> Run | None:
    """The run of a stream in a sealed segment, maybe an empty one; None if the segment has no index."""
    runs = _runs_of(index_path(folder, number), _stamp(index_path(folder, number)))
    return None if runs is None else runs.get(name, Run(name, 0, 0, 0, 0, 0))


@lru_cache(maxsize=_MAPPED_MAX)
def _runs_of(path: Path, stamp: tuple[int, int]) -> dict[str, Run] | None:
    directory = load_directory(path) if stamp[0] else None
    return None if directory is None else {run.stream: run for run in directory.run_rows()}


def _entries_of(folder: Path, number: int) -> memoryview | None:
    path = index_path(folder, number)
    return _mapped(path, _stamp(path))


@lru_cache(maxsize=_MAPPED_MAX)
def _mapped(path: Path, stamp: tuple[int, int]) -> memoryview | None:
    return map_entries(path) if stamp[0] else None


def _stamp(path: Path) -> tuple[int, int]:
    """A stamp that tells one index from another at the same place; zeros for one that is not there."""
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return state.st_size, state.st_mtime_ns
