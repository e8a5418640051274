"""Where a new group begins."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from towline.broker.consume.dispatcher import Dispatcher
from towline.broker.topics.topic import Topic
from towline.delivery import Part, Start
from towline.delivery.group.parts import cut
from towline.errors import BadRequest
from towline.model import LANES, Span, check_topic, is_pattern, matches
from towline.protocol import messages as wire
from towline.store import Store

__all__ = ["check_places", "place_of", "resumed", "start_of"]

log = logging.getLogger("towline.broker")


async def start_of(store: Store, topic: Topic, start: str) -> tuple[int, ...]:
    """By lane of the topic: the earliest message there is, the end, or the first since a time (`@`, microseconds)."""
    return tuple([await _in_lane(store, topic, lane, start) for lane in range(len(topic.lanes))])


async def _in_lane(store: Store, topic: Topic, lane: int, start: str) -> int:
    stream, end = topic.lanes[lane].stream, topic.lanes[lane].end
    if start == "earliest":
        return store.bounds(stream).first
    return end if start == "latest" else min(await store.locate(stream, int(start[1:])), end)


# Where its consumer was


def place_of(dispatcher: Dispatcher) -> wire.Place:
    """Where a group is of which nothing was pulled yet."""
    group = dispatcher.group
    shards = group.shards.count if group.shards is not None else 0
    return wire.Place(group.config.topic, shards, [(lane, at) for lane, at in enumerate(group.next) if at])


def check_places(pattern: str, places: wire.Places) -> None:
    """Refuse what no consumer of this topic, or of the topics under this prefix, can mean."""
    seen: set[str] = set()
    for place in places.topics:
        name = check_topic(place.topic)
        if not (matches(pattern, name) if is_pattern(pattern) else name == pattern):
            raise BadRequest(f"a place in topic {name}, which is not among the topics of {pattern}")
        if name in seen:
            raise BadRequest(f"two places in topic {name}: give one")
        seen.add(name)
        _check_place(place)


def _check_place(place: wire.Place) -> None:
    count, at = (place.shards or len(LANES)) + len(LANES), dict(place.lanes)
    for lane in (*at, *(lane for lane, *_ in place.open)):
        if lane >= count:
            raise BadRequest(f"a place in lane {lane} of topic {place.topic}, whose lanes are 0 to {count - 1}")
    if len(at) < len(place.lanes):
        raise BadRequest(f"two places in a lane of topic {place.topic}: give one")
    ends: dict[int, int] = {}
    for lane, first, size, _ in sorted(place.open):
        if first < ends.get(lane, 0):
            raise BadRequest(f"message {first} of lane {lane} of topic {place.topic} is named twice as open")
        ends[lane] = first + size
        if ends[lane] > at.get(lane, 0):
            raise BadRequest(
                f"messages {first} to {ends[lane] - 1} of lane {lane} of topic {place.topic} are named as open, and "
                f"the next one is {at.get(lane, 0)}"
            )


def resumed(dispatcher: Dispatcher, places: Sequence[wire.Place]) -> Start:
    """Begin where the consumer was in this topic, as far as the lanes have it: with the first message if retention has
    gone beyond that, or if the topic is new to it; at the end if there is less than it was given."""
    here = place_of(dispatcher)
    place = next((one for one in places if (one.topic, one.shards) == (here.topic, here.shards)), here)
    at, bounds = dict(place.lanes), [lane.look() for lane in dispatcher.lanes]
    missing = sum(max(at.get(lane, 0) - end, 0) for lane, (_, end, _) in enumerate(bounds))
    if missing:
        log.warning(
            "%s: its consumer was given %d messages more than there are: they were lost, and it goes on at the end",
            *(dispatcher.label, missing),
        )
    positions = [min(max(at.get(lane, 0), first), end) for lane, (first, end, _) in enumerate(bounds)]
    there = [Span(lane, first, positions[lane] - first) for lane, (first, _, _) in enumerate(bounds)]
    opened = [cut(Part(*one), there[one[0]]) for one in sorted(place.open)]
    return Start(tuple(positions), tuple(part for part in opened if part))
