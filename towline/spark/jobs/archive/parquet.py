"""Record batches of a stream to Parquet files in an archive's `_tmp`, one a day; run by tasks.

Sequence numbers and times are delta-encoded, which makes them nearly free; repeated values (lane, source, token) are
kept in dictionaries; bodies are compressed by zstd at its fastest.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from towline.spark.jobs.archive.archive_folder import ArchiveFolder
from towline.spark.jobs.archive.digest import Digest
from towline.spark.jobs.archive.manifest import TEMPORARY, Entry, day_of, file_name

__all__ = ["SIZE", "number_of", "shelve", "time_of", "with_size", "writer_options"]

GROUP_ROWS: Final = 250_000
GROUP_BYTES: Final = 64 << 20
"""A row group is written when it has either."""
DAY_US: Final = 86_400_000_000
SIZE: Final = "size"
"""The bytes of a body: reports need no bodies, then."""
TIMES: Final = {"pull": "at"}
NUMBERS: Final = {"pull": "number"}
"""The columns of time and number of a stream's records; `appended_at` and `seq` if it is not here."""

Written = tuple[str, Entry]


def time_of(stream: str) -> str:
    return TIMES.get(stream.partition("/")[0], "appended_at")


def number_of(stream: str) -> str:
    return NUMBERS.get(stream.partition("/")[0], "seq")


def writer_options(schema: pa.Schema) -> dict[str, Any]:
    """The writer's options for this schema."""
    numbers = [field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)]
    repeated = [field.name for field in schema if pa.types.is_string(field.type) and field.name not in ("key", "id")]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": repeated,
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        "coerce_timestamps": "us",
        # For bodies they would be useless.
        "write_statistics": [field.name for field in schema if field.name != "body"],
        "store_schema": False,
    }


class _Day:
    """One file that is being written."""

    def __init__(self, place: ArchiveFolder, stream: str, day: str, schema: pa.Schema, first: int) -> None:
        self.stream, self.day, self.first = stream, day, first
        self._time = time_of(stream)
        self.name = f"{TEMPORARY}/{secrets.token_hex(16)}.parquet"
        self._digest = Digest()
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._from_us = self._to_us = 0
        self._file = place.writing(self.name)
        self._sink = self._file.__enter__()
        self._writer = pq.ParquetWriter(self._sink, schema, **writer_options(schema))

    def add(self, batch: pa.RecordBatch) -> None:
        self._digest.update(batch)
        times = batch.column(self._time)
        self._from_us = self._from_us or times[0].value
        self._to_us = times[-1].value
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=4 * GROUP_ROWS)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self, end: int) -> Written:
        self._flush()
        self._writer.close()
        size = self._sink.tell()
        self._file.__exit__(None, None, None)
        path = file_name(self.stream, self.day, self.first, end)
        facts = (self._digest.rows, size, self._from_us, self._to_us, self._digest.text)
        return self.name, Entry(self.stream, self.first, end, path, *facts)

    def drop(self) -> None:
        with suppress(OSError, pa.ArrowException):
            self._writer.close()  # before its file is, or it complains when it is collected
        self._file.__exit__(RuntimeError, RuntimeError("dropped"), None)


def shelve(
    place: ArchiveFolder,
    stream: str,
    first: int,
    end: int,
    batches: Iterable[pa.RecordBatch],
    *,
    only_day: str = "",
) -> list[Written]:
    """Write records `first` to `end` of a stream, a file a day: returns the path and the entry of each. The files
    together cover the range, also where records are missing in it. With `only_day` all goes into one file."""
    written: list[Written] = []
    open_: _Day | None = None
    try:
        sized = with_size(batches)
        days = ((only_day, batch) for batch in sized) if only_day else _by_day(sized, time_of(stream))
        for day, batch in days:
            if open_ is None or open_.day != day:
                begin = first if open_ is None else batch.column(number_of(stream))[0].as_py()
                if open_ is not None:
                    written.append(open_.close(begin))
                open_ = _Day(place, stream, day, batch.schema, begin)
            open_.add(batch)
        if open_ is not None:
            written.append(open_.close(end))
            open_ = None
    except BaseException:
        if open_ is not None:
            try:
                open_.drop()
            except RuntimeError:
                pass
        place.remove(name for name, _ in written)
        raise
    return written


def with_size(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if "body" in batch.schema.names and SIZE not in batch.schema.names:
            yield batch.append_column(SIZE, pc.binary_length(batch.column("body")))
        else:
            yield batch


def _by_day(batches: Iterable[pa.RecordBatch], time: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Cut batches where the day changes. Times may run back a little, where a broker's clock was set: records of an
    earlier day then stay with the later one, so that the records of a file are neighbours."""
    today = -1
    for batch in batches:
        if not batch.num_rows:
            continue
        times = batch.column(time).cast(pa.int64()).to_numpy()
        days = np.maximum.accumulate(np.maximum(times // DAY_US, today))
        today = int(days[-1])
        if days[0] == today:
            yield day_of(today * DAY_US), batch
            continue
        cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
        for begin, stop in pairwise(cuts):
            yield day_of(int(days[begin]) * DAY_US), batch.slice(begin, stop - begin)
