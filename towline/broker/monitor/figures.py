"""Figures of topics and groups: read when somebody asks, never counted for the sake of it on the way of a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from towline.broker.consume.dead_letters import dead_waiting
from towline.broker.consume.dispatcher import Dispatcher
from towline.broker.topics.oldest_messages import Oldest, oldest_us
from towline.broker.topics.topic import Topic
from towline.clock import Clock, TimeSlice
from towline.errors import TowlineError
from towline.frame import Frame
from towline.protocol.access import GroupFigures, Measured, TopicFigures
from towline.store import Store

__all__ = ["look_for_oldest", "measure"]

READS_MAX: Final = 500
"""Frames read to learn how old a message is. What is not known yet, is found the next time."""


async def measure(  # noqa: PLR0917 all of it is measured
    store: Store,
    clock: Clock,
    topics: Sequence[Topic],
    delayed: Mapping[str, int],
    broker: dict[str, Any],
    expires_in_s: Callable[[Dispatcher], float],
) -> Measured:
    of_topics: list[TopicFigures] = []
    of_groups: list[GroupFigures] = []
    reads, part = READS_MAX, TimeSlice()
    for topic in topics:
        await part.rest()
        of_topics.append(_of_topic(store, topic, delayed))
        for dispatcher in list(topic.groups.values()):
            await part.rest()
            dispatcher.notice()
            reads -= await look_for_oldest(store, dispatcher, reads)
            of_groups.append(_of_group(dispatcher, expires_in_s(dispatcher)))
    return Measured(clock.now_us(), broker, of_topics, of_groups)


def _of_topic(store: Store, topic: Topic, delayed: Mapping[str, int]) -> TopicFigures:
    bounds = [store.bounds(lane.stream) for lane in topic.lanes]
    return TopicFigures(
        topic.config.name,
        sum([lane.end for lane in topic.lanes]),
        sum([lane.bytes_in for lane in topic.lanes]),
        sum([one.end - one.first for one in bounds]),
        sum([one.size_bytes for one in bounds]),
        delayed.get(topic.config.name, 0),
    )


def _of_group(dispatcher: Dispatcher, expires_in_s: float) -> GroupFigures:
    group, counts = dispatcher.group, dispatcher.counts
    return GroupFigures(
        group.config.topic,
        group.config.name,
        counts["pulled"],
        counts["bytes"],
        counts["acked"],
        counts["nacked"],
        group.lag(),
        oldest_us(dispatcher.oldest.values(), dispatcher.store),
        group.leased(),
        len(group.leases),
        group.retries.messages,
        dead_waiting(dispatcher),
        len(dispatcher.members),
        dispatcher.unreadable,
        round(group.retries.load, 3),
        round(expires_in_s, 3),
    )


async def look_for_oldest(store: Store, dispatcher: Dispatcher, reads: int) -> int:
    """Learn when the oldest messages that are not consumed came in; how many frames were read for that. A frame that
    was read before is not read again while it is the oldest."""
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
