"""The oldest unconsumed messages of a group, as of the last look."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from towline.errors import TowlineError
from towline.frame import Frame
from towline.store import Store

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher

__all__ = ["Oldest", "look_for_oldest", "oldest_us"]


class Oldest(NamedTuple):
    """In a lane: the range of its frame, the stamp of that, and its era of the store."""

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


async def look_for_oldest(store: Store, dispatcher: Dispatcher, reads: int) -> int:
    """Find when the oldest unconsumed messages came in; returns how many frames were read for that. A frame that was
    read before is not read again while it is the oldest."""
    group, known, used = dispatcher.group, dispatcher.oldest, 0
    if dispatcher.outage is not None:
        return 0
    pins = group.pins()
    for lane, (at, first, end) in enumerate(zip(group.next, group.firsts, group.ends, strict=True)):
        oldest = min(max(at, first), pins.get(lane, end))
        if oldest >= end:
            known.pop(lane, None)
            continue
        kept = known.get(lane)
        if (kept is not None and kept.begin <= oldest < kept.end) or used >= reads:
            continue
        used += 1
        try:
            read = await store.read(dispatcher.streams[lane], oldest, 1, 1)
        except TowlineError:
            continue
        if read.chunks:
            chunk = read.chunks[0]
            begin = chunk.first - chunk.start
            known[lane] = Oldest(begin, begin + Frame(chunk.frame).count, chunk.appended_at_us, chunk.serial)
    return used
