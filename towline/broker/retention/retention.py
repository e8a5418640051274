"""Retention of a broker's store: by age and size, behind what is still open, needed or held."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from towline.broker.schedule.delivered_ids import trim_arrivals
from towline.clock import SECOND_US, Clock, TimeSlice

if TYPE_CHECKING:
    from towline.broker.retention.holds import Holds
    from towline.broker.retention.overdue_messages import OverdueMessages
    from towline.broker.topics.topic import Topic
    from towline.settings import BrokerSettings
    from towline.store import Store, Trimmed

__all__ = ["reclaim", "retain"]

log = logging.getLogger("towline.broker")


def lane_pins(topic: Topic) -> dict[str, int]:
    """By stream, the oldest delivered message that some group still needs."""
    pins: dict[str, int] = {}
    for dispatcher in topic.groups.values():
        for lane, first in dispatcher.pins().items():
            stream = dispatcher.streams[lane]
            pins[stream] = min(first, pins.get(stream, first))
    return pins


async def retain(  # noqa: PLR0917 all of it says what may go
    store: Store,
    clock: Clock,
    topics: Mapping[str, Topic],
    letters: Mapping[str, int],
    needed: Callable[[], Awaitable[dict[str, int]]],
    settings: BrokerSettings,
    holds: Holds,
    overdue: OverdueMessages,
) -> Trimmed:
    """Drop what is older or more than is to be kept; never what recovery (`needed`) or the dead letters (`letters`)
    need, and not at once leased, retrying and dying messages, or those under a hold. Groups may be made meanwhile: what
    is needed is asked last. Returns the store's last result."""
    retention_s, held = settings.retention_s, await holds.pins()
    ages, part = dict[str, float](), TimeSlice()
    for name, topic in topics.items():
        ages[name] = _age_s(topic, retention_s)
        if part.over:
            await part.rest()
    longest_s = 0.0 if 0.0 in ages.values() or not retention_s else max([*ages.values(), retention_s])
    longest_us = round(longest_s * SECOND_US)
    own_us = {name: round(age_s * SECOND_US) for name, age_s in ages.items() if _own(age_s, longest_s)}
    await overdue.look((topic, kept) for name, topic in topics.items() if (kept := own_us.get(name, longest_us)))
    pins: dict[str, int] = {}
    for name, topic in topics.items():
        if part.over:
            await part.rest()
        topic_pins = lane_pins(topic)
        pins |= topic_pins
        if name in own_us and topic.is_to_trim(clock.steady_s(), ages[name]):
            before_us = clock.now_us() - own_us[name]
            for lane in topic.lanes:
                pin = min(topic_pins.get(lane.stream, lane.end), lane.end)
                await _trim(store, lane.stream, before_us, pin, held, holds)
            topic.look_again()
            await trim_arrivals(store, topic)
    max_bytes = settings.retention_bytes
    # Open messages come last: they are given up only where nothing else keeps the same file.
    needs = {**letters, **await needed(), **pins}
    both = needs | {stream: min(at, needs.get(stream, at)) for stream, at in held.items()}
    trimmed = await store.retain(longest_us, max_bytes, both)
    freed, beyond_bytes = trimmed.bytes_freed, trimmed.surplus_bytes
    if any(stream in held and held[stream] < needs.get(stream, held[stream] + 1) for stream in trimmed.holders):
        holds.waits(trimmed.held_back)
        longer_us = longest_us and longest_us + holds.max_us
        more = max_bytes and max_bytes + holds.max_bytes
        trimmed = await store.retain(longer_us, more, {**letters, **await needed(), **pins})
        freed += trimmed.bytes_freed
        beyond_bytes = trimmed.surplus_bytes and trimmed.surplus_bytes + holds.max_bytes
        if trimmed.bytes_freed:
            holds.broke(f"{trimmed.bytes_freed:,} bytes were")
    await _tell_groups(topics.values(), anew=bool(freed))
    if freed:
        log.info("retention freed %d bytes", freed)
    if beyond_bytes:
        overdue.remind("store", f"retention could not free more: {trimmed.held_back}")
    by_open = any(stream in pins for stream in trimmed.holders)
    await overdue.make_room(topics.values(), beyond_bytes if by_open else 0)  # it goes in the next round
    return trimmed


async def _trim(  # noqa: PLR0917 all of it says how far
    store: Store, stream: str, before_us: int, pin: int, held: Mapping[str, int], holds: Holds
) -> None:
    """Trim one lane of a topic that has a retention of its own."""
    first, end, _ = store.bounds(stream)
    if first == end:
        return
    at = min(await store.locate(stream, before_us), pin)
    if at > held.get(stream, at):
        late = min(await store.locate(stream, before_us - holds.max_us), pin)
        if late > held[stream]:
            holds.broke(f"records {held[stream]} to {late - 1} of {stream} were")
        at = max(held[stream], late)
    if at > first:
        await store.trim(stream, at)


async def _tell_groups(topics: Iterable[Topic], *, anew: bool = False) -> None:
    """Have groups update the lanes that were trimmed."""
    part = TimeSlice()
    for topic in topics:
        for dispatcher in list(topic.groups.values()):
            dispatcher.observe()
            if part.over:
                await part.rest()
        if anew:
            topic.look_again()


def _own(age_s: float, longest_s: float) -> bool:
    """Whether a topic is trimmed by itself: messages of others are kept for longer, or for ever, which is 0."""
    return bool(age_s) and (not longest_s or age_s < longest_s)


def _age_s(topic: Topic, retention_s: float) -> float:
    return retention_s if topic.config.retention_s is None else topic.config.retention_s


async def reclaim(store: Store, topics: Sequence[Topic]) -> int:
    """A memory store has little room: drop what every group of a topic has consumed, and the events about it. Returns
    how many bytes of messages that made."""
    before = _lane_bytes(store, topics)
    for topic in topics:
        if not topic.groups:
            continue
        pins = lane_pins(topic)
        for number, lane in enumerate(topic.lanes):
            consumed = min(dispatcher.group.next[number] for dispatcher in topic.groups.values())
            at = min(consumed, pins.get(lane.stream, consumed))
            if at > store.bounds(lane.stream).first:
                await store.trim(lane.stream, at)
        await trim_arrivals(store, topic)
        for dispatcher in topic.groups.values():
            await store.trim(dispatcher.stream, dispatcher.position)
        await _tell_groups([topic])
    return before - _lane_bytes(store, topics)


def _lane_bytes(store: Store, topics: Sequence[Topic]) -> int:
    return sum(store.bounds(lane.stream).size_bytes for topic in topics for lane in topic.lanes)
