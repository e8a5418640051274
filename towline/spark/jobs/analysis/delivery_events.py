"""The delivery events in an archive, ready for `message_outcomes`: those of one group, or of a stretch of one of its
lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from towline.spark.jobs.analysis.message_outcomes import KINDS, Events, Moves
from towline.spark.jobs.archive.archive_folder import ArchiveFolder
from towline.spark.jobs.archive.manifest import Entry

__all__ = ["Facts", "Group", "Told", "facts_of", "stretch_of"]

COLUMNS: Final = ["number", "event", "at", "lane", "first", "count", "consumer", "reason", "attempt"]
_PLACED: Final = pa.array(["started", "moved", "pulled", "overrun"])
_KINDS: Final = pa.array([kind.lower() for kind in KINDS])


class LaneFacts(msgspec.Struct):
    """Facts of one lane of a group; see `message_outcomes.Moves`."""

    started: int = -1
    position: int = 0
    moved_at: list[int] = []
    moved_to: list[int] = []
    longest: int = 0
    """The most messages that one range holds."""

    def moves(self) -> Moves:
        return Moves(self.started, self.position, np.array(self.moved_at, np.int64), np.array(self.moved_to, np.int64))


class Facts(msgspec.Struct):
    """Facts of a group as a whole."""

    topic: str
    group: str
    lanes: dict[str, LaneFacts]
    pulls: int
    events: list[Entry]
    own: list[Entry]
    broker: str = ""
    """Its id, in a cluster: each has a pull log of its own, for its own messages."""

    def lane(self, name: str) -> LaneFacts:
        return self.lanes.get(name, LaneFacts())


class Told(NamedTuple):
    """The events of a stretch, and the texts behind the numbers in them."""

    events: Events
    consumers: pa.Array
    reasons: pa.Array


class Group(NamedTuple):
    """A group at one broker, and the files of its events."""

    topic: str
    group: str
    broker: str
    events: list[Entry]
    own: list[Entry]


def facts_of(place: ArchiveFolder, of: Group) -> Facts:
    """Read all events of a group once."""
    lanes: dict[str, LaneFacts] = {}
    pulls = 0
    for table in _tables(place, of.events, COLUMNS):
        told = table.filter(pc.is_in(table.column("event"), _PLACED))
        pulls += pc.sum(pc.equal(told.column("event"), "pulled")).as_py() or 0
        for row in _in_order(told):
            _note(lanes.setdefault(row["lane"], LaneFacts()), row)
        ranges = table.filter(pc.is_valid(table.column("lane"))).group_by("lane").aggregate([("count", "max")])
        for row in ranges.to_pylist():
            lane = lanes.setdefault(row["lane"], LaneFacts())
            lane.longest = max(lane.longest, row["count_max"] or 0)
    return Facts(of.topic, of.group, lanes, pulls, of.events, of.own, of.broker)


def _in_order(told: pa.Table) -> Iterator[dict[str, Any]]:
    """The events that change the position of a group. Between two that move it only the furthest pull of a lane
    counts."""
    moving = pc.is_in(told.column("event"), pa.array(["started", "moved"]))
    epoch = pa.array(np.cumsum(moving.to_numpy(zero_copy_only=False)))
    told = told.append_column("epoch", epoch)
    told = told.append_column("end", pc.add(told.column("first"), pc.fill_null(told.column("count"), 0)))
    pulled = told.filter(pc.invert(moving)).group_by(["epoch", "lane"]).aggregate([("end", "max")])
    rows = [(row["epoch"], 1, row["lane"], "pulled", 0, row["end_max"]) for row in pulled.to_pylist()]
    rows += [
        (row["epoch"], 0, row["lane"], row["event"], row["number"], row["first"])
        for row in told.filter(moving).select(["epoch", "lane", "event", "number", "first"]).to_pylist()
    ]
    for _, _, lane, event, number, place in sorted(rows):
        yield {"lane": lane, "event": event, "number": number, "place": place}


def _note(lane: LaneFacts, row: dict[str, Any]) -> None:
    if row["event"] == "pulled":
        lane.position = max(lane.position, row["place"])
        return
    lane.position = row["place"]
    if row["event"] == "started":
        lane.started = row["place"]
        lane.moved_at, lane.moved_to = [], []
    else:
        lane.moved_at.append(row["number"])
        lane.moved_to.append(row["place"])


def stretch_of(place: ArchiveFolder, facts: Facts, lane: str, low: int, high: int) -> Told:
    """The events about messages `low` to `high` of a lane."""
    longest = facts.lane(lane).longest
    tables = []
    for table in _tables(place, facts.events, COLUMNS, (lane, low - longest, high)):
        first, end = table.column("first"), pc.add(table.column("first"), table.column("count"))
        chosen = pc.and_(pc.and_(pc.less(first, high), pc.greater(end, low)), pc.equal(table.column("lane"), lane))
        tables.append(table.filter(pc.and_(chosen, pc.is_in(table.column("event"), _KINDS))))
    if not tables:
        return Told(
            Events(*[np.empty(0, np.int64)] * len(Events._fields)), pa.array([], pa.string()), pa.array([], pa.string())
        )
    table = pa.concat_tables(tables).combine_chunks()
    kinds = pc.index_in(table.column("event"), _KINDS)
    consumers, consumer = _numbered(table.column("consumer"))
    reasons, reason = _numbered(table.column("reason"))
    first = _numbers(table.column("first"))
    events = Events(
        _numbers(kinds),
        first,
        first + _numbers(table.column("count")),
        _numbers(table.column("at")),
        _numbers(table.column("number")),
        consumer,
        reason,
        _numbers(pc.fill_null(table.column("attempt"), 0)),
    )
    return Told(events, consumers, reasons)


def _numbers(column: Any) -> Any:
    return column.cast(pa.int64()).to_numpy()


def _numbered(column: pa.ChunkedArray) -> tuple[pa.Array, Any]:
    """The distinct texts, and for each row the number of its text; -1 is none."""
    coded = column.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks() if coded.num_chunks != 1 else coded.chunk(0)
    return coded.dictionary, pc.fill_null(coded.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)


def _tables(
    place: ArchiveFolder, entries: Sequence[Entry], columns: list[str], near: tuple[str, int, int] | None = None
) -> Iterator[pa.Table]:
    """The events of these files, a row group at a time; only those that may concern a stretch of a lane."""
    for entry in entries:
        with place.open(entry.path) as opened:
            file = pq.ParquetFile(opened)
            at = {file.schema_arrow.names[n]: n for n in range(len(file.schema_arrow.names))}
            for number in range(file.num_row_groups):
                if near is None or _may_speak(file.metadata.row_group(number), at, near):
                    yield file.read_row_group(number, columns)


def _may_speak(group: Any, at: dict[str, int], near: tuple[str, int, int]) -> bool:
    lane, low, high = near
    first, lanes = group.column(at["first"]).statistics, group.column(at["lane"]).statistics
    if first is None or not first.has_min_max or lanes is None or not lanes.has_min_max:
        return True
    return bool(first.min < high and first.max >= low and lanes.min <= lane <= lanes.max)
