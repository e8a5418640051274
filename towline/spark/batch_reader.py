"""`spark.read.format("towline")`: ranges are planned on the driver and read by tasks."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from towline.spark.options import ReadOptions
from towline.spark.plan import Position, Range, check_chosen, plan
from towline.spark.range_reader import Wants, read_batches
from towline.spark.short_errors import short_errors
from towline.spark.sources import open_place

__all__ = ["BatchReader", "FilteringReader", "RangePartition", "read_partition"]


@dataclass
class RangePartition(InputPartition):
    """The range of one task."""

    value: Range


def read_partition(options: ReadOptions, columns: pa.Schema, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if partition.value is None:  # Spark makes one of these where there is nothing to read
        return
    group = options.selection.groups[0] if options.selection.kind == "messages" and options.selection.groups else ""
    wants = Wants(
        columns, options.key, options.skip_damaged, not options.fail_on_data_loss, options.batch_rows, group=group
    )
    with short_errors(), open_place(options.door) as place:
        yield from read_batches(place, partition.value, wants)
    _set_aside()


@cache
def _set_aside() -> None:
    """Spark collects garbage after every task of a worker. Going through all imported objects takes 50 ms, as long as
    half a million rows: so it is done once, and then they are left alone."""
    gc.collect()
    gc.freeze()


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, columns: pa.Schema) -> None:
        self._options = self._given = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        options, given = self._options, self._given
        with short_errors(), open_place(options.door) as place:
            # Streams that were named by hand: a filter of the query may well fit nothing.
            check_chosen(given.selection, given.begin, given.stop, place)
            # Cores of this machine: a source does not get those of the session.
            ranges = plan(
                place, options.selection, options.begin, options.stop, rows=options.rows, cores=os.cpu_count() or 1
            )
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._columns, partition)


class FilteringReader(BatchReader):
    """Narrows the ranges by the query's filters. Spark evaluates them all the same: nothing depends on this."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            self._narrow(each)
        return filters

    def _narrow(self, given: Filter) -> None:
        if not isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            return
        column, value = given.attribute, given.value
        options = self._options
        selection = options.selection
        if isinstance(given, EqualTo) and column == ("key",) and options.key is None and value:
            self._options = options._replace(key=value)
        elif isinstance(given, EqualTo) and column == ("topic",) and selection.wants_topic(value):
            self._options = options._replace(selection=selection._replace(topics=(value,)))
        elif isinstance(given, EqualTo) and column == ("lane",) and not selection.lanes:
            self._options = options._replace(selection=selection._replace(lanes=(value,)))
        elif column == ("seq",) and isinstance(value, int):
            self._bound(given, Position("seq", value), Position("seq", value + 1))
        elif column == ("appended_at",) and isinstance(value, datetime):
            time_us = round(value.replace(tzinfo=value.tzinfo or UTC).timestamp() * 1_000_000)
            self._bound(given, Position("time", time_us), Position("time", time_us + 1))

    def _bound(self, given: Any, at: Position, behind: Position) -> None:
        """Only where the options set no bound themselves: those of two kinds cannot be compared here."""
        options = self._options
        if isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual) and options.begin.what == "earliest":
            options = options._replace(begin=behind if isinstance(given, GreaterThan) else at)
        if isinstance(given, EqualTo | LessThan | LessThanOrEqual) and options.stop.what == "latest":
            options = options._replace(stop=at if isinstance(given, LessThan) else behind)
        self._options = options
