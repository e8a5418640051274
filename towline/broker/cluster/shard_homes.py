"""Homes of the shards of ordered topics, in a cluster whose brokers keep their own messages.

A shard's home is the highest of all brokers by `rank`, so a broker that joins becomes the home of some shards, of which
lower ones may have a backlog. It takes new messages at once and holds them back: a group gets them when it has nothing
left of the shard at any lower broker. Lower ones wait for none above them, so no two wait for each other.

Each broker sends the higher ones its backlog of their shards with every beat. Of one that has sent nothing yet, and was
not known to have nothing before this start, everything is waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from towline.clock import SECOND_US, Clock, in_slices
from towline.model import rank
from towline.protocol.cluster import Backlog

if TYPE_CHECKING:
    from towline.broker.cluster.membership import Membership
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.broker.topics.topics import Topics

__all__ = ["SETTLE_S", "ShardHomes"]

log = logging.getLogger("towline.cluster")

SETTLE_S: Final = 4.0
"""So long after a broker was first heard of, producers may still send to the homes before: they ask every second for
the brokers. And so long after a group was made, its consumers may not be attached everywhere."""
_WARN_EVERY_S: Final = 60.0
LOWER_MAX: Final = 1_000_000
"""Shards whose rank among brokers is cached."""


class _Report:
    """The backlog of a lower broker."""

    __slots__ = ("groups", "kept", "pending", "since_s", "topics")

    def __init__(self, since_s: float, told: Collection[Backlog]) -> None:
        self.since_s = since_s
        """When it was first heard of; 0 if it was known to have nothing before this start."""
        self.topics = {one.topic for one in told}
        self.kept = {(one.topic, shard) for one in told for shard in one.kept}
        self.pending = {(one.topic, shard) for one in told for shard in one.pending}
        self.groups = {
            (one.topic, name, shard) for one in told for name, shards in one.groups.items() for shard in shards
        }

    def holds(self, topic: str, group: str, shard: int, *, unsettled: bool) -> bool:
        """Whether a group must wait with a shard for this backlog, or for messages that may come there still if it is
        `unsettled`."""
        if (topic, group, shard) in self.groups or (topic, shard) in self.pending:
            return True
        return unsettled and (topic, shard) in self.kept


class ShardHomes:
    def __init__(self, registry: Membership, topics: Topics, clock: Clock) -> None:
        self._registry = registry
        self._topics = topics
        self._clock = clock
        self._reports: dict[str, _Report] = {}
        self._lower: dict[tuple[str, int, str], frozenset[int]] = {}
        self._lower_shards = 0
        """Of all that are in there."""
        self._warned_s = -_WARN_EVERY_S

    # Our backlog

    def backlog_for(self, broker: str) -> list[Backlog]:
        """Our backlog of the shards of which another broker is the higher one."""
        prepared = self._registry.prepared()
        found = []
        for name, topic in self._topics.items():
            if not topic.config.shards:
                continue
            above = sorted(self._above(name, topic.config.shards, broker))
            shards = [shard for shard in above if topic.lanes[shard].coming]
            pending = [shard for shard in above if (name, shard) in prepared]
            kept = [shard for shard in shards if topic.lanes[shard].look()[0] < topic.lanes[shard].coming]
            groups = {}
            for group, dispatcher in topic.groups.items():
                left = [shard for shard in shards if dispatcher.has_left(shard)]
                if left:
                    groups[group] = left
            if kept or pending or groups:
                found.append(Backlog(name, kept, pending, groups))
        return found

    def _above(self, topic: str, count: int, broker: str) -> frozenset[int]:
        """The shards of which another broker is higher than we are."""
        key = topic, count, broker
        known = self._lower.get(key)
        if known is None:
            me = self._registry.id
            known = frozenset(
                shard for shard in range(count) if rank(f"{topic}/{shard}", broker) > rank(f"{topic}/{shard}", me)
            )
            if self._lower_shards + count > LOWER_MAX:
                self._lower.clear()
                self._lower_shards = 0
            self._lower[key] = known
            self._lower_shards += count
        return known

    # Others' backlogs

    async def heard(self, broker: str, told: list[Backlog] | None) -> None:
        """A broker has sent its backlog of our shards; one that cannot is not waited for."""
        known, now_s = self._reports.get(broker), self._clock.steady_s()
        since_s = known.since_s if known is not None else 0.0 if broker in self._registry.clear else now_s
        report = self._reports[broker] = _Report(since_s, told or ())
        settled = not since_s or now_s - since_s > SETTLE_S
        self._registry.note_clear(broker, clear=settled and not report.groups and not report.pending)
        await self.review()

    async def review(self) -> None:
        """Let groups have what they need not wait for any more, and hold back what they must."""
        if self._registry.shared:
            return
        for broker in self._reports.keys() - self._registry.nodes.keys():
            del self._reports[broker]
        away: set[str] = set()
        async for topic in in_slices([one for one in self._topics.values() if one.config.shards]):
            for dispatcher in topic.groups.values():
                self._review(dispatcher, away)
        now_s = self._clock.steady_s()
        if away and now_s - self._warned_s > _WARN_EVERY_S:
            self._warned_s = now_s
            log.warning(
                "ordered messages wait here for those before them at brokers that are away: %s. They come when those "
                "return, or are forgotten (`towline cluster forget`)", ", ".join(sorted(away)),
            )  # fmt: skip

    def install(self, dispatcher: Dispatcher) -> None:
        """A group is new here, or was recovered."""
        if not self._registry.shared:
            self._review(dispatcher, set())

    def _review(self, dispatcher: Dispatcher, away: set[str]) -> None:
        config, shards = dispatcher.group.config, dispatcher.group.shards
        if shards is None:
            return
        now_s = self._clock.steady_s()
        young = dispatcher.time.now_us() - dispatcher.made_us < SETTLE_S * SECOND_US
        barred: set[int] = set()
        for broker, node in self._registry.nodes.items():
            report = self._reports.get(broker)
            if report is None and broker in self._registry.clear:
                continue
            if report is not None and config.topic not in report.topics:
                continue
            held = set(range(shards.count)) - self._above(config.topic, shards.count, broker)
            if report is not None:
                unsettled = young or (bool(report.since_s) and now_s - report.since_s <= SETTLE_S)
                held = {shard for shard in held if report.holds(config.topic, config.name, shard, unsettled=unsettled)}
            if held and self._registry.state_of(broker) != "alive":
                away.add(f"{node.state.name} at {node.state.address}")
            barred |= held
        dispatcher.bar(barred)
