"""A topic at work: its lanes, and the groups that consume it."""

from __future__ import annotations

from towline.broker.dispatcher import Dispatcher
from towline.broker.lane import Lane
from towline.model import LANES, TopicConfig, lane_stream
from towline.protocol import messages as wire
from towline.store import Store

__all__ = ["Topic"]


class Topic:
    __slots__ = ("config", "groups", "lanes")

    def __init__(self, config: TopicConfig, store: Store) -> None:
        self.config = config
        self.lanes = [Lane(store, lane_stream(config.name, lane)) for lane in LANES]
        self.groups: dict[str, Dispatcher] = {}

    def wake(self) -> None:
        for dispatcher in self.groups.values():
            dispatcher.wake()

    def state(self, store: Store, delayed: int = 0) -> wire.TopicState:
        lanes = [wire.LaneState(name, *store.bounds(lane.stream)) for name, lane in zip(LANES, self.lanes, strict=True)]
        return wire.TopicState(self.config, lanes, sorted(self.groups), delayed)
