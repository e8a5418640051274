"""Delayed messages: listed, cancelled and rescheduled while they wait.

Searching reads the schedule slot by slot, and messages move while it does. They move from coarse slots to fine ones, so
that is the order in which slots are read; and a message that was found is checked again in the very step that changes
it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Final

import msgspec

from towline.broker.access.rules import May
from towline.broker.schedule.delivered_ids import find_arrivals
from towline.broker.schedule.journal import ScheduleJournal
from towline.broker.schedule.scheduler import Scheduler
from towline.broker.topics.topics import Topics
from towline.delivery.schedule.events import Cancelled
from towline.delivery.schedule.record import OpenedRecord, ScheduleRecord, join, resolve_delay
from towline.delivery.schedule.schedule import CANCELLED_MAX, Position, Slot
from towline.delivery.schedule.wheel import Place
from towline.errors import BadRequest, NotFound, TooMany
from towline.frame.layout import KEY, unpacked_bytes
from towline.model import DELAY, message_id
from towline.protocol.messages import (
    CancelDelayed,
    Delayed,
    DelayedCancelled,
    DelayedMessage,
    DelayedMoved,
    ListDelayed,
    MoveDelayed,
)

__all__ = ["DelayedMessages"]

FOUND_MAX: Final = 100_000
"""Messages cancelled or moved by one request."""
ROUNDS_MAX: Final = 20

MOVED_BYTES: Final = 8 << 20
"""Of records, unpacked, of which messages are moved in one unit."""


class DelayedMessages:
    """Delayed messages of a broker, for requests."""

    def __init__(self, topics: Topics, scheduler: Scheduler) -> None:
        self._topics = topics
        self._scheduler = scheduler

    async def list(self, request: ListDelayed, may: May | None = None) -> Delayed:
        if request.topic:
            self._topics.named(request.topic)
        return await _list(self._scheduler, request, may)

    async def cancel(self, request: CancelDelayed) -> DelayedCancelled:
        self._topics.named(request.topic)
        return await _cancel(self._scheduler, request)

    async def move(self, request: MoveDelayed) -> DelayedMoved:
        self._topics.named(request.topic)
        return await _move(self._scheduler, request)


# List


async def _list(scheduler: Scheduler, request: ListDelayed, may: May | None = None) -> Delayed:
    """The next messages behind the one named in the request, of topics that `may` allows to describe. Slots are read in
    the order of their times, as far as needed."""
    if request.key or request.ids:
        return await _list_chosen(scheduler, request)
    journal, schedule = scheduler.journal, scheduler.schedule
    seen = {
        topic: count
        for topic, count in schedule.counts.items()
        if request.topic in ("", topic) and (may is None or may("describe", "topic", topic))
    }
    after = request.after_us, request.after_id
    waiting = sorted(schedule.slots.values(), key=lambda slot: slot.place.begin_us)
    rows: dict[int, DelayedMessage] = {}
    for slot in waiting:
        if len(rows) >= request.max_messages:
            rows = _soonest(rows, request.max_messages)
            if max(row.deliver_at_us for row in rows.values()) < slot.place.begin_us:
                break
        if slot.last_us < request.after_us:
            continue
        async for seq, parcel in journal.parcels(slot):
            if parcel.topic in seen and parcel.last_us >= after[0] and not schedule.is_dropped(parcel):
                for row in _rows(scheduler, slot.place, seq, OpenedRecord(parcel)):
                    if (row.deliver_at_us, row.id) > after:
                        rows[row.id] = row
                if len(rows) > 4 * request.max_messages:
                    rows = _soonest(rows, request.max_messages)
    return Delayed(list(_soonest(rows, request.max_messages).values()), sum(seen.values()))


async def _list_chosen(scheduler: Scheduler, request: ListDelayed) -> Delayed:
    """Those with a key, or with some ids."""
    _check(scheduler, request.topic, request.ids, request.key)
    found = [
        (position, _rows(scheduler, position.place, position.seq, opened, position.at))
        async for position, opened in _find(scheduler.journal, request.topic, set(request.ids), request.key)
    ]
    there = {position.id: some for position, some in found if scheduler.schedule.is_waiting(position)}
    rows = {
        row.id: row
        for some in there.values()
        for row in some
        if (row.deliver_at_us, row.id) > (request.after_us, request.after_id)
    }
    arrived = []
    missing = set(request.ids) - there.keys()
    if request.arrived and missing:
        await scheduler.settle()
        arrived = await find_arrivals(scheduler.journal.store, scheduler.find_topic(request.topic), missing)
    return Delayed(list(_soonest(rows, request.max_messages).values()), len(there), arrived)


def _soonest(rows: dict[int, DelayedMessage], count: int) -> dict[int, DelayedMessage]:
    soonest = heapq.nsmallest(count, rows.values(), key=lambda row: (row.deliver_at_us, row.id))
    return {row.id: row for row in soonest}


def _rows(
    scheduler: Scheduler, place: Place, seq: int, opened: OpenedRecord, only: int | None = None
) -> list[DelayedMessage]:
    """The messages of a record that wait; or only the one at this index, if it does."""
    frame, parcel = opened.frame, opened.parcel
    column = frame.text_column(0)
    assert column is not None, "the body column is always there"
    offsets = frame.offsets(column)
    keys = frame.keys()
    produced = frame.produced_at_each_us()
    shards = scheduler.find_topic(parcel.topic).config.shards
    rows = []
    for at, (number, due_us) in enumerate(zip(opened.ids(0, parcel.count), opened.times, strict=True)):
        if only in (None, at) and scheduler.schedule.is_waiting(Position(place, seq, at, number, due_us, parcel.era)):
            key = (keys[at] if keys is not None else None) or ""
            made_us = frame.produced_at_us if produced is None else produced[at]
            size = offsets[at + 1] - offsets[at]
            rows.append(DelayedMessage(number, parcel.topic, parcel.lane, due_us, made_us, key, size, shards))
    return rows


# Find


async def _find(
    journal: ScheduleJournal, topic: str, ids: Collection[int], key: str
) -> AsyncIterator[tuple[Position, OpenedRecord]]:
    """Messages that wait, by id or key. To keep their records would be to keep them unpacked."""
    schedule, packed, count = journal.schedule, key.encode(), 0
    missing = set(ids)
    seen: set[Place] = set()
    # Coarse before fine: a message that moves meanwhile is found in its new slot, also if that is a slot that was not
    # there yet.
    while fresh := sorted(schedule.slots.keys() - seen, key=lambda place: (-place.level, place.number)):
        seen.update(fresh)
        for place in fresh:
            if ids and not missing:
                return
            slot = schedule.slots.get(place)
            if slot is None or (ids and not any(slot.min_id <= one <= slot.max_id for one in missing)):
                continue
            async for seq, opened in _opened(journal, slot, lambda parcel: parcel.topic == topic, tuple(missing)):
                places = _with_key(opened, packed) if key else _with_ids(opened, missing)
                for at in places:
                    number = opened.ids(at, at + 1)[0]
                    position = Position(place, seq, at, number, opened.times[at], opened.parcel.era)
                    if schedule.is_waiting(position):
                        missing.discard(number)
                        count += 1
                        if count > FOUND_MAX:
                            raise TooMany(f"more than {FOUND_MAX} delayed messages of topic {topic} have this key")
                        yield position, opened


async def _opened(
    journal: ScheduleJournal, slot: Slot, wanted: Callable[[ScheduleRecord], bool], ids: Collection[int]
) -> AsyncIterator[tuple[int, OpenedRecord]]:
    async for seq, parcel in journal.parcels(slot, ids):
        if wanted(parcel) and not journal.schedule.is_dropped(parcel):
            yield seq, OpenedRecord(parcel)


def _with_ids(opened: OpenedRecord, ids: Collection[int]) -> list[int]:
    low, high = opened.parcel.id_range()
    places = [opened.index_of(one) for one in ids if low <= one <= high]
    return [at for at in places if at is not None]


def _with_key(opened: OpenedRecord, key: bytes) -> list[int]:
    column = opened.frame.text_column(KEY)
    if column is None:
        return []
    # One look at the whole column spares most records the cutting of it.
    if key not in bytes(opened.frame.columns[column.data_at : column.data_at + column.data_length]):
        return []
    return [at for at, value in enumerate(opened.frame.texts(KEY) or ()) if value == key]


def _check(scheduler: Scheduler, topic: str, ids: Collection[int], key: str) -> None:
    if bool(ids) == bool(key):
        raise BadRequest(f"delayed messages of topic {topic}: give ids or a key, one of them")
    unknown = [one for one in ids if not 0 < one < scheduler.schedule.next_id]
    if unknown:
        raise NotFound(f"there never was a delayed message {message_id(topic, DELAY, unknown[0])}")


def _still_there(journal: ScheduleJournal, found: Iterable[Position]) -> list[Position]:
    return [position for position in found if journal.schedule.is_waiting(position)]


# Change


async def _cancel(scheduler: Scheduler, request: CancelDelayed) -> DelayedCancelled:
    _check(scheduler, request.topic, request.ids, request.key)
    journal, ids = scheduler.journal, set(request.ids)
    name = f"{request.topic} {request.key or request.ids[0]}" if len(ids) <= 1 else ""
    before = scheduler.schedule.answers.get(name, 0)
    count = 0
    async with scheduler.changing:
        for _ in range(ROUNDS_MAX):
            found = [position async for position, _ in _find(journal, request.topic, ids, request.key)]
            there = _still_there(journal, found)
            if request.dry_run:
                gone = ids - {position.id for position in there}
                return DelayedCancelled(len(there), sorted(gone), before)
            if there:
                _check_room(journal, len(there))
                count += len(there)
                appended = journal.append([], _cancelled(there, request.topic, name, count))
                ids -= {position.id for position in there}
                await appended.done
                _tidy(scheduler, there)
            if len(there) == len(found):
                break
    return DelayedCancelled(count, sorted(ids), before)


async def _move(scheduler: Scheduler, request: MoveDelayed) -> DelayedMoved:
    _check(scheduler, request.topic, request.ids, request.key)
    journal, ids = scheduler.journal, set(request.ids)
    at_us = resolve_delay(request.deliver_at_us, journal.clock.now_us(), scheduler.levels_us)
    moved: set[int] = set()
    async with scheduler.changing:
        for _ in range(ROUNDS_MAX):
            searched = _find(journal, request.topic, ids - moved, request.key)
            found = [position async for position, _ in searched if position.id not in moved]
            if request.dry_run:
                there_ids = {position.id for position in _still_there(journal, found)}
                return DelayedMoved(len(there_ids), sorted(ids - there_ids), at_us)
            by_parcel: dict[tuple[Place, int], list[Position]] = {}
            for position in found:
                by_parcel.setdefault((position.place, position.seq), []).append(position)
            waiting, before = deque(by_parcel.values()), len(moved)
            while waiting:
                # Until their move is durable, they are neither moved nor passed over where they were.
                async with scheduler.moving:
                    some = await _take(scheduler, waiting)
                    there = [one for one in some if journal.schedule.is_waiting(one[0])]
                    if there:
                        _check_room(journal, len(there))
                        await _move_some(scheduler, there, request.topic, at_us)
                        moved |= {position.id for position, _ in there}
            if len(moved) - before == len(found):
                break
    return DelayedMoved(len(moved), sorted(ids - moved), at_us)


async def _take(scheduler: Scheduler, waiting: deque[list[Position]]) -> list[tuple[Position, OpenedRecord]]:
    """The next of them, by records, with these opened: as many as are moved in one unit."""
    taken: list[tuple[Position, OpenedRecord]] = []
    room = MOVED_BYTES
    while waiting and room > 0:
        some = waiting.popleft()
        opened = await scheduler.open_parcel(some[0].place, some[0].seq)
        if opened is not None:
            taken += [(position, opened) for position in some]
            room -= unpacked_bytes(opened.parcel.frame)
    return taken


async def _move_some(
    scheduler: Scheduler, moving: Sequence[tuple[Position, OpenedRecord]], topic: str, at_us: int
) -> None:
    """Move them from their slots into others, in one unit; they keep their ids."""
    journal = scheduler.journal
    scheduler.follow_clock()
    until_us = journal.schedule.until_us
    pieces: dict[tuple[str, int, bytes, bytes], list[tuple[OpenedRecord, int, int]]] = {}
    for position, opened in moving:
        pieces.setdefault(opened.origin(), []).append((opened, position.at, position.at + 1))
    due_us = max(at_us, until_us + 1)
    parcels = [placed for some in pieces.values() for placed in join(some, until_us, due_us)]
    there = [position for position, _ in moving]
    events = _cancelled(there, topic)
    nothing = [msgspec.structs.replace(event, positions=[]) for event in events]
    appended = journal.append(parcels, events, instead=nothing)
    journal.marks.when_refused(appended.done, lambda: journal.schedule.take_back_cancelled(events))
    journal.wait_for(appended, min(position.due_us for position in there))
    scheduler.wake()
    await appended.done
    _tidy(scheduler, there)


def _check_room(journal: ScheduleJournal, count: int) -> None:
    if journal.schedule.cancelled + count > CANCELLED_MAX:
        raise TooMany(f"{CANCELLED_MAX} cancelled messages still wait for their time to pass: try again later")


def _cancelled(found: Sequence[Position], topic: str, request: str = "", answer: int = 0) -> list[Cancelled]:
    """The events that take these messages out of their slots; for good if there is an `answer` to give."""
    by_place: dict[Place, dict[int, list[int]]] = {}
    for position in found:
        by_place.setdefault(position.place, {}).setdefault(position.seq, []).append(position.at)
    return [
        Cancelled(
            place.level,
            place.number,
            topic,
            sum(map(len, some.values())) if answer else 0,
            [(seq, sorted(places)) for seq, places in sorted(some.items())],
            request,
            answer,
        )
        for place, some in by_place.items()
    ]


def _tidy(scheduler: Scheduler, there: Sequence[Position]) -> None:
    for place in {position.place for position in there}:
        scheduler.tidy(place)
