"""The shard lanes of an ordered topic: those a pull may take from, the longest waiting first.

A shard has one consumer at a time: a pull takes from one that has no open messages. A failed message is retried in
place: its shard waits until it is due, and nothing of the shard overtakes it. Nothing of this is recorded: it follows
from the leased, retrying and waiting messages.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from towline.delivery.group.events import Part
from towline.delivery.group.retry import AT_ONCE, RetryQueue

__all__ = ["Shards", "behind"]


class Shards:
    """Lanes 0 to `count`. `refresh` is called on every change of a lane, and keeps `waiting` true."""

    __slots__ = ("_dues", "_open", "_retries", "barred", "count", "waiting")

    def __init__(self, count: int, retries: RetryQueue) -> None:
        self.count = count
        self.waiting: dict[int, None] = {}
        """Free shards that have something to deliver, in the order in which they came to that."""
        self.barred: frozenset[int] = frozenset()
        """Shards that must not be delivered from now, whatever they have."""
        self._retries = retries
        self._open: dict[int, int] = {}
        """Leased messages, by shard."""
        self._dues: list[tuple[int, int]] = []
        """The due time of the first message of a shard, and the shard; some entries may be out of date."""

    def lease(self, lane: int, change: int) -> None:
        """The number of leased messages has changed."""
        if lane < self.count:
            count = self._open.get(lane, 0) + change
            if count:
                self._open[lane] = count
            else:
                self._open.pop(lane, None)

    def refresh(self, lane: int, *, fresh: bool) -> None:
        """A shard has changed; `fresh`: it has messages that were never delivered."""
        if lane >= self.count:
            return
        due_us = self._retries.head_due_us(lane)
        if lane in self._open or lane in self.barred or (due_us is None and not fresh):
            self.waiting.pop(lane, None)
        elif due_us is None or due_us == AT_ONCE:
            self.waiting.setdefault(lane)
        else:
            self.waiting.pop(lane, None)
            heapq.heappush(self._dues, (due_us, lane))
            if len(self._dues) > 2 * self.count + 64:
                self._tidy()

    def has_open(self, lane: int) -> bool:
        """Whether messages of a shard are leased, or wait for a retry."""
        return lane in self._open or self._retries.head_due_us(lane) is not None

    def grow(self, lane: int) -> None:
        """New messages have come to a shard. They change nothing where one waits already, or must."""
        if lane < self.count and lane not in self.waiting:
            self.refresh(lane, fresh=True)

    def ripen(self, now_us: int) -> None:
        """Add the shards whose first message has become due."""
        while self._dues and self._dues[0][0] <= now_us:
            due_us, lane = heapq.heappop(self._dues)
            if self._is_due_at(lane, due_us):
                self.waiting.setdefault(lane)

    def next_due_us(self) -> int | None:
        while self._dues and not self._is_due_at(self._dues[0][1], self._dues[0][0]):
            heapq.heappop(self._dues)
        return self._dues[0][0] if self._dues else None

    def due(self, lane: int, now_us: int) -> Iterator[Part | None]:
        """The retries of a waiting shard, in order; None at the first that is not due. That the first one is due was
        seen before, maybe by a clock that was set back since."""
        for number, (part, due_us) in enumerate(self._retries.row(lane)):
            if number and due_us > now_us:
                yield None
                return
            yield part

    def _is_due_at(self, lane: int, due_us: int) -> bool:
        return lane not in self._open and lane not in self.barred and self._retries.head_due_us(lane) == due_us

    def _tidy(self) -> None:
        self._dues = list({(due, lane) for due, lane in self._dues if self._is_due_at(lane, due)})
        heapq.heapify(self._dues)


def behind(opened: Iterable[Part], chosen: Iterable[Part], shards: int) -> list[Part]:
    """The open messages of the same shards behind the first of the chosen ones: they go back together with them,
    because nothing overtakes a retry."""
    lowest: dict[int, int] = {}
    parts = list(chosen)
    for part in parts:
        if part.lane < shards:
            lowest[part.lane] = min(part.first, lowest.get(part.lane, part.first))
    if not lowest:
        return []
    rest = [part for part in opened if part.lane in lowest and part.end > lowest[part.lane]]
    return [piece for part in rest for piece in _without(part, parts, lowest[part.lane])]


def _without(part: Part, others: Iterable[Part], low: int) -> Iterator[Part]:
    """The rest of a part at or behind `low`, without the others."""
    at = max(part.first, low)
    for other in sorted(one for one in others if one.lane == part.lane and one.first < part.end and at < one.end):
        if at < other.first:
            yield Part(part.lane, at, other.first - at, part.attempt)
        at = other.end
    if at < part.end:
        yield Part(part.lane, at, part.end - at, part.attempt)
