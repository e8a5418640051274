"""The life of every message: one row for each message and group.

Read from an archive. Each task takes a stretch of a lane, the events about it, and writes the rows as Parquet itself;
the events are ranges and are joined as ranges (`message_outcomes.py`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from towline.errors import Conflict, NotFound
from towline.spark.jobs.analysis.delivery_events import Facts, Group, Told, facts_of, stretch_of
from towline.spark.jobs.analysis.message_outcomes import BEFORE, STATUSES, MessageOutcomes, lives, override
from towline.spark.jobs.archive.archive_folder import ArchiveFolder
from towline.spark.jobs.archive.manifest import Archive, Entry, parts_of
from towline.spark.jobs.archive.parquet import writer_options
from towline.spark.jobs.tasks import in_tasks, pack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TRACE", "Window", "trace", "traced"]

TASK_ROWS: Final = 1_000_000
TIME: Final = pa.timestamp("us", tz="UTC")

TRACE: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("lane", pa.string()),
        ("seq", pa.int64()),
        ("key", pa.string()),
        ("size", pa.int32()),
        ("produced_at", TIME),
        ("sent_at", TIME),
        ("status", pa.string()),
        ("first_pulled_at", TIME),
        ("last_pulled_at", TIME),
        ("settled_at", TIME),
        ("attempts", pa.int32()),
        ("failures", pa.int32()),
        ("acks", pa.int32()),
        ("consumer", pa.string()),
        ("reason", pa.string()),
        ("waiting_us", pa.int64()),
        ("processing_us", pa.int64()),
        ("total_us", pa.int64()),
    ]
)
"""`sent_at` is when the broker stored it. Waiting: from then (or from when it was due) until it was first pulled.
Processing: from its last pull until it was settled. Total: from sent to settled. `broker` is an id, in a cluster."""


class Window(msgspec.Struct, frozen=True):
    """Messages that were sent within these times; 0 is no bound."""

    from_us: int = 0
    to_us: int = 0

    def overlaps(self, entry: Entry) -> bool:
        return entry.to_us >= self.from_us and (not self.to_us or entry.from_us < self.to_us)


class _Stretch(msgspec.Struct):
    topic: str
    lane: str
    broker: str
    files: list[Entry]


class _Out(msgspec.Struct):
    temporary: str
    path: str
    rows: int


def trace(
    spark: SparkSession,
    archive: Archive,
    to: str,
    *,
    topics: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    window: Window = Window(),  # noqa: B008 it is frozen
) -> DataFrame:
    """Write the trace of an archive's messages to an empty folder, and return it as a DataFrame: the columns of
    `TRACE`, topic and group."""
    out = ArchiveFolder(to)
    if any(not name.startswith("_") for name in out.sizes()):
        raise Conflict(f"{out} is not empty: give a new folder for the trace")
    place = archive.place
    known = _groups(archive, topics, groups)

    def look(group: Group) -> Facts:
        return facts_of(place, group)

    facts = in_tasks(spark, look, known, Facts, f"trace: the groups of {place}")
    by_topic: dict[tuple[str, str], list[Facts]] = {}
    for each in facts:
        by_topic.setdefault((each.topic, each.broker), []).append(each)
    stretches = [
        _Stretch(topic, lane, broker, files)
        for (topic, lane, broker), entries in _lanes(archive, topics, window).items()
        if (topic, broker) in by_topic
        for files in pack(entries, lambda entry: entry.rows, TASK_ROWS)
    ]

    def work(stretch: _Stretch) -> list[_Out]:
        return _trace(place, out, stretch, by_topic[stretch.topic, stretch.broker], window)

    done = in_tasks(spark, work, stretches, list[_Out], f"trace: the messages of {place}")
    written = [one for outs in done for one in outs]
    for one in written:
        out.move(one.temporary, one.path)
    out.sync(one.path for one in written)
    out.remove_folder("_tmp")
    if not sum(one.rows for one in written):
        raise NotFound(f"{place}: no messages of these topics, groups and times were given to any group")
    return traced(spark, to)


def traced(spark: SparkSession, path: str) -> DataFrame:
    """An existing trace."""
    from pyspark.sql import functions as f

    frame = spark.read.parquet(ArchiveFolder(path).url())
    return frame.withColumn("id", f.concat_ws("/", "topic", "lane", "seq"))


def _groups(archive: Archive, topics: Sequence[str] | None, groups: Sequence[str] | None) -> list[Group]:
    events: dict[tuple[str, str, str], list[Entry]] = {}
    own: dict[tuple[str, str, str], list[Entry]] = {}
    for kind, found in (("events", events), ("own", own)):
        for entry in archive.files(kind, topics):
            parts = parts_of(entry.stream)
            if groups is None or parts.group in groups:
                found.setdefault((parts.topic, parts.group, parts.broker), []).append(entry)
    return [Group(*which, entries, own.get(which, [])) for which, entries in events.items()]


def _lanes(archive: Archive, topics: Sequence[str] | None, window: Window) -> dict[tuple[str, str, str], list[Entry]]:
    lanes: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in archive.files("messages", topics):
        if window.overlaps(entry):
            parts = parts_of(entry.stream)
            lanes.setdefault((parts.topic, parts.lane, parts.broker), []).append(entry)
    return lanes


# In a task


def _trace(
    place: ArchiveFolder, out: ArchiveFolder, stretch: _Stretch, groups: list[Facts], window: Window
) -> list[_Out]:
    messages = pa.concat_tables(_messages(place, stretch.files, window)).combine_chunks()
    done: list[_Out] = []
    if not len(messages):
        return done
    seqs = messages.column("seq").to_numpy()
    low, high = int(seqs[0]), int(seqs[-1]) + 1
    for facts in groups:
        told = stretch_of(place, facts, stretch.lane, low, high)
        words = Words(told)
        found = lives(told.events, facts.lane(stretch.lane).moves(), low, high)
        copies, piece = _copies(place, facts, stretch.lane, seqs, words)
        rows = _rows(stretch, messages, override(found, copies, found.at(seqs), piece), words)
        name = f"_tmp/{secrets.token_hex(16)}.parquet"
        with out.writing(name) as sink:
            pq.write_table(rows, sink, row_group_size=250_000, **writer_options(rows.schema))
        lane = f"{stretch.lane}@{stretch.broker}" if stretch.broker else stretch.lane
        path = f"topic={facts.topic}/group={facts.group}/{lane}-{low:020d}-{high:020d}.parquet"
        done.append(_Out(name, path, len(rows)))
    return done


def _messages(place: ArchiveFolder, files: list[Entry], window: Window) -> Iterator[pa.Table]:
    wanted = ["seq", "key", "size", "produced_at", "appended_at", "deliver_at"]
    for entry in files:
        with place.open(entry.path) as opened:
            table = pq.ParquetFile(opened).read(wanted)
        if window.from_us > entry.from_us or (window.to_us and window.to_us <= entry.to_us):
            sent = table.column("appended_at").cast(pa.int64())
            chosen = pc.greater_equal(sent, window.from_us)
            if window.to_us:
                chosen = pc.and_(chosen, pc.less(sent, window.to_us))
            table = table.filter(chosen)
        yield table


class Words:
    """The texts behind the numbers of several lanes' events."""

    def __init__(self, told: Told) -> None:
        self.consumers, self.reasons = told.consumers, told.reasons

    def add(self, told: Told, found: MessageOutcomes) -> MessageOutcomes:
        """Number the texts of another lane behind those that are there."""
        moved = found._replace(
            consumer=np.where(found.consumer >= 0, found.consumer + len(self.consumers), -1),
            reason=np.where(found.reason >= 0, found.reason + len(self.reasons), -1),
        )
        self.consumers = pa.concat_arrays([self.consumers, told.consumers])
        self.reasons = pa.concat_arrays([self.reasons, told.reasons])
        return moved


def _copies(place: ArchiveFolder, facts: Facts, lane: str, seqs: Any, words: Words) -> tuple[MessageOutcomes, Any]:
    """The outcomes of dead letters of this lane that were sent again, and for each message the index of its copy; of
    several copies the last one counts."""
    copies = MessageOutcomes(*[np.empty(0, np.int64)] * len(MessageOutcomes._fields))
    piece = np.full(len(seqs), -1)
    for entry in facts.own:
        origins, numbers = _origins(place, entry, f"{facts.topic}/{lane}/")
        at = np.searchsorted(seqs, origins)
        mine = (at < len(seqs)) & (seqs[np.minimum(at, len(seqs) - 1)] == origins)
        if not mine.any():
            continue
        name = f"own-{parts_of(entry.stream).lane}"
        told = stretch_of(place, facts, name, entry.first, entry.end)
        part = lives(told.events, facts.lane(name).moves(), entry.first, entry.end)
        piece[at[mine]] = len(copies.first) + part.at(numbers[mine])
        copies = MessageOutcomes(*(np.concatenate(pair) for pair in zip(copies, words.add(told, part), strict=True)))
    return copies, piece


def _origins(place: ArchiveFolder, entry: Entry, prefix: str) -> tuple[Any, Any]:
    """The messages of a lane that the records of a file are copies of, and their own numbers."""
    with place.open(entry.path) as opened:
        table = pq.ParquetFile(opened).read(["seq", "origin"])
    origin = pc.fill_null(table.column("origin"), "")
    table = table.filter(pc.match_substring_regex(origin, f"^{re.escape(prefix)}[0-9]{{1,18}}$"))
    numbers = pc.utf8_slice_codeunits(table.column("origin"), len(prefix)).cast(pa.int64())
    return numbers.to_numpy(), table.column("seq").to_numpy()


def _rows(stretch: _Stretch, messages: pa.Table, each: MessageOutcomes, words: Words) -> pa.Table:
    sent = messages.column("appended_at").cast(pa.int64()).to_numpy()
    due = pc.fill_null(messages.column("deliver_at").cast(pa.int64()), 0).to_numpy()
    ready = np.maximum(sent, due)
    settled, pulled = each.settled_us > 0, each.first_pulled_us > 0
    columns = {
        "broker": pa.array([stretch.broker or None]).take(pa.array(np.zeros(len(messages), np.int64))),
        "lane": pa.repeat(stretch.lane, len(messages)),
        "seq": messages.column("seq"),
        "key": messages.column("key"),
        "size": messages.column("size"),
        "produced_at": messages.column("produced_at"),
        "sent_at": messages.column("appended_at"),
        "status": pa.DictionaryArray.from_arrays(pa.array(each.status), pa.array(STATUSES)),
        "first_pulled_at": _times(each.first_pulled_us),
        "last_pulled_at": _times(each.last_pulled_us),
        "settled_at": _times(each.settled_us),
        "attempts": pa.array(each.pulls),
        "failures": pa.array(each.failures),
        "acks": pa.array(each.acks),
        "consumer": _texts(each.consumer, words.consumers),
        "reason": _texts(each.reason, words.reasons),
        "waiting_us": pa.array(np.maximum(each.first_pulled_us - ready, 0), mask=~pulled),
        "processing_us": pa.array(each.settled_us - each.last_pulled_us, mask=~(settled & pulled)),
        "total_us": pa.array(np.maximum(each.settled_us - ready, 0), mask=~settled),
    }
    table = pa.table([columns[field.name].cast(field.type) for field in TRACE], schema=TRACE)
    return table.filter(pa.array(each.status != BEFORE))


def _times(times: Any) -> Any:
    return pa.array(times, pa.int64(), mask=times == 0).view(TIME)


def _texts(numbers: Any, texts: pa.Array) -> Any:
    return texts.take(pa.array(numbers, pa.int64(), mask=numbers < 0))
