"""Values of one length each, back to back: where they begin is known without looking, and one call cuts them all.

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
"""What is kept of more would be too large."""


def even_size(count: int, first: int, last: int) -> int:
    """The length of each of these values if they have the same one, by the first and the last of their offsets; -1 if
    they have not, or if it is not worth asking. Their offsets are then those of `even_offsets`, or not even."""
    if first or not _COUNT_MIN <= count <= _COUNT_MAX or last % count or last > FRAME_MAX:
        return -1
    return last // count


def even_offsets(size: int, count: int) -> memoryview:
    """Where each of `count` values of this size begins, and the last ends, as it lies in a frame."""
    return _offsets(size, 1 << count.bit_length())[: 4 * count + 4]


def even_step(offsets: list[int]) -> int:
    """The same, for offsets that begin anywhere, and are all known."""
    first, last, count = offsets[0], offsets[-1], len(offsets) - 1
    if not _COUNT_MIN <= count <= _COUNT_MAX or last - first > FRAME_MAX:
        return -1
    size = offsets[1] - first
    return size if size > 0 and last - first == size * count and offsets == [*range(first, last + 1, size)] else -1


def cut_even(view: memoryview, at: int, size: int, count: int) -> list[bytes]:
    """The values that lie there."""
    return list(_cutter(size, count).unpack_from(view, at))


@lru_cache(maxsize=32)
def _offsets(size: int, count: int) -> memoryview:
    """The first are those of fewer values, too: so it is enough to have them for powers of two."""
    return memoryview(little_endian(array("I", [size * number for number in range(count + 1)])))


@lru_cache(maxsize=32)
def _cutter(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)
