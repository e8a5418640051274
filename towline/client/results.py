"""Pages of results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

__all__ = ["Page"]

Item = TypeVar("Item")


class Page(Sequence[Item]):
    """Some messages of a stream; `next` is the `first` of the next page. `start` and `end` are the bounds of what can
    be read."""

    __slots__ = ("_items", "end", "next", "start")

    def __init__(self, items: list[Item], *, next_seq: int, start: int, end: int) -> None:
        self._items = items
        self.next = next_seq
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"<Page of {len(self._items)}, next {self.next} of {self.start}..{self.end}>"

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        return self._items[index]
