"""Where a new group begins."""

from __future__ import annotations

from towline.broker.topic import Topic
from towline.store import Store

__all__ = ["start_of"]


async def start_of(store: Store, topic: Topic, start: str) -> tuple[int, ...]:
    """By lane of the topic: the earliest message there is, the end, or the first since a time (`@`, microseconds)."""
    return tuple([await _in_lane(store, topic, lane, start) for lane in range(len(topic.lanes))])


async def _in_lane(store: Store, topic: Topic, lane: int, start: str) -> int:
    stream, end = topic.lanes[lane].stream, topic.lanes[lane].end
    if start == "earliest":
        return store.bounds(stream).first
    return end if start == "latest" else min(await store.locate(stream, int(start[1:])), end)
