"""Compare an archive with the log it was made from, exactly: counts and checksums of every file's range.

Each Parquet file is read and its checksum compared with the manifest's; where the log still has the range, that is read
as well, and must give the same. Ranges must follow each other without a gap, and no file may be missing or superfluous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from towline.errors import TowlineError
from towline.spark.jobs.archive.archive_folder import ArchiveFolder
from towline.spark.jobs.archive.digest import Digest
from towline.spark.jobs.archive.manifest import KINDS, Archive, Entry
from towline.spark.jobs.archive.parquet import number_of, with_size
from towline.spark.jobs.source import Source
from towline.spark.jobs.tasks import in_tasks, pack
from towline.spark.plan import Lane, Range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Verified", "verify"]

TASK_ROWS: Final = 1_000_000
BATCH_ROWS: Final = 50_000


class Verified(msgspec.Struct):
    """`problems` is empty for a sound archive."""

    files: int = 0
    rows: int = 0
    compared: int = 0
    """Rows that were compared with the log; the others are gone from it."""
    behind: int = 0
    """Records of the log that are not in the archive yet."""
    lost: int = 0
    """Records that were noted as lost when they were archived."""
    problems: list[str] = []

    @property
    def sound(self) -> bool:
        return not self.problems


class _Checked(msgspec.Struct):
    rows: int
    compared: int
    problems: list[str]


def verify(spark: SparkSession, archive: Archive, source: Source | None) -> Verified:
    """Check an archive by itself, and against the log it comes from if that is given."""
    lanes = {} if source is None else {lane.key: lane for lane in source.lanes()}
    spans = _spans(archive, source, lanes)
    place = archive.place

    def work(pieces: list[tuple[Entry, Range | None]]) -> _Checked:
        return _check(place, source, pieces)

    pieces = pack([(entry, spans.get(entry.path)) for entry in archive.files()], lambda pair: pair[0].rows, TASK_ROWS)
    checked = in_tasks(spark, work, pieces, _Checked, f"verify {place}")
    return Verified(
        files=len(archive.entries),
        rows=sum(each.rows for each in checked),
        compared=sum(each.compared for each in checked),
        behind=sum(max(0, lane.end - archive.positions.get(lane.key, lane.first)) for lane in lanes.values()),
        lost=sum(each.count for each in archive.lost),
        problems=[*_shape(archive, lanes), *(problem for each in checked for problem in each.problems)],
    )


def _spans(archive: Archive, source: Source | None, lanes: dict[str, Lane]) -> dict[str, Range]:
    """The ranges of the log to read for each file, by path; nothing where retention has dropped it all."""
    if source is None:
        return {}
    kept = [entry for entry in archive.files() if entry.stream in lanes and entry.end > lanes[entry.stream].first]
    pieces = [(lanes[one.stream], max(one.first, lanes[one.stream].first), one.end) for one in kept]
    return dict(zip((entry.path for entry in kept), source.cut(pieces), strict=True)) if kept else {}


def _shape(archive: Archive, lanes: dict[str, Lane]) -> Iterator[str]:
    """Gaps, overlaps, missing and superfluous files."""
    there = {name for folder in KINDS.values() for name in archive.place.sizes(folder)}
    for path in sorted(archive.entries.keys() - there):
        yield f"{path}: the file is missing"
    for path in sorted(there - archive.entries.keys()):
        yield f"{path}: the manifest does not know this file"
    ends: dict[str, int] = {}
    lost = {(each.stream, each.first): each.count for each in archive.lost}
    for entry in archive.files():
        due = ends.get(entry.stream, entry.first)
        due += lost.get((entry.stream, due), 0) if due < entry.first else 0
        if entry.first != due and not any(one == entry.stream and at >= due for one, at in lost):
            yield f"{entry.path}: it begins at record {entry.first}, but {due} is due"
        ends[entry.stream] = entry.end
    for stream, end in ends.items():
        if archive.positions.get(stream) != end and not any(one == stream for one, _ in lost):
            yield f"{stream}: the files end at record {end}, but the manifest says {archive.positions.get(stream)}"
    for stream, lane in lanes.items():
        if archive.positions.get(stream, 0) > lane.end:
            yield f"{stream}: the archive ends at {archive.positions[stream]}, but the log at {lane.end}: another log?"


# In a task


def _check(place: ArchiveFolder, source: Source | None, pieces: list[tuple[Entry, Range | None]]) -> _Checked:
    done = _Checked(0, 0, [])
    for entry, span in pieces:
        try:
            _check_file(place, source, entry, span, done)
        except (TowlineError, OSError, pa.ArrowException) as error:
            done.problems.append(f"{entry.path}: {error}")
    return done


def _check_file(place: ArchiveFolder, source: Source | None, entry: Entry, span: Range | None, done: _Checked) -> None:
    whole, kept = Digest(), Digest()
    number = number_of(entry.stream)
    first = span.first if span is not None else entry.end
    with place.open(entry.path) as opened:
        for batch in pq.ParquetFile(opened).iter_batches(BATCH_ROWS):
            whole.update(batch)
            if span is not None and first > entry.first:
                kept.update(batch.filter(pc.greater_equal(batch.column(number), first)))
    done.rows += whole.rows
    if (whole.rows, whole.text) != (entry.rows, entry.checksum):
        done.problems.append(
            f"{entry.path}: {whole.rows} rows with checksum {whole.text}, but the manifest says {entry.rows} and "
            f"{entry.checksum}"
        )
    if span is None or source is None:
        return
    ours = whole if first == entry.first else kept
    log = _digest(with_size(source.read(span, skip_lost=True).batches()))
    done.compared += log.rows
    if (ours.rows, ours.text) != (log.rows, log.text):
        done.problems.append(
            f"{entry.path}: records {first} to {entry.end} of {entry.stream} are {ours.rows} rows with checksum "
            f"{ours.text} in the archive, but {log.rows} and {log.text} in the log"
        )


def _digest(batches: Iterable[pa.RecordBatch]) -> Digest:
    digest = Digest()
    for batch in batches:
        digest.update(batch)
    return digest
