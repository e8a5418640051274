"""The format of what a broker stores: one number for folders and databases, and for all that is in them.

A store states its number when it is made. A broker that knows a lower one does not start on it; one that knows a higher
one reads what is there, and raises the number, after which no version before can open the store.

The number covers all that is written: records and index files, frame flags, columns of tables, events and marks, heads,
snapshots and documents, with each of their fields. `tests/formats/` lists them by number, and a test fails when
something is added, or changed, without another number. So nothing that a broker meets in a store of a number that it
knows is unknown to it. If something is, the store was written by something else, and the start is refused: nothing is
passed over, neither a record nor a field of one.
"""

from __future__ import annotations

from typing import Final

from towline.errors import NewerFormat
from towline.version import __version__, order_of

__all__ = ["FORMAT", "NOTE", "RELEASED", "instead_of", "not_understood", "refuse_newer"]

FORMAT: Final = 2
RELEASED: Final = {1: "0.1.0"}
"""The first version of Towline with each number. What such a number covers does not change any more; one that is not
here yet may be added to until it is released."""
NOTE: Final = "format.json"
"""The document that says which version of Towline wrote to the store last."""


def instead_of(writer: str) -> str:
    """Which version to use for what this one does not understand. `writer`: the one that wrote it, if that is known."""
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
    """A record that came whole from the disk, as its checksum says, and makes no sense here."""
    return NewerFormat(f"{where} is not understood ({error}): it is of another version of Towline")
