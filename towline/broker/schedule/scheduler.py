"""The scheduler of delayed messages: books them, moves them nearer, and delivers them when they are due.

Due messages are copied into their lanes in one unit with the mark of the time up to which all were: a crash undoes both
or neither, so each message is delivered exactly once. Two loops run: one delivers, one keeps the near future in memory
and moves slots that come near. Both sleep until time makes a difference.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from towline.broker.schedule.delivered_ids import note_arrivals
from towline.broker.schedule.journal import Placed, ScheduleJournal, parcels_in, put
from towline.broker.schedule.refused_messages import RefusedMessages
from towline.broker.schedule.timer_loop import TimerLoop
from towline.broker.topics.topic import Lane, Topic
from towline.clock import SECOND_US, SET_US
from towline.delivery.schedule.delivered import Arrival, arrival
from towline.delivery.schedule.due_index import Entry
from towline.delivery.schedule.events import Dropped, Due, Moved, Run
from towline.delivery.schedule.record import OpenedRecord, Origin, join, ready, ready_in_order, resolve_times, split
from towline.delivery.schedule.schedule import NEAR_US, Slot
from towline.delivery.schedule.wheel import Place
from towline.delivery.schedule.wheel import ripe_at_us as ripe_at
from towline.errors import QueueFull, TooLarge
from towline.frame import Frame
from towline.frame.layout import unpacked_bytes
from towline.protocol.messages import Sent
from towline.store import Append, Appended

__all__ = ["Booking", "Scheduler", "delay_mark"]

log = logging.getLogger("towline.broker")

UNIT_BYTES: Final = 1 << 20
UNIT_PARCELS: Final = 2_000
UNITS_MAX: Final = 4
"""Units being written at a time."""
MOVE_BYTES: Final = 1 << 20
BOOK_LAG_US: Final = 8 * SECOND_US
ROOM_US: Final = 3600 * SECOND_US
"""Where the store is too large, the records of so long a time are written anew at a time."""
CANCELLED_PER_SLOT: Final = 20_000
"""A slot with more cancelled messages than this is rewritten without them."""

Pieces = list[tuple[OpenedRecord, int, int]]
Source = tuple[str, int, bytes, bytes]
"""Topic, lane number, address and token."""


class Arriving(NamedTuple):
    """A batch on its way to lanes: a frame for each, their destinations, and the number of messages of each topic."""

    lanes: list[tuple[Topic, Lane]]
    unit: list[Append]
    notes: list[Append]
    counts: dict[str, int]


NOTHING: Final = Arriving([], [], [], {})


class Booking(NamedTuple):
    """Frames that wait for their time: the records to append, and the id of the first message of each."""

    appends: list[Append]
    firsts: dict[int, int]
    """By the frame's index in its unit."""
    lying: list[Placed]
    events: list[Due]

    def sent(self, appended: Appended, frames: int) -> Sent:
        """The answer to a unit of so many frames: those that do not wait come first among the appended ones."""
        now = iter(appended.firsts)
        firsts = [self.firsts[number] if number in self.firsts else next(now) for number in range(frames)]
        return Sent(firsts, appended.at_us, delayed=sorted(self.firsts))


def delay_mark(first: int) -> int:
    """The form of a delayed message's id where sequence numbers are remembered as well; and back again."""
    return ~first


class Scheduler:
    def __init__(
        self,
        journal: ScheduleJournal,
        levels_us: Sequence[int],
        find_topic: Callable[[str], Topic],
        on_full: Callable[[], Awaitable[object]],
    ) -> None:
        self.journal = journal
        self.schedule = journal.schedule
        self.delivered = 0
        self.levels_us = levels_us
        self.find_topic = find_topic
        self._on_full = on_full
        self._unit_bytes = UNIT_BYTES
        self.changing = asyncio.Lock()
        """Held while messages are cancelled or rescheduled."""
        self._delivering = asyncio.Lock()
        self.moving = asyncio.Lock()
        """Held while messages are moved between slots."""
        self._deliver_loop = TimerLoop(journal.clock, "delivering what is due")
        self._move_loop = TimerLoop(journal.clock, "moving what comes near")
        self._under_way: deque[asyncio.Future[None]] = deque()
        self._rewriting: dict[Place, int] = {}
        self._drift_us: int | None = None
        self.held = RefusedMessages(self)
        journal.on_land = self._landed

    def loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        """The loops by name."""
        return {
            self._deliver_loop.what: self._deliver_loop.run(self.deliver_step, self.schedule.deliver_at_us),
            self._move_loop.what: self._move_loop.run(self.move_step, self.schedule.load_at_us),
        }

    def wake(self) -> None:
        self._deliver_loop.soon.set()
        self._move_loop.soon.set()

    def watch_clock(self) -> None:
        """Timers run on the steady clock. When the wall clock was set, they are set anew."""
        clock = self.journal.clock
        drift_us = clock.now_us() - round(clock.steady_s() * SECOND_US)
        jump_us, self._drift_us = drift_us - (drift_us if self._drift_us is None else self._drift_us), drift_us
        if abs(jump_us) > SET_US:
            tell_jump(jump_us)
        self.follow_clock()
        if abs(jump_us) > SECOND_US // 50:
            self.wake()

    def follow_clock(self) -> int:
        """New messages are due by the wall clock: also if that is behind what has been delivered, because it was ahead.
        Returns the time."""
        now_us = self.journal.clock.now_us()
        mark = self.schedule.new_era(now_us)
        if mark is not None:
            ahead_us = self.schedule.until_us - now_us
            self.journal.append([], [mark])
            log.log(
                logging.WARNING if ahead_us > SET_US else logging.INFO,
                "delayed messages were delivered by a clock that was %s ahead of what it is now: they stay delivered; "
                "new ones are due by the clock as it is",
                _span(ahead_us),
            )
        return now_us

    # Book

    def book(self, frames: Sequence[tuple[int, str, int, Frame]], source: bytes) -> Booking | None:
        """Put frames, each with its index in its unit, topic and lane number, into their slots; None if all of it is
        due by now. Nothing has happened before `booked`."""
        now_us = self.follow_clock()
        times = [resolve_times(frame, now_us, self.levels_us) for *_, frame in frames]
        late = [number for number, values in enumerate(times) if max(values) > now_us]
        if not late:
            return None
        until_us, events = self.schedule.until_us, list[Due]()
        if now_us - until_us > BOOK_LAG_US and not self._delivering.locked() and self._is_quiet(now_us):
            until_us = now_us
            events.append(self.schedule.due(now_us))
        firsts, parcels, next_id = dict[int, int](), list[Placed](), self.schedule.next_id
        for number in late:
            place, topic, lane, frame = frames[number]
            firsts[place] = next_id
            parcels += split(frame, times[number], until_us, Origin(topic, lane, source), next_id)
            next_id += frame.count
        appends, lying = put(parcels, self.schedule.era)
        if events:
            appends.append(self.journal.marks.entry(events))
        return Booking(appends, firsts, lying, events)

    def check(self, frame: Frame) -> None:
        """Raise the errors of `book` about the times of a frame that is to be booked later."""
        resolve_times(frame, self.journal.clock.now_us(), self.levels_us)

    def booked(self, booking: Booking, appended: Appended, skip: int) -> None:
        """The booking was appended, behind `skip` other frames."""
        self.journal.note(booking.lying, booking.events, appended, skip)
        for place, _ in booking.lying:
            if place.level:
                self._deliver_loop.not_after(ripe_at(place))
            else:
                self._move_loop.not_after(place.begin_us - NEAR_US)

    def _landed(self) -> None:
        """Records became durable, and those that are due soon are in the due index."""
        next_us = self.schedule.near.next_us
        if next_us is not None:
            self._deliver_loop.not_after(next_us)

    def _is_quiet(self, now_us: int) -> bool:
        return self.schedule.is_quiet(now_us) and self.journal.limit_us(now_us) >= now_us

    # Deliver

    async def deliver_step(self) -> bool:
        """Deliver due messages, as many as one unit holds. False if there is nothing to do now."""
        async with self._delivering:
            limit_us = self.journal.limit_us(self.journal.clock.now_us())
            if limit_us <= self.schedule.until_us:
                return False
            near = self.schedule.near
            taken = near.take(limit_us, self._unit_bytes, UNIT_PARCELS)
            if not taken:
                return self._pass_time(limit_us)
            try:
                taken = await self._fetch(taken)
                appended = self._deliver(taken)
                self._unit_bytes = min(self._unit_bytes * 2, UNIT_BYTES)
            except QueueFull:
                # A batch that does not fit at once may fit in parts, while consumers make room.
                if len(taken) == 1:
                    await self._on_full()
                    raise
                self._unit_bytes = max(min(self._unit_bytes, sum(entry.size for entry in taken)) // 2, 1)
                return True
            finally:
                for entry in taken:
                    near.put_back(entry)
        if appended is None:
            return False
        self._under_way.append(appended.done)
        while len(self._under_way) > UNITS_MAX:
            with suppress(TooLarge):  # see `carry`
                await asyncio.shield(self._under_way.popleft())
        return True

    def _pass_time(self, limit_us: int) -> bool:
        """Nothing is due, but a slot has come near: record it, so that it may be moved."""
        ripe = any(self.schedule.until_us < ripe_at(place) <= limit_us for place in self.schedule.slots if place.level)
        if ripe:
            self.journal.append([], [self.schedule.due(limit_us)])
            self._move_loop.soon.set()
        return ripe

    async def _fetch(self, taken: Sequence[Entry]) -> list[Entry]:
        """Read records for which the due index has no room. Unreadable ones are skipped."""
        there = []
        for entry in taken:
            if entry.opened is None:
                opened = await self.open_parcel(entry.place, entry.seq)
                if opened is None:
                    continue
                self.schedule.near.keep(entry, opened)
            there.append(entry)
        return there

    def _deliver(self, taken: Sequence[Entry]) -> Appended | None:
        """The due messages of these records go to their lanes, and the mark with them: decided and done in one step."""
        schedule = self.schedule
        limit_us = self.journal.limit_us(self.journal.clock.now_us())
        rest_us = schedule.near.next_us
        # Where more is due than one unit holds, this one ends where the rest begins.
        last = rest_us is None or rest_us > limit_us
        end_us = limit_us if last or rest_us is None else rest_us
        until_us = max(limit_us if last else end_us - 1, schedule.until_us)
        pieces: dict[Source, Pieces] = {}
        ahead, stops, runs = [], [], list[Run]()
        for entry in taken:
            opened = entry.opened
            assert opened is not None, "it was fetched"
            stop = bisect_right(opened.times, end_us, entry.at)
            stops.append(stop)
            if stop > entry.at:
                if opened.times[stop - 1] > until_us:
                    ahead.append((entry.place.number, entry.seq, stop))
                for start, end in self.runs_of(schedule.slots.get(entry.place), entry.seq, opened, entry.at, stop):
                    pieces.setdefault(opened.origin(), []).append((opened, start, end))
                    runs.append(Run(*entry.place, entry.seq, start, end))
        if until_us <= schedule.until_us and not ahead:
            return None
        kept = schedule.due(until_us, (), ahead, held=runs)
        try:
            arriving = self.arriving(pieces)
            due = schedule.due(until_us, list(arriving.counts.items()), ahead)
            appended = self.carry(due, kept, runs, arriving=arriving)
        except TooLarge:
            # They are, together.
            appended = self.journal.append([], [kept])
            self.held.refused(runs)
        for entry, stop in zip(taken, stops, strict=True):
            entry.at = stop
        return appended

    def arriving(self, pieces: Mapping[Source, Pieces]) -> Arriving:
        """Due messages, as they go to their lanes."""
        found = Arriving([], [], [], {})
        firsts: dict[str, int] = {}
        arrivals: dict[str, list[Arrival]] = {}
        for topic, number, frame, ids, source in self._frames(pieces):
            name, lane, count = topic.config.name, topic.lanes[number], len(ids)
            first = firsts.get(lane.stream, lane.next)
            firsts[lane.stream] = first + count
            arrivals.setdefault(name, []).append(arrival(number, first, ids))
            found.counts[name] = found.counts.get(name, 0) + count
            found.lanes.append((topic, lane))
            found.unit.append(Append(lane.stream, frame, count, source))
        found.notes.extend(note_arrivals(arrivals))
        return found

    def carry(
        self,
        event: Due | Moved,
        kept: Due | Moved,
        runs: Sequence[Run],
        *,
        arriving: Arriving = NOTHING,
        parcels: Sequence[Placed] = (),
    ) -> Appended:
        """Record that these messages went elsewhere, in one unit with them. If they are refused late, they are held."""
        schedule, count = self.schedule, sum(arriving.counts.values())
        slots = {slot.place: slot for run in runs if (slot := schedule.slots.get(run.place)) is not None}
        appended = self.journal.append(parcels, [event], [*arriving.unit, *arriving.notes], [kept])
        self.delivered += count
        _show(arriving.lanes, arriving.unit, appended)

        def take_back() -> None:
            self.delivered -= count
            schedule.take_back(event, runs, slots)
            if not (isinstance(event, Due) and event.released):
                self.held.refused(runs)

        self.journal.marks.when_refused(appended.done, take_back)
        return appended

    def _frames(self, pieces: Mapping[Source, Pieces]) -> Iterator[tuple[Topic, int, bytes, Sequence[int], bytes]]:
        """Due messages, by their origin, as frames for the lanes, and the ids of the messages. To a shard they come in
        the order of their times, whoever sent them: there, the order of arrival is what counts from then on."""
        shards: dict[tuple[str, int], tuple[Topic, Pieces]] = {}
        for (name, given, source, _), some in pieces.items():
            topic = self.find_topic(name)
            number = min(given, len(topic.lanes) - 1)
            if topic.config.shards:
                shards.setdefault((name, number), (topic, []))[1].extend(some)
            else:
                frame, ids = ready(some)
                yield topic, number, frame, ids, source
        for (_, number), (topic, some) in shards.items():
            for frame, numbers, source in ready_in_order(some):
                yield topic, number, frame, numbers, source

    def runs_of(
        self, slot: Slot | None, seq: int, opened: OpenedRecord, start: int, stop: int
    ) -> Iterator[tuple[int, int]]:
        """The messages of these to be delivered: (from, to)."""
        if self.schedule.is_dropped(opened.parcel):
            return
        gone = slot.cancelled.get(seq) if slot is not None else None
        for at in sorted(gone) if gone else ():
            if start <= at < stop:
                if start < at:
                    yield start, at
                start = at + 1
        if start < stop:
            yield start, stop

    # Move

    async def move_step(self) -> bool:
        """Read a slot into memory, or move a part of one nearer. False if there is nothing to do now."""
        async with self.moving:
            slot = self.schedule.to_load(self.journal.clock.now_us())
            if slot is not None:
                await self._load(slot)
                self._deliver_loop.soon.set()
                return True
            slot = self.schedule.ripe() or self._to_rewrite()
            if slot is None:
                return False
            if slot.place.level:
                await self._move(slot)
            else:
                async with self._delivering:  # nobody has taken any of it out of the due index
                    if self._to_rewrite() is slot:
                        await self._move(slot)
            self._deliver_loop.soon.set()
            return True

    async def _load(self, slot: Slot) -> None:
        schedule, stream = self.schedule, slot.place.stream
        while slot.loading < slot.end:
            read = await self.journal.read(stream, slot.loading)
            for seq, parcel, _ in parcels_in(read, stream):
                if parcel.number == slot.place.number:
                    delivered_us = schedule.delivered_us(parcel.era)
                    schedule.near.add(slot.place, seq, parcel, slot.ahead.get(seq, 0), delivered_us)
            slot.loading = read.next
        slot.loaded_to = slot.loading

    async def _move(self, slot: Slot) -> None:
        """Move some records of a slot to where they belong now: into finer slots, or anew into the same one."""
        schedule, stream = self.schedule, slot.place.stream
        if slot.next == slot.end:
            return
        read = await self.journal.read(stream, slot.next, MOVE_BYTES)
        pieces: dict[Source, Pieces] = {}
        messages, runs, end, room = 0, list[Run](), read.next, MOVE_BYTES
        for seq, parcel, _ in parcels_in(read, stream):
            if parcel.number != slot.place.number:
                continue
            if room <= 0:
                end = seq
                break
            room -= unpacked_bytes(parcel.frame)
            opened = OpenedRecord(parcel)
            messages += parcel.count
            first = schedule.waits_from(slot, seq, opened)
            for start, stop in self.runs_of(slot, seq, opened, first, parcel.count):
                pieces.setdefault(opened.origin(), []).append((opened, start, stop))
                runs.append(Run(*slot.place, seq, start, stop))
        moved = Moved(*slot.place, end, messages)
        kept = Moved(*slot.place, end, messages, runs)
        try:
            parcels = [placed for some in pieces.values() for placed in join(some, schedule.until_us)]
            appended = self.carry(moved, kept, runs, parcels=parcels)
        except TooLarge:
            # They are, together.
            appended = self.journal.append([], [kept])
            self.held.refused(runs)
        slot.since_us = appended.at_us
        with suppress(TooLarge):  # see `carry`
            await appended.done

    async def open_parcel(self, place: Place, seq: int) -> OpenedRecord | None:
        read = await self.journal.store.read(place.stream, seq, 1, 1)
        found = [parcel for number, parcel, _ in parcels_in(read, place.stream) if number == seq]
        return OpenedRecord(found[0]) if found else None

    def rewrite_older(self, before_us: int) -> None:
        """Write anew all records from before then, or from a clock that was ahead: messages delayed for years must not
        keep log files that retention would drop."""
        for slot in self.schedule.older(before_us, self.follow_clock()):
            self._rewriting.setdefault(slot.place, slot.end)
        self._move_loop.soon.set()

    def make_room(self, streams: Collection[str], store_max_bytes: int) -> None:
        """The store is larger than it should be, and the records in these streams keep it so: write the oldest anew.
        Where delayed messages are much of the store, that would go on for ever and free little."""
        bounds, slots, now_us = self.journal.store.bounds, self.schedule.slots, self.follow_clock()
        # The old copies are trimmed some time later.
        times = [
            slot.since_us
            for place, slot in slots.items()
            if self.schedule.may_move(slot) and place.stream in streams and slot.next <= bounds(place.stream).first
        ]
        waiting_bytes = sum(bounds(stream).size_bytes for stream in {place.stream for place in slots})
        if not times or 2 * waiting_bytes > store_max_bytes:
            return
        oldest_us = min(times)
        self.rewrite_older(oldest_us + 1 + min((now_us - oldest_us) // 2, ROOM_US))

    def tidy(self, place: Place) -> None:
        """A slot with very many cancelled messages is rewritten without them."""
        slot = self.schedule.slots.get(place)
        if slot is not None and place.level and sum(map(len, slot.cancelled.values())) > CANCELLED_PER_SLOT:
            self._rewriting.setdefault(place, slot.end)
            self._move_loop.soon.set()

    def _to_rewrite(self) -> Slot | None:
        for place, end in list(self._rewriting.items()):
            slot = self.schedule.slots.get(place)
            if slot is not None and slot.next < end and self.schedule.may_move(slot):
                return slot
            del self._rewriting[place]
        return None

    # Topics

    async def drop_topic(self, topic: str) -> None:
        """The topic is being deleted, and its delayed messages with it."""
        if self.schedule.counts.get(topic):
            await self.journal.append([], [Dropped(topic, self.schedule.next_id)]).done

    def pass_quietly(self) -> None:
        """Where nothing is due, record now and then that time has passed: so old slots can go."""
        now_us = self.journal.clock.now_us()
        idle = self.schedule.slots and not self._delivering.locked() and now_us - self.schedule.until_us > BOOK_LAG_US
        if idle and self._is_quiet(now_us):
            self.journal.append([], [self.schedule.due(now_us)])

    def figures(self) -> dict[str, int]:
        next_us = self.schedule.near.next_us
        late_us = 0 if next_us is None else max(self.journal.clock.now_us() - next_us, 0)
        waiting = sum(self.schedule.counts.values())
        return {"delayed": waiting, "delayed_delivered": self.delivered, "delayed_late_ms": late_us // 1000}

    # Loops

    async def catch_up(self) -> None:
        """Do all there is to do now; it is visible to consumers when this returns."""
        while await self.move_step() or await self.deliver_step():
            pass
        await self.settle()

    async def settle(self) -> None:
        """Wait until all delivered messages are visible."""
        seen = set[asyncio.Future[None]]()
        while more := [future for future in [*self._under_way, *self.held.under_way()] if future not in seen]:
            seen.update(more)
            for error in await asyncio.gather(*more, return_exceptions=True):
                if error is not None and not isinstance(error, TooLarge):
                    raise error


def tell_jump(jump_us: int) -> None:
    """Log that the wall clock was set, or the machine slept."""
    if jump_us > 0:
        log.warning(
            "the clock jumped %s forward: what is due by the new time is delivered now, and lifetimes and retention go "
            "by it; back-offs and timeouts do not. If it is wrong, set it right soon",
            _span(jump_us),
        )
    else:
        log.warning(
            "the clock was set back by %s: what waited for a time before that waits for it again; new delays count "
            "from the clock as it is, and back-offs and timeouts go on as they were",
            _span(-jump_us),
        )


def _span(time_us: int) -> str:
    return f"{time_us / SECOND_US:,.3f} s"


def _show(lanes: Sequence[tuple[Topic, Lane]], unit: Sequence[Append], appended: Appended) -> None:
    """The messages are in their lanes: they are visible once they are durable."""
    for (_, lane), append, first in zip(lanes, unit, appended.firsts[: len(unit)], strict=True):
        lane.submitted(first, append, appended.at_us, appended.done)

    def finish(done: asyncio.Future[None]) -> None:
        for _, lane in lanes:
            lane.advance()
        for topic in {topic for topic, _ in lanes}:
            topic.wake()

    if appended.done.done():
        finish(appended.done)
    else:
        appended.done.add_done_callback(finish)
