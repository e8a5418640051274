"""The retry queue of a group: parts that are to be delivered again, each when it is due.

Failed messages stay where they are, in their lane; the queue holds references. So a nack or a takeover reads and writes
no bodies, whatever the number of messages, and neighbours that fail together cost one entry.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from towline.delivery.events import Failed, Part

__all__ = ["AT_ONCE", "ROUND_US", "Retry", "RetryQueue", "due_after", "wait_of"]

AT_ONCE: Final = 0
"""Due at any time, also when the clock is set back."""
ROUND_US: Final = 100_000
"""Back-offs of a second and more end on a tenth of a second, so that neighbours fall together into one entry."""

_first = attrgetter("first")
_part = attrgetter("part")


class Retry(NamedTuple):
    part: Part
    due_us: int
    wait_us: int = 0
    """Its back-off; 0 if that is not known."""


class _Entry:
    __slots__ = ("attempt", "count", "due_us", "first", "lane", "wait_us")

    def __init__(self, part: Part, due_us: int, wait_us: int) -> None:
        self.lane, self.first, self.count, self.attempt = part
        self.due_us = due_us
        self.wait_us = wait_us

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def part(self) -> Part:
        return Part(self.lane, self.first, self.count, self.attempt)

    def without(self, first: int, end: int) -> list[_Entry]:
        """What remains on both sides."""
        sides = ((self.first, min(first, self.end)), (max(end, self.first), self.end))
        return [
            _Entry(Part(self.lane, low, high - low, self.attempt), self.due_us, self.wait_us)
            for low, high in sides
            if low < high
        ]

    def follows(self, other: _Entry) -> bool:
        """Whether both could be one."""
        mine = self.lane, self.first, self.attempt, self.due_us, self.wait_us
        return mine == (other.lane, other.end, other.attempt, other.due_us, other.wait_us)


class RetryQueue:
    """Entries wait in a heap until they are due, then lie ready by lane and sequence number. Those of the first
    `in_place` lanes, the shards of an ordered topic, lie there from the beginning: none of them is passed over.

    How messages fall into entries, and whether an entry is ready already, depends on when `ripen` was called. What is
    in the queue does not: which messages, their attempts, and when they are due.
    """

    __slots__ = ("_heap", "_in_place", "_number", "_ready", "_tails", "messages", "size")

    def __init__(self, in_place: int = 0) -> None:
        self._in_place = in_place
        self._heap: list[tuple[int, int, _Entry]] = []
        self._ready: dict[int, list[_Entry]] = {}
        self._tails: dict[tuple[int, int, int], _Entry] = {}
        """By lane, attempt and due time: the waiting entry that a neighbour may be added to, if it waits as long."""
        self._number = 0
        self.size = 0
        self.messages = 0

    def __iter__(self) -> Iterator[tuple[Part, int]]:
        """All parts with the time at which they are due, in order by lane and sequence number."""
        return ((part, due_us) for part, due_us, _ in self.entries())

    def entries(self) -> Iterator[Retry]:
        """The same, each with its back-off, as few as can be."""
        entries = [entry for row in self._ready.values() for entry in row]
        entries += [entry for _, _, entry in self._heap]
        entries.sort(key=attrgetter("lane", "first"))
        last: _Entry | None = None
        for entry in entries:
            if last is not None and entry.follows(last):
                last = _Entry(last.part._replace(count=last.count + entry.count), last.due_us, last.wait_us)
                continue
            if last is not None:
                yield Retry(last.part, last.due_us, last.wait_us)
            last = entry
        if last is not None:
            yield Retry(last.part, last.due_us, last.wait_us)

    def cap_waits(self, now_us: int) -> int:
        """Let nothing wait for longer than its back-off from now on, nor lie ready before it is due. By how much
        something is due sooner, at most."""
        retries, sooner_us = list(self.entries()), 0
        self._heap, self._ready, self._tails, self.size, self.messages = [], {}, {}, 0, 0
        for part, due_us, wait_us in retries:
            latest_us = now_us + wait_us if wait_us else due_us
            sooner_us = max(due_us - latest_us, sooner_us)
            self.add(part, min(due_us, latest_us), wait_us)
        return sooner_us

    def add(self, part: Part, due_us: int, wait_us: int = 0) -> None:
        self.messages += part.count
        entry = _Entry(part, due_us, wait_us)
        if part.lane < self._in_place:
            self._insert(entry)
            return
        key = part.lane, part.attempt, due_us
        neighbour = self._tails.get(key)
        if neighbour is not None and entry.follows(neighbour):
            neighbour.count += part.count
            return
        self._number += 1
        self.size += 1
        heapq.heappush(self._heap, (due_us, self._number, entry))
        self._tails[key] = entry

    def ripen(self, now_us: int) -> None:
        """Make ready what is due."""
        while self._heap and self._heap[0][0] <= now_us:
            self._make_ready(heapq.heappop(self._heap)[2])

    def expose(self, parts: Iterable[Part]) -> None:
        """Make ready what is about to be removed although it is not due, in one go."""
        ends: dict[int, list[tuple[int, int]]] = {}
        for part in sorted(parts):
            ends.setdefault(part.lane, []).append((part.first, part.end))
        waiting, self._heap = self._heap, []
        for item in waiting:
            entry = item[2]
            rows = ends.get(entry.lane, [])
            at = bisect_left(rows, (entry.end,)) - 1
            if at >= 0 and rows[at][1] > entry.first:
                self._make_ready(entry)
            else:
                self._heap.append(item)
        heapq.heapify(self._heap)

    def ready(self, lane: int) -> Iterable[Part]:
        """The ready parts of a lane, in order. Lazy: a pull takes the first few of what may be thousands."""
        return map(_part, self._ready.get(lane, ()))

    def has_ready(self) -> bool:
        return bool(self._ready)

    def is_ready(self, lane: int) -> bool:
        return lane in self._ready

    def row(self, lane: int) -> Iterator[tuple[Part, int]]:
        """The parts of a lane that are kept in place, in order, and when each is due."""
        return ((entry.part, entry.due_us) for entry in self._ready.get(lane, ()))

    def head_due_us(self, lane: int) -> int | None:
        """When the first of the parts in place is due."""
        row = self._ready.get(lane)
        return row[0].due_us if row else None

    def remove(self, part: Part) -> None:
        """Take out a part that must be here, whole, under the same attempt; it may lie across several entries."""
        first = part.first
        while first < part.end:
            found = self._find(part.lane, first)
            assert found is not None, f"message {first} of {part} is not in the retry queue"
            row, at = found
            old = row[at]
            assert old.attempt == part.attempt, (old.part, part)
            end = min(old.end, part.end)
            rest = old.without(first, end)
            row[at : at + 1] = rest
            if not row:
                del self._ready[part.lane]
            self.size += len(rest) - 1
            first = end
        self.messages -= part.count

    def drop(self, lane: int, first: int) -> int:
        """Take out all of a lane from a sequence number on; how many messages it were."""
        before = self.messages
        row = self._ready.pop(lane, [])
        kept = [side for entry in row for side in ([entry] if entry.end <= first else entry.without(first, entry.end))]
        if kept:
            self._ready[lane] = kept
        heap = []
        for due_us, number, entry in self._heap:
            if entry.lane != lane or entry.end <= first:
                heap.append((due_us, number, entry))
                continue
            key = entry.lane, entry.attempt, entry.due_us
            if self._tails.get(key) is entry:
                del self._tails[key]
            heap += [(due_us, number, side) for side in entry.without(first, entry.end)]
        heapq.heapify(heap)
        self._heap = heap
        self.size = len(heap) + sum(map(len, self._ready.values()))
        entries = [*(entry for _, _, entry in heap), *(entry for row in self._ready.values() for entry in row)]
        self.messages = sum(entry.count for entry in entries)
        return before - self.messages

    def holds(self, part: Part) -> bool:
        """Whether a part is here, whole and under the same attempt."""
        first = part.first
        while first < part.end:
            found = self._find(part.lane, first)
            if found is None or found[0][found[1]].attempt != part.attempt:
                return False
            first = found[0][found[1]].end
        return True

    def next_due_us(self) -> int | None:
        """When the next entry becomes due that is not ready yet."""
        return self._heap[0][0] if self._heap else None

    def lowest(self) -> dict[int, int]:
        lowest = {lane: row[0].first for lane, row in self._ready.items()}
        for _, _, entry in self._heap:
            lowest[entry.lane] = min(entry.first, lowest.get(entry.lane, entry.first))
        return lowest

    def _find(self, lane: int, number: int) -> tuple[list[_Entry], int] | None:
        """Where a message lies among the ready ones. A replayed pull may carry an earlier time than the retry that it
        took, when the clock was set back between them: then the entry is made ready early."""
        row = self._ready.get(lane, [])
        at = bisect_right(row, number, key=_first) - 1
        if at >= 0 and number < row[at].end:
            return row, at
        for at, (_, _, entry) in enumerate(self._heap):
            if entry.lane == lane and entry.first <= number < entry.end:
                del self._heap[at]
                heapq.heapify(self._heap)
                return self._make_ready(entry)
        return None

    def _make_ready(self, entry: _Entry) -> tuple[list[_Entry], int]:
        key = entry.lane, entry.attempt, entry.due_us
        if self._tails.get(key) is entry:
            del self._tails[key]
        return self._put(entry)

    def _insert(self, entry: _Entry) -> None:
        """Put an entry into its place; a neighbour that is alike takes it in."""
        row, at = self._put(entry)
        self.size += 1
        before = row[at - 1] if at else None
        if before and entry.follows(before):
            before.count += entry.count
            del row[at]
            self.size -= 1

    def _put(self, entry: _Entry) -> tuple[list[_Entry], int]:
        row = self._ready.setdefault(entry.lane, [])
        at = bisect_left(row, entry.first, key=_first)
        assert at == 0 or row[at - 1].end <= entry.first, (row[at - 1].part, entry.part)
        row.insert(at, entry)
        return row, at


def due_after(now_us: int, wait_s: float) -> int:
    due_us = now_us + round(wait_s * 1_000_000)
    return due_us if wait_s < 1 else _round_up(due_us)


def wait_of(failed: Failed) -> int:
    """The back-off, rounded up: that of neighbours which fail one after the other is the same."""
    return _round_up(failed.due_us - failed.at_us)


def _round_up(time_us: int) -> int:
    return -(-time_us // ROUND_US) * ROUND_US
