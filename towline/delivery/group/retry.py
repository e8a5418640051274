"""The retry queue of a group: parts to be delivered again, each with its due time.

Failed messages stay in their lane; the queue holds references. So a nack or a takeover reads and writes no bodies,
whatever the number of messages, and neighbours that fail together cost one entry. An entry takes 20 bytes (see
`ranges`); attempt and due time, which many have in common, are stored once.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from towline.delivery.group.events import Failed, Part
from towline.delivery.group.ranges import Block, Columns, Range, Ranges, ranges_in

__all__ = ["AT_ONCE", "Kind", "Retry", "RetryQueue", "due_after", "wait_of"]

AT_ONCE: Final = 0
"""Due at any time, also when the clock is set back."""
STEPS_US: Final[tuple[int, ...]] = tuple(times * 10**power for power in range(4, 13) for times in (1, 2, 5))
"""Due times are multiples of one of these: neighbours fall together into one entry, and there are few kinds."""
AT_LEAST_US: Final = ((1_000_000, 100_000), (100_000, 50_000), (0, 10_000))
"""The step, by the back-off from which it is used. Beyond these it is the 64th part of the back-off, which is known to
an eighth."""
DUE_PART: Final = 64
WAIT_PART: Final = 8
ENTRIES_MAX: Final = 1_000_000
"""Entries of a queue. A group that fails more than this at once gets nothing new until it has caught up."""
KINDS_MAX: Final = 50_000
"""Distinct attempts and due times of the entries: a kind takes far more memory than an entry."""
TIDY_AFTER: Final = 10_000
RIPE_AT_ONCE: Final = 1_000
"""Entries that become ready in one step; a pull takes no more."""
AT_A_TIME: Final = 500
"""Entries between two moments in which other tasks may run."""


class Retry(NamedTuple):
    part: Part
    due_us: int
    wait_us: int = 0
    """Its back-off; 0 if that is not known."""


Kind = tuple[int, int, int]
"""Attempt, due time, back-off."""


class RetryQueue:
    """Entries wait by their due time, then lie ready by lane and sequence number. Those of the first `in_place` lanes,
    the shards of an ordered topic, lie there from the beginning: none of them is overtaken.

    The division into entries, and whether an entry is ready already, depend on the calls of `ripen`. The contents do
    not: the messages, their attempts, and their due times.
    """

    __slots__ = (
        "_behind",
        "_dues",
        "_in_place",
        "_kinds",
        "_numbers",
        "_ready",
        "_removed",
        "_waiting",
        "messages",
        "size",
    )

    def __init__(self, in_place: int = 0) -> None:
        self._in_place = in_place
        self._clear()

    def _clear(self) -> None:
        self._waiting: dict[int, dict[int, Ranges]] = {}
        """By due time and lane."""
        self._dues: list[int] = []
        """A heap of due times; at some of them nothing waits any more."""
        self._behind = False
        """More was due than has become ready."""
        self._ready: dict[int, Ranges] = {}
        self._kinds: list[Kind] = []
        self._numbers: dict[Kind, int] = {}
        self._removed = 0
        """Entries removed since kinds were last tidied."""
        self.size = 0
        self.messages = 0

    @property
    def load(self) -> float:
        """The load, as a fraction of the limit."""
        self._tidy()
        return max(self.size / ENTRIES_MAX, len(self._kinds) / KINDS_MAX)

    def __iter__(self) -> Iterator[tuple[Part, int]]:
        """All parts with the time at which they are due, in order by lane and sequence number."""
        return ((part, due_us) for part, due_us, _ in self.entries())

    def entries(self) -> Iterator[Retry]:
        """All entries, each with its back-off, as few as can be."""
        for lane in sorted({*self._ready, *(lane for rows in self._waiting.values() for lane in rows)}):
            last: Range | None = None
            for one in heapq.merge(*self._rows(lane)):
                if last is not None and last[0] + last[1] == one[0] and last[2] == one[2]:
                    last = last[0], last[1] + one[1], last[2]
                    continue
                if last is not None:
                    yield self._retry(lane, last)
                last = one
            if last is not None:
                yield self._retry(lane, last)

    def shared(self) -> tuple[list[Kind], list[tuple[int, Block]]]:
        """All entries as they are now, compact, for a reader that comes later: kinds, and by lane the ranges that have
        them."""
        rows = chain.from_iterable(rows.items() for rows in (self._ready, *self._waiting.values()))
        return self._kinds.copy(), [(lane, block) for lane, row in rows for block in row.shared()]

    def add_columns(self, kinds: Sequence[Kind], lane: int, columns: Columns) -> None:
        for first, count, kind in ranges_in(columns):
            attempt, due_us, wait_us = kinds[kind]
            self.add(Part(lane, first, count, attempt), due_us, wait_us)

    def some(self, most: int) -> list[Retry]:
        """A few of the entries: the ready ones first."""
        rows = chain.from_iterable(rows.items() for rows in (self._ready, *self._waiting.values()))
        return list(islice((self._retry(lane, one) for lane, row in rows for one in row), most))

    def before(self, lane: int, end: int, most: int) -> list[Part]:
        """The first parts of a lane before a number, cut to it: so many of them at most."""
        # No part of a row lies behind as many others.
        rows = heapq.nsmallest(most, [row for row in self._rows(lane) if row.first < end], key=attrgetter("first"))
        ranges = takewhile(lambda one: one[0] < end, heapq.merge(*rows))
        kinds = self._kinds
        return [Part(lane, at, min(count, end - at), kinds[kind][0]) for at, count, kind in islice(ranges, most)]

    def _rows(self, lane: int) -> list[Ranges]:
        rows = [self._ready.get(lane), *(rows.get(lane) for rows in self._waiting.values())]
        return [row for row in rows if row is not None]

    def _retry(self, lane: int, one: Range) -> Retry:
        attempt, due_us, wait_us = self._kinds[one[2]]
        return Retry(Part(lane, one[0], one[1], attempt), due_us, wait_us)

    def cap_waits(self, now_us: int) -> Generator[None, None, int]:
        """From now on nothing waits longer than its back-off, nor lies ready before it is due. Returns by how much
        something is due sooner, at most. Most rows need no change by their kinds alone."""
        sooner_us = 0
        for due_us, rows in [(0, self._ready), *self._waiting.items()]:
            for lane in list(rows) if rows is self._ready or due_us > now_us else ():
                yield
                kinds, used = self._kinds, rows[lane].kinds()
                latest = {kind: _latest_us(kinds[kind], now_us) for kind in used}
                soonest_us = max(kinds[kind][1] - latest[kind] for kind in used)
                early = rows is self._ready and lane >= self._in_place and max(latest.values()) > now_us
                if soonest_us <= 0 and not early:
                    continue
                sooner_us = max(soonest_us, sooner_us)
                # The kinds in use are not tidied away meanwhile.
                for number, (first, count, kind) in enumerate(rows.pop(lane)):
                    if number % AT_A_TIME == AT_A_TIME - 1:
                        yield
                    attempt, _, wait_us = kinds[kind]
                    self.size -= 1
                    self.messages -= count
                    self._removed += 1
                    self.add(Part(lane, first, count, attempt), latest[kind], wait_us)
        return sooner_us

    def add(self, part: Part, due_us: int, wait_us: int = 0) -> None:
        lane, first, count, attempt = part
        kind = self._number((attempt, due_us, wait_us))
        self.messages += count
        if lane < self._in_place:
            rows = self._ready
        else:
            found = self._waiting.get(due_us)
            if found is None:
                found = self._waiting[due_us] = {}
                heapq.heappush(self._dues, due_us)
            rows = found
        row = rows.get(lane)
        if row is None:
            row = rows[lane] = Ranges()
        self.size += row.add(first, count, kind)

    def _number(self, kind: Kind) -> int:
        number = self._numbers.get(kind)
        if number is None:
            self._tidy()
            number = self._numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        return number

    def _tidy(self) -> None:
        """Forget kinds without entries, now and then."""
        if self._removed < TIDY_AFTER or len(self._kinds) < KINDS_MAX // 2:
            return
        self._removed = 0
        rows = [*self._ready.values(), *(row for rows in self._waiting.values() for row in rows.values())]
        used = sorted({kind for row in rows for kind in row.kinds()})
        numbers = {old: new for new, old in enumerate(used)}
        for row in rows:
            row.renumber(numbers)
        self._kinds = [self._kinds[old] for old in used]
        self._numbers = {kind: number for number, kind in enumerate(self._kinds)}

    def ripen(self, now_us: int, most: int = RIPE_AT_ONCE) -> bool:
        """Make ready the entries that are due, as many as go in one step; where those are not all, `most` at a time,
        beside the first ones of a lane. Whether more are due."""
        due: dict[int, list[Ranges]] = {}
        room = min(most, RIPE_AT_ONCE) if self._behind else RIPE_AT_ONCE
        while room > 0 and self._dues and self._dues[0] <= now_us:
            rows = self._waiting.get(self._dues[0], {})
            for lane in list(rows):
                if lane not in self._ready:
                    self._ready[lane] = rows.pop(lane)
                elif room:
                    some = rows[lane].cut_off(room)
                    room -= some.size
                    due.setdefault(lane, []).append(some)
                    if not rows[lane]:
                        del rows[lane]
            if not rows:
                self._waiting.pop(heapq.heappop(self._dues), None)
        for lane, found in due.items():
            # All at once: with jitter there are very many due times.
            self._ready[lane].merge(*found)
        self._behind = bool(self._dues) and self._dues[0] <= now_us
        return self._behind

    def expose(self, parts: Iterable[Part]) -> None:
        """Make ready the entries that are about to be removed although they are not due."""
        spans = dict[int, list[tuple[int, int]]]()
        for part in parts:
            spans.setdefault(part.lane, []).append((part.first, part.end))
        for lane, found in spans.items():
            self._expose(lane, sorted(found))

    def _expose(self, lane: int, spans: Sequence[tuple[int, int]]) -> bool:
        """Whether anything of a lane within these, from first to end and in order, was not ready."""
        low, high, exposed = spans[0][0], spans[-1][1], False
        for rows in self._waiting.values():
            row = rows.get(lane)
            if row is None or row.first >= high or row.end <= low:
                continue
            at = low
            while (found := row.overlap(at, high)) is not None:
                at = max(found[0], at)
                first, end = spans[bisect_right(spans, at, key=itemgetter(1))]
                begin, stop = max(at, first), min(found[0] + found[1], end)
                if begin < stop:
                    # The rest of the entry keeps waiting.
                    ready = self._ready.setdefault(lane, Ranges())
                    self.size += ready.add(begin, stop - begin, found[2], joined=False) + row.remove(begin, stop)
                    exposed = True
                at = max(begin, stop)
            if not row:
                del rows[lane]
        return exposed

    def ready(self, lane: int) -> Iterator[Part]:
        """The ready parts of a lane, in order. Lazy: a pull takes the first few of what may be thousands."""
        kinds = self._kinds
        return (Part(lane, first, count, kinds[kind][0]) for first, count, kind in self._ready.get(lane, ()))

    def has_ready(self) -> bool:
        return bool(self._ready)

    def is_ready(self, lane: int) -> bool:
        return lane in self._ready

    def row(self, lane: int) -> Iterator[tuple[Part, int]]:
        """The parts of a lane that are kept in place, in order, with their due times."""
        return ((self._retry(lane, one).part, self._kinds[one[2]][1]) for one in self._ready.get(lane, ()))

    def head_due_us(self, lane: int) -> int | None:
        """The due time of the first of the parts in place."""
        row = self._ready.get(lane)
        return None if row is None else self._kinds[next(iter(row))[2]][1]

    def due_of(self, lane: int, number: int) -> tuple[int, int] | None:
        """The attempt of a message, and its due time; None if it is not here."""
        for row in self._rows(lane):
            found = row.find(number)
            if found is not None:
                return self._kinds[found[2]][:2]
        return None

    def remove(self, part: Part) -> None:
        """Remove a part that must be here, whole, under the same attempt; it may lie across several entries."""
        lane, first, count, attempt = part
        end = first + count
        while first < end:
            found = self._find(lane, first, end)
            assert found is not None, f"message {first} of {part} is not in the retry queue"
            assert self._kinds[found[2]][0] == attempt, (self._retry(lane, found), part)
            stop = min(found[0] + found[1], end)
            row = self._ready[lane]
            self.size += row.remove(first, stop)
            if not row:
                del self._ready[lane]
            first = stop
            self._removed += 1
        self.messages -= count
        if not self.size:
            self._clear()

    def drop(self, lane: int, first: int) -> int:
        """Remove all messages of a lane from `first` on; returns how many they were."""
        gone = 0
        for rows in (self._ready, *self._waiting.values()):
            row = rows.get(lane)
            if row is None:
                continue
            change, dropped = row.drop(first)
            self.size += change
            self._removed -= change
            gone += dropped
            if not row:
                del rows[lane]
        self.messages -= gone
        return gone

    def holds(self, part: Part) -> bool:
        """Whether a part is here, whole and under the same attempt."""
        first = part.first
        while first < part.end:
            found = self._find(part.lane, first, part.end)
            if found is None or self._kinds[found[2]][0] != part.attempt:
                return False
            first = found[0] + found[1]
        return True

    def next_due_us(self) -> int | None:
        """The due time of the next entry that is not ready yet."""
        while self._dues and not self._waiting.get(self._dues[0]):
            self._waiting.pop(heapq.heappop(self._dues), None)
        return self._dues[0] if self._dues else None

    def counts(self) -> dict[int, int]:
        """How many messages there are of each lane that has any."""
        counts: dict[int, int] = {}
        for rows in (self._ready, *self._waiting.values()):
            for lane, row in rows.items():
                counts[lane] = counts.get(lane, 0) + row.messages
        return counts

    def lowest(self) -> dict[int, int]:
        lowest = {lane: row.first for lane, row in self._ready.items()}
        for rows in self._waiting.values():
            for lane, row in rows.items():
                lowest[lane] = min(row.first, lowest.get(lane, row.first))
        return lowest

    def _find(self, lane: int, number: int, end: int) -> Range | None:
        """The ready entry of a message. A replayed pull may carry an earlier time than the retry that it took, when the
        clock was set back between them: then the messages taken, up to `end`, are made ready early."""
        row = self._ready.get(lane)
        found = row.find(number) if row is not None else None
        if found is None and self._expose(lane, [(number, end)]):
            found = self._ready[lane].find(number)
        return found


def _latest_us(kind: Kind, now_us: int) -> int:
    """The due time, but not after the whole back-off from now."""
    _, due_us, wait_us = kind
    return min(due_us, now_us + wait_us) if wait_us else due_us


def due_after(now_us: int, wait_s: float) -> int:
    """The due time: not before the back-off is over, and little after it. Without back-off, it is over already."""
    wait_us = round(wait_s * 1_000_000)
    if not wait_us:
        return now_us - now_us % STEPS_US[0]
    least_us = next(step_us for from_us, step_us in AT_LEAST_US if wait_us >= from_us)
    return _round_up(now_us + wait_us, max(least_us, _step_us(wait_us // DUE_PART)))


def wait_of(failed: Failed) -> int:
    """The back-off, rounded up: with jitter, or one after the other, messages wait for nearly the same time."""
    wait_us = max(failed.due_us - failed.at_us, 0)
    return _round_up(wait_us, max(AT_LEAST_US[0][1], _step_us(wait_us // WAIT_PART)))


def _step_us(most_us: int) -> int:
    return STEPS_US[max(bisect_right(STEPS_US, most_us) - 1, 0)]


def _round_up(time_us: int, step_us: int) -> int:
    return -(-time_us // step_us) * step_us
