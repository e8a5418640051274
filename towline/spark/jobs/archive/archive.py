"""The archive job: messages and delivery events to Parquet, incrementally and exactly once.

Only ranges cross the JVM: each task reads the frames of its ranges and writes Parquet itself. A batch is planned from
the contents of the archive and of the log; its files are committed together (see `manifest.py`). Uncommitted work
leaves nothing behind, so that a job can be killed at any moment and started again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from towline.clock import SYSTEM, Clock
from towline.errors import Conflict, StoreDamaged, TowlineError
from towline.spark.jobs.archive.archive_folder import ArchiveFolder
from towline.spark.jobs.archive.compact import compact
from towline.spark.jobs.archive.hold import Hold
from towline.spark.jobs.archive.manifest import KINDS, Entry, Lost, Writable
from towline.spark.jobs.source import Source
from towline.spark.jobs.tasks import in_tasks, pack
from towline.spark.plan import Lane, Range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Archived", "Options", "archive"]

TASK_ROWS: Final = 1_000_000
"""A task costs about 30 ms of its own: it should be worth it."""
TASK_BYTES: Final = 256 << 20
COMMIT_ROWS: Final = 16_000_000
"""A long backlog is archived in steps of this size, each committed."""


@dataclass(frozen=True)
class Options:
    kinds: Sequence[str] = tuple(KINDS.values())
    skip_lost: bool = False
    """Skip records that are damaged, or were dropped before the archive came to them, and note them in the manifest."""
    compact_files: int = 16
    """Join the small files of a lane and day when there are so many of them; 0 never does."""
    task_rows: int = TASK_ROWS
    commit_rows: int = COMMIT_ROWS


class Archived(msgspec.Struct):
    """The result of one run, or of one round of following."""

    commits: int = 0
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    compacted: int = 0
    """Small files that were joined."""
    lost: int = 0
    seconds: float = 0.0


class _Written(msgspec.Struct):
    files: list[tuple[str, Entry]]
    lost: list[Lost]


def archive(
    spark: SparkSession,
    source: Source,
    to: str,
    options: Options | None = None,
    *,
    hold: str = "",
    follow_s: float = 0,
    stop: threading.Event | None = None,
    told: Callable[[Archived, int], None] = lambda archived, left: None,
    clock: Clock = SYSTEM,
) -> Archived:
    """Bring an archive up to date with a broker's log.

    With `follow_s` it goes on, looking for more so often, until `stop` is set. `hold` names a hold on the broker's
    retention that is moved on with each commit. `told` is called after every commit, with the result and the number of
    rows left.
    """
    begin = time.monotonic()
    stop = stop or threading.Event()
    with Writable.opened(to) as archive:
        job = _Job(spark, source, archive, options or Options(), Hold(source, hold) if hold else None, clock)
        while True:
            job.catch_up(stop, told)
            job.total.seconds = time.monotonic() - begin
            if not follow_s or stop.wait(follow_s):
                return job.total
            archive.renew()


@dataclass
class _Job:
    spark: SparkSession
    source: Source
    archive: Writable
    options: Options
    hold: Hold | None
    clock: Clock
    total: Archived = field(default_factory=Archived)
    streams: list[str] = field(default_factory=list)

    def report(self) -> None:
        """Nothing is done for streams that are not archived yet."""
        if self.hold is not None:
            begun = dict.fromkeys(self.streams, 0)
            self.hold.move(begun | self.archive.positions, self.clock.now_us())

    def catch_up(self, stop: threading.Event, told: Callable[[Archived, int], None]) -> None:
        pending = self._pending()
        self.report()
        left = sum(span.rows for span, _ in pending)
        while pending and not stop.is_set():
            room, step = self.options.commit_rows, []
            while pending and room > 0:
                room -= pending[0][0].rows
                step.append(pending.pop(0))
            self._commit(step)
            left -= sum(span.rows for span, _ in step)
            self.report()
            told(self.total, left)
        if self.options.compact_files:
            self.total.compacted += compact(self.spark, self.archive, self.options.compact_files, self.clock)

    def _pending(self) -> list[tuple[Range, Lost | None]]:
        """The ranges to archive, in pieces for tasks; each stream in its order, with the missing ranges before it."""
        wanted = {stream for stream, folder in KINDS.items() if folder in self.options.kinds}
        pieces: list[tuple[Lane, int, int]] = []
        missing: list[Lost | None] = []
        streams: list[str] = []
        for lane in self._lanes():
            position = self.archive.positions.get(lane.key, 0)
            if lane.stream.partition("/")[0] not in wanted:
                continue
            streams.append(lane.key)
            if position >= lane.end:
                continue
            begin = max(lane.first, position)
            if begin >= lane.end:  # it was emptied; records that were not archived are missed when later ones come
                continue
            rows = _rows_per_task(lane.end - begin, lane.size_bytes, lane.end - lane.first, self.options.task_rows)
            for at in range(begin, lane.end, rows):
                pieces.append((lane, at, min(at + rows, lane.end)))
                missing.append(self._overtaken(lane, position) if at == begin else None)
        self.streams = streams
        return list(zip(self.source.cut(pieces), missing, strict=True)) if pieces else []

    def _lanes(self) -> list[Lane]:
        lanes = self.source.lanes()
        before, now = {"@" in stream for stream in self.archive.positions}, {bool(lane.node) for lane in lanes}
        if before and now and before != now:
            one, other = ("a cluster", "one broker") if True in before else ("one broker", "a cluster")
            raise Conflict(f"{self.archive.place} is the archive of {one}, and this is {other}: give another folder")
        return lanes

    def _overtaken(self, lane: Lane, position: int) -> Lost | None:
        """Records that retention dropped before the archive came to them. Those that were gone before it began are not
        missed."""
        if not 0 < position < lane.first:
            return None
        why = self.source.why_gap(lane)
        if why:
            return Lost(lane.key, position, lane.first - position, why)
        if not self.options.skip_lost:
            raise StoreDamaged(
                f"{lane.stream}: retention dropped records {position} to {lane.first - 1} before they were archived: "
                "archive more often, keep them longer, or let retention wait (--hold). --skip-lost notes the gap and "
                "goes on"
            )
        return Lost(lane.key, position, lane.first - position, "retention dropped it before it was archived")

    def _commit(self, step: list[tuple[Range, Lost | None]]) -> None:
        place, source, skip, total = self.archive.place, self.source, self.options.skip_lost, self.total

        def work(spans: list[Range]) -> _Written:
            return _write(place, source, spans, skip)

        pieces = pack([span for span, _ in step], lambda span: span.rows, self.options.task_rows)
        done = in_tasks(self.spark, work, pieces, _Written, f"archive to {place}")
        files = [pair for each in done for pair in each.files]
        lost = [missing for _, missing in step if missing] + [one for each in done for one in each.lost]
        positions: dict[str, int] = {}
        for span, _ in step:
            positions[span.key] = max(span.end, positions.get(span.key, 0))
        self.archive.commit(self.clock.now_us(), files, positions=positions, lost=lost)
        total.commits += 1
        total.rows += sum(entry.rows for _, entry in files)
        total.files += len(files)
        total.size_bytes += sum(entry.size_bytes for _, entry in files)
        total.lost += sum(one.count for one in lost)


def _rows_per_task(rows: int, size_bytes: int, of_rows: int, task_rows: int) -> int:
    mean = max(1, size_bytes // max(1, of_rows))
    most = max(1, min(task_rows, TASK_BYTES // mean))
    pieces = -(-rows // most)
    return -(-rows // pieces)


def _write(place: ArchiveFolder, source: Source, spans: list[Range], skip_lost: bool) -> _Written:
    """In a task."""
    from towline.spark.jobs.archive.parquet import shelve

    files: list[tuple[str, Entry]] = []
    lost: list[Lost] = []
    try:
        for span in spans:
            reading = source.read(span, skip_lost=skip_lost)
            files += shelve(place, span.key, span.first, span.end, reading.batches())
            lost += [Lost(span.key, span.first, count, reason) for count, reason in reading.lost]
    except TowlineError:
        place.remove(name for name, _ in files)
        raise
    return _Written(files, lost)
