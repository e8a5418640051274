"""Seek, purge and external progress; the start of a group."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from towline.broker.schedule.delivered_ids import trim_arrivals
from towline.clock import TimeSlice
from towline.delivery import Move, Part, Start, Withdraw
from towline.delivery.group.group import TAKE_MAX
from towline.delivery.group.parts import cut
from towline.delivery.group.seek import pulls_in_the_way, weigh, within_bounds
from towline.errors import BadRequest, Conflict
from towline.model import LANES, Durability, Span, check_topic, is_pattern, lane_name, matches
from towline.protocol import messages as wire
from towline.protocol.groups import Seek, Sought
from towline.protocol.topics import Purged

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.broker.topics.topic import Topic
    from towline.store import Store

__all__ = ["check_places", "place_of", "purge", "report", "resumed", "seek", "start_of"]


log = logging.getLogger("towline.broker")

Moves = tuple[tuple[int, int], ...]


async def seek(dispatcher: Dispatcher, request: Seek, durability: Durability) -> Sought:
    """Move a group on the lanes of its topic; its own lanes stay as they are."""
    dispatcher.observe()
    wanted = await _wanted(dispatcher, request)
    group = dispatcher.group
    moves = within_bounds(group, wanted)
    weight = weigh(group, moves)
    shards = group.shards.count if group.shards is not None else 0
    shown = [(lane_name(lane, shards), group.next[lane], to) for lane, to in moves]
    if not request.dry_run:
        await _move(dispatcher, moves, f"moved to {request.to or 'given positions'}", durability)
        log.warning("%s was moved: %d messages again, %d passed over", dispatcher.label, *weight)
    return Sought(shown, weight.again, weight.passed)


async def report(dispatcher: Dispatcher, positions: Sequence[tuple[int, int]], durability: Durability) -> None:
    """The progress of a reader that keeps its own."""
    if dispatcher.members:
        raise Conflict(f"{dispatcher.label} has consumers: report progress to a group that nothing else consumes with")
    dispatcher.observe()
    group = dispatcher.group
    known = [(lane, to) for lane, to in positions if lane < group.topic_lanes]
    moves = tuple((lane, to) for lane, to in within_bounds(group, known) if to > group.next[lane])
    if moves:
        await _move(dispatcher, moves, "read outside", durability)


async def _wanted(dispatcher: Dispatcher, request: Seek) -> Moves:
    group, lanes = dispatcher.group, range(dispatcher.group.topic_lanes)
    if bool(request.to) == bool(request.positions):
        raise BadRequest("seek: say where to (earliest, latest or a time), or give positions by lane; one of them")
    if request.positions:
        unknown = [lane for lane, _ in request.positions if lane not in lanes]
        if unknown or len({lane for lane, _ in request.positions}) < len(request.positions):
            raise BadRequest(f"topic {group.config.topic} has the lanes 0 to {lanes[-1]}: name each once at most")
        return tuple(request.positions)
    if request.to == "earliest":
        return tuple((lane, group.firsts[lane]) for lane in lanes)
    if request.to == "latest":
        return tuple((lane, group.ends[lane]) for lane in lanes)
    time_us = int(request.to[1:])
    return tuple([(lane, await dispatcher.store.locate(dispatcher.streams[lane], time_us)) for lane in lanes])


async def _move(dispatcher: Dispatcher, moves: Moves, reason: str, durability: Durability) -> None:
    with dispatcher.at_rest():
        await _take_away(dispatcher, moves)
        while dispatcher.copying:
            # Messages that are being copied may turn out to be dying still.
            await asyncio.wait(dispatcher.copying)
        _, appended = dispatcher.run(Move(moves, reason), durability)
    dispatcher.arm()
    if appended is not None:
        await appended.done


async def _take_away(dispatcher: Dispatcher, moves: Moves) -> None:
    """Take the pulls of which something is moved away from their consumers, bit by bit: they may be very large."""
    leases, part = dispatcher.group.leases, TimeSlice()
    pulls = deque(pulls_in_the_way(dispatcher.group, moves))
    while pulls and not dispatcher.closed:
        dispatcher.run(Withdraw(tuple(islice(pulls, TAKE_MAX))))
        while pulls and pulls[0] not in leases:
            pulls.popleft()
        await part.rest()


async def purge(
    topic: Topic, store: Store, durability: Durability, remember: Callable[[], Awaitable[None]], *, dry_run: bool
) -> Purged:
    """Drop all messages that the topic has now. Groups continue behind them; dead letters are kept. `remember` saves
    what else is recovered from messages after a crash: their producers, and their dedup ids."""
    ends = [lane.end for lane in topic.lanes]
    bounds = [store.bounds(lane.stream) for lane in topic.lanes]
    messages = sum(max(end - one.first, 0) for end, one in zip(ends, bounds, strict=True))
    groups: list[tuple[str, int]] = []
    if not dry_run:
        await remember()
    for name, dispatcher in sorted(topic.groups.items()):
        dispatcher.observe()
        owns = dispatcher.lanes[len(topic.lanes) :]
        moves = within_bounds(dispatcher.group, enumerate([*ends, *(lane.end for lane in owns)]))
        groups.append((name, weigh(dispatcher.group, moves).passed))
        if not dry_run:
            # First the groups: were the broker to stop in between, messages would be left over, and nobody would wait.
            await _move(dispatcher, moves, "the topic was purged", durability)
            await _trim(store, [(lane.stream, lane.end) for lane in owns])
    if not dry_run:
        await _trim(store, [(lane.stream, end) for lane, end in zip(topic.lanes, ends, strict=True)])
        await trim_arrivals(store, topic)
        topic.look_again()
        log.warning("topic %s was purged of %d messages", topic.config.name, messages)
    return Purged(messages, sum(one.size_bytes for one in bounds), groups)


async def _trim(store: Store, ends: Sequence[tuple[str, int]]) -> None:
    for stream, end in ends:
        if store.bounds(stream).first < end:
            await store.trim(stream, end)


async def start_of(store: Store, topic: Topic, start: str) -> tuple[int, ...]:
    """By lane of the topic: the earliest message there is, the end, or the first since a time (`@`, microseconds)."""
    return tuple([await _in_lane(store, topic, lane, start) for lane in range(len(topic.lanes))])


async def _in_lane(store: Store, topic: Topic, lane: int, start: str) -> int:
    stream, end = topic.lanes[lane].stream, topic.lanes[lane].end
    if start == "earliest":
        return store.bounds(stream).first
    return end if start == "latest" else min(await store.locate(stream, int(start[1:])), end)


# Positions of consumers


def place_of(dispatcher: Dispatcher) -> wire.Place:
    """The position of a group from which nothing was pulled yet."""
    group = dispatcher.group
    shards = group.shards.count if group.shards is not None else 0
    return wire.Place(group.config.topic, shards, [(lane, at) for lane, at in enumerate(group.next) if at])


def check_places(pattern: str, places: wire.Places) -> None:
    """Refuse positions that no consumer of this topic, or of the topics under this prefix, can mean."""
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
    """The consumer's position in this topic, as far as the lanes have it: the first message if retention has gone
    beyond that, or if the topic is new to it; the end if there is less than it was given."""
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
