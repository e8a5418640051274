"""The near future of the schedule, in memory: the records that are due within the next seconds, soonest first.

A record's messages are in the order of their times, so one number tells how far it has been delivered. The frames of
the records are kept as well, unpacked, as far as a budget of bytes allows; those beyond it are read again when they are
due.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from itertools import count

from towline.delivery.schedule.record import OpenedRecord, ScheduleRecord
from towline.delivery.schedule.wheel import Place
from towline.frame.layout import unpacked_bytes

__all__ = ["DueIndex", "Entry"]


class Entry:
    """A record and the first of its messages that waits."""

    __slots__ = ("at", "last_us", "next_us", "opened", "place", "seq", "size")

    def __init__(self, place: Place, seq: int, parcel: ScheduleRecord) -> None:
        self.place = place
        self.seq = seq
        self.at = 0
        self.next_us = parcel.first_us
        self.last_us = parcel.last_us
        self.size = unpacked_bytes(parcel.frame)
        self.opened: OpenedRecord | None = None


class DueIndex:
    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._kept_bytes = 0
        self._heap: list[tuple[int, int, Entry]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_us(self) -> int | None:
        """The due time of the next message."""
        return self._heap[0][0] if self._heap else None

    def add(self, place: Place, seq: int, parcel: ScheduleRecord, at: int = 0, until_us: int = -1) -> None:
        """A record waits from message `at` on, and from the first on that is due after `until_us`."""
        entry = Entry(place, seq, parcel)
        if at or parcel.first_us <= until_us or self._kept_bytes + entry.size <= self._budget_bytes:
            opened = OpenedRecord(parcel)
            at = bisect_right(opened.times, until_us, at)
            if at >= parcel.count:
                return
            entry.at, entry.next_us = at, opened.times[at]
            if self._kept_bytes + entry.size <= self._budget_bytes:
                self.keep(entry, opened)
        self._push(entry)

    def keep(self, entry: Entry, opened: OpenedRecord) -> None:
        """Keep the frame of a record: it need not be read any more."""
        entry.opened = opened
        self._kept_bytes += entry.size

    def take(self, until_us: int, max_bytes: int, max_parcels: int) -> list[Entry]:
        """Take records with something due by then, soonest first: at least one, if there is any."""
        taken: list[Entry] = []
        while self._heap and self._heap[0][0] <= until_us and max_bytes > 0 and len(taken) < max_parcels:
            entry = heapq.heappop(self._heap)[2]
            max_bytes -= _due_bytes(entry, until_us)
            taken.append(entry)
        return taken

    def put_back(self, entry: Entry) -> None:
        """Put a record back that was delivered up to its `at`; the rest of it waits on."""
        opened = entry.opened
        if opened is not None and entry.at >= opened.parcel.count:
            self.forget(entry)
            return
        if opened is not None:
            entry.next_us = opened.times[entry.at]
            if self._kept_bytes > self._budget_bytes:
                self.forget(entry)
        self._push(entry)

    def forget(self, entry: Entry) -> None:
        """Drop its frame."""
        if entry.opened is not None:
            entry.opened = None
            self._kept_bytes -= entry.size

    def drop(self, place: Place) -> None:
        """Drop all records of this slot."""
        gone = [entry for _, _, entry in self._heap if entry.place == place]
        if gone:
            self._heap = [one for one in self._heap if one[2].place != place]
            heapq.heapify(self._heap)
        for entry in gone:
            self.forget(entry)

    def _push(self, entry: Entry) -> None:
        heapq.heappush(self._heap, (entry.next_us, next(self._numbers), entry))


def _due_bytes(entry: Entry, until_us: int) -> int:
    """The size of the due part of a record, judged by the mean size of its messages; all of it if its frame is not
    kept."""
    if entry.opened is None or entry.last_us <= until_us:
        return entry.size
    due = bisect_right(entry.opened.times, until_us, entry.at) - entry.at
    return entry.size * due // entry.opened.parcel.count + 1
