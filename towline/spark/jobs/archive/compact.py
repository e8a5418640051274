"""Small files of an archive joined into larger ones: those of one stream and day that are neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from towline.clock import Clock
from towline.errors import StoreDamaged
from towline.spark.jobs.archive.archive_folder import ArchiveFolder
from towline.spark.jobs.archive.manifest import Entry, Writable
from towline.spark.jobs.archive.parquet import shelve
from towline.spark.jobs.tasks import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["compact"]

SMALL_BYTES: Final = 32 << 20
JOINED_BYTES: Final = 256 << 20
BATCH_ROWS: Final = 50_000


def compact(spark: SparkSession, archive: Writable, at_least: int, clock: Clock) -> int:
    """Join small files wherever at least so many lie side by side; returns how many were joined."""
    chosen = [run for run in _runs(archive) if len(run) >= max(2, at_least)]
    if not chosen:
        return 0
    place = archive.place

    def work(run: list[Entry]) -> tuple[str, Entry]:
        return join(place, run)

    written = in_tasks(spark, work, chosen, tuple[str, Entry], f"compact {place}")
    archive.commit(clock.now_us(), written, removed=[entry.path for run in chosen for entry in run])
    return sum(map(len, chosen))


def _runs(archive: Writable) -> Iterator[list[Entry]]:
    run: list[Entry] = []
    for entry in archive.files():
        fits = (
            run
            and _folder(run[-1]) == _folder(entry)
            and run[-1].stream == entry.stream
            and run[-1].end == entry.first
            and sum(each.size_bytes for each in run) < JOINED_BYTES
        )
        if entry.size_bytes >= SMALL_BYTES or not fits:
            yield run
            run = []
        if entry.size_bytes < SMALL_BYTES:
            run.append(entry)
    yield run


def _folder(entry: Entry) -> str:
    return entry.path.rpartition("/")[0]


def join(place: ArchiveFolder, run: list[Entry]) -> tuple[str, Entry]:
    """Join several files, in a task. The day is that of the files, whatever the times in them."""
    written = shelve(
        place, run[0].stream, run[0].first, run[-1].end, _batches(place, run), only_day=_folder(run[0])[-10:]
    )
    (name, entry), *more = written
    rows = sum(each.rows for each in run)
    if more or entry.rows != rows:
        place.remove(name for name, _ in written)
        raise StoreDamaged(f"{place}: {run[0].path} and {len(run) - 1} more hold {entry.rows} rows, not {rows}")
    return name, entry


def _batches(place: ArchiveFolder, run: list[Entry]) -> Iterator[pa.RecordBatch]:
    for entry in run:
        with place.open(entry.path) as file:
            yield from pq.ParquetFile(file).iter_batches(BATCH_ROWS)
