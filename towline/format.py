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

from functools import cache
from typing import Final

from towline.errors import NewerFormat

__all__ = ["FORMAT", "NOTE", "RELEASED", "not_understood", "refuse_newer", "software"]

FORMAT: Final = 2
RELEASED: Final = {1: "0.1.0"}
"""The first version of Towline with each number. What such a number covers does not change any more; one that is not
here yet may be added to until it is released."""
NOTE: Final = "format.json"
"""The document that says which version of Towline wrote to the store last."""


@cache
def software() -> str:
    """The version of Towline that runs here."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("towline")
    except PackageNotFoundError:
        return "0 (not installed)"


def refuse_newer(what: str, number: int, writer: str = "") -> None:
    """Raise if a store has a higher number than this version knows. `writer` is the version that wrote to it last."""
    if number <= FORMAT:
        return
    by = f", which Towline {writer} has written" if writer else ""
    instead = f"use Towline {writer} or newer" if writer else "use the newer one that has written it"
    raise NewerFormat(
        f"{what} has format {number}{by}; this is Towline {software()}, which knows formats up to {FORMAT}: {instead}, "
        "or bring back a backup that was made before the upgrade"
    )


def not_understood(where: str, error: object) -> NewerFormat:
    """A record that came whole from the disk, as its checksum says, and makes no sense here."""
    return NewerFormat(f"{where} is not understood ({error}): it is of another version of Towline")
