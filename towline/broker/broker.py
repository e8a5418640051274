"""The broker: topics, groups and a store, joined into one service with an in-process API.

Requests and answers are those of the wire protocol, so that a session only moves bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from towline.broker import burial
from towline.broker.agenda import Agenda
from towline.broker.burial import bury, dead_letters, expire, resend, revise
from towline.broker.catalog import Catalog
from towline.broker.delayed import cancel_delayed, list_delayed, move_delayed
from towline.broker.dispatcher import Dispatcher
from towline.broker.fan import Fan, Fans, chosen
from towline.broker.finding import find
from towline.broker.handback import hand_back
from towline.broker.holds import Holds
from towline.broker.looking import browse_dead, browse_lane, figures_of, group_state
from towline.broker.maintenance import every, reclaim, retain, sweep_members
from towline.broker.member import Member
from towline.broker.metering import measure
from towline.broker.moving import purge, report, seek
from towline.broker.ordering import wrong_shard
from towline.broker.outlook import Outlook
from towline.broker.publishing import Staging
from towline.broker.recovery import Snapshots, find_uncatalogued, recover_group, recover_producers
from towline.broker.registry import Registry
from towline.broker.scanning import Scanning
from towline.broker.scheduling import Scheduler
from towline.broker.sending import Outgoing, Sender
from towline.broker.starting import start_of
from towline.broker.topic import Topic
from towline.broker.tracing import trace
from towline.broker.transactions import Escrow
from towline.clock import SECOND_US, SYSTEM, Clock
from towline.delivery import Dedup, Group, Start
from towline.errors import BadRequest, Conflict, NotFound, QueueFull, TooLarge, TowlineError, Unavailable
from towline.model import (
    MAX_GROUPS_PER_TOPIC,
    MAX_SHARDS_IN_ALL,
    MAX_TOPICS,
    PRIVATE,
    Durability,
    GroupConfig,
    TopicConfig,
    check_consumer,
    check_group,
    check_topic,
    parse_delay_levels,
)
from towline.protocol import access, ordering
from towline.protocol import messages as wire
from towline.protocol.cluster import HandBack, HandedBack
from towline.protocol.publishing import Report
from towline.settings import BrokerSettings
from towline.store import Store

__all__ = ["Broker"]

log = logging.getLogger("towline.broker")

EPOCH = "epoch.json"
PULLS_PER_EPOCH = 1 << 40


class Broker:
    """Open it with `Broker.open`; close it to leave everything durable and tidy."""

    realms: Any = None
    """Where brokers share a database: what there is of it here."""

    def __init__(self, store: Store, settings: BrokerSettings, clock: Clock) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.epoch = 0
        """How many there are; the server says so, where there is one."""
        self.closing = False
        self._durability = Durability.parse(settings.durability)
        self._catalog = Catalog(store, clock)
        self._snapshots = Snapshots(store, clock)
        self._topics: dict[str, Topic] = {}
        self.scanning = Scanning(store, lambda: self._topics)
        borrow_bytes = settings.capacity_bytes // 32 if settings.store.startswith("memory:") else 0
        self._agenda = Agenda(store, clock, self._durability, borrow_bytes=borrow_bytes)
        levels_us = parse_delay_levels(settings.delay_levels)
        self.scheduler = Scheduler(self._agenda, levels_us, self._topic_of_delayed, self._reclaim)
        self._pulls: Iterator[int] = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._burying: set[Dispatcher] = set()
        self._orphans: dict[tuple[str, str, str], float] = {}
        self._opened_s = clock.steady_s()
        self.registry = Registry(store, settings, clock, lambda: len(self._topics))
        self._attaching = asyncio.Lock()
        self._fans = Fans(self._topics, lambda: self.closing)
        self._holds = Holds(store, clock, settings)

    # Opening and closing

    @classmethod
    async def open(cls, store: Store, settings: BrokerSettings, *, clock: Clock = SYSTEM) -> Broker:
        broker = cls(store, settings, clock)
        await broker._recover()
        for loop in (*broker.scheduler.loops(), *broker.outlook.loops()):
            broker._start(loop)
        broker._start(broker.staging.go_on())
        broker._start(every(settings.maintenance_s, "maintenance", broker.maintain))
        broker._start(every(min(max(settings.heartbeat_s / 10, 0.02), 1.0), "heartbeat watch", broker._watch))
        return broker

    async def _recover(self) -> None:
        document = await self.store.load(EPOCH)
        self.epoch = (msgspec.json.decode(document, type=dict[str, int])["epoch"] if document else 0) + 1
        await self.store.save(EPOCH, msgspec.json.encode({"epoch": self.epoch}))
        self._pulls = itertools.count(self.epoch * PULLS_PER_EPOCH + 1)
        await self.registry.load(self.epoch)
        await self._catalog.load()
        find_uncatalogued(self.store, self._catalog, self.clock)
        await self._snapshots.load()
        self._topics.update({name: Topic(config, self.store) for name, config in self._catalog.topics.items()})
        for (topic, name), config in list(self._catalog.groups.items()):
            if topic not in self._topics:
                self._catalog.drop_group(topic, name)
                continue
            shards, known = self._topics[topic].config.shards, self._snapshots.groups.get((topic, name))
            self._install(self._topics[topic], await recover_group(self.store, config, known, shards))
        await self._agenda.recover()
        for name in self.scheduler.schedule.counts.keys() - self._topics.keys():
            log.warning("topic %s has delayed messages but is not in topics.json: added with default settings", name)
            self._topic_of_delayed(name)
        lanes = {
            lane.stream: (name, number)
            for name, topic in self._topics.items()
            for number, lane in enumerate(topic.lanes)
        }
        self._dedup = Dedup(round(self.settings.dedup_window_s * SECOND_US), self.settings.dedup_max_ids)
        self._producers = await recover_producers(
            self.store, lanes, list(self._agenda.ends()), self._dedup, self.clock.now_us()
        )
        self._sender = Sender(
            self.store,
            self._producers,
            self._dedup,
            self._topic_for_send,
            durability=self._durability,
            max_frame_bytes=self.settings.max_frame_bytes,
            clock=self.clock,
            scheduler=self.scheduler,
        )
        self.commit_times = self._sender.commit_times
        self.transactions = Escrow(self.store, self.clock, self._sender, self.settings, self._reclaim)
        await self.transactions.recover()
        self.staging = await Staging.open(self.store, self.clock, self._sender, self._durability, self._reclaim)
        await self._catalog.save()
        delayed = lambda: self.scheduler.schedule.counts  # noqa: E731
        self.outlook = Outlook(self._topics, delayed, store=self.store, clock=self.clock, settings=self.settings)
        await self.outlook.alarms.load()

    def _install(self, topic: Topic, group: Group) -> Dispatcher:
        dispatcher = Dispatcher(
            group,
            topic.lanes,
            self.store,
            self.clock,
            next_pull=lambda: next(self._pulls),
            durability=self._durability,
        )
        for lane, source in enumerate(dispatcher.lanes):
            if group.next[lane] > source.end:
                log.error(
                    "%s: its position %d on %s is beyond the end %d, and is set back",
                    dispatcher.label, group.next[lane], source.stream, source.end,
                )  # fmt: skip
                group.next[lane] = source.end
        dispatcher.observe()
        dispatcher.on_dying = self._bury_soon
        topic.groups[group.config.name] = dispatcher
        deadline_s = self.clock.steady_s() + self.settings.heartbeat_s
        for consumer in group.in_flight:
            self._orphans[group.config.topic, group.config.name, consumer] = deadline_s
        dispatcher.arm()
        if group.dying:
            self._bury_soon(dispatcher)
        return dispatcher

    def release_waiters(self) -> None:
        """Answer all pulls that wait, and let no new one wait: the broker is about to stop."""
        self.closing = self.staging.closing = True
        self.transactions.release_waiters()
        for dispatcher in self._dispatchers():
            dispatcher.release_waiters()

    async def close(self) -> None:
        """Stop, and leave everything durable. Consumers keep their leases: they come back to the next broker on this
        store, or lose them there when they do not."""
        self.closing = self.staging.closing = True
        self.transactions.release_waiters()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._save_snapshots()
            await self._catalog.save()
        except TowlineError as error:
            log.error("the broker could not be closed in order: %s; the next start replays the logs", error)
        for dispatcher in self._dispatchers():
            dispatcher.close()
        await self.store.close()

    def _start(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _dispatchers(self) -> Iterator[Dispatcher]:
        for topic in self._topics.values():
            yield from topic.groups.values()

    # Sending

    def send(
        self,
        frames: Sequence[Outgoing],
        durability: Durability | None = None,
        *,
        source: bytes = b"",
        token: bytes = b"",
    ) -> asyncio.Future[wire.Sent]:
        """Append frames, each a (topic, lane number, frame), as one unit. The answer comes when they are durable."""
        try:
            return self._sender.send(frames, durability, source, token)
        except QueueFull:
            if not self.settings.store.startswith("memory:"):
                raise
        again = self._send_after_reclaim(frames, durability, source, token)
        return asyncio.get_running_loop().create_task(again)

    async def _send_after_reclaim(
        self, frames: Sequence[Outgoing], durability: Durability | None, source: bytes, token: bytes
    ) -> wire.Sent:
        await self._reclaim()
        return await self._sender.send(frames, durability, source, token)

    async def _reclaim(self) -> None:
        """A memory store has little room."""
        if not self.settings.store.startswith("memory:"):
            return
        await self._agenda.save()
        await self._agenda.trim()
        self._agenda.repay(await reclaim(self.store, list(self._topics.values())))

    def _topic_of_delayed(self, name: str) -> Topic:
        """A topic that has delayed messages was there when they were sent; a crash may have forgotten it."""
        return self._topics.get(name) or self._make_topic(TopicConfig(name, self.clock.now_us()))

    def _topic_for_send(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        check_topic(name)
        if name in self._catalog.topics:
            raise Unavailable(f"topic {name} is being made in this moment: try again")
        if not self.settings.auto_create_topics:
            raise NotFound(f"there is no topic {name}, and this broker does not make topics by itself: create it first")
        topic = self._make_topic(self._catalog.from_template(name))
        self._start(self._save_catalog())
        return topic

    # Consuming

    async def fan(self, request: wire.Attach, *, address: str = "", may: Callable[[str], bool]) -> Fan:
        """Attach to all topics under a prefix, as far as one `may`; to those as well that are made later."""
        return await self._fans.open(request, partial(self.attach, address=address), may)

    async def attach(self, request: wire.Attach, *, address: str = "") -> Member:
        check_topic(request.topic)
        check_group(request.group)
        check_consumer(request.consumer)
        async with self._attaching:
            dispatcher = await self._group_for_consumer(request)
        member = Member(self, dispatcher, request.consumer, address, self.clock.steady_s())
        self._orphans.pop((request.topic, request.group, request.consumer), None)
        dispatcher.attach(member, request.holding)
        return member

    async def _group_for_consumer(self, request: wire.Attach) -> Dispatcher:
        topic = self._topics.get(request.topic)
        found = topic.groups.get(request.group) if topic else None
        if found is not None:
            return found
        if not self.settings.auto_create_groups and not request.group.startswith(PRIVATE):
            raise NotFound(
                f"there is no group {request.group} on topic {request.topic}, and this broker does not make groups by "
                "itself: create it first"
            )
        topic = topic or self._topic_for_send(request.topic)
        config = request.config or GroupConfig(request.topic, request.group)
        if (config.topic, config.name) != (request.topic, request.group):
            raise BadRequest(f"settings of group {config.name} on topic {config.topic} do not fit this request")
        return await self._make_group(topic, config)

    async def hand_back(self, request: HandBack, data: bytes | memoryview, *, token: bytes = b"") -> HandedBack:
        """Messages of another broker, which a consumer failed with and cannot give back there."""
        check_topic(request.topic)
        check_group(request.group)
        frame = self._sender.check(data, token)
        attach = wire.Attach(request.topic, request.group, "", request.config)
        async with self._attaching:
            dispatcher = await self._group_for_consumer(attach)
        return await hand_back(dispatcher, request, frame, self._producers, self._durability)

    async def pull(self, member: Member | Fan, request: wire.Pull) -> tuple[wire.Pulled, list[bytes | memoryview]]:
        if self.closing and request.wait_ms:
            request = msgspec.structs.replace(request, wait_ms=0)
        if isinstance(member, Fan):
            return await member.pull(request)
        return await member.dispatcher.pull(member, request)

    async def settle(self, member: Member | Fan, acts: Sequence[wire.Act]) -> wire.Settled:
        if isinstance(member, Fan):
            return await member.settle(acts)
        return await member.dispatcher.settle(member, acts)

    async def detach(self, member: Member | Fan) -> None:
        for one in self._fans.leave(member):
            if not one.fenced:
                self._leave(one, vanished=False)

    async def kick(self, topic: str, group: str, consumer: str) -> None:
        """What a consumer holds goes back to its group; it may attach again, and then begins anew."""
        self._leave(self._dispatcher(topic, group).member(consumer), vanished=False)

    def disconnected(self, member: Member | Fan) -> None:
        """Its connection broke: it may come back for a moment, then what it holds goes to others."""
        for one in self._fans.leave(member):
            if one.fenced or one.grace is not None:
                continue
            loop = asyncio.get_running_loop()
            reason = f"the connection of consumer {one.consumer} ({one.address}) broke"
            one.grace = loop.call_later(self.settings.reconnect_grace_s, self._vanish, one, reason)

    def beat(self, member: Member | Fan) -> None:
        now_s = self.clock.steady_s()
        for one in member.members:
            one.last_seen_s = now_s

    def _vanish(self, member: Member, reason: str) -> None:
        try:
            self._leave(member, vanished=True, reason=reason)
        except TowlineError as error:
            log.error("%s: %s", member.dispatcher.label, error)

    def _leave(self, member: Member, *, vanished: bool, reason: str = "") -> None:
        dispatcher = member.dispatcher
        dispatcher.leave(member, vanished=vanished, reason=reason)
        if dispatcher.group.config.ephemeral and not dispatcher.members and not self.closing:
            self._start(self.delete_group(dispatcher.group.config.topic, dispatcher.group.config.name))

    # Topics

    async def create_topic(self, config: TopicConfig) -> None:
        if config.name in self._catalog.topics:
            raise Conflict(f"topic {config.name} exists already")
        self._check_room(config)
        config = msgspec.structs.replace(config, created_at_us=self.clock.now_us())
        self._catalog.put_topic(config)
        # Nothing may be sent to it before its number of shards is durable: the messages alone do not tell it.
        try:
            await self._catalog.save()
        except BaseException:
            self._catalog.drop_topic(config.name)
            raise
        self._make_topic(config)

    async def put_topic(self, request: wire.PutTopic) -> None:
        """Change the settings of a topic, or of the template for topics that are yet to be made by themselves."""
        if request.template:
            if request.config.shards:
                raise BadRequest("the template is for topics made by the first send: they are not ordered")
            self._catalog.put_template(request.config)
        else:
            topic = self._topic(request.config.name)
            if request.config.shards != topic.config.shards:
                raise BadRequest(
                    f"topic {request.config.name} was made with shards={topic.config.shards}, which cannot be changed "
                    f"to {request.config.shards}"
                )
            topic.config = msgspec.structs.replace(request.config, created_at_us=topic.config.created_at_us)
            self._catalog.put_topic(topic.config)
        await self._catalog.save()

    def template(self) -> wire.Templated:
        return wire.Templated(self._catalog.template)

    def _make_topic(self, config: TopicConfig) -> Topic:
        self._check_room(config)
        topic = self._topics[config.name] = Topic(config, self.store)
        self._catalog.put_topic(config)
        self._fans.made(config.name)
        return topic

    def _check_room(self, config: TopicConfig) -> None:
        if self.closing:
            raise Unavailable("the broker is shutting down")
        if len(self._topics) >= MAX_TOPICS:
            raise TooLarge(f"this broker has {MAX_TOPICS} topics already: topic {config.name} is not made")
        others = (one.shards for one in self._catalog.topics.values() if one.name != config.name)
        if config.shards and sum(others) > MAX_SHARDS_IN_ALL - config.shards:
            raise TooLarge(f"the topics of this broker may have {MAX_SHARDS_IN_ALL} shards in all: not so many more")

    def shard_count(self, name: str) -> int:
        topic = self._topics.get(check_topic(name))
        return topic.config.shards if topic is not None else 0

    def expect_shards(self, name: str, shards: int) -> None:
        """Refuse a sender that reckons with another number of shards: it put the messages into the wrong ones."""
        actual = 0 if (topic := self._topics.get(name)) is None else topic.config.shards
        if actual != shards:
            raise wrong_shard(name, actual, shards)

    async def delete_topic(self, name: str) -> None:
        topic = self._topic(name)
        await self.scheduler.drop_topic(name)
        for group in list(topic.groups):
            await self.delete_group(name, group)
        self._topics.pop(name, None)
        self._dedup.forget_topic(name)
        self._catalog.drop_topic(name)
        await self._catalog.save()
        for lane in topic.lanes:
            await self.store.trim(lane.stream, self.store.bounds(lane.stream).end)

    async def edit_topic(self, request: ordering.EditTopic) -> None:
        topic = self._topic(request.topic)
        topic.config = msgspec.structs.replace(topic.config, retention_s=request.retention_s)
        self._catalog.put_topic(topic.config)
        await self._catalog.save()

    async def purge(self, request: ordering.Purge) -> ordering.Purged:
        topic = self._topic(request.topic)
        purged = await purge(topic, self.store, self._durability, self._save_snapshots, dry_run=request.dry_run)
        if not request.dry_run:
            # An id stands for a message that is gone: who sends it again means it.
            self._dedup.forget_topic(request.topic, delayed=False)
            await self._save_snapshots()
        return purged

    def has_topic(self, name: str) -> bool:
        return name in self._topics

    def has_group(self, topic: str, group: str) -> bool:
        found = self._topics.get(topic)
        return found is not None and group in found.groups

    def topic_states(self) -> list[wire.TopicState]:
        return [self.topic_state(name) for name in sorted(self._topics)]

    def topic_state(self, name: str) -> wire.TopicState:
        return self._topic(name).state(self.store, self.scheduler.schedule.counts.get(name, 0))

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(check_topic(name))
        if topic is None:
            raise NotFound(f"there is no topic {name}")
        return topic

    # Groups

    async def put_group(self, config: GroupConfig) -> None:
        topic = self._topic(config.topic)
        async with self._attaching:
            dispatcher = topic.groups.get(config.name)
            if dispatcher is None:
                await self._make_group(topic, config)
                return
            old = dispatcher.group.config
            # Whether it rests is not a setting: it has a request of its own.
            await self._change_group(
                dispatcher,
                msgspec.structs.replace(
                    config, created_at_us=old.created_at_us, paused=old.paused, pause_reason=old.pause_reason
                ),
            )

    async def pause(self, request: ordering.Pause) -> None:
        dispatcher = self._dispatcher(request.topic, request.group)
        async with self._attaching:
            reason = request.reason if request.paused else ""
            config = msgspec.structs.replace(dispatcher.group.config, paused=request.paused, pause_reason=reason)
            await self._change_group(dispatcher, config)
        dispatcher.wake()

    async def _change_group(self, dispatcher: Dispatcher, config: GroupConfig) -> None:
        dispatcher.group.config = config
        self._catalog.put_group(config)
        await self._catalog.save()

    async def seek(self, request: ordering.Seek) -> ordering.Sought:
        return await seek(self._dispatcher(request.topic, request.group), request, self._durability)

    async def _make_group(self, topic: Topic, config: GroupConfig) -> Dispatcher:
        if self.closing:
            raise Unavailable("the broker is shutting down")
        if len(topic.groups) >= MAX_GROUPS_PER_TOPIC:
            raise TooLarge(f"topic {config.topic} has {MAX_GROUPS_PER_TOPIC} groups already")
        start = config.start or topic.config.start or self.settings.group_start
        config = msgspec.structs.replace(config, created_at_us=self.clock.now_us(), start=start)
        dispatcher = self._install(topic, Group(config, topic.config.shards))
        try:
            positions = await start_of(self.store, topic, config.start)
            owns = tuple(lane.end for lane in dispatcher.lanes[len(topic.lanes) :])
            _, appended = dispatcher.run(Start(positions + owns), Durability.FSYNC)
            assert appended is not None
            await appended.done
        except BaseException:
            del topic.groups[config.name]
            dispatcher.close()
            raise
        self._catalog.put_group(config)
        if not config.ephemeral:
            await self._catalog.save()
        return dispatcher

    async def delete_group(self, topic: str, name: str) -> None:
        dispatcher = self._dispatcher(topic, name)
        dispatcher.close()
        for member in list(dispatcher.members.values()):
            member.fenced = True
        self._topics[topic].groups.pop(name, None)
        self._catalog.drop_group(topic, name)
        if not dispatcher.group.config.ephemeral:
            await self._catalog.save()
        owns = dispatcher.streams[dispatcher.group.topic_lanes :]
        for stream in (dispatcher.stream, dead_letters(dispatcher)[0], *owns):
            first, end, _ = self.store.bounds(stream)
            if first < end:
                await self.store.trim(stream, end)

    def group_states(self, topic: str = "") -> list[wire.GroupState]:
        topics = [self._topic(name) for name in chosen(topic, self._topics)]
        now_s = self.clock.steady_s()
        return [group_state(one.groups[name], now_s) for one in topics for name in sorted(one.groups)]

    def group_state(self, topic: str, name: str) -> wire.GroupState:
        return group_state(self._dispatcher(topic, name), self.clock.steady_s())

    def _dispatcher(self, topic: str, name: str) -> Dispatcher:
        found = self._topic(topic).groups.get(check_group(name))
        if found is None:
            raise NotFound(f"there is no group {name} on topic {topic}")
        return found

    # Delayed messages

    async def delayed(self, request: wire.ListDelayed) -> wire.Delayed:
        if request.topic:
            self._topic(request.topic)
        return await list_delayed(self.scheduler, request)

    async def cancel_delayed(self, request: wire.CancelDelayed) -> wire.DelayedCancelled:
        self._topic(request.topic)
        return await cancel_delayed(self.scheduler, request)

    async def move_delayed(self, request: wire.MoveDelayed) -> wire.DelayedMoved:
        self._topic(request.topic)
        return await move_delayed(self.scheduler, request)

    # Dead letters and looking around

    async def resend(self, request: wire.Resend) -> wire.Resent:
        return await resend(self._dispatcher(request.topic, request.group), request, self._durability)

    async def revise_dead(self, request: wire.ReviseDead) -> wire.Revised:
        return await revise(self._dispatcher(request.topic, request.group), request, self._durability)

    async def purge_dead(self, request: wire.PurgeDead) -> wire.DeadPurged:
        return await burial.purge(self._dispatcher(request.topic, request.group), request.before)

    async def browse(self, request: wire.Browse) -> tuple[wire.Browsed, list[bytes | memoryview]]:
        if request.group:
            return await browse_dead(self._dispatcher(request.topic, request.group), request)
        return await browse_lane(self.store, self._topic(request.topic).lane(request.lane), request)

    async def locate(self, request: wire.Locate) -> wire.Located:
        lane = self._topic(request.topic).lane(request.lane)
        return wire.Located(min(await self.store.locate(lane.stream, request.time_us), lane.end))

    async def find(self, request: wire.Find) -> tuple[wire.Found, list[bytes | memoryview]]:
        topic = self._topic(request.topic)
        if topic.config.shards:
            raise BadRequest(f"topic {request.topic} is ordered, and finding messages in one is not supported")
        return await find(self.store, topic.lane(request.lane), request)

    async def report(self, request: Report) -> None:
        asked = wire.Attach(self._topic(request.topic).config.name, check_group(request.group), "outside")
        async with self._attaching:
            dispatcher = await self._group_for_consumer(asked)
        await report(dispatcher, request.positions, self._durability)

    async def trace(self, request: wire.Trace) -> wire.Traced:
        return await trace(self._dispatcher(request.topic, request.group), request)

    async def measure(self, request: access.Measure) -> access.Measured:
        topics = [self._topic(request.topic)] if request.topic else list(self._topics.values())
        broker = {} if request.topic else self.figures()
        return await measure(self.store, self.clock, topics, self.scheduler.schedule.counts, broker)

    def trouble(self) -> str:
        """Why the broker cannot do its work; empty if it can."""
        failure = getattr(self.store, "failure", None)
        return "the broker is shutting down" if self.closing else str(failure or "")

    def figures(self) -> dict[str, Any]:
        return {
            "name": self.settings.name,
            "epoch": self.epoch,
            "uptime_s": round(self.clock.steady_s() - self._opened_s, 3),
            "store": self.settings.store.partition(":")[0],
            "durability": self.settings.durability,
            "topics": len(self._topics),
            **figures_of(list(self._dispatchers())),
            "connections": len(self.registry.visitors),
            "brokers": len(self.registry.alive()),
            "messages_in": self._sender.messages,
            "bytes_in": self._sender.bytes,
            "dedup_ids": len(self._dedup),
            "prepared": len(self.transactions),
            **self.scheduler.figures(),
        }

    # By itself

    async def maintain(self) -> None:
        """Snapshots first, because they let go of events; then retention."""
        self.scheduler.pass_quietly()
        if self.settings.retention_s:
            self.scheduler.rewrite_older(self.clock.now_us() - round(self.settings.retention_s * SECOND_US))
        await self._save_snapshots()
        await self._catalog.save()
        await self._agenda.trim()
        await self._reclaim()
        await self.transactions.tidy()
        await self.staging.tidy()
        pins = self._snapshots.pins() | self.transactions.pins() | self.staging.pins() | self._agenda.pins()
        for dispatcher in list(self._dispatchers()):
            pins |= await expire(dispatcher)
        await retain(self.store, self.clock, dict(self._topics), pins, self.settings, self._holds)

    async def _save_snapshots(self) -> None:
        # The schedule first: what it lets go of is then in what is remembered of producers.
        await self._agenda.save()
        ends = {lane.stream: lane.end for topic in self._topics.values() for lane in topic.lanes if lane.end}
        ends |= self._agenda.ends()
        await self._snapshots.save(list(self._dispatchers()), self._producers, self._dedup, ends)
        await self.transactions.save()
        await self.staging.save()

    async def _save_catalog(self) -> None:
        try:
            await self._catalog.save()
        except TowlineError as error:
            log.error("the list of topics could not be written, and will be tried again: %s", error)

    async def _watch(self) -> None:
        self.scheduler.watch_clock()
        now_s = self.clock.steady_s()
        for dispatcher in sweep_members(list(self._dispatchers()), now_s, self.settings.heartbeat_s):
            config = dispatcher.group.config
            if config.ephemeral and not dispatcher.members:
                await self.delete_group(config.topic, config.name)
        for name, deadline_s in list(self._orphans.items()):
            if now_s > deadline_s:
                del self._orphans[name]
                topic, group, consumer = name
                reason = f"consumer {consumer} did not come back after the broker's restart"
                self._dispatcher(topic, group).drop(consumer, vanished=True, reason=reason)

    def _bury_soon(self, dispatcher: Dispatcher) -> None:
        if dispatcher not in self._burying and not self.closing:
            self._burying.add(dispatcher)
            self._start(self._bury(dispatcher))

    async def _bury(self, dispatcher: Dispatcher) -> None:
        try:
            await bury(dispatcher, self._durability)
        except TowlineError as error:
            log.error("%s: dying messages could not be moved to the dead letters yet: %s", dispatcher.label, error)
        finally:
            self._burying.discard(dispatcher)
