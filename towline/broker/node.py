"""The node of a shared database: its name, membership, common documents, and the sums over its realms."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from towline.alarms.rule import AlarmRule
from towline.alarms.watch import Watch
from towline.broker.access.rules import May
from towline.broker.broker import Broker
from towline.broker.browse.scan import StreamScanner
from towline.broker.cluster.common_documents import CommonDocuments
from towline.broker.monitor.alarms import TOLD_MAX, AlarmMonitor
from towline.broker.monitor.listing import Listing, split_lines
from towline.broker.monitor.monitor import Monitor
from towline.broker.monitor.stats import EVERY_S, Stats, TopicFacts, Totals
from towline.broker.periodic import every
from towline.broker.schedule.queries import DelayedMessages
from towline.broker.topics.catalog import TEMPLATE, Catalog
from towline.clock import SYSTEM, TimeSlice
from towline.errors import BadRequest, Overtaken
from towline.format import decode_document
from towline.model import TopicConfig
from towline.protocol import access
from towline.protocol import messages as wire
from towline.protocol.cluster import Brokers, ListBrokers
from towline.protocol.monitor import Alarms
from towline.protocol.scan import Streams, Survey
from towline.settings import BrokerSettings
from towline.store.sql import SharedDocuments

if TYPE_CHECKING:
    from towline.broker.cluster.realms import Realms

__all__ = ["Node"]

TEMPLATE_FILE: Final = "template.json"
TRIES: Final = 20
"""Attempts at a change when others change the same thing in that moment."""
_OWN: Final = ("name", "epoch", "uptime_s", "store", "durability", "connections", "brokers")
"""Figures of a broker that are not sums over its realms."""
_LEAST: Final = ("dedup_kept_s", "dedup_window_s", "dedup_max_ids")
"""Figures that are those of the realm with the least."""
_MOST: Final = ("snapshot_s", "snapshot_age_s", "snapshot_every_s")
"""Figures that are those of the realm with the most; there are none without realms."""


class Node(Broker):
    outlook: _Monitor

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.shared_template = TEMPLATE
        self._templating = asyncio.Lock()

    @property
    def _realms(self) -> Realms:
        return cast("Realms", self.realms)

    def _owned(self) -> list[Broker]:
        return list(self._realms.owned.values())

    @classmethod
    async def open_front(cls, settings: BrokerSettings, documents: SharedDocuments) -> Node:
        front = cls(CommonDocuments(documents), settings, SYSTEM)
        await front._recover()
        front.outlook = _Monitor(front)
        front.scanning = _Scanning(front)
        front.delayed = _Delayed(front)
        front.shared_template = await front._load_template()
        await front.outlook.alarms.load()
        front._start(front.lag.loop(), "the watch over the event loop")
        return front

    # Common to all brokers

    async def follow(self) -> None:
        """Take over changes of other brokers, here and in the realms."""
        await self.renew_template()
        await self.outlook.alarms.follow()
        for broker in self._owned():
            await self.instruct(broker)

    async def instruct(self, broker: Broker) -> None:
        """Hand the common settings to a realm."""
        broker.topics.adopt_template(self.shared_template)
        broker.group_expiry.on_removed = self.group_expiry.on_removed
        await broker.outlook.alarms.adopt(self.outlook.alarms.rules)

    async def renew_template(self) -> None:
        """Read the template, and hand it to the realms here. One at a time: a template that was read first is older."""
        async with self._templating:
            self.shared_template = await self._load_template()
            for broker in self._owned():
                broker.topics.adopt_template(self.shared_template)

    async def _load_template(self) -> TopicConfig:
        kept = await self.store.load(TEMPLATE_FILE)
        if kept is not None:
            return decode_document(TEMPLATE_FILE, kept, TopicConfig)
        # From before the brokers were joined.
        earlier = await self.store.load("main-topics.json")
        return Catalog.template_in(earlier) if earlier is not None else TEMPLATE

    def template(self) -> wire.Templated:
        return wire.Templated(self.shared_template)

    async def put_topic(self, request: wire.PutTopic) -> None:
        assert request.template, "a topic has a realm"
        if request.config.shards:
            raise BadRequest("the template is for topics made by the first send: they are not ordered")
        config = msgspec.structs.replace(request.config, name=TEMPLATE.name, created_at_us=0)
        document = msgspec.json.format(msgspec.json.encode(config)) + b"\n"
        async with self._templating:
            for _ in range(TRIES):
                try:
                    await self.store.save(TEMPLATE_FILE, document)
                    break
                except Overtaken:
                    await self.store.load(TEMPLATE_FILE)
            else:
                raise Overtaken("the template is changed by others all the time: try again")
        await self.renew_template()

    async def brokers(self, request: ListBrokers) -> Brokers:
        return await self._realms.brokers(request)

    # Sums over its realms

    async def topic_states(self) -> list[wire.TopicState]:
        return [state for broker in self._owned() for state in await broker.topic_states()]

    async def group_states(self, topic: str = "") -> list[wire.GroupState]:
        return [state for broker in self._owned() for state in await broker.group_states(topic)]

    def has_topic(self, name: str) -> bool:
        return any(broker.has_topic(name) for broker in self._owned())

    def has_group(self, topic: str, group: str) -> bool:
        return any(broker.has_group(topic, group) for broker in self._owned())

    def topics_of(self, transaction: str, token: bytes) -> list[str]:
        return [name for broker in self._owned() for name in broker.topics_of(transaction, token)]

    def owners_of_sink(self, sink: str) -> set[bytes]:
        return {broker.staging.owner(sink) for broker in self._owned()}

    async def stat(self) -> dict[str, Any]:
        return self._sum(await super().stat(), [await broker.stat() for broker in self._owned()])

    def figures(self) -> dict[str, Any]:
        return self._sum(super().figures(), [broker.figures() for broker in self._owned()])

    def _sum(self, figures: dict[str, Any], of_realms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        for each in of_realms:
            for name, value in each.items():
                if name not in _OWN:
                    figures[name] = figures.get(name, 0) + value if isinstance(value, int | float) else value
        figures |= self.lag.figures()
        for name in _LEAST:
            figures[name] = min((each[name] for each in of_realms), default=figures[name])
        for name in _MOST:
            figures[name] = max((each[name] for each in of_realms), default=0.0)
        figures["realms"] = len(self._realms.owned)
        return figures

    async def measure(self, request: access.Measure) -> access.Measured:
        found = [await broker.measure(request) for broker in self._owned()]
        return access.Measured(
            self.clock.now_us(),
            await self.stat(),
            [one for each in found for one in each.topics],
            [one for each in found for one in each.groups],
        )

    def release_waiters(self) -> None:
        super().release_waiters()
        self._realms.end_waiting()
        for broker in self._owned():
            broker.release_waiters()

    async def close(self) -> None:
        await self._realms.close()
        await super().close()


class _Delayed(DelayedMessages):
    def __init__(self, front: Node) -> None:
        super().__init__(front.topics, front.scheduler)
        self._front = front

    async def list(self, request: wire.ListDelayed, may: May | None = None) -> wire.Delayed:
        found = [await broker.delayed.list(request, may) for broker in self._front._owned()]
        rows = (row for each in found for row in each.messages)
        soonest = heapq.nsmallest(request.max_messages, rows, key=lambda row: (row.deliver_at_us, row.id))
        return wire.Delayed(soonest, sum(each.count for each in found))


class _Scanning(StreamScanner):
    def __init__(self, front: Node) -> None:
        super().__init__(front.store, dict)
        self._front = front

    async def survey(self, request: Survey, may: May | None = None) -> Streams:
        found = [await broker.scanning.survey(request, may) for broker in self._front._owned()]
        states = sorted((one for each in found for one in each.streams), key=lambda one: one.name)
        more = len(states) > request.limit or any(each.more for each in found)
        # A list that ends early ends for all: the rest comes with the next page.
        last = min((each.streams[-1].name for each in found if each.more), default=None)
        states = states if last is None else [one for one in states if one.name <= last]
        return Streams(states[: request.limit], more)


class _Monitor(Monitor):
    alarms: _AlarmMonitor

    def __init__(self, front: Node) -> None:
        super().__init__(
            front.topics, dict, store=front.store, clock=front.clock, settings=front.settings, overdue=front.overdue
        )
        self.census = _Stats(front)
        self.surveyor = Listing(self.census, split_lines(front.settings.business_lines))
        self.alarms = _AlarmMonitor(front, self)
        front._start(every(EVERY_S, "looking at the realms", self.census.refresh), "looking at the realms")


class _Stats(Stats):
    """The statistics of its realms, together."""

    def __init__(self, front: Node) -> None:
        super().__init__({}, dict, front.store, front.clock)
        self._front = front

    async def refresh(self) -> None:
        seen: dict[str, TopicFacts] = {}
        for broker in self._front._owned():
            await broker.outlook.census.refresh()
            seen |= broker.outlook.census.topics
        self.topics = seen
        totals, part = Totals(), TimeSlice()
        for one in seen.values():
            await part.rest()
            totals.add(one)
        self.totals = totals
        self.walks += 1
        self.history.note(self._clock.now_us(), totals, sum(one.delayed for one in seen.values()))


class _AlarmMonitor(AlarmMonitor):
    """The rules of all brokers, and the present alarms of the realms here, which have monitors of their own."""

    def __init__(self, front: Node, outlook: Monitor) -> None:
        super().__init__(
            front.store, front.clock, front.settings, outlook.census, room=outlook.room, overdue=front.overdue
        )
        self._front = front
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        await super().load()
        self._watch = Watch()

    async def follow(self) -> None:
        async with self._changing:
            await self.load()

    async def put(self, rule: AlarmRule, may: May | None = None) -> None:
        await self._change(lambda: AlarmMonitor.put(self, rule, may))

    async def drop(self, name: str, may: May | None = None) -> None:
        await self._change(lambda: AlarmMonitor.drop(self, name, may))

    async def silence(self, name: str, until_us: int, reason: str, may: May | None = None) -> None:
        await self._change(lambda: AlarmMonitor.silence(self, name, until_us, reason, may))

    async def _change(self, change: Any) -> None:
        async with self._changing:
            for _ in range(TRIES):
                await self.load()
                try:
                    await change()
                    break
                except Overtaken:
                    continue
            else:
                await self.load()
                raise Overtaken("the alarm rules are changed by others all the time: try again")
        for broker in self._front._owned():
            await self._front.instruct(broker)

    def listed(self, may: May | None = None) -> Alarms:
        mine = super().listed(may)
        theirs = [broker.outlook.alarms.listed(may) for broker in self._front._owned()]
        told = sorted((one for each in (mine, *theirs) for one in each.told), key=lambda one: -one.at_us)
        return Alarms(mine.rules, [one for each in theirs for one in each.active], told[:TOLD_MAX], mine.mail)
