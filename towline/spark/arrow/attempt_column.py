"""The attempt column: the attempt of each message in a group, from the group's pull log.

A lane holds messages as they were sent; attempts belong to groups. So the column has numbers only where a group is
named, and they are as of the moment of reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from towline.client.bulk.scan import Missing
from towline.spark.arrow.from_events import EVENTS, event_batch
from towline.spark.arrow.from_frames import Origin, Records
from towline.spark.plan import Range, Selection, cut
from towline.store.log.offline.streams import Lost

if TYPE_CHECKING:
    from towline.spark.sources import BrokerSource, FolderSource

__all__ = ["Attempts"]

FRAMES: int = 200
"""Frames of events that are looked at together."""
_COLUMNS = pa.schema([EVENTS.field(name) for name in ("event", "lane", "first", "count", "attempt")])


class Attempts:
    """The attempts of one range of a lane. The pull log is read once, from the time of the first message on."""

    def __init__(self, place: BrokerSource | FolderSource, span: Range, group: str) -> None:
        self._place, self._span, self._group = place, span, group
        self._attempts: Any = None

    def fill(self, batch: pa.RecordBatch, pieces: Sequence[Records]) -> pa.RecordBatch:
        """The batch, which holds all of these records, with its attempts."""
        if self._attempts is None:
            self._attempts = self._read(pieces[0].appended_at_us)
        first = self._span.first
        rows = [self._attempts[piece.first - first : piece.first - first + piece.count] for piece in pieces]
        at = batch.schema.get_field_index("attempt")
        return batch.set_column(at, batch.schema.field(at), pa.array(np.concatenate(rows), pa.int32()))

    def _read(self, from_us: int) -> Any:
        span = self._span
        attempts = np.zeros(span.rows, np.int32)
        selection = Selection((span.topic,), "events", groups=(self._group,))
        for lane in self._place.lanes(selection):
            if lane.node != span.node:
                continue
            shards = self._place.shards(span)
            waiting: list[Records] = []
            for range_ in cut(lane, self._place.locate(lane, from_us), lane.end, lane.end + 1, self._place.where):
                for item in self._place.records(range_):
                    if isinstance(item, Lost | Missing):
                        continue  # readers of the events themselves get the error
                    waiting.append(item)
                    if len(waiting) >= FRAMES:
                        self._note(attempts, waiting, shards)
                        waiting = []
            self._note(attempts, waiting, shards)
        return attempts

    def _note(self, attempts: Any, pieces: Sequence[Records], shards: int) -> None:
        if not pieces:
            return
        span = self._span
        events = event_batch(Origin(span.topic, group=self._group), pieces, _COLUMNS, shards).to_pydict()
        for event, lane, first, count, attempt in zip(*(events[name] for name in _COLUMNS.names), strict=True):
            if event == "pulled" and lane == span.lane:
                low, high = max(first - span.first, 0), min(first + count - span.first, span.rows)
                if low < high:
                    np.maximum(attempts[low:high], attempt, out=attempts[low:high])
