"""Receipts of sent messages, kept as runs and made one by one on demand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import overload

import msgspec

from towline.model import DELAY, Priority, Receipt, lane_name

__all__ = ["Receipts", "Run", "ShardReceipts", "place_before", "places"]


class Run(msgspec.Struct, frozen=True, gc=False):
    """Messages that got consecutive numbers."""

    first: int
    count: int
    appended_at_us: int
    lane: str | None = None
    """Another lane than that of the others: that of the first message with the dedup id. Or `delay`: the messages wait
    for their time, and the numbers are their ids until then."""


class Receipts(Sequence[Receipt]):
    """The receipts of messages that were sent together, in the order of the messages."""

    __slots__ = ("_ends", "broker", "lane", "runs", "topic")

    def __init__(self, topic: str, lane: Priority, runs: Sequence[Run]) -> None:
        self.topic = topic
        self.broker = ""
        self.lane = lane
        self.runs = tuple(runs)
        self._ends = list(accumulate(run.count for run in self.runs))

    def __repr__(self) -> str:
        runs = ", ".join(f"{run.first}..{run.first + run.count - 1}" for run in self.runs[:3])
        return f"<Receipts {self.topic}/{self.lane} {runs}{', …' if len(self.runs) > 3 else ''}>"

    @property
    def first(self) -> int:
        """The sequence number of the first message."""
        return self.runs[0].first

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Receipt]:
        for run in self.runs:
            lane = run.lane or self.lane
            for seq in range(run.first, run.first + run.count):
                yield Receipt(self.topic, lane, seq, run.appended_at_us, self.broker)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError("there are not so many receipts")
        number = bisect_right(self._ends, index)
        run = self.runs[number]
        seq = run.first + index - (self._ends[number] - run.count)
        return Receipt(self.topic, run.lane or self.lane, seq, run.appended_at_us, self.broker)


class ShardReceipts(Receipts):
    """The receipts of messages that went to several shards."""

    __slots__ = ("_count", "_found", "_stored")

    def __init__(self, topic: str, count: int) -> None:
        super().__init__(topic, "middle", ())
        self._count = count
        self._stored: list[tuple[str, int, Sequence[int], int]] = []
        self._found: list[tuple[str, int, int]] = []

    def __repr__(self) -> str:
        return f"<ShardReceipts {self.topic}, {len(self)} messages in {len({one[0] for one in self._stored})} shards>"

    def put(self, lane: str, first: int, numbers: Sequence[int], appended_at_us: int) -> None:
        """Messages with these indices in the call are in a shard now, one after another from `first` on; or, in the
        lane `delay`, wait for their time."""
        self._stored.append((lane, first, numbers, appended_at_us))

    def put_unit(
        self, lanes: Sequence[int], firsts: Sequence[int], numbers: Sequence[Sequence[int]], appended_at_us: int
    ) -> None:
        """`put` for a frame in each of these shards."""
        self._stored += zip(map(str, lanes), firsts, numbers, [appended_at_us] * len(lanes), strict=True)

    @property
    def first(self) -> int:
        return self._receipt(0).seq

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Receipt]:
        for number in range(len(self)):
            yield self._receipt(number)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self._receipt(number) for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError("there are not so many receipts")
        return self._receipt(index % len(self))

    def _receipt(self, number: int) -> Receipt:
        if not self._found:
            # Only now: most callers never look.
            self._found = [("", 0, 0)] * self._count
            for lane, first, numbers, appended_at_us in self._stored:
                for seq, place in enumerate(numbers, first):
                    self._found[place] = lane, seq, appended_at_us
        lane, seq, appended_at_us = self._found[number]
        return Receipt(self.topic, lane, seq, appended_at_us)


def places(
    lane: int,
    first: int,
    count: int,
    at_us: int,
    repeats: Sequence[tuple[int, int, int, int, int]],
    *,
    delayed: bool = False,
    shards: int = 0,
) -> list[tuple[str, int, int]]:
    """Lane, sequence number and time of each message of a frame with repeats."""
    name = DELAY if delayed else lane_name(lane, shards)
    if not repeats:
        return [(name, seq, at_us) for seq in range(first, first + count)]
    before = {index: place_before(at, seq, when, shards) for _, index, at, seq, when in repeats}
    found: list[tuple[str, int, int]] = []
    seq = first
    for index in range(count):
        known = before.get(index)
        found.append(known or (name, seq, at_us))
        seq += known is None
    return found


def place_before(lane: int, seq: int, at_us: int, shards: int = 0) -> tuple[str, int, int]:
    """The position of a repeat's first message: below 0 the number is one of a delayed message's."""
    return (lane_name(lane, shards), seq, at_us) if seq >= 0 else (DELAY, ~seq, at_us)
