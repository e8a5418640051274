"""Messages of several frames as one frame: column by column, without a look at any single one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple, TypeVar

from towline.frame.decode import Frame
from towline.frame.encode import assemble, earliest_and_latest, number_column, text_column
from towline.frame.layout import DELIVER_AT, EXPIRES_AT, LIMIT, PRODUCED_AT, numbers_in, texts_in
from towline.frame.slice import text_slices

__all__ = ["Piece", "gather"]

V = TypeVar("V")


class Piece(NamedTuple):
    """Messages `start` to `stop` of a frame."""

    frame: Frame
    start: int
    stop: int


def gather(
    pieces: Sequence[Piece],
    *,
    order: Sequence[int] | None = None,
    deliver_at_us: Sequence[int] | None = None,
    producer: tuple[int, int] = (0, 0),
    without: int = 0,
) -> bytes:
    """A frame of all messages of `pieces`, which have the same token; in another `order` if that is given: the place of
    each message among all of them. The deliver-at column is what is given here, in the new order, or absent. `producer`
    is the producer's id and number: none, unless it is still the very frame that the producer sent. The columns whose
    flags are in `without` are left out."""
    if len(pieces) == 1 and order is None:
        return _cut(pieces[0], deliver_at_us, producer, without)
    count = sum(piece.stop - piece.start for piece in pieces) if order is None else len(order)
    flags = 0
    for piece in pieces:
        flags |= piece.frame.flags & ~without
    parts: list[bytes] = []
    for flag in texts_in(flags):
        values: list[bytes] = []
        for frame, start, stop in pieces:
            values += frame.texts(flag, start, stop) or [b""] * (stop - start)
        parts += text_column(_ordered(values, order))
    expiry, kept = (0, 0), flags & 15
    if flags & EXPIRES_AT:
        expires = _ordered(_numbers(pieces, EXPIRES_AT), order)
        if any(expires):
            kept |= EXPIRES_AT
            expiry = earliest_and_latest(expires)
            parts.append(number_column(expires))
    if deliver_at_us is not None:
        kept |= DELIVER_AT
        parts.append(number_column(deliver_at_us))
    if flags & LIMIT:
        kept |= LIMIT
        parts.append(number_column(_ordered(_numbers(pieces, LIMIT), order)))
    produced = {piece.frame.produced_at_us for piece in pieces}
    if flags & PRODUCED_AT or len(produced) > 1:
        kept |= PRODUCED_AT
        parts.append(number_column(_ordered(_numbers(pieces, PRODUCED_AT), order)))
    first = pieces[0].frame
    compress = any(piece.frame.compressed for piece in pieces)
    return assemble(parts, kept, count, (*producer, max(produced), *expiry), token=first.token, compress=compress)


def _cut(piece: Piece, deliver_at_us: Sequence[int] | None, producer: tuple[int, int], without: int) -> bytes:
    """The messages of one piece, in their order: made of slices."""
    frame, start, stop = piece
    parts: list[bytes | memoryview] = []
    for flag in texts_in(frame.flags & ~without):
        parts += text_slices(frame, flag, start, stop)
    flags = frame.flags & 0xFF & ~without & ~DELIVER_AT | (0 if deliver_at_us is None else DELIVER_AT)
    for flag in numbers_in(flags):
        if flag == DELIVER_AT:
            assert deliver_at_us is not None, "the flag stands for it"
            parts.append(number_column(deliver_at_us))
            continue
        at = frame.number_column(flag)
        assert at is not None, "the flags name this column"
        parts.append(frame.columns[at + 8 * start : at + 8 * stop])
    numbers = (*producer, frame.produced_at_us, frame.earliest_expiry_us, frame.latest_expiry_us)
    return assemble(parts, flags, stop - start, numbers, token=frame.token, compress=frame.compressed)


def _numbers(pieces: Sequence[Piece], flag: int) -> list[int]:
    values: list[int] = []
    for frame, start, stop in pieces:
        missing = frame.produced_at_us if flag == PRODUCED_AT else 0
        values += frame.numbers(flag, start, stop) or [missing] * (stop - start)
    return values


def _ordered(values: list[V], order: Sequence[int] | None) -> Sequence[V]:
    if order is None:
        return values
    return itemgetter(*order)(values) if len(order) > 1 else [values[order[0]]]
