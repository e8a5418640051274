"""Rows as the bytes of an INSERT: as text, or in MariaDB's binary bulk protocol, which costs the server half as much.

They are encoded when they are appended, while the database is busy with earlier ones, and by calls that run over many
rows at a time: a row of a message costs a few hundred nanoseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, Protocol

from sqlalchemy import Integer, Table
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY

from towline.store.sql.schema import tables
from towline.store.sql.write.rows import Messages, Row

__all__ = ["BULK", "TEXT", "Encoding", "Into", "Run", "into", "literal"]


class Into(NamedTuple):
    """The shared parts of rows that are inserted together."""

    head: str
    """The statement up to and with VALUES."""
    types: bytes
    """The types of its columns, as the bulk protocol has them."""

    @property
    def width(self) -> int:
        return len(self.types) // 2


_NUMBER: Final = b"\x08\x00"
_BYTES: Final = b"\xfc\x00"
_STRING: Final = b"\xfd\x00"


@lru_cache(maxsize=8192)
def into(table: Table, columns: tuple[str, ...]) -> Into:
    names = ", ".join(f"`{name}`" for name in columns)
    head = f"INSERT INTO {tables.quoted(table)} ({names}) VALUES "  # noqa: S608 - names of ours, checked and quoted
    return Into(head, b"".join(_type(table.c[name].type) for name in columns))


def _type(kind: Any) -> bytes:
    if isinstance(kind, Integer):
        return _NUMBER
    return _BYTES if isinstance(kind, LONGBLOB | VARBINARY) else _STRING


class Run(NamedTuple):
    """Some rows, one behind the other."""

    rows: int
    data: bytes


class Encoding(Protocol):
    @property
    def separator(self) -> bytes:
        """The separator of runs."""

    def rows(self, rows: Sequence[Row]) -> Run: ...

    def messages(self, messages: Messages) -> Run: ...


class _Text:
    separator: Final = b","

    def rows(self, rows: Sequence[Row]) -> Run:
        return Run(len(rows), b",".join([b"(%b)" % b",".join(map(literal, row)) for row in rows]))

    def messages(self, messages: Messages) -> Run:
        return self.rows(messages.rows())


def literal(value: int | str | bytes | None) -> bytes:
    """A value as SQL. Within quotes only two bytes mean something, as long as backslashes escape, which the session
    ensures."""
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


# A value of the bulk protocol follows a byte that is 0, or 1 where it is NULL. A text follows its length: below 251 in
# one byte; else 252 and two bytes, 253 and three, or 254 and eight.
_NULL: Final = b"\x01"
_INT: Final = struct.Struct("<xq")
_SHORT: Final = struct.Struct("<xqxB")
_MIDDLE: Final = struct.Struct("<xqxBH")
_LONG: Final = struct.Struct("<xqxBQ")
_LENGTHS: Final = tuple(bytes((0, length)) for length in range(251))


class _Bulk:
    separator: Final = b""

    def rows(self, rows: Sequence[Row]) -> Run:
        return Run(len(rows), b"".join([_cell(value) for row in rows for value in row]))

    def messages(self, messages: Messages) -> Run:
        bodies = messages.bodies
        same = _cell(messages.source) + _cell(messages.token) + _INT.pack(messages.at_us)
        cells = [_cells(column) for column in messages.extras]
        # Values that are the same for all are repeated without end, so the lengths differ on purpose.
        rows = zip(_heads(messages.numbers, bodies), bodies, repeat(same), *cells, strict=False)
        return Run(len(bodies), b"".join(chain.from_iterable(rows)))


def _heads(numbers: range, bodies: Sequence[bytes]) -> Iterable[bytes]:
    """The bytes before each body: its message's number, and its length."""
    lengths = list(map(len, bodies))
    longest = max(lengths, default=0)
    if longest < 251:
        return map(_SHORT.pack, numbers, lengths)
    if longest < 1 << 16:
        return map(_MIDDLE.pack, numbers, repeat(252), lengths)
    return map(_LONG.pack, numbers, repeat(254), lengths)


def _cells(values: Iterable[Any]) -> list[bytes]:
    return [_cell(value) for value in values]


def _cell(value: int | str | bytes | None) -> bytes:
    if value is None:
        return _NULL
    if isinstance(value, int):
        return _INT.pack(value)
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    length = len(data)
    if length < 251:
        return _LENGTHS[length] + data
    if length < 1 << 16:
        return b"\x00\xfc" + length.to_bytes(2, "little") + data
    return b"\x00\xfe" + length.to_bytes(8, "little") + data


TEXT: Final[Encoding] = _Text()
BULK: Final[Encoding] = _Bulk()
