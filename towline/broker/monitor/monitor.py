"""The monitoring of one broker: statistics, listing, alarms."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from towline.broker.monitor.alarms import AlarmMonitor
from towline.broker.monitor.disk import Room, room_of, storage
from towline.broker.monitor.listing import Listing, split_lines
from towline.broker.monitor.stats import Stats
from towline.broker.retention.overdue_messages import OverdueMessages
from towline.broker.topics.topic import Topic
from towline.clock import Clock
from towline.protocol.monitor import Stored
from towline.settings import BrokerSettings
from towline.store import Store

__all__ = ["Monitor"]


class Monitor:
    def __init__(
        self,
        topics: Mapping[str, Topic],
        delayed: Callable[[], Mapping[str, int]],
        *,
        store: Store,
        clock: Clock,
        settings: BrokerSettings,
        overdue: OverdueMessages,
    ) -> None:
        self._settings = settings
        self.census = Stats(topics, delayed, store, clock)
        self.surveyor = Listing(self.census, split_lines(settings.business_lines))
        self.alarms = AlarmMonitor(store, clock, settings, self.census, room=self.room, overdue=overdue)
        self.census.on_walk.append(self.alarms.look)

    def room(self) -> Room:
        return room_of(self._settings, self.census.totals.size_bytes)

    def loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        """The loops by name."""
        return {"the census": self.census.loop(), "telling alarms": self.alarms.loop()}

    async def storage(self) -> Stored:
        return await storage(self._settings, self.census.totals.size_bytes)
