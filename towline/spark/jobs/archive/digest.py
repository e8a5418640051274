"""A checksum of a column's values, the same in whatever batches they come.

Values are fed as Arrow lays them out: their lengths, then their bytes back to back. CRC-32C runs over both at memory
speed, so a digest costs next to nothing beside reading or writing the rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

__all__ = ["Digest"]


class Digest:
    """The digest of some columns of a stream of record batches; feed them in order."""

    def __init__(self) -> None:
        self.rows = 0
        self._sums: dict[str, int] = {}

    def update(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._feed(name, column)

    @property
    def text(self) -> str:
        """One checksum of all columns."""
        whole = 0
        for name in sorted(self._sums):
            whole = crc32c(f"{name}={self._sums[name]:08x};".encode(), whole)
        return f"{whole:08x}"

    def _add(self, name: str, data: Any) -> None:
        self._sums[name] = crc32c(data, self._sums.get(name, 0))

    def _feed(self, name: str, column: pa.Array) -> None:
        kind = column.type
        if pa.types.is_dictionary(kind):
            column, kind = column.dictionary_decode(), kind.value_type
        if pa.types.is_null(kind):
            self._add(f"{name}?", bytes(len(column)))
            return
        if column.null_count == len(column):
            self._feed_nulls(name, kind, len(column))
            return
        valid = pc.is_valid(column).to_numpy(zero_copy_only=False) if column.null_count else _ones(len(column))
        self._add(f"{name}?", np.ascontiguousarray(valid).view(np.uint8))
        if pa.types.is_map(kind):
            if column.null_count:
                column = column.filter(pc.is_valid(column))
            offsets = column.offsets.to_numpy()
            self._add(f"{name}#", np.diff(offsets).astype(np.int32))
            first, length = int(offsets[0]), int(offsets[-1] - offsets[0])
            self._feed(f"{name}.k", column.keys.slice(first, length))
            self._feed(f"{name}.v", column.items.slice(first, length))
        elif _is_text(kind):
            self._feed_texts(name, column if kind in (pa.binary(), pa.string()) else column.cast(pa.binary()))
        else:
            if column.null_count:
                column = column.filter(pc.is_valid(column))
            if pa.types.is_timestamp(kind):
                column = column.cast(pa.int64())
            elif pa.types.is_boolean(kind):
                column = column.cast(pa.uint8())
            self._add(f"{name}.", np.ascontiguousarray(column.to_numpy(zero_copy_only=False)))

    def _feed_nulls(self, name: str, kind: Any, count: int) -> None:
        """The digest of a column without any value, without looking at it: most columns of most messages are such."""
        self._add(f"{name}?", bytes(count))
        if pa.types.is_map(kind):
            for part in ("#", ".k?", ".v?"):
                self._add(f"{name}{part}", b"")
        elif not _is_text(kind):
            self._add(f"{name}.", b"")

    def _feed_texts(self, name: str, column: pa.Array) -> None:
        if column.null_count:
            column = column.filter(pc.is_valid(column))
        if not len(column):
            return
        _, at, data = column.buffers()
        offsets = np.frombuffer(at, np.int32, len(column) + 1, column.offset * 4)
        self._add(f"{name}#", np.diff(offsets))
        if data is not None:
            self._add(f"{name}.", memoryview(data)[int(offsets[0]) : int(offsets[-1])])


def _is_text(kind: Any) -> bool:
    return kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())


@lru_cache(maxsize=4)
def _ones(count: int) -> Any:
    return np.ones(count, bool)
