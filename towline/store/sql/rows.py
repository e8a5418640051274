"""Frames as rows, and rows as frames.

A message of a lane is a row that people can read: its body, key and headers, its times, its token and source. The
frame it came in is kept beside the rows *without its bodies*, as one row a frame; putting the bodies back where they
were gives the frame again, byte for byte, with the checksum it came with. So nothing large is stored twice, and a row
that somebody changed is found. A compressed frame is kept whole, because it could not be made again; its rows are for
people alone.

This is the only code of a broker that touches single messages on their way in: a row a message is what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

__all__ = [
    "FULL",
    "NULL",
    "PLAIN",
    "bare",
    "frame_row",
    "literal",
    "literal_json",
    "message_rows",
    "rebuilt",
    "text_literal",
]

PLAIN: Final = 6
"""So many columns of `MESSAGE_COLUMNS` has a message of a frame that holds nothing but bodies …"""
FULL: Final = 13
"""… and so many any other."""
NULL: Final = b"NULL"
_EXTRAS: Final = KEY | HEADERS | DEDUP | SHARD_KEY | EXPIRES_AT | DELIVER_AT | TIMEOUT | PRODUCED_AT
_TEXT_BYTES: Final = 65_535


def literal(data: bytes | memoryview) -> bytes:
    """Bytes as SQL. Only two bytes mean something within quotes, as long as backslashes escape, which the session sees
    to."""
    data = bytes(data)
    if b"\\" in data:
        data = data.replace(b"\\", b"\\\\")
    if b"'" in data:
        data = data.replace(b"'", b"\\'")
    return b"_binary'%b'" % data


def text_literal(value: str) -> bytes:
    return b"'%b'" % value.encode("utf-8", "replace").replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def bare(frame: Frame) -> tuple[int | None, bytes]:
    """What is kept of a lane's frame: where its bodies were, and the rest of it; all of it if it is compressed."""
    if frame.compressed:
        return None, bytes(frame.data)
    column = frame.text_column(BODY)
    assert column is not None, "the body column is always there"
    at = HEADER.size + (len(frame.token) + 7 & ~7) + column.data_at
    data = frame.data
    return at, b"".join((data[:at], data[at + column.data_length :]))


def rebuilt(body_at: int | None, kept: bytes, bodies: Iterable[bytes]) -> bytes:
    if body_at is None:
        return kept
    return b"".join((kept[:body_at], *bodies, kept[body_at:]))


def frame_row(
    stream_id: int,
    first: int,
    count: int,
    length: int,
    *,
    serial: int,
    at_us: int,
    source: bytes,
    body_at: int | None,
    kept: bytes,
    more: Sequence[bytes] = (),
) -> bytes:
    place = NULL if body_at is None else b"%d" % body_at
    head = b"(%d,%d,%d,%d,%d,%d," % (stream_id, first + count, count, length, serial, at_us)
    return b"".join((head, literal(source), b",", place, b",", literal(kept), *(b"," + one for one in more), b")"))


def message_rows(frame: Frame, first: int, at_us: int, source: bytes, before: bytes = b"") -> tuple[int, list[bytes]]:
    """How many columns the rows of a frame have, and the rows. `before` stands before the id: another key column."""
    bodies = _quoted(frame)
    address = b"X'%b'" % source.hex().encode() if source else NULL
    token = text_literal(frame.token.decode("utf-8", "replace")) if frame.token else NULL
    same = b",%b,%b,%d," % (address, token, at_us)
    form = b"(" + before + b"%d,_binary'%b'" + same.replace(b"%", b"%%")
    if not frame.flags & _EXTRAS:
        form += (b"%d)" % frame.produced_at_us) if frame.produced_at_us else b"NULL)"
        return PLAIN, [form % pair for pair in enumerate(bodies, first)]
    form += b",".join([b"%b"] * 8) + b")"
    count = frame.count
    extras = (
        _numbers(frame.numbers(PRODUCED_AT), count, frame.produced_at_us),
        _texts(frame.texts(KEY), count, _key),
        _texts(frame.texts(HEADERS), count, _headers),
        _texts(frame.texts(DEDUP), count, _plain_text),
        _texts(frame.texts(SHARD_KEY), count, _plain_text),
        _numbers(frame.numbers(EXPIRES_AT), count),
        _numbers(frame.numbers(DELIVER_AT), count),
        _numbers(frame.numbers(TIMEOUT), count),
    )
    return FULL, [form % row for row in zip(range(first, first + count), bodies, *extras, strict=True)]


def _quoted(frame: Frame) -> list[bytes]:
    """The bodies as they stand between quotes. Most frames hold nothing that must be escaped, which one look tells."""
    bodies = frame.bodies()
    column = frame.text_column(BODY)
    assert column is not None, "the body column is always there"
    data = bytes(frame.columns[column.data_at : column.data_at + column.data_length])
    if b"\\" in data:
        bodies = [body.replace(b"\\", b"\\\\") for body in bodies]
    if b"'" in data:
        bodies = [body.replace(b"'", b"\\'") for body in bodies]
    return bodies


def _texts(values: list[bytes] | None, count: int, render: Any) -> list[bytes]:
    if values is None:
        return [NULL] * count
    return [render(value) if value else NULL for value in values]


def _numbers(values: list[int] | None, count: int, otherwise: int = 0) -> list[bytes]:
    if values is None:
        return [b"%d" % otherwise if otherwise else NULL] * count
    return [b"%d" % value if value else NULL for value in values]


def _key(value: bytes) -> bytes:
    return text_literal(value.decode("utf-8", "replace")[:KEY_CHARACTERS])


def _headers(value: bytes) -> bytes:
    return literal_json(decode_headers(value))


def _plain_text(value: bytes) -> bytes:
    return text_literal(value[: _TEXT_BYTES // 4].decode("utf-8", "replace"))


def literal_json(value: object) -> bytes:
    encoded = msgspec.json.encode(value)
    return b"'%b'" % encoded.replace(b"\\", b"\\\\").replace(b"'", b"\\'")
