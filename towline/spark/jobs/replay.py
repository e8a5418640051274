"""Messages of an archive back into a topic: filtered, at a rate, resumable, and none of them twice.

Each task reads Parquet, makes frames and sends them; no row crosses the JVM. Only an expression in SQL goes through
Spark: its rows are kept as Parquet in the job's state first, in their order, and replayed from there.

A replay has a name, and a folder for its state. The plan in it cuts the messages into *chunks*; a chunk's frames are
the same whenever it is sent, and carry numbers made of the replay's name, the chunk and their place in it, by which the
broker recognises repeats. Chunks that are done are noted. So a replay that was cut short is started again under its
name, and goes on. A broker remembers the last 100,000 frames; where more may have come meanwhile, `staged` makes each
chunk visible all at once, and remembered for ever, at the price of writing it twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from towline.client.produce.encode import as_durability
from towline.errors import BadRequest, Conflict, NotFound
from towline.model import LANES, check_topic
from towline.spark.arrow.to_frames import Encoder, Numbering
from towline.spark.jobs.analysis.trace import Window
from towline.spark.jobs.archive.archive_folder import ArchiveFolder
from towline.spark.jobs.archive.manifest import Archive, Entry, parts_of
from towline.spark.jobs.tasks import in_tasks
from towline.spark.sink_routing import SinkRouting, members_of, publish
from towline.spark.sources import ReadSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Chosen", "Replayed", "replay"]

CHUNK_ROWS: Final = 500_000
RUN_CHUNKS: Final = 4
"""So many chunks of a lane, one behind the other, are the work of one task: starting one takes its time."""
FRAME_ROWS: Final = 5_000
REQUEST_BYTES: Final = 1 << 20
"""Smaller than it could be: the broker works on one while the next is made."""
FILTERED: Final = "filtered"
COLUMNS: Final = ["lane", "seq", "key", "body", "headers", "appended_at", "shard_key"]
SENT: Final = ("body", "key", "headers", "shard_key")
"""The columns of a new message. The old one's times and its dedup id are not sent again."""
_LANES: Final = pa.array(LANES)
_MIDDLE: Final = pa.scalar("middle")


class Chosen(msgspec.Struct, frozen=True):
    """The messages to send, and their destination."""

    topics: list[str] | None = None
    window: Window = Window()
    key: str = ""
    header: tuple[str, str] | None = None
    """A header by name, and the value it must have."""
    where: str = ""
    """An expression in SQL over the archive's columns, for example `size > 1000 and body like '%error%'`."""
    to_topic: str = ""
    """Empty is the topic that each comes from."""


class Chunk(msgspec.Struct, frozen=True):
    number: int
    topic: str
    stream: str
    """Of the archive; or a file of the job's own, where SQL has chosen."""
    first: int
    end: int


class Plan(msgspec.Struct):
    archive: str
    chosen: Chosen
    chunks: list[Chunk]
    members: list[str] = []
    """The brokers of the cluster when it was planned, if it is one: the destination of each message follows from
    these."""
    frame_rows: int = 0
    """Messages of a frame: frames must be the same however often, and at whatever rate, a chunk is sent."""
    digest: str = ""
    """A digest of the messages. It is part of the name by which brokers know the replay: another one under the same
    name, whose state is elsewhere, is not taken for this one."""


class Replayed(msgspec.Struct):
    job: str
    chunks: int = 0
    """In all …"""
    done: int = 0
    """… and of these, done now or before."""
    rows: int = 0
    """Messages that were sent by this run."""
    seconds: float = 0.0


def replay(
    spark: SparkSession,
    archive: Archive,
    door: ReadSource,
    job: str,
    state: str,
    *,
    chosen: Chosen = Chosen(),  # noqa: B008 it is frozen
    rate: float = 0,
    staged: bool = False,
    unordered: bool = False,
    durability: str = "",
    told: Callable[[Replayed], None] = lambda replayed: None,
) -> Replayed:
    """Send an archive's messages again, to the broker behind `door`.

    `job` names the replay and `state` is the folder for its state: with the same of both it continues. `rate` bounds
    the messages a second, all tasks together. Messages that were in order in a lane arrive in this order, unless it may
    be `unordered`: then also the messages of one lane are sent by all tasks at once.
    """
    if chosen.to_topic:
        check_topic(chosen.to_topic)
    begin = time.monotonic()
    own = ArchiveFolder(state)
    with own.lock("lock", f"replays {job}") as renew:
        plan = _plan(spark, archive, door, own, chosen, rate)
        done = set(msgspec.json.decode(own.read("done.json") or b"[]", type=list[int]))
        replayed = Replayed(job, len(plan.chunks), len(done))
        waiting = [chunk for chunk in plan.chunks if chunk.number not in done]
        at_once = max(1, spark.sparkContext.defaultParallelism)
        entries = archive.files("messages", chosen.topics)
        with door.connect() as client:
            members = members_of(client)
        while waiting:
            runs = [[chunk] for chunk in waiting] if unordered else _runs(waiting, 1 if rate else RUN_CHUNKS)
            wave = runs[: 2 * at_once]
            share = rate / min(at_once, len(wave))
            work = _Work(job, door, archive.place, own, plan, members, share, staged, durability)
            pieces = [[(chunk, _files_of(chunk, entries)) for chunk in run] for run in wave]
            replayed.rows += sum(in_tasks(spark, work, pieces, int, f"replay {job}"))
            done |= {chunk.number for run in wave for chunk in run}
            waiting = [chunk for chunk in waiting if chunk.number not in done]
            renew()
            own.replace("done.json", msgspec.json.encode(sorted(done)))
            replayed.done = len(done)
            replayed.seconds = time.monotonic() - begin
            told(replayed)
    replayed.seconds = time.monotonic() - begin
    return replayed


def _plan(  # noqa: PLR0917 all of it is what the plan is about
    spark: SparkSession, archive: Archive, door: ReadSource, own: ArchiveFolder, chosen: Chosen, rate: float
) -> Plan:
    found = own.read("plan.json")
    if found is not None:
        plan = msgspec.json.decode(found, type=Plan)
        if plan.chosen != chosen or plan.archive != str(archive.place):
            raise Conflict(f"{own}: this replay was begun with another choice: give it a new name")
        return plan
    entries = [entry for entry in archive.files("messages", chosen.topics) if chosen.window.overlaps(entry)]
    if not entries:
        raise NotFound(f"{archive.place}: no messages of these topics and times")
    chunks = _filtered(spark, archive, entries, own, chosen.where) if chosen.where else _ranges(entries)
    with door.connect() as client:
        # A tenth of a second's messages, so that they flow rather than burst.
        frame_rows = max(1, min(FRAME_ROWS, int(rate / 10))) if rate else FRAME_ROWS
        plan = Plan(str(archive.place), chosen, chunks, members_of(client), frame_rows)
    plan.digest = blake2b(msgspec.json.encode([plan.archive, chosen, chunks, frame_rows]), digest_size=8).hexdigest()
    own.replace("plan.json", msgspec.json.encode(plan))
    return plan


def _ranges(entries: Sequence[Entry]) -> list[Chunk]:
    chunks: list[Chunk] = []
    for entry in entries:
        for first in range(entry.first, entry.end, CHUNK_ROWS):
            end = min(first + CHUNK_ROWS, entry.end)
            chunks.append(Chunk(len(chunks), parts_of(entry.stream).topic, entry.stream, first, end))
    return chunks


def _filtered(
    spark: SparkSession, archive: Archive, entries: Sequence[Entry], own: ArchiveFolder, where: str
) -> list[Chunk]:
    """Let Spark choose the rows, and keep them in order, by topic."""
    from pyspark.errors import AnalysisException, ParseException

    urls = [archive.place.url(entry.path) for entry in entries]
    frame = spark.read.option("basePath", archive.place.url("messages")).parquet(*urls)
    try:
        frame = frame.filter(where)
    except (AnalysisException, ParseException) as error:
        said = str(error).strip().splitlines()[0]
        raise BadRequest(f"--where: {said}; columns: {', '.join(frame.columns)}") from None
    ordered = frame.repartitionByRange("topic", "lane", "seq").sortWithinPartitions("topic", "lane", "seq")
    ordered.write.mode("overwrite").partitionBy("topic").option("compression", "zstd").parquet(own.url(FILTERED))
    chunks: list[Chunk] = []
    for name in sorted(own.sizes(FILTERED)):
        topic = next((part[6:] for part in name.split("/") if part.startswith("topic=")), "")
        if topic and name.endswith(".parquet"):
            with own.open(name) as opened:
                rows = pq.ParquetFile(opened).metadata.num_rows
            chunks += [
                Chunk(len(chunks) + n, topic, name, first, min(first + CHUNK_ROWS, rows))
                for n, first in enumerate(range(0, rows, CHUNK_ROWS))
            ]
    return chunks


def _runs(waiting: Sequence[Chunk], most: int) -> list[list[Chunk]]:
    """The first chunks of each lane, which one task sends in their order: the next ones go when they are done."""
    runs: dict[str, list[Chunk]] = {}
    for chunk in waiting:
        runs.setdefault(chunk.topic if chunk.stream.startswith(FILTERED) else chunk.stream, []).append(chunk)
    return [run[:most] for run in runs.values()]


def _files_of(chunk: Chunk, entries: Sequence[Entry]) -> list[Entry]:
    """The present files of a chunk's messages: files may have been joined since the plan was made."""
    return [
        entry
        for entry in entries
        if entry.stream == chunk.stream and entry.first < chunk.end and entry.end > chunk.first
    ]


class _Work:
    """The work of a task; it travels to the task."""

    def __init__(  # noqa: PLR0917 all of it says what to do
        self,
        job: str,
        door: ReadSource,
        place: ArchiveFolder,
        own: ArchiveFolder,
        plan: Plan,
        members: list[str],
        rate: float,
        staged: bool,
        durability: str,
    ) -> None:
        self._job, self._door, self._place, self._own = job, door, place, own
        self._name = f"{job}:{plan.digest}" if plan.digest else job
        self._chosen, self._frame_rows = plan.chosen, plan.frame_rows or FRAME_ROWS
        self._members, self._spread = members, plan.members or members
        self._rate, self._staged, self._durability = rate, staged, durability

    def __call__(self, run: list[tuple[Chunk, list[Entry]]]) -> int:
        durability = as_durability(self._durability or None)
        rows = 0
        with self._door.connect() as client:
            for chunk, files in run:
                sink = f"replay:{self._name}:{chunk.number}"
                outlets = SinkRouting(
                    *(client, durability, sink, 0, not self._staged, self._members),
                    spread=self._spread,
                    # All chunks of a replay have one seat, so that a lane that was in order is in order.
                    seat_of=f"replay:{self._job}",
                    request_bytes=REQUEST_BYTES,
                )
                if self._staged and outlets.done:
                    continue
                rows += self._send(outlets, chunk, files, self._chosen.to_topic or chunk.topic)
                records = outlets.settle()
                if self._staged:
                    publish(client, durability, sink, 0, records)
        return rows

    def _send(self, outlets: SinkRouting, chunk: Chunk, files: list[Entry], topic: str) -> int:
        numbering = Numbering(f"replay/{self._name}/{chunk.number}", by_place=True)
        mixed = chunk.stream.startswith(FILTERED)
        lane = "" if mixed else parts_of(chunk.stream).lane
        ordered = bool(outlets.shards(topic))
        encoder = Encoder(
            topic,
            lane if lane in LANES and not ordered else "",
            self._door.token,
            outlets.shards,
            compress=False,
            max_frame_bytes=outlets.max_request_bytes // 2,
            frame_rows=self._frame_rows,
        )
        by_lane = mixed and not ordered
        begin, rows = time.monotonic(), 0
        for batch in _framed(self._batches(chunk, files), self._frame_rows):
            for frame in encoder.frames(_message(batch, by_lane), numbering, time.time_ns() // 1_000):
                outlets.add(frame)
            rows += batch.num_rows
            if self._rate:
                outlets.flush()
                time.sleep(max(0.0, begin + rows / self._rate - time.monotonic()))
        return rows

    def _batches(self, chunk: Chunk, files: list[Entry]) -> Iterator[pa.RecordBatch]:
        if chunk.stream.startswith(FILTERED):
            with self._own.open(chunk.stream) as opened:
                for batch in _cut(pq.ParquetFile(opened).iter_batches(FRAME_ROWS, columns=COLUMNS), chunk):
                    yield from self._matching(batch, [])
            return
        for entry in files:
            with self._place.open(entry.path) as opened:
                file = pq.ParquetFile(opened)
                groups = _groups_of(file, chunk)
                for batch in file.iter_batches(10 * FRAME_ROWS, row_groups=groups, columns=COLUMNS):
                    yield from self._chosen_of(batch, chunk)

    def _chosen_of(self, batch: pa.RecordBatch, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        seqs = batch.column("seq")
        if not batch.num_rows or seqs[-1].as_py() < chunk.first or seqs[0].as_py() >= chunk.end:
            return
        tests = []
        if seqs[0].as_py() < chunk.first or seqs[-1].as_py() >= chunk.end:
            tests += [pc.greater_equal(seqs, chunk.first), pc.less(seqs, chunk.end)]
        yield from self._matching(batch, tests)

    def _matching(self, batch: pa.RecordBatch, tests: list[Any]) -> Iterator[pa.RecordBatch]:
        chosen = self._chosen
        sent = batch.column("appended_at").cast(pa.int64())
        if chosen.window.from_us:
            tests.append(pc.greater_equal(sent, chosen.window.from_us))
        if chosen.window.to_us:
            tests.append(pc.less(sent, chosen.window.to_us))
        if chosen.key:
            tests.append(pc.equal(batch.column("key"), chosen.key))
        if chosen.header:
            name, value = chosen.header
            tests.append(pc.equal(pc.map_lookup(batch.column("headers"), pa.scalar(name), "last"), value))
        batch = batch.filter(reduce(pc.and_kleene, tests)) if tests else batch
        if batch.num_rows:
            yield batch


def _cut(batches: Iterator[pa.RecordBatch], chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """Rows `first` to `end` of a file."""
    at = 0
    for batch in batches:
        low, high = max(chunk.first - at, 0), min(chunk.end - at, batch.num_rows)
        if low < high:
            yield batch.slice(low, high - low)
        at += batch.num_rows


def _framed(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The same rows, cut at the same places however they came: `size` each, and the last one the rest."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= size:
            whole = pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
            even = rows - rows % size
            for at in range(0, even, size):
                yield whole.slice(at, size)
            waiting, rows = ([whole.slice(even)] if even < rows else []), rows - even
    if rows:
        yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]


def _groups_of(file: pq.ParquetFile, chunk: Chunk) -> list[int]:
    """The row groups that may hold messages of a chunk."""
    column = next(number for number in range(len(file.schema)) if file.schema.column(number).path == "seq")
    found = []
    for number in range(file.num_row_groups):
        seqs = file.metadata.row_group(number).column(column).statistics
        if seqs is None or not seqs.has_min_max or (seqs.min < chunk.end and seqs.max >= chunk.first):
            found.append(number)
    return found


def _message(batch: pa.RecordBatch, by_lane: bool) -> pa.RecordBatch:
    """The columns of a message; with its priority, where lanes are mixed."""
    columns = {name: batch.column(name) for name in SENT}
    if by_lane:
        lane = batch.column("lane")
        columns["priority"] = pc.if_else(pc.is_in(lane, _LANES), lane, _MIDDLE)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
