"""The broker: topics, groups and a store, joined into one service with an in-process API.

Requests and answers are those of the wire protocol, so that a session only moves bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from towline.broker.burial import bury, dead_letters, resend
from towline.broker.catalog import Catalog
from towline.broker.dispatcher import Dispatcher
from towline.broker.looking import browse_dead, browse_lane, group_state
from towline.broker.maintenance import every, reclaim, retain, sweep_members
from towline.broker.member import Member
from towline.broker.moving import purge, seek
from towline.broker.ordering import shards_in, wrong_shard
from towline.broker.recovery import Snapshots, recover_group, recover_producers
from towline.broker.sending import Outgoing, Sender
from towline.broker.topic import Topic
from towline.clock import SYSTEM, Clock
from towline.delivery import Group, Start
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
)
from towline.protocol import messages as wire
from towline.settings import BrokerSettings
from towline.store import Store

__all__ = ["Broker"]

log = logging.getLogger("towline.broker")

EPOCH = "epoch.json"
PULLS_PER_EPOCH = 1 << 40


class Broker:
    """Open it with `Broker.open`; close it to leave everything durable and tidy."""

    def __init__(self, store: Store, settings: BrokerSettings, clock: Clock) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.epoch = 0
        self.closing = False
        self._durability = Durability.parse(settings.durability)
        self._catalog = Catalog(store)
        self._snapshots = Snapshots(store)
        self._topics: dict[str, Topic] = {}
        self._pulls: Iterator[int] = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._burying: set[Dispatcher] = set()
        self._orphans: dict[tuple[str, str, str], float] = {}
        self._opened_s = clock.steady_s()
        self._attaching = asyncio.Lock()

    # Opening and closing

    @classmethod
    async def open(cls, store: Store, settings: BrokerSettings, *, clock: Clock = SYSTEM) -> Broker:
        broker = cls(store, settings, clock)
        await broker._recover()
        broker._start(every(settings.maintenance_s, "maintenance", broker.maintain))
        broker._start(every(min(max(settings.heartbeat_s / 10, 0.02), 1.0), "heartbeat watch", broker._watch))
        return broker

    async def _recover(self) -> None:
        document = await self.store.load(EPOCH)
        self.epoch = (msgspec.json.decode(document, type=dict[str, int])["epoch"] if document else 0) + 1
        await self.store.save(EPOCH, msgspec.json.encode({"epoch": self.epoch}))
        self._pulls = itertools.count(self.epoch * PULLS_PER_EPOCH + 1)
        await self._catalog.load()
        self._find_uncatalogued()
        await self._snapshots.load()
        self._topics = {name: Topic(config, self.store) for name, config in self._catalog.topics.items()}
        for (topic, name), config in list(self._catalog.groups.items()):
            if topic not in self._topics:
                self._catalog.drop_group(topic, name)
                continue
            shards, known = self._topics[topic].config.shards, self._snapshots.groups.get((topic, name))
            self._install(self._topics[topic], await recover_group(self.store, config, known, shards))
        lanes = [lane.stream for topic in self._topics.values() for lane in topic.lanes]
        producers = await recover_producers(self.store, lanes)
        self._producers = producers
        self._sender = Sender(
            self.store, producers, self._topic_for_send, self._durability, self.settings.max_frame_bytes
        )
        await self._catalog.save()

    def _find_uncatalogued(self) -> None:
        """Topics and groups that were made just before a crash: their streams are there, their entry is not yet."""
        for stream in self.store.streams("lane/"):
            topic = stream.split("/")[1]
            first, end, _ = self.store.bounds(stream)
            if topic not in self._catalog.topics and first < end:
                log.warning("topic %s is in the store but not in topics.json: added with default settings", topic)
                shards = shards_in(self.store, topic)
                self._catalog.put_topic(TopicConfig(topic, self.clock.now_us(), shards=shards))
        for stream in self.store.streams("pull/"):
            _, topic, group = stream.split("/")
            first, end, _ = self.store.bounds(stream)
            unknown = (topic, group) not in self._catalog.groups and topic in self._catalog.topics
            if unknown and first < end and not group.startswith(PRIVATE):
                log.warning("group %s on topic %s is added with default settings", group, topic)
                self._catalog.put_group(GroupConfig(topic, group, created_at_us=self.clock.now_us()))

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
        dispatcher.observe_all()
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
        self.closing = True
        for dispatcher in self._dispatchers():
            dispatcher.release_waiters()

    async def close(self) -> None:
        """Stop, and leave everything durable. Consumers keep their leases: they come back to the next broker on this
        store, or lose them there when they do not."""
        self.closing = True
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
        await reclaim(self.store, list(self._topics.values()))
        return await self._sender.send(frames, durability, source, token)

    def _topic_for_send(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        check_topic(name)
        if name in self._catalog.topics:
            raise Unavailable(f"topic {name} is being made in this moment: try again")
        if not self.settings.auto_create:
            raise NotFound(f"there is no topic {name}, and this broker does not make topics by itself: create it first")
        topic = self._make_topic(TopicConfig(name, self.clock.now_us()))
        self._start(self._save_catalog())
        return topic

    # Consuming

    async def attach(self, request: wire.Attach, *, address: str = "") -> Member:
        check_topic(request.topic)
        check_group(request.group)
        check_consumer(request.consumer)
        async with self._attaching:
            dispatcher = await self._group_for_consumer(request)
        member = Member(dispatcher, request.consumer, address, self.clock.steady_s())
        self._orphans.pop((request.topic, request.group, request.consumer), None)
        dispatcher.attach(member, request.holding)
        return member

    async def _group_for_consumer(self, request: wire.Attach) -> Dispatcher:
        topic = self._topics.get(request.topic)
        found = topic.groups.get(request.group) if topic else None
        if found is not None:
            return found
        if not self.settings.auto_create and not request.group.startswith(PRIVATE):
            raise NotFound(
                f"there is no group {request.group} on topic {request.topic}, and this broker does not make groups by "
                "itself: create it first"
            )
        topic = topic or self._topic_for_send(request.topic)
        config = request.config or GroupConfig(request.topic, request.group)
        if (config.topic, config.name) != (request.topic, request.group):
            raise BadRequest(f"settings of group {config.name} on topic {config.topic} do not fit this request")
        return await self._make_group(topic, config)

    async def pull(self, member: Member, request: wire.Pull) -> tuple[wire.Pulled, list[bytes | memoryview]]:
        if self.closing and request.wait_ms:
            request = msgspec.structs.replace(request, wait_ms=0)
        return await member.dispatcher.pull(member, request)

    async def settle(self, member: Member, acts: Sequence[wire.Act]) -> wire.Settled:
        return await member.dispatcher.settle(member, acts)

    async def detach(self, member: Member) -> None:
        if not member.fenced:
            self._leave(member, vanished=False)

    def disconnected(self, member: Member) -> None:
        """Its connection broke: it may come back for a moment, then what it holds goes to others."""
        if member.fenced or member.grace is not None:
            return
        loop = asyncio.get_running_loop()
        reason = f"the connection of consumer {member.consumer} ({member.address}) broke"
        member.grace = loop.call_later(self.settings.reconnect_grace_s, self._vanish, member, reason)

    def beat(self, member: Member) -> None:
        member.last_seen_s = self.clock.steady_s()

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

    def _make_topic(self, config: TopicConfig) -> Topic:
        self._check_room(config)
        topic = self._topics[config.name] = Topic(config, self.store)
        self._catalog.put_topic(config)
        return topic

    def _check_room(self, config: TopicConfig) -> None:
        if self.closing:
            raise Unavailable("the broker is shutting down")
        if len(self._topics) >= MAX_TOPICS:
            raise TooLarge(f"this broker has {MAX_TOPICS} topics already: topic {config.name} is not made")
        if (
            config.shards
            and sum(one.shards for one in self._catalog.topics.values()) > MAX_SHARDS_IN_ALL - config.shards
        ):
            raise TooLarge(f"the topics of this broker may have {MAX_SHARDS_IN_ALL} shards in all: not so many more")

    def shard_count(self, name: str) -> int:
        topic = self._topics.get(check_topic(name))
        return topic.config.shards if topic is not None else 0

    def expect_shards(self, name: str, shards: int) -> None:
        """Refuse a sender that reckons with another number of shards: it put the messages into the wrong ones."""
        topic = self._topics.get(name)
        actual = topic.config.shards if topic is not None else 0
        if actual != shards:
            raise wrong_shard(name, actual, shards)

    async def delete_topic(self, name: str) -> None:
        topic = self._topic(name)
        for group in list(topic.groups):
            await self.delete_group(name, group)
        self._topics.pop(name, None)
        self._catalog.drop_topic(name)
        await self._catalog.save()
        for lane in topic.lanes:
            await self.store.trim(lane.stream, self.store.bounds(lane.stream).end)

    async def edit_topic(self, request: wire.EditTopic) -> None:
        topic = self._topic(request.topic)
        topic.config = msgspec.structs.replace(topic.config, retention_s=request.retention_s)
        self._catalog.put_topic(topic.config)
        await self._catalog.save()

    async def purge(self, request: wire.Purge) -> wire.Purged:
        return await purge(self._topic(request.topic), self.store, self._durability, dry_run=request.dry_run)

    def topic_states(self) -> list[wire.TopicState]:
        return [self._topics[name].state(self.store) for name in sorted(self._topics)]

    def topic_state(self, name: str) -> wire.TopicState:
        return self._topic(name).state(self.store)

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

    async def pause(self, request: wire.Pause) -> None:
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

    async def seek(self, request: wire.Seek) -> wire.Sought:
        return await seek(self._dispatcher(request.topic, request.group), request, self._durability)

    async def _make_group(self, topic: Topic, config: GroupConfig) -> Dispatcher:
        if self.closing:
            raise Unavailable("the broker is shutting down")
        if len(topic.groups) >= MAX_GROUPS_PER_TOPIC:
            raise TooLarge(f"topic {config.topic} has {MAX_GROUPS_PER_TOPIC} groups already")
        config = msgspec.structs.replace(config, created_at_us=self.clock.now_us())
        dispatcher = self._install(topic, Group(config, topic.config.shards))
        try:
            positions = tuple([await self._start_of(topic, lane, config.start) for lane in range(len(topic.lanes))])
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

    async def _start_of(self, topic: Topic, lane: int, start: str) -> int:
        stream = topic.lanes[lane].stream
        if start == "earliest":
            return self.store.bounds(stream).first
        end = topic.lanes[lane].end
        return end if start == "latest" else min(await self.store.locate(stream, int(start[1:])), end)

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
        topics = [self._topic(topic)] if topic else [self._topics[name] for name in sorted(self._topics)]
        now_s = self.clock.steady_s()
        return [group_state(one.groups[name], now_s) for one in topics for name in sorted(one.groups)]

    def group_state(self, topic: str, name: str) -> wire.GroupState:
        return group_state(self._dispatcher(topic, name), self.clock.steady_s())

    def _dispatcher(self, topic: str, name: str) -> Dispatcher:
        found = self._topic(topic).groups.get(check_group(name))
        if found is None:
            raise NotFound(f"there is no group {name} on topic {topic}")
        return found

    # Dead letters and looking around

    async def resend(self, request: wire.Resend) -> wire.Resent:
        return await resend(self._dispatcher(request.topic, request.group), request, self._durability)

    async def browse(self, request: wire.Browse) -> tuple[wire.Browsed, list[bytes | memoryview]]:
        if request.group:
            return await browse_dead(self._dispatcher(request.topic, request.group), request)
        return await browse_lane(self.store, self._topic(request.topic).lane(request.lane), request)

    async def locate(self, request: wire.Locate) -> wire.Located:
        lane = self._topic(request.topic).lane(request.lane)
        return wire.Located(min(await self.store.locate(lane.stream, request.time_us), lane.end))

    def figures(self) -> dict[str, Any]:
        dispatchers = list(self._dispatchers())
        return {
            "name": self.settings.name,
            "epoch": self.epoch,
            "uptime_s": round(self.clock.steady_s() - self._opened_s, 3),
            "store": self.settings.store.partition(":")[0],
            "durability": self.settings.durability,
            "topics": len(self._topics),
            "groups": len(dispatchers),
            "members": sum(len(one.members) for one in dispatchers),
            "messages_in": self._sender.messages,
            "bytes_in": self._sender.bytes,
            "messages_out": sum(one.counts["pulled"] for one in dispatchers),
            "in_flight": sum(one.group.leased() for one in dispatchers),
            "retrying": sum(one.group.retries.messages for one in dispatchers),
        }

    # By itself

    async def maintain(self) -> None:
        """Snapshots first, because they let go of events; then retention."""
        await self._save_snapshots()
        await self._catalog.save()
        if self.settings.store.startswith("memory:"):
            await reclaim(self.store, list(self._topics.values()))
        await retain(
            self.store,
            self.clock,
            dict(self._topics),
            self._snapshots.pins(),
            retention_s=self.settings.retention_s,
            retention_bytes=self.settings.retention_bytes,
        )

    async def _save_snapshots(self) -> None:
        ends = {lane.stream: lane.end for topic in self._topics.values() for lane in topic.lanes if lane.end}
        await self._snapshots.save(list(self._dispatchers()), self._producers, ends)

    async def _save_catalog(self) -> None:
        try:
            await self._catalog.save()
        except TowlineError as error:
            log.error("the list of topics could not be written, and will be tried again: %s", error)

    async def _watch(self) -> None:
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
