"""The source of a job: a broker or its folder, with all its streams, system streams too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from towline.errors import BadRequest
from towline.model import check_topic
from towline.spark.arrow.from_events import EVENTS
from towline.spark.arrow.from_frames import DEAD, MESSAGES, TIME
from towline.spark.plan import Lane, Range, Selection
from towline.spark.range_reader import Wants, read_batches
from towline.spark.sources import ReadSource, open_place, why_gap

__all__ = ["Reading", "Source", "columns_of"]

_REDUNDANT: Final = ("topic", "id", "priority", "shard", "attempt", "broker")
"""Columns that follow from the folder's name and the lane; attempts are in the events."""
_OF_DEAD: Final = ("origin", "attempt", "reason", "died_at")
_LANE: Final = [("seq", pa.int64()), ("appended_at", TIME)]
MESSAGE_COLUMNS: Final = pa.schema([field for field in MESSAGES if field.name not in _REDUNDANT])
DEAD_COLUMNS: Final = pa.schema(
    [*_LANE, *(field for field in DEAD if field.name not in ("topic", "group", "number", "broker"))]
)
OWN_COLUMNS: Final = pa.schema([*MESSAGE_COLUMNS, DEAD.field("origin")])
EVENT_COLUMNS: Final = pa.schema([field for field in EVENTS if field.name not in ("topic", "group", "broker")])
_COLUMNS: Final = {"lane": MESSAGE_COLUMNS, "dead": DEAD_COLUMNS, "own": OWN_COLUMNS, "pull": EVENT_COLUMNS}


def columns_of(stream: str) -> Any:
    """The columns that an archive keeps of a stream."""
    return _COLUMNS[stream.partition("/")[0]]


class _All(Selection):
    """Lanes, pull logs, dead letters and own lanes of topics."""

    def prefixes(self) -> list[str]:
        return [
            f"{kind}/{name[:-1]}" if name.endswith("*") else f"{kind}/{name}/"
            for kind in _COLUMNS
            for name in self.topics
        ]

    def wants(self, stream: str) -> bool:
        kind, *parts = stream.split("/")
        return kind in _COLUMNS and len(parts) == (3 if kind == "own" else 2) and self.wants_topic(parts[0])

    def lane_of(self, stream: str, first: int, end: int, size_bytes: int, *, broker: str = "", node: str = "") -> Lane:
        kind, topic, *rest = stream.split("/")
        lane = f"own-{rest[-1]}" if kind == "own" else rest[0] if kind == "lane" else ""
        group = "" if kind == "lane" else rest[0]
        return Lane(stream, topic, lane, group, min(first, end), end, size_bytes, broker, node)


class Source(msgspec.Struct, frozen=True):
    """The messages and events of one broker, or of all brokers of a cluster."""

    door: ReadSource
    topics: tuple[str, ...] = ("*",)
    """Names, or prefixes that end in `*`."""

    @classmethod
    def of(cls, *, path: str = "", url: str = "", topics: Sequence[str] = (), **door: Any) -> Source:
        if bool(path) == bool(url):
            raise BadRequest("give the broker's folder (path) or its url, and not both")
        for name in topics:
            if name != "*":
                check_topic(name.removesuffix("*").rstrip(".-_") or "x")
        return cls(ReadSource(url=url, path=path, **door), tuple(topics) or ("*",))

    @property
    def path(self) -> str:
        return self.door.path

    def __str__(self) -> str:
        return self.door.name

    def lanes(self) -> list[Lane]:
        """The present streams."""
        with open_place(self.door) as place:
            return place.lanes(_All(self.topics))

    def cut(self, pieces: Sequence[tuple[Lane, int, int]]) -> list[Range]:
        """Ranges of lanes that `lanes` returned, with the beginning of each, if that can be known."""
        with open_place(self.door) as place:
            place.lanes(_All(self.topics))
            return [
                Range(
                    *(lane.stream, lane.topic, lane.lane, lane.group, first, end),
                    *(lane.broker, *place.where(lane, first), lane.node),
                )
                for lane, first, end in pieces
            ]

    def why_gap(self, lane: Lane) -> str:
        """See `sources.FolderSource.why_gap`."""
        with open_place(self.door) as place:
            place.lanes(_All(self.topics))
            return why_gap(place, lane)

    def read(self, span: Range, *, skip_lost: bool = False) -> Reading:
        return Reading(self.door, span, skip_lost)


class Reading:
    """One range, batch by batch; afterwards `lost` has the skipped records."""

    def __init__(self, door: ReadSource, span: Range, skip_lost: bool) -> None:
        self._door, self._span, self._skip = door, span, skip_lost
        self.lost: list[tuple[int, str]] = []
        """How many records, and why."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        remedy = "archive with --skip-lost, which notes the gap"
        wants = Wants(columns_of(self._span.stream), skip_damaged=self._skip, skip_gone=self._skip, remedy=remedy)
        with open_place(self._door) as place:
            yield from read_batches(place, self._span, wants, lambda reason, count: self.lost.append((count, reason)))
