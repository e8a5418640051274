"""Sets of messages, kept as parts (ranges of a lane with their attempt): state is per range, never per message."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from towline.delivery.group.events import Part
from towline.delivery.group.ranges import Ranges
from towline.model import Span

__all__ = [
    "Dying",
    "PartSet",
    "add_interval",
    "cut",
    "cut_before",
    "disjoint",
    "in_intervals",
    "messages_in",
    "remove_interval",
]

_first = attrgetter("first")


class PartSet:
    """Disjoint parts, in order by lane and sequence number. Neighbours of the same attempt are one part."""

    __slots__ = ("_lanes", "messages")

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self._lanes: dict[int, list[Part]] = {}
        self.messages = 0
        for part in parts:
            self.add(part)

    def __iter__(self) -> Iterator[Part]:
        return chain.from_iterable([self._lanes[lane] for lane in sorted(self._lanes)])

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __bool__(self) -> bool:
        return self.messages > 0

    def add(self, part: Part) -> None:
        """Add a part; it must not overlap one that is there."""
        self.messages += part.count
        row = self._lanes.get(part.lane)
        if row is None:
            self._lanes[part.lane] = [part]
            return
        if row[-1].end < part.first:
            row.append(part)
            return
        low = high = bisect_left(row, part.first, key=_first)
        first, end = part.first, part.end
        if low:
            before = row[low - 1]
            assert before.end <= first, (before, part)
            if before.end == first and before.attempt == part.attempt:
                low, first = low - 1, before.first
        if high < len(row):
            after = row[high]
            assert end <= after.first, (after, part)
            if end == after.first and after.attempt == part.attempt:
                high, end = high + 1, after.end
        row[low:high] = [Part(part.lane, first, end - first, part.attempt)]

    def merge(self, other: PartSet) -> None:
        """Add all parts of another set, which is not to be used any more; none may overlap one that is here."""
        self.messages += other.messages
        for lane, row in other._lanes.items():
            self._lanes[lane] = _merged(self._lanes[lane], row) if lane in self._lanes else row

    def within(self, span: Span, most: int | None = None) -> list[Part]:
        """The parts of this set that lie within `span`, cut to it; the first of them, if there are more than `most`."""
        row = self._lanes.get(span.lane)
        if row is None:
            return []
        low = max(bisect_right(row, span.first, key=_first) - 1, 0)
        high = bisect_left(row, span.end, key=_first)
        if most is not None and high > low + most + 1:
            high = low + most + 1  # the first one may end before
        return [piece for part in row[low:high] if (piece := cut(part, span))][:most]

    def remove(self, part: Part) -> None:
        """Remove a part that must be in the set, whole, under the same attempt."""
        row = self._lanes.get(part.lane, [])
        at = bisect_right(row, part.first, key=_first) - 1
        assert at >= 0, f"{part} is not in the set"
        old = row[at]
        assert part.end <= old.end, (old, part)
        assert part.attempt == old.attempt, (old, part)
        rest = []
        if old.first < part.first:
            rest.append(Part(old.lane, old.first, part.first - old.first, old.attempt))
        if part.end < old.end:
            rest.append(Part(old.lane, part.end, old.end - part.end, old.attempt))
        row[at : at + 1] = rest
        if not row:
            del self._lanes[part.lane]
        self.messages -= part.count

    def lowest(self) -> dict[int, int]:
        """The lowest sequence number of each lane."""
        return {lane: row[0].first for lane, row in self._lanes.items()}

    def ends(self) -> dict[int, int]:
        """Where the last part of each lane ends that has any."""
        return {lane: row[-1].end for lane, row in self._lanes.items()}

    def counts(self) -> dict[int, int]:
        """How many messages there are of each lane that has any."""
        if len(self._lanes) == 1:
            return dict.fromkeys(self._lanes, self.messages)
        return {lane: messages_in(row) for lane, row in self._lanes.items()}


def _merged(one: list[Part], other: list[Part]) -> list[Part]:
    """Two rows of a lane as one."""
    merged: list[Part] = []
    lane, first, end, attempt = one[0].lane, 0, 0, -1
    for _, at, count, tries in sorted(one + other):  # tuples, of which both rows are runs
        assert end <= at, (one, other)
        if end != at or attempt != tries:
            if end:
                merged.append(Part(lane, first, end - first, attempt))
            first, attempt = at, tries
        end = at + count
    merged.append(Part(lane, first, end - first, attempt))
    return merged


class Dying(dict[Part, str]):
    """Messages that are about to be copied to the dead letters: disjoint parts with their reasons, in the order in
    which they died. There may be very many of them: an index tells where a message is. `add`, `remove` and `drop` keep
    it."""

    __slots__ = ("_lanes", "messages")

    def __init__(self, entries: Iterable[tuple[Part, str]] = ()) -> None:
        super().__init__()
        self._lanes: dict[int, Ranges] = {}
        """The numbers of all parts, with their attempts."""
        self.messages = 0
        for part, reason in entries:
            self.add(part, reason)

    def add(self, part: Part, reason: str) -> None:
        self[part] = reason
        self.messages += part.count
        if part.lane not in self._lanes:
            self._lanes[part.lane] = Ranges()
        self._lanes[part.lane].add(part.first, part.count, part.attempt, joined=False)

    def find(self, lane: int, number: int) -> Part | None:
        """The part that has this message."""
        row = self._lanes.get(lane)
        found = row.find(number) if row is not None else None
        return None if found is None else Part(lane, *found)

    def holds(self, part: Part) -> bool:
        """Whether a part is here, whole and under the same attempt, in one entry."""
        whole = self.find(part.lane, part.first)
        return whole is not None and cut(whole, part) == part

    def within(self, span: Span, most: int | None = None) -> list[Part]:
        """The parts that lie within `span`, cut to it, in order; the first of them, if there are more than `most`."""
        row, at, found = self._lanes.get(span.lane), span.first, list[Part]()
        while row is not None and at < span.end and len(found) != most:
            one = row.overlap(at, span.end)
            if one is None:
                break
            first, at = max(one[0], at), min(one[0] + one[1], span.end)
            found.append(Part(span.lane, first, at - first, one[2]))
        return found

    def remove(self, part: Part) -> None:
        """Take out a part that must be here; it may be some of an entry."""
        whole = self.find(part.lane, part.first)
        assert whole is not None, f"{part} is not dying"
        assert cut(whole, part) == part, (whole, part)
        reason = self.pop(whole)
        row = self._lanes[part.lane]
        row.remove(whole.first, whole.end)
        if not row:
            del self._lanes[part.lane]
        self.messages -= whole.count
        if whole != part:
            rest = PartSet([whole])
            rest.remove(part)
            for one in rest:
                self.add(one, reason)

    def drop(self, lane: int, first: int) -> int:
        """Take out all messages of a lane from `first` on. How many they were."""
        row = self._lanes.get(lane)
        if row is None or row.end <= first:
            return 0
        whole = self.find(lane, first)
        if whole is not None and whole.first < first:
            self.remove(whole._replace(first=first, count=whole.end - first))
            return whole.end - first + self.drop(lane, first)
        _, gone = row.drop(first)
        if not row:
            del self._lanes[lane]
        self.messages -= gone
        kept = [(part, reason) for part, reason in self.items() if part.lane != lane or part.first < first]
        self.clear()
        self.update(kept)
        return gone

    def lowest(self) -> dict[int, int]:
        """The first sequence number of each lane that has any."""
        return {lane: row.first for lane, row in self._lanes.items()}

    def counts(self) -> dict[int, int]:
        """How many messages there are of each lane that has any."""
        return {lane: row.messages for lane, row in self._lanes.items()}


def messages_in(parts: Sequence[Part]) -> int:
    return parts[0].count if len(parts) == 1 else sum([part.count for part in parts])


def cut(part: Part, span: Span | Part) -> Part | None:
    """The part within `span`."""
    first, end = max(part.first, span.first), min(part.end, span.end)
    return Part(part.lane, first, end - first, part.attempt) if part.lane == span.lane and first < end else None


def disjoint(spans: Iterable[Span]) -> list[Span]:
    """The same messages, in order, each in one span only."""
    merged: list[Span] = []
    for span in sorted(spans):
        last = merged[-1] if merged else None
        if last is not None and last.lane == span.lane and span.first <= last.end:
            merged[-1] = Span(last.lane, last.first, max(last.end, span.end) - last.first)
        else:
            merged.append(span)
    return merged


def add_interval(intervals: list[tuple[int, int]], first: int, count: int) -> None:
    """Add `count` numbers from `first` on to a sorted list of disjoint (first, count), merging neighbours."""
    end = first + count
    low = bisect_left(intervals, first, key=_interval_end)
    high = bisect_right(intervals, end, key=_interval_first)
    if low < high:
        first = min(first, intervals[low][0])
        end = max(end, intervals[high - 1][0] + intervals[high - 1][1])
    intervals[low:high] = [(first, end - first)]


def remove_interval(intervals: list[tuple[int, int]], first: int, count: int) -> None:
    """Remove `count` numbers from `first` on, which must be within one of the intervals, from such a list."""
    at = bisect_right(intervals, first, key=_interval_first) - 1
    begin, end = intervals[at][0], _interval_end(intervals[at])
    assert begin <= first and first + count <= end, (intervals, first, count)  # noqa: PT018
    rest = [(begin, first - begin), (first + count, end - first - count)]
    intervals[at : at + 1] = [one for one in rest if one[1]]


def cut_before(intervals: list[tuple[int, int]], first: int) -> int:
    """Remove all numbers before `first` from such a list; returns how many they were."""
    at = bisect_right(intervals, first, key=_interval_end)
    gone = sum(count for _, count in intervals[:at])
    del intervals[:at]
    if intervals and intervals[0][0] < first:
        begin, count = intervals[0]
        gone += first - begin
        intervals[0] = (first, begin + count - first)
    return gone


def in_intervals(intervals: list[tuple[int, int]], number: int) -> bool:
    at = bisect_right(intervals, number, key=_interval_first) - 1
    return at >= 0 and number < _interval_end(intervals[at])


def _interval_first(interval: tuple[int, int]) -> int:
    return interval[0]


def _interval_end(interval: tuple[int, int]) -> int:
    return interval[0] + interval[1]
