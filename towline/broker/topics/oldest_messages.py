"""The oldest messages that a group has not consumed, as they were found when somebody looked for them last."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from towline.store import Store

__all__ = ["Oldest", "oldest_us"]


class Oldest(NamedTuple):
    """In a lane: the range of its frame, the stamp of that, and what tells in which era of the store it is."""

    begin: int
    end: int
    stamp_us: int
    serial: int


def oldest_us(known: Collection[Oldest], store: Store) -> int:
    """When the oldest of them was appended, as its stamp is to be understood now; 0 if there is none."""
    if not known:
        return 0
    times = store.times
    return min([times.time_of(one.serial, one.stamp_us) for one in known])
