"""Which messages of a lane came together: neighbours, or runs of neighbours with others between them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from towline.protocol.messages import Part

__all__ = ["Runs", "cut", "indexes_of", "runs_of"]

Span = tuple[int, int, int]
"""Lane, first, count."""


class Runs:
    """Numbers of messages by their index, and back."""

    __slots__ = ("_begins", "_firsts", "_lane", "count")

    def __init__(self, part: Part) -> None:
        self._lane = part.lane
        self.count = part.count
        self._firsts = [first for _, first, _ in part.runs]
        self._begins = list(accumulate([count for _, _, count in part.runs], initial=0))

    def seq(self, index: int) -> int:
        at = bisect_right(self._begins, index) - 1
        return self._firsts[at] + index - self._begins[at]

    def spans(self, begin: int, end: int) -> Iterator[Span]:
        """The numbers of the messages from one index up to another."""
        at = bisect_right(self._begins, begin) - 1
        while begin < end:
            stop = min(end, self._begins[at + 1])
            yield self._lane, self._firsts[at] + begin - self._begins[at], stop - begin
            begin, at = stop, at + 1

    def places(self, first: int, end: int) -> tuple[int, int]:
        """Between which indexes the messages lie whose numbers are from `first` to `end`."""
        return self._place(first), self._place(end)

    def _place(self, number: int) -> int:
        """The index of the first message that has this number or a later one."""
        at = bisect_right(self._firsts, number) - 1
        return min(self._begins[at] + number - self._firsts[at], self._begins[at + 1]) if at >= 0 else 0


def runs_of(part: Part) -> Iterator[tuple[int, int]]:
    """The numbers of the messages of a part: first and end of each run."""
    if not part.runs:
        return iter(((part.first, part.first + part.count),))
    return ((first, first + count) for _, first, count in part.runs)


def indexes_of(part: Part) -> list[int] | None:
    """Where the messages of a part lie in its frame; None if they lie side by side from its start on."""
    at = part.start
    for place, _, count in part.runs:
        if place != at:
            return [index for place, _, count in part.runs for index in range(place, place + count)]
        at += count
    return None


def cut(part: Part, count: int) -> tuple[Part, Part]:
    """The first so many messages of a part, and the rest of it, which is not empty."""
    if not part.runs:
        first, start = part.first + count, part.start + count
        rest = msgspec.structs.replace(part, first=first, count=part.count - count, start=start)
        return msgspec.structs.replace(part, count=count), rest
    left, right, room = list[Span](), list[Span](), count
    for place, first, many in part.runs:
        mine = min(many, room)
        room -= mine
        if mine:
            left.append((place, first, mine))
        if mine < many:
            right.append((place + mine, first + mine, many - mine))
    start, first, _ = right[0]
    return (
        msgspec.structs.replace(part, count=count, runs=tuple(left)),
        msgspec.structs.replace(part, first=first, start=start, count=part.count - count, runs=tuple(right)),
    )
