"""The schedule of delayed messages on its streams: recording what happens, reading what waits, coming back.

The streams `delay/<level>/<slot>` hold parcels, `delay/marks` says what became of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from towline.broker.journal import Journal, events_in, replayed, trim
from towline.clock import Clock, TimeSlice
from towline.delivery.schedule.events import ScheduleEvent, decode_schedule_event, encode_schedule_event
from towline.delivery.schedule.record import ScheduleRecord, decode_parcel, encode_parcels
from towline.delivery.schedule.schedule import NEAR_US, Schedule, ScheduleSnapshot, Slot
from towline.delivery.schedule.wheel import Place
from towline.errors import QueueFull, StoreDamaged
from towline.model import Durability
from towline.store import Append, Appended, Read, Store
from towline.store.document import NEWER, ConfigFile, DataVersion

__all__ = ["MARKS", "ScheduleJournal", "parcels_in", "put"]

log = logging.getLogger("towline.broker")

MARKS: Final = "delay/marks"
OFFSETS: Final = "delayOffset.json"
READ_COUNT: Final = 10_000
READ_BYTES: Final = 1 << 20

Placed = tuple[Place, ScheduleRecord]


class _Offsets(ScheduleSnapshot, frozen=True, kw_only=True):
    version: DataVersion = msgspec.field(name="dataVersion", default=DataVersion())
    until: str = ""
    """`until_us` for people."""


def put(parcels: Sequence[Placed], era: int) -> tuple[list[Append], list[Placed]]:
    """The frames that put parcels into their slots, one a slot; and the parcels in the order they have there."""
    by_place: dict[Place, list[ScheduleRecord]] = {}
    for place, parcel in parcels:
        by_place.setdefault(place, []).append(msgspec.structs.replace(parcel, era=era) if era else parcel)
    appends = [Append(place.stream, encode_parcels(some), len(some)) for place, some in by_place.items()]
    return appends, [(place, parcel) for place, some in by_place.items() for parcel in some]


def parcels_in(read: Read, stream: str) -> Iterator[tuple[int, ScheduleRecord, int]]:
    """What was read of a slot: number, parcel, time. What is lost is reported; what is not understood
    refuses the start, or whatever needs it."""
    for lost in read.lost:
        log.error(
            "%s: %d parcels of delayed messages from %d on are lost: %s", stream, lost.count, lost.first, lost.reason
        )
    for chunk in read.chunks:
        for seq, parcel in events_in(chunk, stream, decode_parcel):
            yield seq, parcel, chunk.appended_at_us


class ScheduleJournal:
    """State in memory and on its streams, changed in one step: the append first, then the memory."""

    def __init__(self, store: Store, clock: Clock, durability: Durability, *, borrow_bytes: int = 0) -> None:
        self.store = store
        self.clock = clock
        self.durability = durability
        self.schedule = schedule = Schedule()
        self.marks = Journal[ScheduleEvent](
            store, MARKS, encode_schedule_event, decode_schedule_event, lambda event, _: schedule.apply(event)
        )
        self.on_land: Callable[[], None] = lambda: None
        self._borrow_bytes = borrow_bytes
        self._borrowed = 0
        self._ends: dict[str, int] = {}
        self._pending: dict[asyncio.Future[None], int] = {}
        self._file = ConfigFile(store, OFFSETS, _Offsets, indent=1)
        self._version = DataVersion()
        self._saved: ScheduleSnapshot | None = None
        self._before: ScheduleSnapshot | None = None
        """The snapshot before, which the file's `.bak` holds: recovery may have to begin with it."""

    # Recording

    def append(
        self,
        parcels: Sequence[Placed],
        events: Sequence[ScheduleEvent],
        also: Sequence[Append] = (),
        instead: Sequence[ScheduleEvent] | None = None,
    ) -> Appended:
        """Record events, put parcels into slots and append `also`, as one unit. If that is refused, nothing has
        happened; if it is late, other events stand `instead`, and the caller takes back what these do not say. The
        first sequence numbers of the answer are those of `also`."""
        puts, lying = put(parcels, self.schedule.era)
        unit = [*also, *puts]
        if events:
            unit.append(self.marks.entry(events, instead))
        appended = self._append(unit)
        self.note(lying, events, appended, len(also))
        return appended

    def wait_for(self, appended: Appended, due_us: int) -> None:
        """Deliver nothing that is due from then on before this unit is durable, or refused."""
        done = appended.done
        if not done.done():
            self._pending[done] = min(due_us, self._pending.get(done, due_us))
            done.add_done_callback(lambda done: self._pending.pop(done, None))

    def note(self, lying: Sequence[Placed], events: Sequence[ScheduleEvent], appended: Appended, skip: int) -> None:
        """Remember what was appended: behind the first `skip` frames of the unit come the parcels, then the events."""
        schedule, firsts = self.schedule, appended.firsts
        self.marks.note(events, appended.at_us)
        if not lying:
            return
        near_us = self.clock.now_us() + NEAR_US
        at, before, seq = skip - 1, None, 0
        landing = []
        for place, parcel in lying:
            at, seq = (at, seq + 1) if place == before else (at + 1, firsts[at + 1])
            before = place
            slot = schedule.register(place, seq, parcel, appended.at_us)
            self._ends[place.stream] = seq + 1
            if slot.end == slot.next + 1 and place.level == 0 and place.begin_us <= near_us:
                # It is new, so there is nothing to read.
                slot.loaded_to = seq
            landing.append((place, seq, parcel))
        if appended.done.done():
            self._land(appended.done, landing)
            return
        self._pending[appended.done] = min(parcel.first_us for _, parcel in lying)
        appended.done.add_done_callback(lambda done: self._land(done, landing))

    def _land(self, done: asyncio.Future[None], landing: Iterable[tuple[Place, int, ScheduleRecord]]) -> None:
        """The parcels are durable: what is due soon is seen now."""
        self._pending.pop(done, None)
        schedule = self.schedule
        if done.cancelled():
            return
        if done.exception() is not None:
            self.marks.refusals += 1
            for place, _, parcel in landing:
                schedule.refused(place, parcel)
            self.on_land()
            return
        for place, seq, parcel in landing:
            slot = schedule.slots.get(place)
            if slot is not None and slot.loaded_to is not None and seq >= slot.loaded_to:
                schedule.near.add(place, seq, parcel, 0, schedule.delivered_us(parcel.era))
        self.on_land()

    def _append(self, unit: list[Append]) -> Appended:
        try:
            appended = self.store.append(unit, max(self.durability, Durability.OS))
        except QueueFull:
            # A store that is full of delayed messages is emptied by delivering them. So a little of the reserve may be
            # used; most of it is for the events of consumers. Only messages are owed, because only their room is
            # repaid: marks and arrivals are events themselves.
            size = sum(len(one.frame) for one in unit if not one.control)
            if not self._borrow_bytes or (self._borrowed and self._borrowed + size > self._borrow_bytes):
                raise
            appended = self.store.append([one._replace(control=True) for one in unit], self.durability)
            self._borrowed += size
            return appended
        self._borrowed = 0
        return appended

    def repay(self, freed_bytes: int) -> None:
        """Consumers have made room."""
        self._borrowed = max(self._borrowed - freed_bytes, 0)

    def limit_us(self, now_us: int) -> int:
        """How far may be delivered: nothing that is not durable yet either."""
        return min([self.schedule.limit_us(now_us), *(first_us - 1 for first_us in self._pending.values())])

    # Reading

    async def read(self, stream: str, first: int, max_bytes: int = READ_BYTES) -> Read:
        """Read parcels that are known to be there; waits until they are written."""
        while True:
            read = await self.store.read(stream, first, READ_COUNT, max_bytes)
            if read.chunks or read.lost or read.next > first:
                return read
            await self.store.append([], Durability.OS).done

    async def parcels(self, slot: Slot, ids: Collection[int] = ()) -> AsyncIterator[tuple[int, ScheduleRecord]]:
        """All parcels of a slot, as long as it is there; given ids, those that may hold one of them."""
        held = [(seq, seq + 1) for seq in sorted(slot.held) if seq < slot.next]
        for first, end in [*held, *(slot.spans_with(ids) if ids else [(slot.next, slot.end)])]:
            async for found in self._parcels(slot, first, end):
                yield found

    async def _parcels(self, slot: Slot, at: int, end: int) -> AsyncIterator[tuple[int, ScheduleRecord]]:
        stream = slot.place.stream
        while at < end:
            read = await self.store.read(stream, at, min(end - at, READ_COUNT), READ_BYTES)
            if read.next <= at:
                return
            for seq, parcel, _ in parcels_in(read, stream):
                if parcel.number == slot.place.number:
                    yield seq, parcel
            at = read.next

    # Coming back

    async def recover(self, part: TimeSlice) -> None:
        schedule, ends, position = self.schedule, dict[str, int](), 0
        document = await self._load()
        if document is not None:
            schedule.restore(document)
            ends, position = document.ends, document.position
            self._saved = self._before = document
        # Parcels before marks: so all slots are there that the marks speak of.
        for stream in self.store.streams("delay/"):
            if stream != MARKS:
                await self._recover_slots(stream, ends.get(stream, 0), part)
        await self.marks.replay(position, part)
        for slot in schedule.slots.values():
            slot.next = slot.loading = max(slot.next, self.store.bounds(slot.place.stream).first)

    async def _load(self) -> _Offsets | None:
        try:
            offsets = await self._file.load()
        except StoreDamaged as error:
            log.error("%s. The schedule is replayed from its streams instead", error)
            return None
        if offsets is None:
            return None
        self._version = offsets.version
        if not self._is_ahead(offsets):
            return offsets
        older = await self._file.load_older()
        instead = None if older is None or self._is_ahead(older) else older
        source = "The schedule is read from its streams" if instead is None else f"{self._file.backup} is used"
        log.error(
            "%s speaks of delayed messages that the log does not have: %s. %s instead: what waits in the log is "
            "delivered, maybe also what was cancelled long ago",
            *(OFFSETS, NEWER, source),
        )
        return instead

    def _is_ahead(self, document: ScheduleSnapshot) -> bool:
        """Whether it speaks of what the log does not have: to go on with it would lose what the log has instead."""
        bounds = self.store.bounds
        ends = any(end > bounds(stream).end for stream, end in document.ends.items())
        return ends or document.position > bounds(MARKS).end

    async def _recover_slots(self, stream: str, first: int, part: TimeSlice) -> None:
        level = int(stream.split("/")[1])
        self._ends[stream] = self.store.bounds(stream).end
        async for seq, parcel, at_us in replayed(self.store, stream, first, decode_parcel, part):
            self.schedule.register(Place(level, parcel.number), seq, parcel, at_us)

    # Keeping

    async def save(self) -> None:
        """Write what recovery begins with. It never speaks of anything that is not durable."""
        saved = self._saved
        if (self.marks.next, self._ends) == ((0, {}) if saved is None else (saved.position, saved.ends)):
            await self.settle()
            return
        snapshot = await self.marks.settled(
            lambda: self.schedule.snapshot(self.marks.next, dict(sorted(self._ends.items())))
        )
        until = datetime.fromtimestamp(snapshot.until_us / 1e6, UTC).isoformat(timespec="milliseconds")
        fields = {name: getattr(snapshot, name) for name in ScheduleSnapshot.__struct_fields__}
        version = self._version.next(self.clock.now_us())
        await self._file.save(_Offsets(**fields, version=version, until=until))
        self._version = version
        # The first has no predecessor: should it be lost, the streams are replayed, and all of them is there.
        self._before, self._saved = saved or snapshot, snapshot

    async def settle(self) -> None:
        """Let go of the snapshot before: what only that one needs is not to be kept for ever."""
        if self._before is not self._saved:
            await self._file.settle()
            self._before = self._saved

    async def trim(self) -> None:
        """Let go of what was delivered or moved, as far as both snapshots say so; then of the marks, but for one: so
        even without a snapshot nothing is delivered twice."""
        kept = self._before
        if kept is None:
            return
        before = dict(kept.ends)
        for slot in kept.slots:
            stream = Place(slot.level, slot.number).stream
            before[stream] = min(slot.first, before.get(stream, slot.first))
        await trim(self.store, before)
        await trim(self.store, {MARKS: kept.position - 1})

    def pins(self) -> dict[str, int]:
        """What waits, and what recovery needs: delayed messages outlive retention."""
        pins: dict[str, int] = {}
        waiting = [(slot.place, slot.first) for slot in self.schedule.slots.values()]
        before = () if self._before is None else self._before.slots
        for place, first in [*waiting, *((Place(one.level, one.number), one.first) for one in before)]:
            pins[place.stream] = min(first, pins.get(place.stream, first))
        if self.marks.next:
            pins[MARKS] = max((self._before.position if self._before is not None else 0) - 1, 0)
        return pins

    def ends(self) -> dict[str, int]:
        """How much of each stream of parcels is readable now."""
        return {stream: end for stream in self._ends if (end := self.store.bounds(stream).end)}
