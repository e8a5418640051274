"""A digest of rows, the same in whatever order, batches and tasks they come, and changed by any value.

A batch that is computed again may be shuffled otherwise. So each row has a hash, and the digest of many is their number
and the sum of their hashes. Rows are hashed together: the values of a column are padded to one width, which makes them
a matrix of words, and its product with a row of odd numbers is what tells them apart.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

__all__ = ["RowDigest"]

BLOCK_WORDS: Final = 512
PIECE_BYTES: Final = 512 << 10
"""Values are padded so much at a time, which the processor's cache holds."""
_HALF: Final = np.uint64(32)
_WORD: Final = np.dtype("<u8")
_BINARY: Final = pa.binary()


class RowDigest:
    def __init__(self, rows: int = 0, total: int = 0) -> None:
        self.rows, self._total = rows, total

    def add(self, batch: pa.RecordBatch) -> None:
        hashes = np.zeros(batch.num_rows, _WORD)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if column.null_count < len(column):
                hashes += _values(name, column)
        self.rows += batch.num_rows
        self._total = (self._total + int(_mixed(hashes).sum())) % (1 << 64)

    def __add__(self, other: RowDigest) -> RowDigest:
        return RowDigest(self.rows + other.rows, (self._total + other._total) % (1 << 64))

    def __bytes__(self) -> bytes:
        return self.rows.to_bytes(8, "big") + self._total.to_bytes(8, "big")


def _mixed(words: Any) -> Any:
    """Each bit of a word changes about half of those of the result."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


_ODD: Final = _mixed(np.arange(1, BLOCK_WORDS + 1, dtype=_WORD)) | np.uint64(1)


def _values(name: str, column: Any) -> Any:
    """A hash for each value of a column; 0 is none."""
    kind = column.type
    if pa.types.is_map(kind):
        hashes = _maps(column)
    elif pa.types.is_timestamp(kind):
        hashes = _numbers(column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()))
    elif pa.types.is_floating(kind):
        hashes = _numbers(column.cast(pa.float64()))
    elif pa.types.is_integer(kind):
        hashes = _numbers(column.cast(pa.int64()))
    else:
        hashes = _texts(column.cast(_BINARY))
    hashes = _mixed(hashes + np.uint64(crc32c(name.encode()) << 32 | 1))
    if column.null_count:
        hashes[pc.is_null(column).to_numpy(zero_copy_only=False)] = 0
    return hashes


def _numbers(column: Any) -> Any:
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False).view(_WORD)


def _maps(column: Any) -> Any:
    """The entries of a map have no order."""
    offsets = column.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    entries = _mixed(_values("key", column.keys.slice(first, count)))
    entries += _values("value", column.items.slice(first, count))
    sums = np.concatenate([np.zeros(1, _WORD), np.cumsum(_mixed(entries), dtype=_WORD)])
    at = offsets - first
    return sums[at[1:]] - sums[at[:-1]]


def _texts(column: Any) -> Any:
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    longest, usual = int(lengths.max(initial=0)), 64 + 2 * int(lengths.sum()) // max(len(lengths), 1)
    if longest > usual:  # a few long ones would make all of them long
        hashes = np.empty(len(lengths), _WORD)
        for some in (lengths <= usual, lengths > usual):
            hashes[some] = _texts(column.filter(pa.array(some)))
        return hashes
    words = max(-(-longest // 8), 1)
    rows = max(PIECE_BYTES // (8 * words), 1)
    pieces = [_piece(column.slice(at, rows), lengths[at : at + rows], words) for at in range(0, len(column), rows)]
    return np.concatenate(pieces) if pieces else np.zeros(0, _WORD)


def _piece(column: Any, lengths: Any, words: int) -> Any:
    """The values, each followed by zeros, as a matrix of so many words. The length of the zeros makes no difference."""
    _, offsets, data = column.buffers()
    text = pa.StringArray.from_buffers(len(column), offsets, data or pa.py_buffer(b""), None, 0, column.offset)
    _, ends, padded = pc.ascii_rpad(text, 8 * words, "\0").buffers()
    begin = int(np.frombuffer(ends, "<i4", 1)[0])
    matrix = np.frombuffer(padded, _WORD, len(column) * words, begin).reshape(len(column), words)
    matrix = matrix ^ (matrix >> _HALF)  # the high bits of a word must not stay high in its product
    hashes = _mixed(matrix[:, :BLOCK_WORDS] @ _ODD[:words]) + lengths.astype(_WORD)
    for at in range(BLOCK_WORDS, words, BLOCK_WORDS):
        block = matrix[:, at : at + BLOCK_WORDS]
        more = _mixed(block @ _ODD[: block.shape[1]] + np.uint64(at))
        more[lengths <= 8 * at] = 0
        hashes += more
    return hashes
