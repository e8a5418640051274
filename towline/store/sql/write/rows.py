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
from typing import Any, Final, NamedTuple

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
    LIMIT,
    PRODUCED_AT,
    SHARD_KEY,
    timeout_us_in,
)
from towline.model import DIED_ORIGIN, DIED_REASON
from towline.store.sql.schema.tables import KEY_CHARACTERS

__all__ = ["WHOLE", "Messages", "Origin", "Row", "bare", "dead_letter_rows", "messages_of", "rebuilt"]

Row = tuple[int | str | bytes | None, ...]

WHOLE: Final = -1
"""The place of the bodies where a frame is kept with them."""
_EXTRAS: Final = KEY | HEADERS | DEDUP | SHARD_KEY | EXPIRES_AT | DELIVER_AT | LIMIT | PRODUCED_AT
_PLAIN: Final = ("id", "body", "source_ip", "token", "appended_us")
_TEXT_MAX: Final = 16_000


def bare(frame: Frame) -> tuple[int, bytes]:
    """The stored form of a lane's frame: the place of its bodies, and the rest of it; all of it if it is compressed."""
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


class Messages(NamedTuple):
    """Some messages of a frame, by columns: those with a value for each message, those with one for all, and the
    others."""

    numbers: range
    bodies: list[bytes]
    source: bytes
    token: str
    at_us: int
    names: tuple[str, ...]
    extras: list[list[Any]]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*_PLAIN, *self.names) if self.names else _PLAIN

    def rows(self) -> list[Any]:
        same = (repeat(self.source), repeat(self.token), repeat(self.at_us))
        # Values that are the same for all are repeated without end, so the lengths differ on purpose.
        return list(zip(self.numbers, self.bodies, *same, *self.extras, strict=False))


class Origin(NamedTuple):
    """The common values of all messages of a frame: the number of the first, the time, and the source."""

    first: int
    at_us: int
    source: bytes


def messages_of(frame: Frame, origin: Origin, start: int, stop: int) -> Messages:
    """The messages number `start` to `stop` of a frame."""
    first, at_us, source = origin
    token = frame.token.decode("utf-8", "replace")
    names: list[str] = []
    extras: list[list[Any]] = []
    if frame.flags & _EXTRAS:
        for flag, name, shown in _TEXTS:
            values = frame.texts(flag, start, stop)
            if values is not None:
                names.append(name)
                extras.append([shown(value) if value else None for value in values])
        for flag, name in _NUMBERS:
            each = frame.numbers(flag, start, stop)
            if each is not None:
                names.append(name)
                extras.append([(timeout_us_in(value) if flag == LIMIT else value) or None for value in each])
    bodies = frame.bodies(start, stop)
    return Messages(range(first + start, first + stop), bodies, source, token, at_us, tuple(names), extras)


def dead_letter_rows(
    stream_id: int, stream: str, frame: Frame, messages: Messages
) -> tuple[tuple[str, ...], list[Any]]:
    """The columns and rows of dead letters: also their group, the original message and the reason of its death."""
    group = stream.rpartition("/")[2][:51]
    packed = frame.texts(HEADERS) or [b""] * frame.count
    told = [decode_headers(one) for one in packed]
    more = [(group, one.get(DIED_ORIGIN, "")[:128], one.get(DIED_REASON, "")[:_TEXT_MAX]) for one in told]
    names = ("stream_id", *messages.columns, "group_id", "origin", "reason")
    return names, [(stream_id, *row, *extra) for row, extra in zip(messages.rows(), more, strict=True)]


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
    (LIMIT, "timeout_us"),
    (PRODUCED_AT, "produced_us"),
)
