"""Sorted ranges of numbers, each of a kind: compact, and quick also with a million of them."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Final

__all__ = ["Block", "Columns", "Range", "Ranges", "ranges_in"]

BLOCK: Final = 512
"""Ranges of a block: insertion and removal move no more than these."""
FEW: Final = 8
"""Putting in a range by itself costs about as much as moving so many of them."""

Range = tuple[int, int, int]
"""First, count, kind."""


Columns = tuple[bytes, bytes, bytes]
"""Firsts and counts, eight bytes each, and kinds, four bytes each."""


def ranges_in(columns: Columns) -> Iterator[Range]:
    return zip(*(_array(kind, data) for kind, data in zip("qqI", columns, strict=True)), strict=True)


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _array(kind: str, data: bytes) -> array[int]:
    numbers = array(kind, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class Block:
    """Some hundred ranges."""

    __slots__ = ("counts", "firsts", "kinds", "shared")

    def __init__(self, firsts: array[int], counts: array[int], kinds: array[int]) -> None:
        self.firsts, self.counts, self.kinds = firsts, counts, kinds
        self.shared = False
        """Somebody reads it: a copy takes its place before it changes."""

    def columns(self) -> Columns:
        """All of it as bytes."""
        return _little(self.firsts), _little(self.counts), _little(self.kinds)

    @property
    def first(self) -> int:
        return self.firsts[0]

    @property
    def end(self) -> int:
        return self.firsts[-1] + self.counts[-1]

    def at(self, index: int) -> Range:
        return self.firsts[index], self.counts[index], self.kinds[index]

    def halves(self, size: int) -> list[Block]:
        """The block, cut into blocks of this size."""
        return [self.between(at, at + size) for at in range(0, len(self.firsts), size)]

    def parted(self, at: int) -> list[Block]:
        """The block, cut in two; the first one has this size."""
        return [self.between(0, at), self.between(at, len(self.firsts))]

    def between(self, begin: int, end: int) -> Block:
        return Block(self.firsts[begin:end], self.counts[begin:end], self.kinds[begin:end])

    def replace(self, index: int, ranges: list[Range]) -> None:
        """Put these ranges in the place of one."""
        self.firsts[index : index + 1] = array("q", [one[0] for one in ranges])
        self.counts[index : index + 1] = array("q", [one[1] for one in ranges])
        self.kinds[index : index + 1] = array("I", [one[2] for one in ranges])


_first = attrgetter("first")


class Ranges:
    """Disjoint ranges. Methods that change their number return the difference."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: list[Block] = []

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __iter__(self) -> Iterator[Range]:
        for block in self._blocks:
            yield from zip(block.firsts, block.counts, block.kinds, strict=True)

    @property
    def first(self) -> int:
        return self._blocks[0].first

    @property
    def end(self) -> int:
        return self._blocks[-1].end

    @property
    def size(self) -> int:
        """How many ranges there are."""
        return _size(self._blocks)

    @property
    def messages(self) -> int:
        return sum([sum(block.counts) for block in self._blocks])

    def shared(self) -> list[Block]:
        """All ranges as they are now, some hundred at a time, for a reader that comes later."""
        for block in self._blocks:
            block.shared = True
        return self._blocks.copy()

    def _own(self, number: int) -> Block:
        """A block that is about to change."""
        block = self._blocks[number]
        if block.shared:
            block = self._blocks[number] = block.between(0, len(block.firsts))
        return block

    def kinds(self) -> set[int]:
        return {kind for block in self._blocks for kind in set(block.kinds)}

    def renumber(self, kinds: Mapping[int, int]) -> None:
        for number in range(len(self._blocks)):
            block = self._own(number)
            block.kinds = array("I", map(kinds.__getitem__, block.kinds))

    def add(self, first: int, count: int, kind: int, *, joined: bool = True) -> int:
        """Add a range. It is merged with the one before if that is alike and ends there, unless `joined` is false."""
        blocks = self._blocks
        number = max(bisect_right(blocks, first, key=_first) - 1, 0) if blocks and first < blocks[-1].first else -1
        if not blocks:
            blocks.append(Block(array("q"), array("q"), array("I")))
        block = self._own(number)
        firsts = block.firsts
        at = bisect_left(firsts, first)
        if at:
            end = firsts[at - 1] + block.counts[at - 1]
            assert end <= first, (block.at(at - 1), first, count)
            if joined and end == first and block.kinds[at - 1] == kind:
                block.counts[at - 1] += count
                return 0
        firsts.insert(at, first)
        block.counts.insert(at, count)
        block.kinds.insert(at, kind)
        if len(firsts) > BLOCK:
            number %= len(blocks)
            # Mostly they come in order: then the old block stays full.
            blocks[number : number + 1] = block.halves(BLOCK if at == BLOCK else BLOCK // 2 + 1)
        return 1

    def merge(self, *others: Ranges) -> None:
        """Add all ranges of another; it is not to be used any more."""
        mine, theirs = self._blocks, [block for other in others for block in other._blocks]
        first, end = min(other.first for other in others), max(other.end for other in others)
        low = max(bisect_right(mine, first, key=_first) - 1, 0)
        if mine[low].end <= first:
            low += 1
        high = bisect_left(mine, end, key=_first)
        if FEW * _size(theirs) < _size(mine[low:high]):
            for one in chain.from_iterable(others):
                self.add(*one, joined=False)
            return
        if low < high or len(others) > 1:
            theirs = _merged([*mine[low:high], *theirs]).halves(BLOCK)
        mine[low:high] = theirs

    def find(self, number: int) -> Range | None:
        """The range of this number."""
        return self.overlap(number, number + 1)

    def overlap(self, first: int, end: int) -> Range | None:
        """The first range that overlaps these numbers."""
        found = self._overlap(first, end)
        return None if found is None else self._blocks[found[0]].at(found[1])

    def _overlap(self, first: int, end: int) -> tuple[int, int] | None:
        blocks = self._blocks
        if not blocks:
            return None
        number = max(bisect_right(blocks, first, key=_first) - 1, 0) if blocks[0].end <= first else 0
        block = blocks[number]
        at = max(bisect_right(block.firsts, first) - 1, 0)
        if block.firsts[at] + block.counts[at] <= first:
            at += 1
            if at == len(block.firsts):
                number, at = number + 1, 0
                if number == len(blocks):
                    return None
                block = blocks[number]
        return (number, at) if block.firsts[at] < end else None

    def remove(self, first: int, end: int) -> int:
        """Remove numbers that are within one range."""
        found = self._overlap(first, end)
        assert found is not None, (first, end)
        number, at = found
        block = self._own(number)
        begin, count, kind = block.at(at)
        assert begin <= first and end <= begin + count, (begin, count, first, end)  # noqa: PT018
        if first == begin and end == begin + count:
            del block.firsts[at], block.counts[at], block.kinds[at]
            if not block.firsts:
                del self._blocks[number]
            return -1
        rest = [(begin, first - begin, kind), (end, begin + count - end, kind)]
        rest = [one for one in rest if one[1]]
        block.replace(at, rest)
        if len(block.firsts) > BLOCK:
            self._blocks[number : number + 1] = block.halves(BLOCK // 2 + 1)
        return len(rest) - 1

    def cut_off(self, most: int) -> Ranges:
        """Remove the first ranges, so many or all."""
        some, number = Ranges(), 0
        while number < len(self._blocks) and most > 0:
            block = self._blocks[number]
            if len(block.firsts) > most:
                self._blocks[number : number + 1] = block.parted(most)
            most -= len(self._blocks[number].firsts)
            number += 1
        some._blocks, self._blocks = self._blocks[:number], self._blocks[number:]
        return some

    def drop(self, first: int) -> tuple[int, int]:
        """Remove all from a number on: the change, and how many numbers that were."""
        kept: list[Block] = []
        change = gone = 0
        for block in self._blocks:
            if block.end <= first:
                kept.append(block)
                continue
            at = bisect_left(block.firsts, first)
            change -= len(block.firsts) - at
            gone += sum(block.counts[at:])
            if not at:
                continue
            before = block.between(0, at)
            if (over := before.end - first) > 0:
                before.counts[-1] -= over
                gone += over
            kept.append(before)
        self._blocks = kept
        return change, gone


def _size(blocks: list[Block]) -> int:
    return sum(len(block.firsts) for block in blocks)


def _merged(blocks: list[Block]) -> Block:
    firsts, counts, kinds = array("q"), array("q"), array("I")
    for block in blocks:
        firsts += block.firsts
        counts += block.counts
        kinds += block.kinds
    order = sorted(range(len(firsts)), key=firsts.__getitem__)
    return Block(
        array("q", map(firsts.__getitem__, order)),
        array("q", map(counts.__getitem__, order)),
        array("I", map(kinds.__getitem__, order)),
    )
