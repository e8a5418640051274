"""The schedule of delayed messages: delivered, waiting and cancelled ones. Pure, as all of delivery.

`until_us` is the time up to which everything has been delivered. It never passes a message that waits: so "due after
`until_us`" is the same as "not delivered yet", and one number is nearly all that recovery needs.

Where the clock is behind it, because it was ahead and has been corrected, a new *era* begins: `until_us` goes back to
the clock's time, and new messages are due by that. Records carry the era in which they were written; for those of
earlier ones, the time up to which they were delivered stays a *floor* until the clock is there again.

Messages that the store refuses at their destination are *held*: they stay in their record and their slot, whatever
happens to the others there, and whatever the time is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from towline.clock import SECOND_US, is_ahead
from towline.delivery.schedule.due_index import DueIndex
from towline.delivery.schedule.events import Cancelled, Dropped, Due, Moved, Run, ScheduleEvent
from towline.delivery.schedule.record import OpenedRecord, ScheduleRecord
from towline.delivery.schedule.wheel import Place, is_over, place_of, ripe_at_us

__all__ = ["CANCELLED_MAX", "Position", "Schedule", "ScheduleSnapshot", "Slot", "SlotSnapshot"]

NEAR_US: Final = 2 * SECOND_US
"""Slots of seconds are read into memory this long before they begin."""
NEAR_BYTES: Final = 64 << 20
RUN_PARCELS: Final = 64
CANCELLED_MAX: Final = 1_000_000
ANSWERS_MAX: Final = 1_000
ERAS_MAX: Final = 100
"""After so many corrections that the clock has not made up for, new messages wait until it has."""
FOREVER_US: Final = (1 << 63) - 1


class Position(NamedTuple):
    """The place of a waiting message, and its due time."""

    place: Place
    seq: int
    """Its record, …"""
    at: int
    """… and its index in that."""
    id: int
    due_us: int
    era: int
    """Of its record."""


class SlotSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    level: int
    number: int
    next: int
    """The first record of its stream that still waits, …"""
    end: int
    """… and the one behind the last."""
    messages: int
    ids: tuple[int, int]
    since_us: int
    """When the oldest of its records was written."""
    cancelled: list[tuple[int, list[int]]] = []
    ahead: list[tuple[int, int]] = []
    last_us: int = 0
    """The due time of the last of its messages; 0 is not known."""
    era: int = 0
    held: list[tuple[int, list[int]]] = []

    @property
    def first(self) -> int:
        """The first record that is needed."""
        return min(self.next, *(seq for seq, _ in self.held)) if self.held else self.next


class ScheduleSnapshot(msgspec.Struct, frozen=True):
    """The contents of `delayOffset.json`."""

    position: int
    """The position in the stream of marks: those before it are included."""
    until_us: int
    next_id: int
    delayed: dict[str, int]
    """Waiting messages by topic."""
    slots: list[SlotSnapshot]
    ends: dict[str, int]
    """The end of each stream: the records before it are included."""
    dropped: dict[str, int] = {}
    answers: dict[str, int] = {}
    era: int = 0
    floors: list[tuple[int, int]] = []


class Slot:
    """Records `next` to `end` of a stream, that wait. After the clock was set back, some of them may be of another slot
    of the same stream: records name theirs."""

    __slots__ = (
        "ahead",
        "begin_us",
        "cancelled",
        "end",
        "era",
        "held",
        "last_us",
        "loaded_to",
        "loading",
        "max_id",
        "messages",
        "min_id",
        "next",
        "place",
        "runs",
        "since_us",
    )

    def __init__(self, place: Place, first: int, since_us: int) -> None:
        self.place = place
        self.begin_us = place.begin_us
        self.next = first
        self.end = first
        self.messages = 0
        self.min_id = (1 << 63) - 1
        self.max_id = -1
        self.since_us = since_us
        self.last_us = 0
        self.era = 0
        """Of its newest record."""
        self.cancelled: dict[int, set[int]] = {}
        """By record, the indices of its messages that are not to be delivered."""
        self.ahead: dict[int, int] = {}
        """By record, how many of its messages were delivered before all others due at the same time were."""
        self.held: dict[int, set[int]] = {}
        """By record, the indices of its messages that are held; also of records before `next`."""
        self.runs: list[list[int]] = []
        """The lowest and highest id of some records in a row, and the first of these: one message is found without
        reading all of a slot."""
        self.loading = first
        """Slots of seconds: the next record to read into the due index. Once all are there, …"""
        self.loaded_to: int | None = None
        """… those from this one on are added as they are written."""

    @property
    def first(self) -> int:
        """The first record that is needed."""
        return min(self.next, *self.held) if self.held else self.next

    def note(self, seq: int, low: int, high: int, last_us: int) -> None:
        """A record with ids from `low` to `high` is in the slot, all of it due by `last_us`."""
        self.end = seq + 1
        self.min_id = min(self.min_id, low)
        self.max_id = max(self.max_id, high)
        self.last_us = max(self.last_us, last_us)
        run = self.runs[-1] if self.runs else None
        if run is None or seq - run[0] >= RUN_PARCELS:
            self.runs.append([seq, low, high])
            return
        run[1] = min(run[1], low)
        run[2] = max(run[2], high)

    def spans_with(self, ids: Collection[int]) -> list[tuple[int, int]]:
        """The records that may hold messages with these ids: (from, to)."""
        ends = [*(run[0] for run in self.runs[1:]), self.end]
        wanted = sorted(ids)
        found = []
        for (first, low, high), end in zip(self.runs, ends, strict=True):
            at = bisect_left(wanted, low)
            if end > self.next and at < len(wanted) and wanted[at] <= high:
                found.append((max(first, self.next), end))
        return found


class Schedule:
    def __init__(self) -> None:
        self.until_us = 0
        self.era = 0
        self.floors: list[tuple[int, int]] = []
        """Records from before an era were delivered up to this time, which the clock has not reached again."""
        self.next_id = 1
        self.slots: dict[Place, Slot] = {}
        self.counts: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        self.cancelled = 0
        """Cancelled messages that are remembered."""
        self.answers: dict[str, int] = {}
        """The counts of the last cancel requests, by their names."""
        self.near = DueIndex(NEAR_BYTES)

    # Events

    def register(self, place: Place, seq: int, parcel: ScheduleRecord, at_us: int) -> Slot:
        """A record is in its slot."""
        slot = self.slots.get(place)
        if slot is None:
            slot = self.slots[place] = Slot(place, seq, at_us)
        low, high = parcel.id_range()
        slot.note(seq, low, high, parcel.last_us)
        slot.era = max(slot.era, parcel.era)
        slot.messages += parcel.count
        if high >= self.next_id:
            self.next_id = high + 1
        if not parcel.moved and not self.is_dropped(parcel):
            self.counts[parcel.topic] = self.counts.get(parcel.topic, 0) + parcel.count
        return slot

    def refused(self, place: Place, parcel: ScheduleRecord) -> None:
        """A record is not in its slot after all: its number there is read as lost."""
        slot = self.slots.get(place)
        if slot is not None:
            slot.messages -= parcel.count
        if not parcel.moved and not self.is_dropped(parcel):
            self._count_down(parcel.topic, parcel.count)

    def apply(self, event: ScheduleEvent) -> None:
        match event:
            case Due():
                self._apply_due(event)
            case Moved():
                self._apply_moved(event)
            case Cancelled():
                self._apply_cancelled(event)
            case Dropped():
                self.dropped[event.topic] = max(event.before_id, self.dropped.get(event.topic, 0))
                self.counts.pop(event.topic, None)

    def _apply_due(self, event: Due) -> None:
        if event.era > self.era:
            self.era, self.until_us, self.floors = event.era, event.until_us, list(event.floors)
        self.until_us = max(self.until_us, event.until_us)
        self.floors = [floor for floor in self.floors if floor[1] > self.until_us]
        self.next_id = max(self.next_id, event.next_id)
        for topic, count in event.delivered:
            self._count_down(topic, count)
        for number, seq, at in event.ahead:
            slot = self.slots.get(Place(0, number))
            if slot is not None:
                slot.ahead[seq] = at
        self._hold(event.held)
        self._release(event.released)
        # Replay meets records before marks: those of a later era were not there yet.
        over = [one for one in self.slots.values() if one.era <= self.era and is_over(one.place, self.until_us)]
        for slot in over:
            if not slot.held:
                self._remove(slot)

    def _apply_moved(self, event: Moved) -> None:
        slot = self.slots.get(Place(event.level, event.number))
        if slot is None:
            return
        slot.next = max(slot.next, event.next)
        slot.messages -= event.messages
        if not event.level:
            # The rest of it is read anew when it comes near.
            self.near.drop(slot.place)
            slot.loading, slot.loaded_to = slot.next, None
        self._hold(event.held)
        for seq in [seq for seq in slot.cancelled if seq < slot.next and seq not in slot.held]:
            self.cancelled -= len(slot.cancelled.pop(seq))
        if slot.next >= slot.end and not slot.held:
            self._remove(slot)

    def _hold(self, runs: Sequence[Run]) -> None:
        for run in runs:
            slot = self.slots.get(run.place)
            if slot is not None:
                slot.held.setdefault(run.seq, set()).update(range(run.start, run.stop))

    def _release(self, runs: Sequence[Run]) -> None:
        for run in runs:
            slot = self.slots.get(run.place)
            if slot is None or run.seq not in slot.held:
                continue
            slot.held[run.seq].difference_update(range(run.start, run.stop))
            if not slot.held[run.seq]:
                del slot.held[run.seq]
            if slot.next >= slot.end and not slot.held:
                self._remove(slot)

    def take_back(self, event: Due | Moved, runs: Sequence[Run], slots: Mapping[Place, Slot]) -> None:
        """Undo an event that was applied and not stored, because its messages were refused: instead, these are held.
        The slots are those that they were in."""
        if isinstance(event, Due):
            for topic, count in event.delivered:
                self.counts[topic] = self.counts.get(topic, 0) + count
        for place, slot in slots.items():
            if place not in self.slots:
                self.slots[place] = slot
                self.cancelled += sum(map(len, slot.cancelled.values()))
        self._hold(runs)

    def take_back_cancelled(self, events: Sequence[Cancelled]) -> None:
        """Undo a move of messages that were refused in their new slots: they are where they were."""
        for event in events:
            slot = self.slots[Place(event.level, event.number)]
            for seq, indices in event.positions:
                slot.cancelled[seq].difference_update(indices)
                self.cancelled -= len(indices)

    def _apply_cancelled(self, event: Cancelled) -> None:
        if event.request:
            self._remember_answer(event.request, event.answer)
        self._count_down(event.topic, event.count)
        slot = self.slots.get(Place(event.level, event.number))
        if slot is None:
            return
        for seq, indices in event.positions:
            gone = slot.cancelled.setdefault(seq, set())
            self.cancelled -= len(gone)
            gone.update(indices)
            self.cancelled += len(gone)

    def _remember_answer(self, request: str, answer: int) -> None:
        self.answers.pop(request, None)
        self.answers[request] = answer
        while len(self.answers) > ANSWERS_MAX:
            del self.answers[next(iter(self.answers))]

    def _count_down(self, topic: str, count: int) -> None:
        left = self.counts.get(topic, 0) - count
        if left:
            self.counts[topic] = left
        else:
            self.counts.pop(topic, None)

    def _remove(self, slot: Slot) -> None:
        del self.slots[slot.place]
        self.cancelled -= sum(map(len, slot.cancelled.values()))
        if self.dropped:
            lowest = min((one.min_id for one in self.slots.values()), default=self.next_id)
            self.dropped = {topic: before for topic, before in self.dropped.items() if before > lowest}

    # Decisions

    def due(
        self,
        until_us: int,
        delivered: Sequence[tuple[str, int]] = (),
        ahead: Sequence[tuple[int, int, int]] = (),
        *,
        held: Sequence[Run] = (),
        released: Sequence[Run] = (),
    ) -> Due:
        """The mark that everything up to then is in its lane."""
        return Due(
            until_us,
            self.next_id,
            list(delivered),
            list(ahead),
            self.era,
            list(self.floors),
            list(held),
            list(released),
        )

    def new_era(self, now_us: int) -> Due | None:
        """The mark that the clock was set back, to before the time up to which all is delivered; None if it was not."""
        if now_us >= self.until_us or len(self.floors) >= ERAS_MAX:
            return None
        era = self.era + 1
        return Due(now_us, self.next_id, era=era, floors=[*self.floors, (era, self.until_us)])

    def delivered_us(self, era: int) -> int:
        """The time up to which all messages written in an era have been delivered."""
        return max([self.until_us, *(floor_us for before, floor_us in self.floors if era < before)])

    def limit_us(self, now_us: int) -> int:
        """The time up to which messages may be delivered: never the future, and never past a slot that was not loaded
        yet."""
        begins = [slot.begin_us for slot in self.slots.values() if slot.loaded_to is None]
        return min(now_us, min(begins) - 1) if begins else now_us

    def is_quiet(self, now_us: int) -> bool:
        """Whether nothing is due by now, so that time may simply pass."""
        next_us = self.near.next_us
        return (next_us is None or next_us > now_us) and self.limit_us(now_us) >= now_us

    def to_load(self, now_us: int) -> Slot | None:
        """The next slot that has to be loaded into memory by now."""
        waiting = [slot for slot in self.slots.values() if slot.place.level == 0 and slot.loaded_to is None]
        slot = min(waiting, key=_begin_us, default=None)
        return slot if slot is not None and slot.begin_us <= now_us + NEAR_US else None

    def ripe(self) -> Slot | None:
        """The next slot that has to be moved into finer ones."""
        waiting = [
            one
            for one in self.slots.values()
            if one.place.level and one.next < one.end and ripe_at_us(one.place) <= self.until_us
        ]
        return min(waiting, key=_begin_us, default=None)

    def may_move(self, slot: Slot) -> bool:
        """Whether the messages of the slot may be moved, or put into the same one anew: not if it is about to be
        delivered. A slot of seconds is far ahead if the clock was, and has been corrected."""
        if slot.place.level:
            return True
        return slot.begin_us > self.until_us and place_of(slot.begin_us, self.until_us) != slot.place

    def older(self, before_us: int, now_us: int) -> list[Slot]:
        """The slots that may be moved and hold what was written before then, or by a clock that was ahead."""
        return [
            slot
            for slot in self.slots.values()
            if (slot.since_us < before_us or is_ahead(slot.since_us, now_us)) and self.may_move(slot)
        ]

    def waits_from(self, slot: Slot, seq: int, opened: OpenedRecord) -> int:
        """The index of the first message of a record that was not delivered yet."""
        if slot.place.level:
            return 0
        return bisect_right(opened.times, self.delivered_us(opened.parcel.era), slot.ahead.get(seq, 0))

    def deliver_at_us(self) -> int | None:
        """The time of the next delivery, if nothing else happens."""
        times = [] if self.near.next_us is None else [self.near.next_us]
        ripe = [ripe_at_us(place) for place in self.slots if place.level]
        return min([*times, *(time_us for time_us in ripe if time_us > self.until_us)], default=None)

    def load_at_us(self) -> int | None:
        """The time at which the next slot is to be loaded."""
        waiting = [one.place for one in self.slots.values() if one.place.level == 0 and one.loaded_to is None]
        return min((place.begin_us - NEAR_US for place in waiting), default=None)

    def is_dropped(self, parcel: ScheduleRecord) -> bool:
        return bool(self.dropped) and parcel.first_id < self.dropped.get(parcel.topic, 0)

    def is_waiting(self, position: Position) -> bool:
        """Whether the message is still at its position."""
        slot = self.slots.get(position.place)
        if slot is None or position.at in slot.cancelled.get(position.seq, ()):
            return False
        return position.at in slot.held.get(position.seq, ()) or (
            slot.next <= position.seq
            and position.due_us > self.delivered_us(position.era)
            and position.at >= slot.ahead.get(position.seq, 0)
        )

    # Snapshots

    def snapshot(self, position: int, ends: dict[str, int]) -> ScheduleSnapshot:
        slots = [_slot_out(self.slots[place]) for place in sorted(self.slots)]
        counts = dict(sorted(self.counts.items()))
        return ScheduleSnapshot(
            position=position,
            until_us=self.until_us,
            next_id=self.next_id,
            delayed=counts,
            slots=slots,
            ends=ends,
            dropped=dict(self.dropped),
            answers=dict(self.answers),
            era=self.era,
            floors=list(self.floors),
        )

    def restore(self, document: ScheduleSnapshot) -> None:
        self.until_us, self.next_id = document.until_us, document.next_id
        self.counts, self.dropped = dict(document.delayed), dict(document.dropped)
        self.answers = dict(document.answers)
        self.era, self.floors = document.era, list(document.floors)
        for one in document.slots:
            slot = Slot(Place(one.level, one.number), one.next, one.since_us)
            slot.end, slot.messages = one.end, one.messages
            slot.min_id, slot.max_id = one.ids
            slot.runs = [[one.next, *one.ids]]
            slot.cancelled = {seq: set(indices) for seq, indices in one.cancelled}
            slot.ahead = dict(one.ahead)
            slot.last_us = one.last_us or FOREVER_US
            slot.era = one.era
            slot.held = {seq: set(indices) for seq, indices in one.held}
            self.slots[slot.place] = slot
            self.cancelled += sum(map(len, slot.cancelled.values()))


_begin_us = attrgetter("begin_us")


def _slot_out(slot: Slot) -> SlotSnapshot:
    return SlotSnapshot(
        level=slot.place.level,
        number=slot.place.number,
        next=slot.next,
        end=slot.end,
        messages=slot.messages,
        ids=(slot.min_id, slot.max_id),
        since_us=slot.since_us,
        cancelled=[(seq, sorted(indices)) for seq, indices in sorted(slot.cancelled.items())],
        ahead=sorted(slot.ahead.items()),
        last_us=slot.last_us,
        era=slot.era,
        held=[(seq, sorted(indices)) for seq, indices in sorted(slot.held.items())],
    )
