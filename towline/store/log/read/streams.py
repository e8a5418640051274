"""The streams of a store in memory: bounds, and the places of the runs of each.

For a sealed segment a stream costs 40 bytes here, however many frames it has there; so memory does not grow with the
backlog. All of this belongs to the event loop: readers need no locks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from towline.errors import TooLarge
from towline.store.eras import Times
from towline.store.log.format.index import ENTRY, ROW, Run
from towline.store.log.format.record import NAME_MAX, STAMP, pad
from towline.store.log.format.segment import Segment
from towline.store.spi import kind_of

__all__ = ["HotRun", "Stream", "Streams"]

Entries = Sequence[int]
EntriesOf = Callable[[int, str, int, int], Entries]

_U32 = 0xFFFFFFFF


class HotRun(NamedTuple):
    """The entries of a stream in a segment whose index is not on the disk yet."""

    segment: int
    entries: array[int]


class Stream:
    """One stream. `rows` holds five numbers per sealed segment: segment, place, base, end, bytes of frames."""

    __slots__ = ("encoded", "end", "first", "head_length", "hot", "name", "next", "rows", "size_bytes")

    def __init__(self, name: str, first: int = 0, end: int = 0) -> None:
        self.name = name
        self.encoded = name.encode()
        if not 1 <= len(self.encoded) <= NAME_MAX:
            raise TooLarge(f"the name of a stream is 1 to {NAME_MAX} bytes long, not {len(self.encoded)}")
        self.head_length = STAMP.size + len(self.encoded) + len(pad(len(self.encoded)))
        self.first = first
        self.end = end
        self.next = end
        """The number of the next record to be appended; ahead of `end` by those that are not written yet."""
        self.size_bytes = 0
        self.rows = array("Q")
        self.hot: list[HotRun] = []

    def record_length(self, frame_length: int) -> int:
        """The length of a record with such a frame."""
        return self.head_length + ((frame_length + 7) & ~7)

    def add_row(self, segment: int, run: Run) -> None:
        self.rows.extend((segment, run.start << 32 | run.entries, run.base, run.end, run.frame_bytes))

    def hot_entries(self, segment: Segment) -> array[int]:
        """Where the entries of this stream in a segment still being written are added."""
        hot = self.hot
        if hot and hot[-1].segment == segment.number:
            return hot[-1].entries
        entries = segment.runs[self.name] = array("Q")
        hot.append(HotRun(segment.number, entries))
        return entries

    def runs_from(self, seq: int, entries_of: EntriesOf) -> Iterator[tuple[int, Entries]]:
        """The segments and entries of this stream, from the run that ends behind `seq` on."""
        rows = self.rows
        for at in range(ROW * _first(len(rows) // ROW, seq, lambda i: rows[ROW * i + 3]), len(rows), ROW):
            place = rows[at + 1]
            yield rows[at], entries_of(rows[at], self.name, place >> 32, place & _U32)
        for run in list(self.hot):
            if run.entries[-4] + (run.entries[-2] & _U32) > seq:
                yield run.segment, run.entries

    def places_from(self, seq: int) -> tuple[list[tuple[int, int, int]], list[HotRun]]:
        """`runs_from` for a reader that waits in between, while segments are sealed and deleted: for each sealed
        segment its number, the place of the run in its index and the end of the run; and the runs of the others."""
        rows = self.rows
        begin = ROW * _first(len(rows) // ROW, seq, lambda i: rows[ROW * i + 3])
        sealed = [(rows[at], rows[at + 1], rows[at + 3]) for at in range(begin, len(rows), ROW)]
        return sealed, [run for run in self.hot if run.entries[-4] + (run.entries[-2] & _U32) > seq]

    def runs_since(self, segment: int, entries_of: EntriesOf) -> Iterator[tuple[int, Entries]]:
        """The segments and entries of this stream, from segment number `segment` on."""
        rows = self.rows
        for at in range(ROW * _first(len(rows) // ROW, segment - 1, lambda i: rows[ROW * i]), len(rows), ROW):
            place = rows[at + 1]
            yield rows[at], entries_of(rows[at], self.name, place >> 32, place & _U32)
        yield from [(run.segment, run.entries) for run in self.hot if run.segment >= segment]

    def raise_first(self, first: int, entries_of: EntriesOf) -> None:
        """Nothing before `first` can be read any more."""
        if first > self.first:
            self.size_bytes -= self.bytes_until(first, entries_of)
            self.first = first

    def bytes_until(self, until: int, entries_of: EntriesOf) -> int:
        """The bytes of the frames that can be read now and end at `until` or before."""
        total, rows, low = 0, self.rows, self.first
        for at in range(ROW * _first(len(rows) // ROW, low, lambda i: rows[ROW * i + 3]), len(rows), ROW):
            place, base, end, frame_bytes = rows[at + 1 : at + ROW]
            if base >= until:
                return total
            if low <= base and end <= until:
                total += frame_bytes
            else:
                total += _bytes_between(entries_of(rows[at], self.name, place >> 32, place & _U32), low, until)
        return total + sum(_bytes_between(run.entries, low, until) for run in self.hot)

    def end_before(self, segment: int) -> int:
        """The end of the records in sealed segments before number `segment`; 0 if there are none."""
        rows = self.rows
        count = _first(len(rows) // ROW, segment - 1, lambda i: rows[ROW * i])
        return rows[ROW * count - 2] if count else 0

    def drop_rows_before(self, segment: int) -> None:
        rows = self.rows
        gone = _first(len(rows) // ROW, segment - 1, lambda i: rows[ROW * i])
        del rows[: ROW * gone]


class Streams(dict[str, Stream]):
    """All streams by name. The floor of a kind is kept as a stream without records, by the name of the kind."""

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self if name.startswith(prefix) and not name.endswith("/"))

    def floor(self, name: str) -> int:
        """The first number of a stream that does not exist."""
        found = self.get(kind_of(name))
        return 0 if found is None else found.end

    def new(self, name: str) -> Stream:
        """A stream that is not in the store yet, nor in here."""
        floor = self.floor(name)
        return Stream(name, floor, floor)

    def forget(self, stream: Stream) -> None:
        kind = kind_of(stream.name)
        floor = self.get(kind) or self.setdefault(kind, Stream(kind))
        floor.first = floor.end = floor.next = max(stream.next, floor.next)
        del self[stream.name]


def first_ending_after(entries: Entries, seq: int) -> int:
    """The number of the first entry whose frame ends behind `seq`."""
    return _first(len(entries) // ENTRY, seq, lambda i: entries[ENTRY * i] + (entries[ENTRY * i + 2] & _U32))


def first_at(segment: int, entries: Entries, time_us: int, times: Times) -> int:
    """The number of the first entry in a segment that was appended at `time_us` or later."""
    sound, end_us = times.within(segment)
    count = len(entries) // ENTRY
    if end_us < time_us:
        return count
    return _first(count, time_us - 1, lambda i: entries[ENTRY * i + 3]) if sound else 0


def _first(count: int, value: int, key: Callable[[int], int]) -> int:
    return bisect_right(range(count), value, key=key)


def _bytes_between(entries: Entries, low: int, until: int) -> int:
    begin, stop = first_ending_after(entries, low), first_ending_after(entries, until)
    return sum(entries[ENTRY * begin + 2 : ENTRY * stop : ENTRY]) >> 32
