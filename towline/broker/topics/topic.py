"""A topic at work: its lanes, and the groups that consume it. A lane is a stream, the end of its visible messages, and
the latest frames."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from towline.errors import BadRequest, TooLarge
from towline.model import TopicConfig, lane_stream
from towline.protocol import messages as wire
from towline.store import Append, Chunk, Store

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher

__all__ = ["Lane", "Topic", "advance_all", "submit_all"]


RECENT_FRAMES: Final = 4
RECENT_BYTES: Final = 2 << 10
"""The last small frames of a lane are cached for a moment: a consumer that comes for them gets them without a read."""


class Lane:
    """Messages become visible in order, each once it is as durable as its sender asked: nothing is delivered that a
    crash could undo."""

    __slots__ = ("_pending", "_recent", "_store", "_taken", "_watchers", "bytes_in", "end", "stream")

    def __init__(self, store: Store, stream: str) -> None:
        self._store = store
        self._pending: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._recent: deque[Chunk] | None = None
        self._watchers: list[tuple[set[int], int]] = []
        self._taken = 0
        """Numbers before this one are not given again, though the write of the last of them was refused."""
        self.stream = stream
        self.bytes_in = 0
        """Of frames, since the broker started."""
        self.end = store.bounds(stream).end

    @property
    def next(self) -> int:
        """The number of the next message."""
        return max(self.coming, self._taken)

    @property
    def coming(self) -> int:
        """The end of the messages that are there or being written."""
        return self._pending[-1][0] if self._pending else self.end

    @property
    def last(self) -> asyncio.Future[None] | None:
        """Done when all present writes are visible; None if there are none."""
        return self._pending[-1][1] if self._pending else None

    def watch(self, changed: set[int], number: int) -> None:
        """From now on, put `number` into `changed` whenever there is more to deliver."""
        self._watchers.append((changed, number))
        changed.add(number)

    def unwatch(self, changed: set[int]) -> None:
        self._watchers = [watcher for watcher in self._watchers if watcher[0] is not changed]

    def submitted(self, first: int, append: Append, at_us: int, done: asyncio.Future[None]) -> None:
        """A frame is being written."""
        _, frame, count, source, *_ = append
        self._pending.append((first + count, done))
        self.bytes_in += len(frame)
        if len(frame) <= RECENT_BYTES:
            if self._recent is None:
                self._recent = deque(maxlen=RECENT_FRAMES)
            self._recent.append(Chunk(first, count, 0, bytes(frame), at_us, source))

    def advance(self) -> None:
        """Make durable messages visible."""
        pending = self._pending
        while pending and pending[0][1].done():
            end, done = pending.popleft()
            if not done.cancelled() and done.exception() is None:
                self.end = end
                for changed, number in self._watchers:
                    changed.add(number)
            else:
                # Refused: its numbers may be another's by now, unless the database refused it only after they were
                # given.
                if not done.cancelled() and isinstance(done.exception(), TooLarge):
                    self._taken = end
                self._recent = None

    def look(self) -> tuple[int, int, int]:
        """The first and the end of the visible messages, and the mean size of a message."""
        first, end, size_bytes = self._store.bounds(self.stream)
        return first, self.end, size_bytes // (end - first) if end > first else 1

    def forget_recent(self) -> None:
        """Drop cached frames: over very many lanes they would add up."""
        self._recent = None

    def recent(self, first: int, count: int) -> Chunk | None:
        """Messages from `first` on, at most `count`, of a cached frame."""
        for chunk in self._recent or ():
            start = first - chunk.first
            if 0 <= start < chunk.count:
                room = chunk.count - start
                if not start and room <= count:
                    return chunk
                taken = min(count, room)
                return Chunk(first, taken, start, chunk.frame, chunk.appended_at_us, chunk.source)
        return None


def submit_all(
    lanes: Sequence[Lane], firsts: Sequence[int], unit: Sequence[Append], at_us: int, done: asyncio.Future[None]
) -> None:
    """`submitted` for each frame of a unit, and the lane that it goes to."""
    for lane, first, (_, frame, count, source, *_) in zip(lanes, firsts, unit, strict=True):
        length = len(frame)
        lane._pending.append((first + count, done))
        lane.bytes_in += length
        if length <= RECENT_BYTES:
            if lane._recent is None:
                lane._recent = deque(maxlen=RECENT_FRAMES)
            lane._recent.append(Chunk(first, count, 0, bytes(frame), at_us, source))


def advance_all(lanes: Sequence[Lane]) -> None:
    """`advance` for each lane of a unit. Mostly that unit alone waits in them, so it is asked once."""
    stored: asyncio.Future[None] | None = None
    for lane in lanes:
        pending = lane._pending
        if len(pending) != 1:
            lane.advance()
            continue
        end, done = pending[0]
        if done is not stored:
            if not done.done() or done.cancelled() or done.exception() is not None:
                lane.advance()
                continue
            stored = done
        pending.clear()
        lane.end = end
        for changed, number in lane._watchers:
            changed.add(number)


TRIM_S: Final = 600.0
"""A topic with a retention of its own is trimmed at least this often."""


class Topic:
    __slots__ = ("_trimmed", "config", "groups", "lanes")

    def __init__(self, config: TopicConfig, store: Store) -> None:
        self.config = config
        self.lanes = [Lane(store, lane_stream(config.name, lane)) for lane in config.lanes]
        self.groups: dict[str, Dispatcher] = {}
        self._trimmed = (0.0, 0.0)
        """The age at which its messages were trimmed last, and the time of the next look."""

    def lane(self, number: int) -> Lane:
        if not 0 <= number < len(self.lanes):
            raise BadRequest(f"topic {self.config.name} has no lane {number}, only 0 to {len(self.lanes) - 1}")
        return self.lanes[number]

    def lanes_of(self, numbers: Sequence[int]) -> Sequence[Lane]:
        """The lanes of several topics."""
        if min(numbers) < 0 or max(numbers) >= len(self.lanes):
            return [self.lane(number) for number in numbers]
        return list(map(self.lanes.__getitem__, numbers))

    def wake(self) -> None:
        for dispatcher in self.groups.values():
            dispatcher.wake()

    def look_again(self) -> None:
        """Messages may have been dropped: update the groups."""
        for dispatcher in self.groups.values():
            dispatcher.observe()

    def is_to_trim(self, now_s: float, age_s: float) -> bool:
        """Whether to look for messages that are older than this. Where there are very many topics with a long
        retention, looking for them in each round would be most of a broker's work."""
        if self._trimmed[0] == age_s and now_s < self._trimmed[1]:
            return False
        self._trimmed = age_s, now_s + min(age_s / 100, TRIM_S)
        return True

    def state(self, store: Store, delayed: int = 0) -> wire.TopicState:
        names = zip(self.config.lanes, self.lanes, strict=True)
        lanes = [wire.LaneState(name, *store.bounds(lane.stream)) for name, lane in names]
        return wire.TopicState(self.config, lanes, sorted(self.groups), delayed)
