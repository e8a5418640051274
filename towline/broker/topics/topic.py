"""A topic at work: its lanes, and the groups that consume it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from towline.broker.consume.dispatcher import Dispatcher
from towline.broker.topics.lane import Lane
from towline.errors import BadRequest
from towline.model import TopicConfig, lane_stream
from towline.protocol import messages as wire
from towline.store import Store

__all__ = ["Topic"]

TRIM_S: Final = 600.0
"""A topic with a retention of its own is trimmed so often at the least."""


class Topic:
    __slots__ = ("_trimmed", "config", "groups", "lanes")

    def __init__(self, config: TopicConfig, store: Store) -> None:
        self.config = config
        self.lanes = [Lane(store, lane_stream(config.name, lane)) for lane in config.lanes]
        self.groups: dict[str, Dispatcher] = {}
        self._trimmed = (0.0, 0.0)
        """The age at which its messages went last, and from when on others are to be looked for."""

    def lane(self, number: int) -> Lane:
        if not 0 <= number < len(self.lanes):
            raise BadRequest(f"topic {self.config.name} has no lane {number}, only 0 to {len(self.lanes) - 1}")
        return self.lanes[number]

    def lanes_of(self, numbers: Sequence[int]) -> Sequence[Lane]:
        """The same for many."""
        if min(numbers) < 0 or max(numbers) >= len(self.lanes):
            return [self.lane(number) for number in numbers]
        return list(map(self.lanes.__getitem__, numbers))

    def wake(self) -> None:
        for dispatcher in self.groups.values():
            dispatcher.wake()

    def look_again(self) -> None:
        """Something may have been dropped: let the groups see it."""
        for dispatcher in self.groups.values():
            dispatcher.observe()

    def is_to_trim(self, now_s: float, age_s: float) -> bool:
        """Whether to look for messages that are older than this. Where there are very many topics with a long
        retention, looking for them in each round would be most of what a broker does."""
        if self._trimmed[0] == age_s and now_s < self._trimmed[1]:
            return False
        self._trimmed = age_s, now_s + min(age_s / 100, TRIM_S)
        return True

    def state(self, store: Store, delayed: int = 0) -> wire.TopicState:
        names = zip(self.config.lanes, self.lanes, strict=True)
        lanes = [wire.LaneState(name, *store.bounds(lane.stream)) for name, lane in names]
        return wire.TopicState(self.config, lanes, sorted(self.groups), delayed)
