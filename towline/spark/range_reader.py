"""Reading the record batches of one range of a place: a broker, a cluster or a folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from towline.client.bulk.scan import Missing
from towline.errors import BadFrame, BadRequest, StoreDamaged
from towline.frame import Frame
from towline.frame.search import find_key
from towline.spark.arrow.attempt_column import Attempts
from towline.spark.arrow.from_events import EVENTS, event_batch
from towline.spark.arrow.from_frames import DEAD, MESSAGES, OWN, Origin, Records, chosen, message_batch
from towline.spark.delayed_rows import SCHEDULE, schedule_batches
from towline.spark.plan import Kind, Range
from towline.spark.sources import BrokerSource, FolderSource
from towline.store.log.offline.streams import Lost

__all__ = ["BATCH_ROWS", "SCHEMAS", "Wants", "read_batches"]

_log = logging.getLogger("towline.spark")

BATCH_ROWS: Final = 20_000
BATCH_BYTES: Final = 32 << 20
SCHEMAS: Final[dict[Kind, Any]] = {
    "messages": MESSAGES,
    "own": OWN,
    "dead": DEAD,
    "events": EVENTS,
    "schedule": SCHEDULE,
}
_KINDS: Final[dict[str, Kind]] = {
    "lane": "messages",
    "own": "own",
    "dead": "dead",
    "pull": "events",
    "schedule": "schedule",
}
"""By the first part of a stream's name."""
GONE: Final = "it is not kept any more"


class Wants(NamedTuple):
    """The options of a read: columns (None is all), messages with which key, and what to do about damage."""

    columns: Any = None
    """An Arrow schema, or names."""
    key: str | None = None
    skip_damaged: bool = False
    skip_gone: bool = False
    """Skip records that retention has dropped since the plan was made."""
    batch_rows: int = BATCH_ROWS
    group: str = ""
    """The group of the column `attempt`, if there is one."""
    remedy: str = ""
    """How to continue without unreadable records, for errors; if it is not an option of the source."""


ALL: Final = Wants()


def read_batches(
    place: BrokerSource | FolderSource,
    span: Range,
    wants: Wants = ALL,
    on_skip: Callable[[str, int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a range as batches of the wanted columns. An unreadable record is an error, unless it is to be
    skipped: then `on_skip` is called with the reason, and the number of records."""
    kind = _KINDS[span.stream.partition("/")[0]]
    schema = wants.columns if isinstance(wants.columns, pa.Schema) else chosen(SCHEMAS[kind], wants.columns)
    if kind == "schedule":
        yield from schedule_batches(place.waiting(span), span.topic, span.broker, schema, wants.key)
        return
    build = _Build(place, span, kind, schema, wants)
    waiting: list[Records] = []
    rows = size = 0
    for item in place.records(span):
        if isinstance(item, Lost | Missing):
            _skip(place, span, item, wants, on_skip)
            continue
        if not build.is_wanted(item):
            continue
        waiting.append(item)
        rows += item.count
        size += len(item.frame)
        if rows >= wants.batch_rows or size >= BATCH_BYTES:
            yield from build.batches(waiting, wants, on_skip)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield from build.batches(waiting, wants, on_skip)


class _Build:
    """From records to batches."""

    def __init__(self, place: BrokerSource | FolderSource, span: Range, kind: Kind, schema: Any, wants: Wants) -> None:
        key = wants.key
        self._place = place
        self._span = span
        self._schema = schema
        self._events = kind == "events"
        if key is not None and self._events:
            raise BadRequest("events have no key: read messages or dead letters by key")
        self._key = key
        self._with_key = schema if key is None or "key" in schema.names else schema.append(pa.field("key", pa.string()))
        self._origin = Origin(span.topic, span.lane, span.group, span.broker)
        self._shards = place.shards(span) if self._events else 0
        self._attempts: Attempts | None = None
        if wants.group and "attempt" in schema.names:
            self._attempts = Attempts(place, span, wants.group)

    def is_wanted(self, piece: Records) -> bool:
        """Whether a message with the key is in this frame; most frames can be skipped."""
        if self._key is None:
            return True
        found = find_key(Frame(piece.frame), self._key.encode(), piece.start, piece.start + piece.count)
        return found is not None

    def batches(
        self, pieces: list[Records], wants: Wants, on_skip: Callable[[str, int], None] | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield self._batch(pieces)
        except (BadFrame, StoreDamaged):
            # One of them is broken: go through them one by one.
            for piece in pieces:
                try:
                    batch = self._batch([piece])
                except (BadFrame, StoreDamaged) as error:
                    _skip(self._place, self._span, Lost(piece.first, piece.count, str(error)), wants, on_skip)
                else:
                    yield batch

    def _batch(self, pieces: list[Records]) -> pa.RecordBatch:
        if self._events:
            return event_batch(self._origin, pieces, self._schema, self._shards)
        batch = message_batch(self._origin, pieces, self._with_key)
        if self._attempts is not None:
            batch = self._attempts.fill(batch, pieces)
        if self._key is None:
            return batch
        batch = batch.filter(pc.equal(batch.column("key"), self._key))
        return batch if self._with_key is self._schema else batch.select(self._schema.names)


def _skip(
    place: BrokerSource | FolderSource,
    span: Range,
    lost: Lost | Missing,
    wants: Wants,
    on_skip: Callable[[str, int], None] | None,
) -> None:
    gone = lost.reason == GONE
    what = f"{span.stream}: records {lost.first} to {lost.first + lost.count - 1} cannot be read: {lost.reason}"
    if not (wants.skip_gone if gone else wants.skip_damaged):
        option = "failOnDataLoss=false" if gone else "skipDamaged=true"
        raise StoreDamaged(f"{what}. To go on without them, {wants.remedy or f'set {option}'}")
    _log.warning("%s; skipped", what)
    if on_skip is not None:
        on_skip(lost.reason, lost.count)
