"""Inspection of a log store's folder without opening it: for tools, and while a broker has it open.

Nothing is locked and nothing is changed. Writes of a live broker under way are not taken for damage: the end of the
last segment counts as far as it holds whole units.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from towline.errors import NotFound
from towline.store.log.format.folder import check_format
from towline.store.log.format.index import ENTRY, Known, load_directory, map_entries
from towline.store.log.format.record import FRAME, Record
from towline.store.log.format.scan import Damage, Scanner
from towline.store.log.format.segment import Segment, index_path, list_folder, log_path
from towline.store.log.format.segment import opened as segment_file
from towline.store.log.recovery import Scan, read_segment
from towline.store.log.write.disk import REAL, reading
from towline.store.log.write.sealer import absorb

__all__ = [
    "DamageFound",
    "Grown",
    "Report",
    "SegmentStat",
    "Stat",
    "StoredFrame",
    "StreamStat",
    "dump",
    "list_segments",
    "log_folder",
    "opened",
    "stat",
    "verify",
]

_U32 = 0xFFFFFFFF


class SegmentStat(msgspec.Struct, frozen=True):
    number: int
    path: Path
    size_bytes: int
    """The written bytes; the file may be longer."""
    sealed: bool
    frames: int
    first_at_us: int
    last_at_us: int


class StreamStat(msgspec.Struct):
    name: str
    first: int = 0
    end: int = 0
    frames: int = 0
    frame_bytes: int = 0
    """Of the frames in the log; those below `first` are counted until their segment is deleted."""
    first_at_us: int = 0
    last_at_us: int = 0


class Stat(msgspec.Struct, frozen=True):
    segments: list[SegmentStat]
    streams: list[StreamStat]
    """Sorted by name."""


class DamageFound(msgspec.Struct, frozen=True):
    path: Path
    position: int
    length: int
    reason: str


class Report(msgspec.Struct):
    """The findings of `verify`. Damage is anything that was whole once; a torn tail or a missing index loses
    nothing."""

    records: int = 0
    frames: int = 0
    messages: int = 0
    bytes_read: int = 0
    damages: list[DamageFound] = []
    torn_tail: DamageFound | None = None
    unindexed: list[Path] = []
    """Sealed segments whose index is missing or damaged: it is made again when the store is opened."""

    @property
    def sound(self) -> bool:
        return not self.damages


class StoredFrame(msgspec.Struct, frozen=True, gc=False):
    """One intact frame of the log, and its place."""

    stream: str
    first: int
    count: int
    appended_at_us: int
    source: bytes
    frame: memoryview
    segment: int
    position: int


def stat(path: Path) -> Stat:
    """The segments and streams of a folder. Reads only indexes, and the segments that have none."""
    folder = log_folder(path)
    logs, indexes = list_segments(folder)
    segments: list[SegmentStat] = []
    streams: dict[str, StreamStat] = {}
    for number in sorted({*logs, *indexes}):
        try:
            segment = _add_indexed(folder, number, streams, number in logs) or _add_scanned(folder, number, streams)
        except FileNotFoundError:
            continue  # retention was faster
        if number in logs:
            segments.append(segment)
    return Stat(segments, [streams[name] for name in sorted(streams) if not name.endswith("/")])


def verify(path: Path, progress: Callable[[int, int], None] | None = None) -> Report:
    """Read every byte of the log and check it. `progress` is called with the bytes read and the bytes there are."""
    folder = log_folder(path)
    report = Report()
    logs, indexes = list_segments(folder)
    last = _last_with_content(folder, logs)
    total, read = sum(_size(log_path(folder, number)) for number in logs), 0
    for number in logs:
        try:
            with opened(folder, number) as (fd, size):
                _verify_segment(report, folder, number, (fd, size), is_last=number >= last)
        except FileNotFoundError:
            continue
        indexed = number in indexes or number < last
        if indexed and map_entries(index_path(folder, number)) is None and log_path(folder, number).exists():
            report.unindexed.append(index_path(folder, number))
        read += size
        if progress is not None:
            progress(read, total)
    return report


def dump(
    path: Path, stream: str | None = None, first: int | None = None, limit: int | None = None
) -> Iterator[StoredFrame]:
    """The intact frames of the log in the order in which they were appended: all, or those of one stream; from record
    `first` of each stream on; at most `limit` frames."""
    folder = log_folder(path)
    left = -1 if limit is None else limit
    for number in list_segments(folder)[0]:
        positions = None if stream is None else _positions(folder, number, stream, first or 0)
        try:
            with opened(folder, number) as (fd, size):
                growing = Grown(folder, fd, number) if positions is None else None
                for record in growing or _records_at(Scanner(REAL, fd, number, size), positions or ()):
                    if left == 0:
                        return
                    if _is_wanted(record, stream, first or 0):
                        left -= 1
                        yield _stored(record, number)
                if growing is not None and not growing.is_left:
                    return
        except FileNotFoundError:
            continue


def log_folder(path: Path) -> Path:
    """The folder of the segments of a store's folder; `NotFound` if it is none."""
    folder = Path(path) / "log"
    if check_format(Path(path)) is None or not folder.is_dir():
        raise NotFound(f"{path} is not the folder of a log store")
    return folder


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def list_segments(folder: Path) -> tuple[list[int], list[int]]:
    """The segments and indexes there are. A listing made while files come to be may have a later one and not an
    earlier one; a second listing has all that the first one should have had."""
    before = list_folder(folder)[0]
    logs, indexes, _ = list_folder(folder)
    return [number for number in logs if before and number <= before[-1]], indexes


@contextmanager
def opened(folder: Path, number: int) -> Iterator[tuple[int, int]]:
    """Descriptor and size of a segment. A failed read is an error, never damage."""
    path = log_path(folder, number)
    with reading(path), segment_file(path) as opened_file:
        yield opened_file


def _last_with_content(folder: Path, logs: list[int]) -> int:
    """The segment that is written to, or was last; behind it there may be one made ahead, empty yet."""
    return next((number for number in reversed(logs) if _has_content(folder, number)), 0)


def _add_indexed(folder: Path, number: int, streams: dict[str, StreamStat], with_log: bool) -> SegmentStat | None:
    directory = load_directory(index_path(folder, number))
    entries = map_entries(index_path(folder, number)) if directory is not None else None
    if directory is None or entries is None:
        return None
    for name in streams.keys() - set(directory.names):
        del streams[name]  # it was forgotten
    for name, trimmed, begin, end in directory.known():
        known = streams.setdefault(name, StreamStat(name))
        # Until the first segment is seen, all that came before it is gone.
        known.first = max(known.first, trimmed, 0 if known.frames else begin if with_log else end)
        known.end = max(known.end, end)
    frames = 0
    for run in directory.run_rows() if with_log else ():
        frames += run.entries
        last = (run.start + run.entries - 1) * ENTRY
        _add_run(streams[run.stream], run.entries, run.frame_bytes, entries[run.start * ENTRY + 3], entries[last + 3])
    times = directory.first_at_us, directory.last_at_us
    return SegmentStat(number, log_path(folder, number), directory.log_length, True, frames, *times)


def _add_scanned(folder: Path, number: int, streams: dict[str, StreamStat]) -> SegmentStat:
    with opened(folder, number) as (fd, size):
        segment = Segment(number, log_path(folder, number), fd, size)
        scan = read_segment(segment, REAL, size)
    known = {name: Known(state.first, state.end, state.end) for name, state in streams.items()}
    absorb(known, segment)
    for name in streams.keys() - known.keys():
        del streams[name]
    for name, state in known.items():
        entry = streams.setdefault(name, StreamStat(name))
        entry.first, entry.end = max(entry.first, state.first), max(entry.end, state.end)
    frames = 0
    for name, run in segment.runs.items():
        frames += len(run) // ENTRY
        _add_run(streams[name], len(run) // ENTRY, sum(run[2::ENTRY]) >> 32, run[3], run[-1])
    times = segment.first_at_us, segment.last_at_us
    return SegmentStat(number, segment.path, scan.good_end, False, frames, *times)


def _add_run(stream: StreamStat, frames: int, frame_bytes: int, first_at_us: int, last_at_us: int) -> None:
    stream.frames += frames
    stream.frame_bytes += frame_bytes
    stream.first_at_us = stream.first_at_us or first_at_us
    stream.last_at_us = last_at_us


def _verify_segment(report: Report, folder: Path, number: int, file: tuple[int, int], is_last: bool) -> None:
    path = log_path(folder, number)
    segment = Segment(number, path, *file)
    scan = read_segment(segment, REAL, file[1])
    if is_last and (scan.damages or scan.torn or scan.broken):
        # It may be a broker's write caught in the middle: then it is whole at the second look.
        segment = Segment(number, path, file[0], os.fstat(file[0]).st_size)
        scan = read_segment(segment, REAL, segment.capacity)
    runs = segment.runs.values()
    report.frames += sum(len(run) // ENTRY for run in runs)
    report.messages += sum(sum(size & _U32 for size in run[2::ENTRY]) for run in runs)
    report.records += scan.records
    report.bytes_read += scan.content_end
    tail = scan.good_end if is_last else file[1]
    if scan.content_end > tail:
        report.torn_tail = DamageFound(path, tail, scan.content_end - tail, "a write was cut short")
    report.damages.extend(_damages(path, scan, tail))


def _damages(path: Path, scan: Scan, tail: int) -> Iterator[DamageFound]:
    for damage in scan.damages:
        if damage.position < tail:
            yield DamageFound(path, damage.position, damage.length, "these bytes are no record")
    torn = [record for unit in scan.torn for record in unit if not record.intact]
    for record in [*scan.broken, *torn]:
        if record.position < tail:
            reason = f"the frame of records {record.base} to {record.base + record.count - 1} of {record.stream}"
            yield DamageFound(path, record.position, record.length, f"{reason} fails its checksum")
    for unit in scan.torn:
        if all(record.intact for record in unit) and unit[0].position < tail:
            length = unit[-1].position + unit[-1].length - unit[0].position
            yield DamageFound(
                path, unit[0].position, length, f"only {len(unit)} of {unit[0].unit_size} frames are there"
            )


def _positions(folder: Path, number: int, stream: str, first: int) -> list[int] | None:
    """The places of the frames of a stream, if the segment has an index that knows."""
    directory = load_directory(index_path(folder, number))
    if directory is None:
        return None
    run = next((run for run in directory.run_rows() if run.stream == stream and run.end > first), None)
    if run is None:
        return []
    entries = map_entries(index_path(folder, number))
    if entries is None:
        return None
    return [place >> 32 for place in entries[run.start * ENTRY + 1 : (run.start + run.entries) * ENTRY : ENTRY]]


def _records_at(scanner: Scanner, positions: Sequence[int]) -> Iterator[Record]:
    return (record for position in positions if (record := scanner.record_at(position)) is not None)


class Grown:
    """The records of a segment that a broker may be writing to, from a position on.

    It is read to its very end before the next segment is, so that nothing is skipped that was written in between. Bytes
    that look damaged are read again before they are skipped: they may have been written during the first look.
    """

    def __init__(self, folder: Path, fd: int, number: int, position: int = 0) -> None:
        self._folder = folder
        self._fd = fd
        self._number = number
        self._position = position
        self.is_left = False
        """All of it was read, and the broker continues in a later one. Until then later segments must not be read: by
        now, more may have come into this one before them."""

    def __iter__(self) -> Iterator[Record]:
        doubted, position = -1, self._position
        while not self.is_left:
            was_left = _is_left(self._folder, self._number)
            expected, held, in_doubt = position, list[Record](), False
            for unit in _units(Scanner(REAL, self._fd, self._number, os.fstat(self._fd).st_size), position):
                broken = len(unit) != unit[0].unit_size or not all(record.intact for record in unit)
                in_doubt = (broken or unit[0].position != expected) and doubted < expected
                if in_doubt:
                    doubted = expected
                    break
                yield from held
                expected = unit[-1].position + unit[-1].length
                # A broken unit with nothing behind it may still be being written: it stays for the next look.
                held, position = (unit, unit[0].position) if broken else ([], expected)
                if not broken:
                    yield from unit
            if in_doubt:
                continue
            if was_left:
                yield from held
                self.is_left = True
            elif not _is_left(self._folder, self._number):
                return


def _is_left(folder: Path, number: int) -> bool:
    """Whether a later segment has records."""
    return any(_has_content(folder, later) for later in list_segments(folder)[0] if later > number)


def _has_content(folder: Path, number: int) -> bool:
    try:
        with opened(folder, number) as (fd, size):
            return Scanner(REAL, fd, number, size).content_end(0) > 0
    except FileNotFoundError:
        return False


def _units(scanner: Scanner, position: int) -> Iterator[list[Record]]:
    """The records of a segment by units; one at its end with records missing is left out."""
    unit: list[Record] = []
    for found in scanner.records(position):
        if isinstance(found, Damage):
            continue
        if unit and found.unit_index == 0:
            yield unit
            unit = []
        unit.append(found)
        if found.unit_index + 1 == found.unit_size:
            yield unit
            unit = []


def _is_wanted(record: Record, stream: str | None, first: int) -> bool:
    ours = stream is None or record.stream == stream
    return ours and record.kind == FRAME and record.intact and record.base + record.count > first


def _stored(record: Record, number: int) -> StoredFrame:
    return StoredFrame(
        record.stream,
        record.base,
        record.count,
        record.at_us,
        record.source,
        record.frame,
        number,
        record.position,
    )
