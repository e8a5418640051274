"""Browsing and searching messages; the state of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from towline.broker.browse.trace import trace
from towline.broker.consume.dead_letters import dead_letters, dead_waiting
from towline.broker.consume.fetch import Buffers, fitting, next_of, wire_part
from towline.clock import TimeSlice
from towline.frame.layout import unpacked_bytes
from towline.model import lane_name
from towline.protocol.messages import (
    Browse,
    Browsed,
    Find,
    Found,
    GroupState,
    Locate,
    Located,
    MemberState,
    Part,
    Trace,
    Traced,
)

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.broker.consume.groups import Groups
    from towline.broker.topics.topic import Lane
    from towline.broker.topics.topics import Topics
    from towline.store import Store

__all__ = ["MessageBrowser", "figures_in_slices", "figures_of", "group_state"]


AT_ONCE: Final = 200


async def figures_in_slices(dispatchers: Sequence[Dispatcher]) -> dict[str, int]:
    """`figures_of` over very many groups: others run in between."""
    sums, part = Counter(figures_of(())), TimeSlice()
    for at in range(0, len(dispatchers), AT_ONCE):
        sums.update(figures_of(dispatchers[at : at + AT_ONCE]))
        await part.rest()
    return dict(sums)


def figures_of(dispatchers: Sequence[Dispatcher]) -> dict[str, int]:
    """Sums over all groups of a broker."""
    return {
        "groups": len(dispatchers),
        "members": sum(len(one.members) for one in dispatchers),
        "messages_out": sum(one.counts["pulled"] for one in dispatchers),
        "in_flight": sum(one.group.leased() for one in dispatchers),
        "retrying": sum(one.group.retries.messages for one in dispatchers),
    }


def group_state(dispatcher: Dispatcher, now_s: float, expires_in_s: float) -> GroupState:
    dispatcher.observe()
    group = dispatcher.group
    shards = group.shards.count if group.shards is not None else 0
    members = [
        MemberState(
            one.consumer,
            one.address,
            group.in_flight.get(one.consumer, 0),
            one.waits,
            round(now_s - one.last_seen_s, 3),
        )
        for one in dispatcher.members.values()
    ]
    return GroupState(
        config=group.config,
        positions=[(lane_name(n, shards), group.next[n], group.ends[n]) for n in range(group.topic_lanes)],
        lag=group.lag(),
        in_flight=group.leased(),
        retrying=group.retries.messages,
        next_retry_at_us=group.next_retry_us() or 0,
        dying=group.dying.messages,
        dead=dead_waiting(dispatcher),
        members=members,
        unreadable=dispatcher.unreadable,
        retry_load=round(group.retries.load, 3),
        unused_s=round(dispatcher.unused_s, 3),
        expires_in_s=round(expires_in_s, 3),
    )


class MessageBrowser:
    """Messages of a broker, and dead letters, for those who only look at them."""

    def __init__(self, store: Store, topics: Topics, groups: Groups) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups

    async def browse(self, request: Browse) -> tuple[Browsed, Buffers]:
        if not request.group:
            lane = self._lane(request)
            first, end, _ = lane.look()
            return await _browse(self._store, lane.stream, (first, end), request, [])
        dispatcher = await self._groups.buried(request.topic, request.group)
        stream, first, end = dead_letters(dispatcher)
        return await _browse(self._store, stream, (first, end), request, list(dispatcher.group.resent))

    async def find(self, request: Find) -> tuple[Found, Buffers]:
        return await _find(self._store, self._lane(request), request)

    async def locate(self, request: Locate) -> Located:
        lane = self._lane(request)
        return Located(min(await self._store.locate(lane.stream, request.time_us), lane.end))

    async def trace(self, request: Trace) -> Traced:
        return await trace(self._groups.named(request.topic, request.group), request)

    def _lane(self, request: Browse | Find | Locate) -> Lane:
        return self._topics.named(request.topic).lane(request.lane)


async def _browse(
    store: Store, stream: str, bounds: tuple[int, int], request: Browse, settled: list[tuple[int, int]]
) -> tuple[Browsed, Buffers]:
    first, end = bounds
    at = max(request.first, first)
    room = min(request.max_messages, max(end - at, 0))
    if not room:
        return Browsed([], at, first, end, settled), []
    read = await store.read(stream, at, room, request.max_bytes)
    chunks = fitting(read.chunks, request.max_bytes)
    found = [wire_part(request.lane, 0, chunk, chunk.count) for chunk in chunks]
    buffers = [buffer for _, some in found for buffer in some]
    return Browsed([part for part, _ in found], next_of(read, chunks), first, end, settled), buffers


ROUND: Final = 1_000
"""Messages that are read at once when no key is given."""


async def _find(store: Store, lane: Lane, request: Find) -> tuple[Found, Buffers]:
    key = request.key.encode()
    parts: list[Part] = []
    buffers: Buffers = []
    budget, room = request.max_bytes, request.max_messages
    end = lane.end
    if request.until_us:
        end = min(await store.locate(lane.stream, request.until_us), end)
    at = min(await store.locate(lane.stream, request.since_us, request.first, key), end)
    while at < end and room and (budget > 0 or not parts):
        read = await store.read(lane.stream, at, 1 if key else min(room, ROUND, end - at), max(budget, 1))
        chunks = fitting(read.chunks, budget)
        if parts and chunks and unpacked_bytes(chunks[0].frame) > max(budget, len(chunks[0].frame)):
            break
        for chunk in chunks:
            part, some = wire_part(request.lane, 0, chunk, chunk.count)
            parts.append(part)
            buffers += some
            budget -= max(part.length, unpacked_bytes(chunk.frame) if len(some) == 1 else 0)
            room -= chunk.count
        at = max(next_of(read, chunks), at + 1)
        if key and at < end:
            at = min(await store.locate(lane.stream, 0, at, key), end)
    return Found(parts, at, end), buffers
