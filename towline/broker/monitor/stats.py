"""Statistics of topics and groups, by a walk over all of them every few seconds.

Lists by pages, figures over time, metrics and alarms are all read off the last walk, so that a reader costs the broker
nothing but the answer. A topic in which nothing has happened since the last walk costs two or three comparisons; and
the more there is to walk over, the more seldom it is done: at most a hundredth of the broker's time goes into it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from typing import Any, Final

from towline.broker.access.rules import May
from towline.broker.consume.dead_letters import dead_letters, dead_waiting
from towline.broker.consume.dispatcher import Dispatcher
from towline.broker.monitor.time_series import TimeSeries
from towline.broker.topics.oldest_messages import look_for_oldest, oldest_us
from towline.broker.topics.topic import Topic
from towline.clock import Clock, TimeSlice
from towline.errors import TowlineError
from towline.model import TopicConfig
from towline.protocol.access import GroupFigures, Measured, TopicFigures
from towline.protocol.groups import NEARLY_FULL
from towline.store import Store

__all__ = ["FAILURES_S", "GroupFacts", "Stats", "TopicFacts", "Totals", "measure"]


async def measure(  # noqa: PLR0917 all of it is measured
    store: Store,
    clock: Clock,
    topics: Sequence[Topic],
    delayed: Mapping[str, int],
    broker: dict[str, Any],
    expires_in_s: Callable[[Dispatcher], float],
) -> Measured:
    of_topics: list[TopicFigures] = []
    of_groups: list[GroupFigures] = []
    reads, part = READS_MAX, TimeSlice()
    for topic in topics:
        await part.rest()
        of_topics.append(_of_topic(store, topic, delayed))
        for dispatcher in list(topic.groups.values()):
            await part.rest()
            dispatcher.notice()
            reads -= await look_for_oldest(store, dispatcher, reads)
            of_groups.append(_of_group(dispatcher, expires_in_s(dispatcher)))
    return Measured(clock.now_us(), broker, of_topics, of_groups)


def _of_topic(store: Store, topic: Topic, delayed: Mapping[str, int]) -> TopicFigures:
    bounds = [store.bounds(lane.stream) for lane in topic.lanes]
    return TopicFigures(
        topic.config.name,
        sum([lane.end for lane in topic.lanes]),
        sum([lane.bytes_in for lane in topic.lanes]),
        sum([one.end - one.first for one in bounds]),
        sum([one.size_bytes for one in bounds]),
        delayed.get(topic.config.name, 0),
    )


def _of_group(dispatcher: Dispatcher, expires_in_s: float) -> GroupFigures:
    group, counts = dispatcher.group, dispatcher.counts
    return GroupFigures(
        group.config.topic,
        group.config.name,
        counts["pulled"],
        counts["bytes"],
        counts["acked"],
        counts["nacked"],
        group.lag(),
        oldest_us(dispatcher.oldest.values(), dispatcher.store),
        group.leased(),
        len(group.leases),
        group.retries.messages,
        dead_waiting(dispatcher),
        len(dispatcher.members),
        dispatcher.unreadable,
        round(group.retries.load, 3),
        round(expires_in_s, 3),
    )


log = logging.getLogger("towline.broker")

EVERY_S: Final = 5.0
RATE_S: Final = 2.0
"""Rates are means of at least this long."""
QUICK_S: Final = 0.01
"""A walk that takes no longer is made whenever somebody reads."""
SHARE: Final = 100
FAILURES_S: Final = 300.0
READS_MAX: Final = 500
"""Messages that a walk reads for their age."""


class Rate:
    """The growth of a number per second."""

    __slots__ = ("_at_s", "_count", "per_s")

    def __init__(self, count: int, now_s: float) -> None:
        self._count = count
        self._at_s = now_s
        self.per_s = 0.0

    def note(self, count: int, now_s: float) -> None:
        passed_s = now_s - self._at_s
        if passed_s >= RATE_S:
            self.per_s = (count - self._count) / passed_s
            self._count, self._at_s = count, now_s


class GroupFacts:
    """The figures of a group as of the last walk."""

    __slots__ = (
        "_failures",
        "alone_since_us",
        "dead",
        "failed",
        "failed_in_all",
        "group",
        "in_flight",
        "lag",
        "members",
        "nearly_full",
        "oldest_us",
        "out",
        "paused",
        "retrying",
        "seen",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: str, group: str, now_us: int, now_s: float) -> None:
        self.topic = topic
        self.group = group
        self.paused = self.nearly_full = False
        self.members = 0
        self.lag = self.in_flight = self.retrying = self.dead = self.failed = 0
        self.failed_in_all = self.oldest_us = 0
        self.out = Rate(0, now_s)
        self.alone_since_us = now_us
        self.seen: tuple[object, ...] = ()
        self._failures: deque[tuple[float, int]] = deque([(now_s, 0)], maxlen=512)

    @property
    def out_per_s(self) -> float:
        return self.out.per_s

    def look(self, dispatcher: Dispatcher, now_us: int, now_s: float) -> bool:
        """Update the figures, if anything has happened. Returns whether it has."""
        counts, group = dispatcher.counts, dispatcher.group
        self.out.note(counts["pulled"], now_s)
        self._note_failures(counts["failed"], now_s)
        self.members = len(dispatcher.members)
        self.alone_since_us = 0 if self.members else min(self.alone_since_us or now_us, now_us)
        dispatcher.notice()
        _, first, end = dead_letters(dispatcher)
        state = (dispatcher.log.count, tuple(group.ends), group.config, first, end)
        if state == self.seen:
            return False
        self.seen = state
        dispatcher.observe()
        self.paused = group.config.paused
        self.lag, self.in_flight, self.retrying = group.lag(), group.leased(), group.retries.messages
        self.dead = dead_waiting(dispatcher)
        self._note_load(dispatcher)
        return True

    def _note_load(self, dispatcher: Dispatcher) -> None:
        """Log that the retry queue is nearly full, once, until it has emptied again."""
        load = dispatcher.group.retries.load
        if load >= NEARLY_FULL and not self.nearly_full:
            log.warning(
                "the retry queue of %s is %.0f %% full, with %d messages that failed: when it is full, the group gets "
                "nothing new until they are consumed or dead",
                dispatcher.label,
                100 * load,
                self.retrying,
            )
        self.nearly_full = load >= (NEARLY_FULL / 2 if self.nearly_full else NEARLY_FULL)

    def _note_failures(self, count: int, now_s: float) -> None:
        if count != self.failed_in_all:
            self._failures.append((now_s, count))
            self.failed_in_all = count
        while len(self._failures) > 1 and self._failures[1][0] < now_s - FAILURES_S:
            self._failures.popleft()
        self.failed = count - self._failures[0][1]


class TopicFacts:
    """The figures of a topic as of the last walk."""

    __slots__ = (
        "dead",
        "delayed",
        "groups",
        "incoming",
        "lag",
        "members",
        "messages",
        "out_per_s",
        "size_bytes",
        "topic",
    )

    def __init__(self, topic: Topic, now_s: float, *, new: bool) -> None:
        self.topic = topic
        self.incoming = Rate(0 if new else sum(lane.end for lane in topic.lanes), now_s)
        self.messages = self.size_bytes = self.lag = self.dead = self.delayed = self.members = 0
        self.out_per_s = 0.0
        self.groups: dict[str, GroupFacts] = {}

    @property
    def config(self) -> TopicConfig:
        return self.topic.config

    @property
    def group_count(self) -> int:
        return len(self.groups)

    @property
    def in_per_s(self) -> float:
        return self.incoming.per_s

    def look(self, store: Store, now_s: float) -> None:
        self.incoming.note(sum(lane.end for lane in self.topic.lanes), now_s)
        bounds = [store.bounds(lane.stream) for lane in self.topic.lanes]
        self.messages = sum(one.end - one.first for one in bounds)
        self.size_bytes = sum(one.size_bytes for one in bounds)

    def seen_by(self, may: May) -> TopicFacts:
        """The figures over the groups that `may` allows to describe."""
        groups = {name: one for name, one in self.groups.items() if may("describe", "group", name)}
        if len(groups) == len(self.groups):
            return self
        some = copy(self)
        some.groups = groups
        some.add_up()
        return some

    def add_up(self) -> None:
        facts = self.groups.values()
        self.lag = sum(one.lag for one in facts)
        self.dead = sum(one.dead for one in facts)
        self.members = sum(one.members for one in facts)
        self.out_per_s = sum(one.out_per_s for one in facts)


class Totals:
    """Sums over all topics."""

    __slots__ = (
        "backlog",
        "dead",
        "failed",
        "in_flight",
        "in_per_s",
        "oldest_us",
        "out_per_s",
        "retrying",
        "size_bytes",
    )

    def __init__(self) -> None:
        self.backlog = self.dead = self.in_flight = self.retrying = self.failed = self.size_bytes = self.oldest_us = 0
        self.in_per_s = self.out_per_s = 0.0

    def add(self, topic: TopicFacts) -> None:
        self.backlog += topic.lag
        self.dead += topic.dead
        self.size_bytes += topic.size_bytes
        self.in_per_s += topic.in_per_s
        self.out_per_s += topic.out_per_s
        for group in topic.groups.values():
            self.in_flight += group.in_flight
            self.retrying += group.retrying
            self.failed += group.failed
            if group.oldest_us:
                self.oldest_us = min(group.oldest_us, self.oldest_us or group.oldest_us)


class Stats:
    """`loop` walks by itself; `refresh` walks now, if the last walk is old and was quick."""

    def __init__(
        self, topics: Mapping[str, Topic], delayed: Callable[[], Mapping[str, int]], store: Store, clock: Clock
    ) -> None:
        self._live = topics
        self._delayed = delayed
        self._store = store
        self._clock = clock
        self._lock = asyncio.Lock()
        self._took: deque[float] = deque(maxlen=3)
        """Durations of the last walks, in seconds."""
        self._walked_s = 0.0
        self.walks = 0
        self.topics: dict[str, TopicFacts] = {}
        self.totals = Totals()
        self.history = TimeSeries()
        self.on_walk: list[Callable[[], Awaitable[None]]] = []
        """Called after every walk."""

    async def loop(self) -> None:
        """A walk that fails is logged; the next one is made all the same: alarms depend on it."""
        while True:
            try:
                await self._walk()
            except Exception as error:
                trace = None if isinstance(error, TowlineError) else error
                log.error("the figures of topics and groups could not be taken: %s", error, exc_info=trace)
            await asyncio.sleep(max(EVERY_S, SHARE * self._cost_s))

    @property
    def _cost_s(self) -> float:
        """The duration of a walk: the quickest of the last few. One during which the machine stood still must not keep
        alarms waiting for a hundred times as long."""
        return min(self._took, default=0.0)

    async def refresh(self) -> None:
        """Walk now, so that a reader sees what was done a moment ago; unless that would take long."""
        old_s = self._clock.steady_s() - self._walked_s
        if not self.walks or self._cost_s < QUICK_S or old_s > SHARE * self._cost_s:
            await self._walk()

    async def _walk(self) -> None:
        async with self._lock:
            walk = _Walk(self._clock)
            self._walked_s = walk.now_s
            delayed = self._delayed()
            for name, topic in list(self._live.items()):
                facts = self.topics.get(name)
                if facts is None or facts.topic is not topic:
                    facts = self.topics[name] = TopicFacts(topic, walk.now_s, new=self.walks > 0)
                facts.delayed = delayed.get(name, 0)
                await self._look(facts, walk)
                walk.totals.add(facts)
            for name in self.topics.keys() - self._live.keys():
                del self.topics[name]
            self.totals = walk.totals
            self.walks += 1
            self.history.note(walk.now_us, self.totals, sum(delayed.values()))
            self._took.append(walk.worked_s)
        for each in self.on_walk:
            await each()

    async def _look(self, facts: TopicFacts, walk: _Walk) -> None:
        facts.look(self._store, walk.now_s)
        for name, dispatcher in list(facts.topic.groups.items()):
            await walk.rest()
            group = facts.groups.get(name)
            if group is None:
                group = facts.groups[name] = GroupFacts(facts.topic.config.name, name, walk.now_us, walk.now_s)
            happened = group.look(dispatcher, walk.now_us, walk.now_s)
            if happened and walk.reads > 0 and not dispatcher.closed:
                walk.reads -= await look_for_oldest(dispatcher.store, dispatcher, walk.reads)
            # It may be another than before if the clock was set.
            group.oldest_us = oldest_us(dispatcher.oldest.values(), dispatcher.store)
            self.history.note_group(walk.now_us, group)
        for name in facts.groups.keys() - facts.topic.groups.keys():
            del facts.groups[name]
        facts.add_up()
        await walk.rest()


class _Walk:
    """One walk: its sums, and its duration without the turns of others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._part = TimeSlice()
        self._begin_s = self.now_s = clock.steady_s()
        self._worked_s = 0.0
        self.now_us = clock.now_us()
        self.totals = Totals()
        self.reads = READS_MAX

    @property
    def worked_s(self) -> float:
        return self._worked_s + self._clock.steady_s() - self._begin_s

    async def rest(self) -> None:
        """Let others run, if it is time."""
        if self._part.over:
            self._worked_s = self.worked_s
            await self._part.rest()
            self._begin_s = self._clock.steady_s()
