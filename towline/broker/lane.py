"""A lane as the broker sees it: a stream, and how far it may be delivered."""

from __future__ import annotations

import asyncio
from collections import deque

from towline.store import Store

__all__ = ["Lane"]


class Lane:
    """Messages become visible in order, each once it is as durable as its sender asked: nothing is delivered that a
    crash could undo."""

    __slots__ = ("_pending", "_store", "_watchers", "end", "stream")

    def __init__(self, store: Store, stream: str) -> None:
        self._store = store
        self._pending: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._watchers: list[tuple[set[int], int]] = []
        self.stream = stream
        self.end = store.bounds(stream).end

    def watch(self, changed: set[int], number: int) -> None:
        """From now on, put `number` into `changed` whenever there is more to deliver."""
        self._watchers.append((changed, number))
        changed.add(number)

    def unwatch(self, changed: set[int]) -> None:
        self._watchers = [watcher for watcher in self._watchers if watcher[0] is not changed]

    def submitted(self, end: int, done: asyncio.Future[None]) -> None:
        """Messages up to `end` are on their way into the store."""
        self._pending.append((end, done))

    def advance(self) -> None:
        """Make visible what is durable by now."""
        pending = self._pending
        while pending and pending[0][1].done():
            end, done = pending.popleft()
            if not done.cancelled() and done.exception() is None:
                self.end = end
                for changed, number in self._watchers:
                    changed.add(number)

    def look(self) -> tuple[int, int, int]:
        """The first and the end of what may be delivered, and the mean size of a message."""
        first, end, size_bytes = self._store.bounds(self.stream)
        return first, self.end, size_bytes // (end - first) if end > first else 1
