"""Finding a message of a frame by its key, without making its keys into objects."""

from __future__ import annotations

from bisect import bisect_right

from towline.frame.decode import Frame
from towline.frame.layout import KEY

__all__ = ["find_key"]


def find_key(frame: Frame, key: bytes, start: int = 0, stop: int | None = None) -> int | None:
    """The first message from `start` on, before `stop`, that has exactly this key; None if there is none."""
    column = frame.text_column(KEY)
    if column is None or not key:
        return None
    data = bytes(frame.columns[column.data_at : column.data_at + column.data_length])
    at = data.find(key)
    if at < 0:
        return None
    offsets = frame.offsets(column)
    stop = frame.count if stop is None else stop
    at = data.find(key, offsets[start] - column.base)
    while at >= 0:
        index = bisect_right(offsets, at + column.base) - 1
        if index >= stop:
            return None
        end = offsets[index + 1] - column.base
        if offsets[index] - column.base == at and end == at + len(key):
            return index
        # Within or at the beginning of another key: the next one that may match begins behind it.
        at = data.find(key, end)
    return None
