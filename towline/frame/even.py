"""Values of equal length, back to back: their offsets are known without a look, and one call cuts them all.

Records of a fixed size, ids and hashes are like this. To go through a column of 1,000 such values one by one takes five
times as long as `struct` takes for all of them.
"""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache
from typing import Final

from towline.frame.layout import FRAME_MAX, little_endian

__all__ = ["cut_even", "even_offsets", "even_size", "even_step"]

_COUNT_MIN: Final = 16
"""Fewer are as quick one by one."""
_COUNT_MAX: Final = 1 << 14
"""Limit of what is cached: more would be too large."""
_CUT_MAX: Final = 1 << 10
"""Values cut at a time."""


def even_size(count: int, first: int, second: int, last: int) -> int:
    """The length of each of these values if they may have the same one, by the first two and the last of their offsets;
    -1 if they have not, or if it is not worth asking. Their offsets are then those of `even_offsets`, or they have not
    after all."""
    if first or not _COUNT_MIN <= count <= _COUNT_MAX or last != second * count or last > FRAME_MAX:
        return -1
    return second


def even_offsets(size: int, count: int) -> bytes:
    """Where each of `count` values of this size begins, and the last ends, as it lies in a frame."""
    return _offsets(size, 1 << (count - 1).bit_length())[: 4 * count + 4]


def even_step(offsets: list[int]) -> int:
    """The length of each value if they all have the same one, by all of their offsets, which may begin anywhere; -1 if
    they have not, or if it is not worth asking."""
    first, last, count = offsets[0], offsets[-1], len(offsets) - 1
    size = offsets[1] - first if count >= _COUNT_MIN else 0
    return size if size > 0 and last - first == size * count and offsets == [*range(first, last + 1, size)] else -1


def cut_even(view: memoryview, at: int, size: int, count: int) -> list[bytes]:
    """The values at these offsets."""
    if count <= _CUT_MAX:
        return list(_cutter(size, count).unpack_from(view, at))
    values: list[bytes] = []
    for begin in range(0, count, _CUT_MAX):
        values += _cutter(size, min(_CUT_MAX, count - begin)).unpack_from(view, at + begin * size)
    return values


@lru_cache(maxsize=64)
def _offsets(size: int, count: int) -> bytes:
    """The first of them are those of fewer values: so the powers of two suffice."""
    return little_endian(array("I", [*range(0, size * count + 1, size)] if size else [0] * (count + 1)))


@lru_cache(maxsize=64)
def _cutter(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)
