"""The ids of delivered delayed messages: the number in its lane of each, written in the unit that delivers it.

Each topic has a stream for it, `arrived/<topic>`, which retention shortens as it does the lanes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final

from towline.broker.journal import replayed, unsaid
from towline.broker.topics.topic import Topic
from towline.clock import TimeSlice
from towline.delivery.schedule.delivered import Arrival, decode_arrival, encode_arrivals
from towline.errors import NewerFormat, TooLarge
from towline.model import arrived_stream
from towline.protocol.messages import Arrived
from towline.store import Append, Store

__all__ = ["find_arrivals", "note_arrivals", "trim_arrivals"]

log = logging.getLogger("towline.broker")

READ_COUNT: Final = 200
FIND_MAX: Final = 100
"""Ids that are searched at a time: each is compared with each record."""


def note_arrivals(arrivals: Mapping[str, Sequence[Arrival]]) -> list[Append]:
    """The records to append when messages come to their lanes, by topic; not if they are refused there."""
    return [
        Append(arrived_stream(topic), encode_arrivals(some), len(some), control=True, instead=b"")
        for topic, some in arrivals.items()
    ]


async def find_arrivals(store: Store, topic: Topic, ids: Collection[int]) -> list[Arrived]:
    """The messages that had these ids, as far as their records are kept."""
    if len(ids) > FIND_MAX:
        raise TooLarge(f"where {len(ids)} delayed messages went: ask for at most {FIND_MAX} at a time")
    name, missing = topic.config.name, set(ids)
    found: list[Arrived] = []
    async for _, one, at_us in _records(store, name):
        for number in sorted(missing):
            seq = one.number_of(number)
            if seq is not None:
                missing.discard(number)
                found.append(Arrived(number, one.lane, seq, at_us, topic.config.shards))
        if not missing:
            break
    return found


async def trim_arrivals(store: Store, topic: Topic) -> None:
    """Trim records of messages that are not kept any more."""
    stream = arrived_stream(topic.config.name)
    at = first = store.bounds(stream).first
    firsts = [store.bounds(lane.stream).first for lane in topic.lanes]
    try:
        async for number, one, _ in _records(store, topic.config.name):
            if one.lane < len(firsts) and one.end > firsts[one.lane]:
                break
            at = number + 1
    except NewerFormat as error:
        # Its messages may be kept still.
        log.error("%s is not shortened any further: %s", stream, error)
    if at > first:
        await store.trim(stream, at)


def _records(store: Store, topic: str) -> AsyncIterator[tuple[int, Arrival, int]]:
    return replayed(store, arrived_stream(topic), 0, decode_arrival, TimeSlice(), lost=unsaid, count=READ_COUNT)
