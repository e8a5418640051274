"""Some messages of a frame as a frame of their own, whichever they are. Their bytes stay as they were sent."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TypeVar

from towline.frame.decode import Frame
from towline.frame.encode import encode_columns
from towline.frame.layout import numbers_in, texts_in

__all__ = ["pick"]

T = TypeVar("T")


def pick(frame: Frame, indexes: Sequence[int], producer: tuple[int, int] | None = None) -> bytes:
    """The frame of the messages with these numbers within it, in this order: at least one. It carries the same
    producer's number (or another one), token and time, and is compressed if the first one was."""
    assert indexes, "a frame holds at least one message"
    texts = {flag: _some(frame.texts(flag) or [], indexes) for flag in texts_in(frame.flags)}
    numbers = {flag: _some(frame.numbers(flag) or [], indexes) for flag in numbers_in(frame.flags)}
    producer_id, producer_seq = producer or (frame.producer_id, frame.producer_seq)
    return encode_columns(
        texts,
        numbers,
        producer_id=producer_id,
        producer_seq=producer_seq,
        produced_at_us=frame.produced_at_us,
        token=frame.token,
        compress=frame.compressed,
    )


def _some(column: list[T], indexes: Sequence[int]) -> list[T]:
    return [column[indexes[0]]] if len(indexes) == 1 else list(itemgetter(*indexes)(column))
