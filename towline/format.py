"""The format of what a broker stores: one number for folders and databases, and for all that is in them.

A store states its number when it is made. A broker that knows a lower one does not start on it; one that knows a higher
one reads what is there, and raises the number, after which no version before can open the store.

The number covers all that is written: records and index files, frame flags, columns of tables, events and marks, heads,
snapshots and documents, with each of their fields, and the words that some of these may hold. `tests/unit/formats/`
lists them by number, and a test fails when something is added, or changed, without another number. So nothing that a
broker meets in a store of a number that it knows is unknown to it. If something is, the store was written by something
else, and the start is refused: no record is passed over, no field or value of one, and no value in a document. Only
what else a map holds (JSON documents, and settings in changes of topics and groups) is not looked at: the number stands
for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from towline.errors import NewerFormat
from towline.version import __version__, order_of

__all__ = [
    "FORMAT",
    "NOTE",
    "RELEASED",
    "Note",
    "decode_document",
    "instead_of",
    "not_understood",
    "refuse_newer",
    "understood",
    "writer_in",
]

T = TypeVar("T")

FORMAT: Final = 2
RELEASED: Final = {1: "0.1.0"}
"""The first version of Towline with each number. What such a number covers does not change any more; one that is not
here yet may be added to until it is released."""
NOTE: Final = "format.json"
"""The document that says which version of Towline wrote to the store last."""


class Note(msgspec.Struct):
    format: int
    towline: str = ""


def writer_in(note: bytes) -> str:
    """The version that wrote this `NOTE`; empty if unknown."""
    try:
        return msgspec.json.decode(note, type=Note).towline
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def instead_of(writer: str) -> str:
    """A hint which version to use for a store that this one does not understand. `writer`: the one that wrote it, if
    known."""
    is_newer = order_of(writer) > order_of(__version__)
    return f"use Towline {writer} or newer" if is_newer else "use the version that has written it"


def refuse_newer(what: str, number: int, writer: str = "") -> None:
    """Raise if a store has a higher number than this version knows. `writer` is the version that wrote to it last."""
    if number <= FORMAT:
        return
    by = f", which Towline {writer} has written" if writer else ""
    raise NewerFormat(
        f"{what} has format {number}{by}; this is Towline {__version__}, which knows formats up to {FORMAT}: "
        f"{instead_of(writer)}, or bring back a backup that was made before the upgrade"
    )


def not_understood(where: str, error: object) -> NewerFormat:
    """The error about a record that is whole, by its checksum, and makes no sense to this version."""
    return NewerFormat(
        f"{where} is not understood ({error}): it is of another version of Towline than this, {__version__}"
    )


@contextmanager
def understood(name: str, document: bytes) -> Iterator[None]:
    """Around the decoding of a document: a failure although it is whole means a newer format, not damage."""
    try:
        yield
    except msgspec.ValidationError as error:
        _codec(name).decode(document)
        raise not_understood(name, error) from None


def decode_document(name: str, document: bytes, kind: type[T]) -> T:
    """Raises `NewerFormat` if it is whole, but not what it should be, and `msgspec.MsgspecError` if it is damaged."""
    with understood(name, document):
        found: T = _codec(name).decode(document, type=kind)
    return found


def _codec(name: str) -> Any:
    return msgspec.msgpack if name.endswith(".bin") else msgspec.json
