"""Frames as rows, and rows as frames.

A message of a lane is a row that people can read: its body, key and headers, its times, its token and source. The
frame it came in is kept beside the rows *without its bodies*, as one row a frame; putting the bodies back where they
were gives the frame again, byte for byte, with the checksum it came with. So nothing large is stored twice, and a row
that somebody changed is found. A compressed frame is kept whole, because it could not be made again; its rows are for
people alone.

Rows are made by calls that run over a whole column at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Final

import msgspec

from towline.frame import Frame, decode_headers
from towline.frame.layout import (
    BODY,
    DEDUP,
    DELIVER_AT,
    EXPIRES_AT,
    HEADER,
    HEADERS,
    KEY,
    PRODUCED_AT,
    SHARD_KEY,
    TIMEOUT,
)
from towline.store.sql.tables import KEY_CHARACTERS

__all__ = ["WHOLE", "Row", "bare", "dead_letter_rows", "literal", "message_rows", "rebuilt", "row_literal"]

Row = tuple[int | str | bytes | None, ...]

WHOLE: Final = -1
"""Stands for the place of the bodies where a frame is kept with them."""
_EXTRAS: Final = KEY | HEADERS | DEDUP | SHARD_KEY | EXPIRES_AT | DELIVER_AT | TIMEOUT | PRODUCED_AT
_PLAIN: Final = ("id", "body", "source_ip", "token", "appended_us")
_TEXT_MAX: Final = 16_000


def bare(frame: Frame) -> tuple[int, bytes]:
    """What is kept of a lane's frame: where its bodies were, and the rest of it; all of it if it is compressed."""
    if frame.compressed:
        return WHOLE, bytes(frame.data)
    column = frame.text_column(BODY)
    assert column is not None, "the body column is always there"
    at = HEADER.size + (len(frame.token) + 7 & ~7) + column.data_at
    data = frame.data
    return at, b"".join((data[:at], data[at + column.data_length :]))


def rebuilt(body_at: int, kept: bytes, bodies: Iterable[bytes]) -> bytes:
    if body_at == WHOLE:
        return kept
    return b"".join((kept[:body_at], *bodies, kept[body_at:]))


def message_rows(frame: Frame, first: int, at_us: int, source: bytes) -> tuple[tuple[str, ...], list[Any]]:
    """The columns that a frame's messages have, and their rows."""
    token = frame.token.decode("utf-8", "replace")
    numbers = range(first, first + frame.count)
    same = (repeat(source), repeat(token), repeat(at_us))
    # What is the same for all is repeated without end, so the lengths differ on purpose.
    if not frame.flags & _EXTRAS:
        return _PLAIN, list(zip(numbers, frame.bodies(), *same, strict=False))
    names: list[str] = []
    columns: list[list[Any]] = []
    for flag, name, shown in _TEXTS:
        values = frame.texts(flag)
        if values is not None:
            names.append(name)
            columns.append([shown(value) if value else None for value in values])
    for flag, name in _NUMBERS:
        each = frame.numbers(flag)
        if each is not None:
            names.append(name)
            columns.append([value or None for value in each])
    return (*_PLAIN, *names), list(zip(numbers, frame.bodies(), *same, *columns, strict=False))


def dead_letter_rows(
    stream_id: int, stream: str, frame: Frame, columns: tuple[str, ...], rows: list[Any]
) -> tuple[tuple[str, ...], list[Any]]:
    """The rows of dead letters say besides whose they are, which message it was and why it died."""
    group = stream.rpartition("/")[2][:51]
    packed = frame.texts(HEADERS) or [b""] * frame.count
    told = [decode_headers(one) for one in packed]
    more = [(group, one.get("towline-origin", "")[:128], one.get("towline-reason", "")[:_TEXT_MAX]) for one in told]
    names = ("stream_id", *columns, "group_id", "origin", "reason")
    return names, [(stream_id, *row, *extra) for row, extra in zip(rows, more, strict=True)]


def _key(value: bytes) -> str:
    return value.decode("utf-8", "replace")[:KEY_CHARACTERS]


def _headers(value: bytes) -> str:
    return msgspec.json.encode(decode_headers(value)).decode()


def _text(value: bytes) -> str:
    return value[:_TEXT_MAX].decode("utf-8", "replace")


_TEXTS: Final[tuple[tuple[int, str, Callable[[bytes], str]], ...]] = (
    (KEY, "ref_key", _key),
    (HEADERS, "headers", _headers),
    (DEDUP, "dedup_id", _text),
    (SHARD_KEY, "shard_key", _text),
)
_NUMBERS: Final = (
    (EXPIRES_AT, "expires_us"),
    (DELIVER_AT, "deliver_us"),
    (TIMEOUT, "timeout_us"),
    (PRODUCED_AT, "produced_us"),
)


def row_literal(row: Row) -> bytes:
    return b"(%b)" % b",".join(map(literal, row))


def literal(value: int | str | bytes | None) -> bytes:
    """A value as SQL. Within quotes only two bytes mean something, as long as backslashes escape, which the session
    sees to."""
    if value is None:
        return b"NULL"
    if isinstance(value, int):
        return b"%d" % value
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    if b"\\" in data:
        data = data.replace(b"\\", b"\\\\")
    if b"'" in data:
        data = data.replace(b"'", b"\\'")
    return (b"'%b'" if isinstance(value, str) else b"_binary'%b'") % data
