"""Recovery of a log: indexes are taken over, segments without one are read again, a torn tail is cut.

Segments are gone through in order. One with a good index is not read. Of any other, every record is verified:

- zeros up to the end of the file are its unwritten part;
- damage is reported and left in place: the numbers it swallowed read as lost, and are not given again;
- what stands behind the last whole unit of the last segment and looks torn (see `damage`) is copied to `torn/` and cut;
- a unit of several frames with one missing is dropped as a whole if it looks torn, that is unless a later record says
  that its place had been synced; else only the damaged frame is lost.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from towline.store.log.format.damage import Swallowed, Wreck, examine, is_torn
from towline.store.log.format.index import ENTRY, Directory, Known, Run, load_directory, pack_entry, write_index
from towline.store.log.format.record import FORGET, FRAME, VOID, Record
from towline.store.log.format.scan import Damage, Scanner
from towline.store.log.format.segment import Sealed, Segment, index_path, list_folder, log_path, opened
from towline.store.log.read.streams import HotRun, Stream, Streams
from towline.store.log.torn import cut_tail
from towline.store.log.write.disk import DiskIo, reading
from towline.store.log.write.sealer import absorb
from towline.store.spi import kind_of

__all__ = ["Recovered", "read_segment", "recover"]

_log = logging.getLogger("towline.store")

_U32 = 0xFFFFFFFF
_SAID_MAX = 20


class Recovered(NamedTuple):
    """The contents of the folder. `active` is the segment to continue in, if its end was not sealed."""

    streams: Streams
    sealed: list[Sealed]
    active: Segment | None
    known: dict[str, Known]
    """The numbering of all streams as of the end of the last sealed segment."""
    next_number: int


class Scan(NamedTuple):
    """The result of reading a segment."""

    good_end: int
    """The beginning of the torn tail, if there is one: behind the last unit that was written whole."""
    content_end: int
    records: int
    damages: list[Damage]
    torn: list[tuple[Record, ...]]
    """Units that were not written whole."""
    broken: list[Record]
    """Records whose frame was written whole, and damaged since."""
    swallowed: list[Swallowed]
    lowest: dict[str, int]
    """By stream, the lowest number."""


def read_segment(segment: Segment, io: DiskIo, size: int, is_synced: Callable[[], bool] = lambda: False) -> Scan:
    """Read all of a segment into its runs and trims. Torn units are in the runs until `drop` takes them out.
    `is_synced` is asked only if something is wrong: whether all of the segment was on the disk once."""
    scanner = Scanner(io, segment.fd, segment.number, size)
    damages: list[Damage] = []
    doubtful: list[tuple[Record, ...]] = []
    lowest: dict[str, int] = {}
    unit: list[Record] = []
    good_end = synced = records = 0
    for found in scanner.records():
        if isinstance(found, Damage):
            damages.append(found)
            if unit:
                doubtful.append(tuple(unit))
                unit = []
            continue
        records += 1
        synced = found.synced or synced
        _enter(segment, found, lowest)
        if found.unit_size == 1 and found.intact and not unit:
            good_end = found.position + found.length
            continue
        if unit and not _follows(unit[-1], found):
            doubtful.append(tuple(unit))
            unit = []
        unit.append(found)
        if found.unit_index + 1 == found.unit_size:
            if len(unit) == found.unit_size and all(record.intact for record in unit):
                good_end = found.position + found.length
            else:
                doubtful.append(tuple(unit))
            unit = []
    if unit:
        doubtful.append(tuple(unit))
    last = damages[-1] if damages else None
    content_end = last.position + last.length if last and last.tail else good_end
    content_end = max([content_end, *(record.position + record.length for part in doubtful for record in part)])
    if not damages and not doubtful:
        return Scan(good_end, content_end, records, [], [], [], [], lowest)
    verdict = _judge(segment, io, size, damages, doubtful, size if is_synced() else synced)
    good_end = _end_of_written(good_end, damages, doubtful, verdict)
    torn = [part for part in doubtful if part in verdict.torn or part[0].position >= good_end]
    broken = [record for part in doubtful if part not in torn for record in part if not record.intact]
    swallowed = [one for wreck in verdict.wrecks for one in wreck.swallowed]
    return Scan(good_end, content_end, records, damages, torn, broken, swallowed, lowest)


class _Verdict(NamedTuple):
    wrecks: list[Wreck]
    """Of each damage."""
    torn: list[tuple[Record, ...]]


def _judge(  # noqa: PLR0917 all of it is evidence
    segment: Segment,
    io: DiskIo,
    size: int,
    damages: list[Damage],
    doubtful: list[tuple[Record, ...]],
    synced: int,
) -> _Verdict:
    """Tell a crash's torn writes from later damage."""
    wrecks = [
        examine(
            *(io, segment.fd, segment.number, one.position, one.position + one.length),
            size=size,
            synced=one.position < synced,
        )
        for one in damages
    ]
    whole = [one for one, wreck in zip(damages, wrecks, strict=True) if wreck.end >= one.position + one.length]
    begins = {one.position for one in whole}
    ends = {wreck.end for wreck in wrecks} | {one.position + one.length for one in whole}

    def is_whole(part: tuple[Record, ...]) -> bool:
        """Whole but for damage: the missing part of the unit is in damaged bytes right before or behind it."""
        first, last = part[0], part[-1]
        return (
            (first.unit_index == 0 or first.position in ends)
            and (last.unit_index + 1 == last.unit_size or last.position + last.length in begins)
            and not any(
                not one.intact and one.position >= synced and is_torn(one, io, segment.fd, size) for one in part
            )
        )

    return _Verdict(wrecks, [part for part in doubtful if not is_whole(part)])


def _end_of_written(good_end: int, damages: list[Damage], doubtful: list[tuple[Record, ...]], verdict: _Verdict) -> int:
    """The end of the bytes behind the last good unit that were written whole."""
    things: list[tuple[int, Wreck | tuple[Record, ...], int]] = [
        (one.position, wreck, one.position + one.length) for one, wreck in zip(damages, verdict.wrecks, strict=True)
    ]
    things += [(part[0].position, part, part[-1].position + part[-1].length) for part in doubtful]
    begun = None
    for position, thing, end in sorted(things, key=itemgetter(0)):
        if position < good_end:
            continue
        if isinstance(thing, Wreck):
            if thing.end < end:
                return thing.end if begun is None else begun
            good_end = thing.end + 7 & ~7
            continue
        if thing in verdict.torn:
            return position if begun is None else begun
        good_end = end
        if thing[0].unit_index == 0:
            begun = position
        if thing[-1].unit_index + 1 == thing[-1].unit_size:
            begun = None
    return good_end


def _follows(before: Record, record: Record) -> bool:
    return (
        record.position == before.position + before.length
        and record.unit_index == before.unit_index + 1
        and record.unit_size == before.unit_size
    )


def _enter(segment: Segment, record: Record, lowest: dict[str, int]) -> None:
    if record.kind == FORGET:
        segment.forget(record.stream, record.base)
        return
    if record.kind != FRAME:
        segment.trims[record.stream] = max(segment.trims.get(record.stream, 0), record.base)
        return
    run = segment.runs.get(record.stream)
    if run is None:
        run = segment.runs[record.stream] = array("Q")
        lowest[record.stream] = record.base
    base, at_us = record.base, record.at_us
    while run and base < run[-4] + (run[-2] & _U32):
        # Numbering continued after an earlier recovery that did not see the older record: the later one is the valid
        # one.
        del run[-ENTRY:]
    place, size = record.position << 32 | record.length, len(record.frame) << 32 | record.count
    run.frombytes(pack_entry(base, place, size, at_us))
    if at_us > segment.last_at_us:
        segment.first_at_us = segment.first_at_us or at_us
        segment.last_at_us = at_us


def drop(segment: Segment, unit: tuple[Record, ...]) -> None:
    """Take the records of a unit out of the runs again."""
    for record in unit:
        run = segment.runs.get(record.stream)
        if record.kind != FRAME or run is None:
            continue
        place = record.position << 32 | record.length
        for at in range(len(run) - ENTRY, -1, -ENTRY):
            if run[at + 1] == place:
                del run[at : at + ENTRY]
                break
        if not run:
            del segment.runs[record.stream]


def void(segment: Segment, unit: tuple[Record, ...], io: DiskIo) -> None:
    """Make the records of a dropped unit unreadable for ever, because their numbers will be given again."""
    for record in unit:
        io.write_all(segment.fd, [VOID], record.position)
    io.fsync(segment.fd)


class _Recovery:
    def __init__(self, root: Path, io: DiskIo) -> None:
        self._root = root
        self._folder = root / "log"
        self._io = io
        self._streams = Streams()
        self._sealed: list[Sealed] = []
        self._known: dict[str, Known] = {}
        self._latest: Directory | None = None
        """The last good directory, not yet merged into `known`: each one includes all before it."""
        self._floors: dict[str, int] = {}
        """The numbers before which retention has deleted all."""
        self._floors_known = False

    def run(self) -> Recovered:
        logs, indexes, foreign = list_folder(self._folder)
        for name in foreign:
            _log.warning("%s is not part of the log and is ignored", self._folder / name)
        logs = self._drop_empty_end(logs, indexes)
        self._warn_of_gaps(logs)
        active = None
        for number in sorted({*logs, *indexes}):
            directory = load_directory(index_path(self._folder, number)) if number in set(indexes) else None
            if directory is not None and directory.segment != number:
                directory = None
            if number not in logs:
                self._checkpoint(number, directory, before_logs=not logs or number < logs[0])
            else:
                active = self._segment(number, directory, is_last=number == logs[-1], oldest=number == logs[0])
        known = self._merge()
        if active is not None:
            known = {name: Known(state.first, state.begin, state.end) for name, state in known.items()}
            self._absorb_streams(active, known)
        else:
            self._make_streams(known)
        self._remove_old_checkpoints(logs, indexes)
        next_number = max([0, *logs, *indexes]) + 1
        return Recovered(self._streams, self._sealed, active, self._known, next_number)

    # --- what the files are -------------------------------------------------------------------------------------------

    def _drop_empty_end(self, logs: list[int], indexes: list[int]) -> list[int]:
        """Segments made ahead that hold nothing yet are made again when they are needed."""
        while logs and logs[-1] not in indexes:
            path = log_path(self._folder, logs[-1])
            with reading(path), opened(path) as (fd, size):
                empty = Scanner(self._io, fd, logs[-1], size).content_end(0) == 0
            if not empty:
                break
            path.unlink()
            logs = logs[:-1]
        return logs

    def _warn_of_gaps(self, logs: list[int]) -> None:
        for before, after in pairwise(logs):
            if after != before + 1:
                _log.warning("%s: the segments %d to %d are missing", self._folder, before + 1, after - 1)

    def _remove_old_checkpoints(self, logs: list[int], indexes: list[int]) -> None:
        """An index outlives its segment only while it is the newest."""
        for number in indexes[:-1]:
            if number not in logs:
                index_path(self._folder, number).unlink(missing_ok=True)

    # --- segment by segment -------------------------------------------------------------------------------------------

    def _checkpoint(self, number: int, directory: Directory | None, before_logs: bool) -> None:
        """An index without its segment: retention deleted the segment and kept its numbering of the streams."""
        if directory is None:
            _log.warning("%s is damaged and its segment is gone", index_path(self._folder, number))
            return
        self._latest = directory
        if before_logs:
            # Good only if it is the index right before the first segment; else that one's own index corrects it.
            self._floors = {name: end for name, _, _, end in directory.known()}
            self._floors_known = True
        else:
            _log.warning("%s is missing", log_path(self._folder, number))

    def _segment(self, number: int, directory: Directory | None, is_last: bool, oldest: bool) -> Segment | None:
        """Take a segment in; returns it if it is the one to continue in."""
        path = log_path(self._folder, number)
        size = path.stat().st_size
        if oldest and (directory is not None or number == 1):
            self._floors = {name: begin for name, _, begin, _ in directory.known()} if directory else {}
            self._floors_known = True
        if directory is not None and directory.log_length == size:
            times = directory.first_at_us, directory.last_at_us
            self._add_rows(Sealed(number, size, *times), list(directory.run_rows()))
            self._latest = directory
            return None
        if directory is not None:
            _log.warning("%s has %d bytes, its index speaks of %d: reading it again", path, size, directory.log_length)
        elif not is_last:
            _log.warning("%s has no good index: reading it again", path)
        self._merge()
        ended_clean = not is_last or directory is not None
        segment = self._read(number, path, size, cut=not ended_clean, indexed=directory is not None)
        if not ended_clean:
            return segment
        try:
            self._rebuild(segment, directory)
        finally:
            os.close(segment.fd)
        return None

    def _read(self, number: int, path: Path, size: int, *, cut: bool, indexed: bool) -> Segment:
        with reading(path):
            segment = Segment(number, path, os.open(path, os.O_RDWR | os.O_CLOEXEC), size)
            scan = read_segment(segment, self._io, size, lambda: self._is_synced(number))
        tail = scan.good_end if cut else size
        broken = list(scan.broken)
        for unit in scan.torn:
            position = unit[0].position
            if position >= tail or unit[0].unit_size > 1:
                drop(segment, unit)
                if position < tail:
                    void(segment, unit, self._io)
                    _log.warning("%s: the unit at %d is not whole and is dropped", path, position)
            else:
                broken += [record for record in unit if not record.intact]
        for record in broken:
            _report_lost(path, record)
        if scan.swallowed and not indexed:
            self._go_on_behind(segment, [one for one in scan.swallowed if one.position < tail])
        for damage in scan.damages:
            if damage.position < tail:
                _log.warning("%s: %d bytes at %d are damaged and skipped", path, damage.length, damage.position)
        segment.used = scan.good_end if cut else min((scan.content_end + 7) & ~7, size)
        if not cut and segment.used < size:
            # It was never sealed: give back the part that was not written.
            self._io.ftruncate(segment.fd, segment.used)
        # A killed process may have left its writes in the page cache only. From now on they are delivered, and a
        # producer that sends one again is told that it is stored: so it must be.
        self._io.fsync(segment.fd)
        if cut and scan.content_end > scan.good_end:
            cut_tail(self._root, segment, scan.content_end, self._io)
        if not self._floors_known:
            for name, base in scan.lowest.items():
                if name not in self._known:
                    self._floors.setdefault(name, base)
        return segment

    def _go_on_behind(self, segment: Segment, swallowed: list[Swallowed]) -> None:
        """Numbers that may have been given in damaged bytes are not given again. Where a stream has a later record, or
        a later index, its numbers are known."""
        later = self._streams_behind(segment.number)
        if later is None:
            return
        ends = {name: state.end for name, state in self._known.items() if name not in segment.forgotten}
        ends |= {name: run[-4] + (run[-2] & _U32) for name, run in segment.runs.items()}
        for one in swallowed:
            for name in [one.stream] if one.end or one.stream in ends else ends:
                run, end = segment.runs.get(name), ends.get(name, 0)
                if name not in later and not (run and run[-3] >> 32 > one.position):
                    before = segment.raised.get(name, end)
                    segment.raised[name] = max(one.end, before) if one.end else before + one.most
        for name, end in list(segment.raised.items())[:_SAID_MAX]:
            _log.error(
                "%s: damage may have swallowed the numbers %d to %d of %s: they are not given again, and read as lost",
                *(segment.path, ends.get(name, 0), end - 1, name),
            )
        if len(segment.raised) > _SAID_MAX:
            _log.error("%s: the same holds for %d streams in all", segment.path, len(segment.raised))

    def _streams_behind(self, number: int) -> set[str] | None:
        """The streams with records in later segments; None if an index of one of these knows all streams."""
        logs, indexes, _ = list_folder(self._folder)
        if any(load_directory(index_path(self._folder, index)) for index in indexes if index > number):
            return None
        found: set[str] = set()
        for later in (log for log in logs if log > number):
            path = log_path(self._folder, later)
            with reading(path), opened(path) as (fd, size):
                records = Scanner(self._io, fd, later, size).records()
                found.update(record.stream for record in records if isinstance(record, Record) and record.kind == FRAME)
        return found

    def _is_synced(self, number: int) -> bool:
        """A segment is synced before it gets its index, and before anything behind it is acknowledged as durable; the
        latter shows in the `synced` of later records."""
        logs, indexes, _ = list_folder(self._folder)
        if any(index >= number for index in indexes):
            return True
        for later in (log for log in logs if log > number):
            path = log_path(self._folder, later)
            with reading(path), opened(path) as (fd, size):
                found = Scanner(self._io, fd, later, size).records()
                if any(isinstance(record, Record) and record.synced for record in found):
                    return True
        return False

    def _rebuild(self, segment: Segment, directory: Directory | None) -> None:
        """Write the index of a segment that was read again; the numbering in its old index is not forgotten."""
        absorb(self._known, segment)
        if directory is not None:
            for name, first, _, end in directory.known():
                state = self._known.setdefault(name, Known())
                state.first, state.end = max(state.first, first), max(state.end, end)
        runs = write_index(self._io, index_path(self._folder, segment.number), segment, self._known)
        sealed = Sealed(segment.number, segment.used, segment.first_at_us, segment.last_at_us)
        self._add_rows(sealed, runs)

    # --- what is remembered -------------------------------------------------------------------------------------------

    def _merge(self) -> dict[str, Known]:
        if self._latest is not None:
            directory, self._latest = self._latest, None
            for name, first, _, end in directory.known():
                state = self._known.setdefault(name, Known())
                state.first, state.end = max(state.first, first), max(state.end, end)
                state.begin = state.end
            for name in self._known.keys() - set(directory.names):
                floor = self._known.get(kind_of(name))
                if floor is not None and self._known[name].end <= floor.end:
                    del self._known[name]  # it was forgotten since
        return self._known

    def _add_rows(self, sealed: Sealed, runs: list[Run]) -> None:
        self._sealed.append(sealed)
        for run in runs:
            stream = self._streams.get(run.stream)
            if stream is None:
                stream = self._streams[run.stream] = Stream(run.stream)
            stream.add_row(sealed.number, run)

    def _make_streams(self, known: dict[str, Known]) -> None:
        """Set the bounds of all streams; those that were forgotten have rows in older indexes still."""
        for name in self._streams.keys() - known.keys():
            del self._streams[name]
        for name, state in known.items():
            stream = self._streams.get(name)
            if stream is None:
                stream = self._streams[name] = Stream(name)
            stream.end = stream.next = state.end
            stream.first = min(max(state.first, self._floors.get(name, 0)), state.end)

    def _absorb_streams(self, active: Segment, known: dict[str, Known]) -> None:
        absorb(known, active)
        self._make_streams(known)
        for name, entries in active.runs.items():
            self._streams[name].hot.append(HotRun(active.number, entries))


def _report_lost(path: Path, record: Record) -> None:
    _log.warning(
        "%s: the frame at %d is damaged: records %d to %d of %s are lost",
        path,
        record.position,
        record.base,
        record.base + record.count - 1,
        record.stream,
    )


def recover(root: Path, io: DiskIo) -> Recovered:
    return _Recovery(root, io).run()
