"""Moving groups, and emptying topics: what an administrator does to what waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from towline.broker.consume.dispatcher import Dispatcher
from towline.broker.schedule.delivered_ids import trim_arrivals
from towline.broker.topics.topic import Topic
from towline.delivery import Move
from towline.delivery.group.seek import weigh, within_bounds
from towline.errors import BadRequest, Conflict
from towline.model import Durability, lane_name
from towline.protocol import ordering
from towline.store import Store

__all__ = ["purge", "report", "seek"]

log = logging.getLogger("towline.broker")

Moves = tuple[tuple[int, int], ...]


async def seek(dispatcher: Dispatcher, request: ordering.Seek, durability: Durability) -> ordering.Sought:
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
    return ordering.Sought(shown, weight.again, weight.passed)


async def report(dispatcher: Dispatcher, positions: Sequence[tuple[int, int]], durability: Durability) -> None:
    """Somebody who keeps their own progress has come this far."""
    if dispatcher.members:
        raise Conflict(f"{dispatcher.label} has consumers: report progress to a group that nothing else consumes with")
    dispatcher.observe()
    group = dispatcher.group
    known = [(lane, to) for lane, to in positions if lane < group.topic_lanes]
    moves = tuple((lane, to) for lane, to in within_bounds(group, known) if to > group.next[lane])
    if moves:
        await _move(dispatcher, moves, "read outside", durability)


async def _wanted(dispatcher: Dispatcher, request: ordering.Seek) -> Moves:
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
    while dispatcher.copying:
        # What is being copied may turn out to be dying still.
        await asyncio.wait(dispatcher.copying)
    _, appended = dispatcher.run(Move(moves, reason), durability)
    dispatcher.wake()
    dispatcher.arm()
    if appended is not None:
        await appended.done


async def purge(
    topic: Topic, store: Store, durability: Durability, remember: Callable[[], Awaitable[None]], *, dry_run: bool
) -> ordering.Purged:
    """Drop all messages that the topic has now. Groups go on behind them; dead letters are kept. `remember` writes down
    what else is read from messages after a crash: who sent them, and their dedup ids."""
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
    return ordering.Purged(messages, sum(one.size_bytes for one in bounds), groups)


async def _trim(store: Store, ends: Sequence[tuple[str, int]]) -> None:
    for stream, end in ends:
        if store.bounds(stream).first < end:
            await store.trim(stream, end)
