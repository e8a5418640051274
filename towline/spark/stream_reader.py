"""`spark.readStream.format("towline")`: offsets are the next number of every lane, so that each message is read in
exactly one micro-batch, however often the query is restarted.

An offset is `{"orders/middle": 17, …}`, with the keys sorted: Spark compares offsets as text. In a cluster, each broker
has lanes of its own, `orders/middle@ID`. A lane that is not in the offset a query goes on from (a topic or a broker
that has come since) is read from its first message on. The lanes of a broker that is away stay where they are, until it
is back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from towline.errors import BadRequest, StoreDamaged, TowlineError
from towline.spark.batch_reader import RangePartition, read_partition
from towline.spark.options import ReadOptions
from towline.spark.plan import Lane, check_chosen, cut, resolve
from towline.spark.progress import Progress
from towline.spark.short_errors import short_errors
from towline.spark.sources import BrokerSource, FolderSource

__all__ = ["StreamReader"]

_log = logging.getLogger("towline.spark")
_PARTITIONS: Final = 64
"""A micro-batch is cut into at most about this many ranges, but none is smaller than `_SMALL` rows or larger than
`_LARGE`."""
_SMALL: Final = 50_000
_LARGE: Final = 1_000_000
"""Not by the number of cores, as `spark.read` has it: a batch that is read again, maybe on another machine, must have
the same ranges."""

Offset = dict[str, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One object on the driver plans and keeps its place open; others, in the tasks, read."""

    def __init__(self, options: ReadOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._place: BrokerSource | FolderSource | None = None
        self._until: Offset | None = None
        self._progress: Progress | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the options; connections stay here."""
        return self.__dict__ | {"_place": None, "_progress": None}

    # Planning

    def initialOffset(self) -> Offset:
        with short_errors():
            lanes = self._lanes()
            place = self._opened()
            check_chosen(self._options.selection, self._options.begin, self._options.stop, place, streaming=True)
            return _sorted({lane.name: resolve(place, lane, self._options.begin) for lane in lanes})

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark takes one limit here. If both are set, the messages are this one, and the bytes are looked at as well.
        if self._options.max_messages:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        with short_errors():
            lanes = self._lanes(absent=True)
            goal = {lane.name: lane.end for lane in lanes}
            if self._until is not None:
                goal = {name: min(end, self._until.get(name, 0)) for name, end in goal.items()}
            floors = self._floors(start, lanes)
            return _sorted(start | _admitted(floors, goal, lanes, self._allowance(limit, lanes)))

    def prepareForTriggerAvailableNow(self) -> None:
        with short_errors():
            self._until = {lane.name: lane.end for lane in self._lanes(absent=True)}

    def reportLatestOffset(self) -> Offset | None:
        with short_errors():
            return _sorted({lane.name: lane.end for lane in self._lanes(absent=True)})

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with short_errors():
            place = self._opened()
            lanes = {lane.name: lane for lane in self._lanes()}
            total = sum(max(stop - start.get(name, 0), 0) for name, stop in end.items())
            rows = min(max(total // _PARTITIONS, _SMALL), self._options.rows or _LARGE)
            ranges = []
            for name, stop in end.items():
                begin = start.get(name, 0)
                if stop <= begin:
                    continue
                lane = lanes.get(name)
                if lane is None:
                    self._lost(f"{name} is gone: {stop - begin} messages from {begin} on were not read yet")
                    continue
                # Not by the present retention: a batch that is read again must have the same ranges.
                begin = max(begin, lane.first) if name not in start else begin
                ranges += cut(lane, begin, stop, rows, place.where)
            return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._columns, partition)

    def commit(self, end: Offset) -> None:
        """Reported for the lag only: progress is in Spark's checkpoint, and nothing depends on this."""
        if not self._options.progress_group:
            return
        try:
            if self._progress is None:
                self._progress = Progress(self._options.door, self._options.progress_group)
            self._progress.tell(end)
        except TowlineError as error:
            _log.warning("progress of group %s could not be told: %s", self._options.progress_group, error)

    def stop(self) -> None:
        if self._place is not None:
            self._place.close()
            self._place = None
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def _opened(self) -> BrokerSource | FolderSource:
        if self._place is None:
            self._place = (
                BrokerSource(self._options.door) if self._options.door.url else FolderSource(self._options.door)
            )
        return self._place

    def _lanes(self, *, absent: bool = False) -> list[Lane]:
        """With `absent`, without those of brokers that are away: they are read when they are back."""
        return self._opened().lanes(self._options.selection, absent=absent)

    def _floors(self, start: Offset, lanes: Sequence[Lane]) -> Offset:
        """The next number of each lane. Retention may have overtaken the query."""
        floors: Offset = {}
        _check_same(start, lanes)
        for lane in lanes:
            at = start.get(lane.name)
            if at is None:
                at = lane.first
            elif at < lane.first:
                self._lost(f"{lane.name}: messages {at} to {lane.first - 1} were dropped before they were read")
            elif at > lane.end:
                self._lost(f"{lane.name} ends at {lane.end}, but was read up to {at}: is it the same broker?")
                at = lane.end
            floors[lane.name] = at
        for topic in {name.partition("/")[0] for name in start} - {lane.topic for lane in lanes}:
            _log.warning("topic %s is not there any more, or its broker is away", topic)
        return floors

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise StoreDamaged(f"{what}. To go on without them, set failOnDataLoss=false")
        _log.warning("%s", what)

    def _allowance(self, limit: ReadLimit, lanes: Sequence[Lane]) -> int | None:
        """The limit of messages; None is none."""
        if isinstance(limit, ReadAllAvailable):
            return None
        rows = max(sum(lane.end - lane.first for lane in lanes), 1)
        mean_bytes = max(sum(lane.size_bytes for lane in lanes) // rows, 1)
        if isinstance(limit, ReadMaxBytes):
            return max(limit.max_bytes // mean_bytes, 1)
        if isinstance(limit, ReadMaxRows):
            by_bytes = self._options.max_bytes // mean_bytes if self._options.max_bytes else limit.max_rows
            return max(min(limit.max_rows, by_bytes), 1)
        raise BadRequest(f"{type(limit).__name__} is no limit that this source knows")


def _check_same(start: Offset, lanes: Sequence[Lane]) -> None:
    """Lanes of one broker and lanes of a cluster have different names: all of it would be read again."""
    before, now = {"@" in name for name in start}, {bool(lane.node) for lane in lanes}
    if before and now and before != now:
        was, is_ = ("a cluster", "one broker") if True in before else ("one broker", "a cluster")
        raise BadRequest(
            f"this query has read {was} so far, and its url is {is_} now: begin a new one, with another "
            'checkpointLocation, where it shall go on (from={"orders/middle": 17, …})'
        )


def _admitted(floors: Offset, goal: Offset, lanes: Sequence[Lane], allowance: int | None) -> Offset:
    """The end of each lane for this batch: all of it, or shares of the allowance in the proportion of the backlogs."""
    waiting = {lane.name: max(goal[lane.name] - floors[lane.name], 0) for lane in lanes}
    total = sum(waiting.values())
    if allowance is None or total <= allowance:
        return {name: floors[name] + count for name, count in waiting.items()}
    shares = {name: count * allowance // total for name, count in waiting.items()}
    left = allowance - sum(shares.values())
    for name in sorted(waiting):
        more = min(left, waiting[name] - shares[name])
        shares[name] += more
        left -= more
    return {name: floors[name] + share for name, share in shares.items()}


def _sorted(offset: Mapping[str, int]) -> Offset:
    return dict(sorted(offset.items()))
