"""Any messages of a frame as a frame of their own. Their bytes stay as they were sent."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final, TypeVar

from towline.frame.decode import Frame
from towline.frame.encode import encode_columns
from towline.frame.layout import numbers_in, texts_in

__all__ = ["pick"]

T = TypeVar("T")

_SPARSE: Final = 4
"""A column is cut as a whole, which is quicker for each value, unless fewer than one in so many is wanted."""


def pick(
    frame: Frame, indexes: Sequence[int], producer: tuple[int, int] | None = None, *, compress: bool | None = None
) -> bytes:
    """The frame of the messages with these numbers within it, in this order: at least one. It carries the same
    producer's number (or another one), token and time, and is compressed if the first one was, or as `compress` has
    it."""
    assert indexes, "a frame holds at least one message"
    low, end = min(indexes), max(indexes) + 1
    texts: dict[int, list[bytes]]
    if len(indexes) * _SPARSE < end - low:
        texts = {flag: frame.texts_at(flag, indexes) for flag in texts_in(frame.flags)}
    else:
        texts = {flag: _some(frame.texts(flag, low, end) or [], indexes, low) for flag in texts_in(frame.flags)}
    numbers = {flag: _some(frame.numbers(flag, low, end) or [], indexes, low) for flag in numbers_in(frame.flags)}
    producer_id, producer_seq = producer or (frame.producer_id, frame.producer_seq)
    return encode_columns(
        texts,
        numbers,
        producer_id=producer_id,
        producer_seq=producer_seq,
        produced_at_us=frame.produced_at_us,
        token=frame.token,
        compress=frame.compressed if compress is None else compress,
    )


def _some(column: list[T], indexes: Sequence[int], low: int) -> list[T]:
    """The values with these numbers of a column that begins with number `low`."""
    places = [index - low for index in indexes] if low else indexes
    return [column[places[0]]] if len(places) == 1 else list(itemgetter(*places)(column))
