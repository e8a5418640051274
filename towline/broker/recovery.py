"""Recovery of groups and producers: their snapshots, then the events and frames behind them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import msgspec

from towline.broker.produce.producers_file import ProducersFile
from towline.broker.schedule.journal import parcels_in
from towline.broker.schedule.scheduler import delay_mark
from towline.broker.topics.catalog import Catalog
from towline.broker.topics.shards import shards_in
from towline.clock import Clock, TimeSlice, in_slices, in_steps
from towline.delivery import Dedup, Event, Group, GroupSnapshot, Producers, decode_event, mend, restore
from towline.delivery.dedup import Seen
from towline.delivery.group.events import Started
from towline.delivery.group.snapshot import Rest
from towline.delivery.schedule.record import OpenedRecord, ScheduleRecord
from towline.format import not_understood
from towline.frame import Frame
from towline.frame.layout import DEDUP, UNKNOWN_FLAGS
from towline.model import LANES, PRIVATE, GroupConfig, dead_stream, own_stream, pull_stream
from towline.store import Chunk, Store

__all__ = ["find_uncatalogued", "may_forget", "recover_group", "recover_producers", "trim_group"]

log = logging.getLogger("towline.broker")

READ_BYTES: Final = 8 << 20
READ_COUNT: Final = 2_000
"""What comes with one read is looked for in one step."""


async def recover_group(
    store: Store,
    config: GroupConfig,
    document: GroupSnapshot | None,
    part: TimeSlice,
    *,
    shards: int = 0,
    rest: Rest | None = None,
) -> Group:
    """The group as it was: from its snapshot, then event by event through the same `apply` as ever."""
    stream = pull_stream(config.topic, config.name)
    first, end, _ = store.bounds(stream)
    at, whole = first, True
    group = Group(config, shards)
    if document is not None and document.places(shards) is None:
        log.error("the snapshot of %s is of other lanes than the topic has: the pull log is replayed instead", stream)
        document = None
    if document is not None:
        group, at = await in_steps(restore(config, document, shards, rest), part), max(document.position, first)
    while at < end:
        read = await store.read(stream, at, READ_COUNT, READ_BYTES)
        for lost in read.lost:
            whole = False
            log.error("pull log %s: %d events from %d on are lost: %s", stream, lost.count, lost.first, lost.reason)
        for chunk in read.chunks:
            frame = _known(Frame(chunk.frame), stream, chunk.first)
            for number, record in enumerate(frame.bodies(chunk.start, chunk.start + chunk.count), chunk.first):
                event = _event(record, stream, number)
                if isinstance(event, Started):
                    # Of the group that was deleted, and made anew under the same name, the snapshot may still tell.
                    group, whole = Group(config, shards), True
                whole = _replay(group, event, stream, whole=whole)
                if part.over:
                    await part.rest()
        at = max(read.next, at + 1)
    return group


def _event(record: bytes, stream: str, number: int) -> Event:
    try:
        return decode_event(record)
    except msgspec.MsgspecError as error:
        # Its frame is whole: it is no damage. A group without it would be a wrong one.
        raise not_understood(f"pull log {stream}: event {number}", error) from None


def _known(frame: Frame, stream: str, first: int) -> Frame:
    if unknown := frame.flags & UNKNOWN_FLAGS:
        raise not_understood(f"{stream}: the frame of record {first}", f"unknown flags {unknown:#x}")
    return frame


def _replay(group: Group, event: Event, stream: str, *, whole: bool) -> bool:
    """Apply one event of a pull log; whether all were whole so far. Once some were lost, the rest is made to fit."""
    if whole:
        try:
            group.apply(event)
        except Exception:
            # A group that delivers some messages again is better than a broker that does not start.
            log.exception("pull log %s: an event does not fit those before it: %s", stream, event)
        else:
            return True
    if mend(group, event):
        log.warning("pull log %s: an event that followed lost ones was made to fit: %s", stream, type(event).__name__)
    return False


async def recover_producers(  # noqa: PLR0917 all of it is what they have sent
    store: Store,
    file: ProducersFile,
    lanes: Mapping[str, tuple[str, int]],
    slots: Sequence[str],
    dedup: Dedup,
    now_us: int,
    part: TimeSlice,
) -> Producers:
    """What producers sent, and the dedup ids of it: from the snapshot, then from the frames that came after it. `lanes`
    are the topic and number of each lane, by stream; `slots` the streams of delayed messages."""
    producers = Producers()
    ends = await file.load([*lanes, *slots], producers, dedup, now_us, part)
    async for stream, (topic, lane) in in_slices(lanes.items(), part):
        async for chunk in _frames_since(store, stream, ends.get(stream, 0)):
            frame = _known(Frame(chunk.frame), stream, chunk.first)
            if frame.producer_id:
                producers.remember(
                    frame.producer_id, frame.producer_seq, chunk.first, chunk.appended_at_us, frame.token
                )
            dedup.replay(topic, frame, Seen(lane, chunk.first, chunk.appended_at_us), now_us)
            await part.rest()
    for stream in slots:
        async for parcel, at_us in _parcels_since(store, stream, ends.get(stream, 0)):
            _remember_parcel(parcel, at_us, producers, dedup, now_us)
            await part.rest()
    await in_steps(dedup.replayed(now_us), part)
    return producers


async def _parcels_since(store: Store, stream: str, at: int) -> AsyncIterator[tuple[ScheduleRecord, int]]:
    end = store.bounds(stream).end
    while at < end:
        read = await store.read(stream, at, READ_COUNT, READ_BYTES)
        for _, parcel, at_us in parcels_in(read, stream):
            yield parcel, at_us
        at = max(read.next, at + 1)


def _remember_parcel(parcel: ScheduleRecord, at_us: int, producers: Producers, dedup: Dedup, now_us: int) -> None:
    """A frame that went to the schedule, or what of it went to one slot."""
    frame = Frame(parcel.frame)
    if frame.producer_id:
        producers.remember(frame.producer_id, frame.producer_seq, delay_mark(parcel.first_id), at_us, frame.token)
    if frame.flags & DEDUP and not parcel.moved:
        ids = OpenedRecord(parcel).ids(0, parcel.count)
        dedup.replay_delayed(parcel.topic, frame, (Seen(parcel.lane, delay_mark(one), at_us) for one in ids), now_us)


async def _frames_since(store: Store, stream: str, at: int) -> AsyncIterator[Chunk]:
    """The frames of a lane from record `at` on, without one that began before it."""
    end = store.bounds(stream).end
    while at < end:
        read = await store.read(stream, at, READ_COUNT, READ_BYTES)
        for chunk in read.chunks:
            if not chunk.start:
                yield chunk
        at = max(read.next, at + 1)


async def trim_group(store: Store, topic: str, group: str) -> None:
    """Nothing is left of a group that was deleted. Its pull log goes last: it tells that this is not done yet."""
    owns = (own_stream(topic, group, lane) for lane in LANES)
    for stream in (dead_stream(topic, group), *owns, pull_stream(topic, group)):
        first, end, _ = store.bounds(stream)
        if may_forget(stream) or first < end:
            await store.trim(stream, end, forget=may_forget(stream))


def may_forget(stream: str) -> bool:
    """Whoever reads on from a number of before must be able to tell that it is another stream: of pull logs their first
    event says so, and dead letters of a group may be looked for by their numbers."""
    kind, _, group = stream.split("/")[:3]
    return kind == "pull" or (kind == "dead" and group.startswith(PRIVATE))


async def find_uncatalogued(store: Store, catalog: Catalog, clock: Clock, part: TimeSlice) -> None:
    """Topics and groups that were made just before a crash: their streams are there, their entry is not yet. And groups
    that were deleted just before it: their entry is gone, their streams are not yet."""
    async for stream in in_slices(store.streams("lane/"), part):
        topic = stream.split("/")[1]
        first, end, _ = store.bounds(stream)
        if topic not in catalog.topics and first < end:
            log.warning("topic %s is in the store but not in topics.json: added from the template", topic)
            shards = shards_in(store, topic)
            catalog.put_topic(msgspec.structs.replace(catalog.from_template(topic), shards=shards))
    async for stream in in_slices(store.streams("pull/"), part):
        _, topic, group = stream.split("/")
        first, end, _ = store.bounds(stream)
        if (topic, group) in catalog.dropped:
            await trim_group(store, topic, group)
            continue
        unknown = (topic, group) not in catalog.groups and topic in catalog.topics
        if unknown and first < end and not group.startswith(PRIVATE):
            log.warning("group %s on topic %s is added with default settings", group, topic)
            catalog.put_group(GroupConfig(topic, group, created_at_us=clock.now_us()))
