"""The broker: topics, groups and a store, joined into one service with an in-process API.

Requests and answers are those of the wire protocol, so that a session only moves bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from towline.broker.answer_budget import AnswerBudget
from towline.broker.browse.browse import MessageBrowser, figures_in_slices, figures_of, group_state
from towline.broker.browse.scan import StreamScanner
from towline.broker.cluster.membership import Membership
from towline.broker.cluster.shard_homes import ShardHomes
from towline.broker.consume.consumers import Consumers
from towline.broker.consume.dead_letters import DeadLetters, expire
from towline.broker.consume.dispatcher import Dispatcher
from towline.broker.consume.groups import Groups
from towline.broker.consume.prefix_subscription import chosen
from towline.broker.consume.seek import purge
from towline.broker.consume.snapshots import Snapshots
from towline.broker.epoch import EPOCH, Epoch
from towline.broker.loop_lag import LoopLag
from towline.broker.monitor.listing import split_lines
from towline.broker.monitor.monitor import Monitor
from towline.broker.monitor.stats import measure
from towline.broker.periodic import every
from towline.broker.produce.append import Appender, Outgoing
from towline.broker.produce.handback import Handbacks
from towline.broker.produce.producers import Remembered, recover_producers
from towline.broker.produce.producers_file import ProducersFile
from towline.broker.produce.staging import Staging
from towline.broker.produce.transactions import PreparedTransactions
from towline.broker.retention.backup import Backups
from towline.broker.retention.group_expiry import GroupExpiry
from towline.broker.retention.holds import Holds
from towline.broker.retention.overdue_messages import OverdueMessages
from towline.broker.retention.retention import reclaim, retain
from towline.broker.schedule.journal import ScheduleJournal
from towline.broker.schedule.queries import DelayedMessages
from towline.broker.schedule.scheduler import Scheduler
from towline.broker.topics.catalog import WRITE_S, Catalog
from towline.broker.topics.gone_streams import GoneStreams, streams_of_topic
from towline.broker.topics.topics import Topics
from towline.broker.topics.uncatalogued import find_uncatalogued
from towline.clock import SECOND_US, SYSTEM, Clock, SteadyClock, TimeSlice, in_slices
from towline.delivery import Dedup, Producers
from towline.errors import NewerFormat, QueueFull, TowlineError
from towline.format import FORMAT, NOTE, Note, instead_of, writer_in
from towline.frame import FRAME_MAX
from towline.model import (
    Durability,
    check_group,
    check_topic,
    parse_delay_levels,
)
from towline.protocol import access
from towline.protocol import messages as wire
from towline.protocol.backup import BackupBegun
from towline.protocol.cluster import Brokers, HandBack, HandedBack, ListBrokers
from towline.protocol.topics import Purge, Purged
from towline.settings import BrokerSettings
from towline.store import Store
from towline.version import __version__

__all__ = ["Broker"]

log = logging.getLogger("towline.broker")

PULLS_PER_EPOCH = 1 << 40


class Broker:
    """Open it with `Broker.open`; close it to leave everything durable and tidy."""

    realms: Any = None
    """The realms of this node, where brokers share a database."""

    def __init__(self, store: Store, settings: BrokerSettings, clock: Clock, lag: LoopLag | None = None) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.time = SteadyClock(clock)
        self.lag = lag or LoopLag()
        """One for each event loop: realms share it."""
        self.epoch = 0
        """The number of starts, this one included."""
        self.store_id = 0
        """The same for as long as the store exists."""
        self.closing = False
        self._writer = ""
        """The version of Towline that wrote to the store last."""
        self._failed = False
        self.on_store_failure: Callable[[], None] = lambda: None
        """Called when the store takes no more writes."""
        self._durability = Durability.parse(settings.durability)
        self._catalog = Catalog(store, clock, split_lines(settings.business_lines))
        self._snapshots = Snapshots(store, clock, self.time)
        self._producers_file = ProducersFile(store, self.time)
        closing = lambda: self.closing  # noqa: E731
        self.remains = GoneStreams(store, self._catalog, settings.max_gone_streams)
        self.topics = Topics(store, settings, clock, self._catalog, remains=self.remains, closing=closing)
        self.groups = Groups(
            store,
            settings,
            clock,
            self._catalog,
            self.topics,
            remains=self.remains,
            time=self.time,
            next_pull=lambda: next(self._pulls),
            closing=closing,
            start=self._start,
            lag=self.lag,
        )
        self.consumers = Consumers(self, self.topics, self.groups, self._start)
        self.scanning = StreamScanner(store, lambda: self.topics)
        borrow_bytes = settings.capacity_bytes // 32 if settings.store.startswith("memory:") else 0
        self._agenda = ScheduleJournal(store, clock, self._durability, borrow_bytes=borrow_bytes)
        levels_us = parse_delay_levels(settings.delay_levels)
        self.scheduler = Scheduler(self._agenda, levels_us, self.topics.of_delayed, self._reclaim)
        self.delayed = DelayedMessages(self.topics, self.scheduler)
        self.dead_letters = DeadLetters(self.groups, self._durability)
        self.browsing = MessageBrowser(store, self.topics, self.groups)
        self._pulls: Iterator[int] = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened_s = self._saved_s = clock.steady_s()
        self._saving_took_s = 0.0
        """Duration of the last complete snapshots."""
        self.registry = Membership(store, settings, clock, lambda: len(self.topics))
        self.homes = ShardHomes(self.registry, self.topics, clock)
        self.groups.on_installed = self.homes.install
        self.holds = Holds(store, clock, settings)
        self.overdue = OverdueMessages(store, clock, settings)
        self.outlook = Monitor(
            self.topics,
            lambda: self.scheduler.schedule.counts,
            store=store,
            clock=clock,
            settings=settings,
            overdue=self.overdue,
        )
        self.group_expiry = GroupExpiry(store, clock, settings, self.topics, self.groups)
        self.backups = Backups(store, clock, settings.store)
        self.answers = AnswerBudget(settings.max_unread_total_bytes)
        self._maintaining = asyncio.Lock()
        self._join_produce()
        self.registry.prepared = self.transactions.lanes

    def _join_produce(self) -> None:
        """The parts that append messages."""
        self._dedup = Dedup(round(self.settings.dedup_window_s * SECOND_US), self.settings.dedup_max_ids)
        self._producers = Producers()
        self._recollection = Remembered(self._producers, self._dedup, self.time)
        self._handbacks = Handbacks(self._producers, self._durability)
        self._sender = Appender(
            self.store,
            self._producers,
            self._dedup,
            self.topics.for_send,
            durability=self._durability,
            max_frame_bytes=self.settings.max_frame_bytes,
            max_message_bytes=getattr(self.store, "max_message_bytes", FRAME_MAX),
            clock=self.clock,
            time=self.time,
            scheduler=self.scheduler,
        )
        self.commit_times = self._sender.commit_times
        self.transactions = PreparedTransactions(
            self.store,
            self.clock,
            self._sender,
            self.settings,
            self._reclaim,
            time=self.time,
            expect_shards=self.topics.expect_shards,
        )
        self.staging = Staging(self.store, self.clock, self._sender, self._durability, self._reclaim)

    # Opening and closing

    @classmethod
    async def open(
        cls, store: Store, settings: BrokerSettings, *, clock: Clock = SYSTEM, lag: LoopLag | None = None
    ) -> Broker:
        """With a `lag` that another broker of this loop watches over."""
        broker = await cls.recovered(store, settings, clock=clock, lag=lag)
        for name, loop in {**broker.scheduler.loops(), **broker.outlook.loops()}.items():
            broker._start(loop, name)
        broker.scheduler.held.try_again()
        broker._start(broker.staging.go_on(), "publishing what was staged")
        broker._repeat(settings.maintenance_s, "maintenance", broker.maintain)
        broker._repeat(WRITE_S, "writing the list of topics and groups", broker._catalog.write_behind)
        beat_s = min(max(settings.heartbeat_s / 10, 0.02), 1.0)
        broker._repeat(beat_s, "heartbeat watch", broker._watch)
        if lag is None:
            broker._start(broker.lag.loop(), "the watch over the event loop")
        return broker

    @classmethod
    async def recovered(
        cls, store: Store, settings: BrokerSettings, *, clock: Clock = SYSTEM, lag: LoopLag | None = None
    ) -> Broker:
        """A recovered broker that does no work by itself yet. If recovery fails, the store is closed."""
        broker = cls(store, settings, clock, lag)
        try:
            await broker._recover()
        except NewerFormat as error:
            await broker._stop()
            await store.close()
            raise NewerFormat(f"{error}. {broker._writers()}") from None
        except BaseException:
            await broker._stop()
            await store.close()
            raise
        return broker

    def _writers(self) -> str:
        """The version that wrote the store, for errors about a newer format."""
        others = (
            f"Towline {self._writer} has written to this store last" if self._writer else "Another version wrote it"
        )
        return f"{others}: {instead_of(self._writer)}, or bring back a backup"

    async def _recover(self) -> None:
        note = await self._begin_epoch()
        # Where a broker is at work already, its clients are served meanwhile.
        part = TimeSlice()
        await self._recover_topics(part)
        await self._recover_schedule(part)
        await self._recover_producers(part)
        await self.transactions.recover()
        await self.staging.recover()
        await self._catalog.renew()
        await self._catalog.save()
        if note != (mine := msgspec.json.encode(Note(FORMAT, __version__))):
            await self.store.save(NOTE, mine)
        await self.outlook.alarms.load()
        self.consumers.await_orphans()
        self.consumers.recall_limits()
        self._start(self.groups.forget_left(), "forgetting streams of deleted groups")

    async def _begin_epoch(self) -> bytes | None:
        """Count this start of the broker. Returns the note of the version that wrote to the store last."""
        note = await self.store.load(NOTE)
        self._writer = writer_in(note or b"")
        document = await self.store.load(EPOCH)
        known = msgspec.json.decode(document, type=Epoch) if document else Epoch()
        self.epoch = known.epoch + 1
        self.store_id = known.store or secrets.randbits(52)
        await self.store.save(EPOCH, msgspec.json.encode(Epoch(self.epoch, self.store_id)))
        self._pulls = itertools.count(self.epoch * PULLS_PER_EPOCH + 1)
        await self.registry.load(self.epoch)
        return note

    async def _recover_topics(self, part: TimeSlice) -> None:
        """Topics and their groups, and the streams of deleted ones."""
        await self._catalog.load(part)
        await find_uncatalogued(self.store, self._catalog, self.clock, part)
        await self._snapshots.load(part)
        await self.topics.recover(part)
        await self.groups.recover(self._snapshots, part)
        self._snapshots.groups.clear()
        await self.remains.recover()
        await self.group_expiry.load(part)

    async def _recover_schedule(self, part: TimeSlice) -> None:
        await self._agenda.recover(part)
        for name in self.scheduler.schedule.counts.keys() - self.topics.keys():
            log.warning("topic %s has delayed messages but is not in topics.json: added with default settings", name)
            self.topics.of_delayed(name)

    async def _recover_producers(self, part: TimeSlice) -> None:
        """Producers and dedup ids, from the file and from later frames."""
        lanes = {
            lane.stream: (name, number)
            async for name, topic in in_slices(self.topics.items(), part)
            for number, lane in enumerate(topic.lanes)
        }
        slots, known = list(self._agenda.ends()), (self._producers, self._dedup)
        await recover_producers(self.store, self._producers_file, lanes, slots, *known, self.time.now_us(), part)
        await part.rest()

    def release_waiters(self) -> None:
        """Answer all pulls that wait, and let no new one wait: the broker is about to stop."""
        self.closing = self.staging.closing = True
        self.transactions.release_waiters()
        for dispatcher in self.topics.dispatchers():
            dispatcher.stop()

    async def close(self) -> None:
        """Stop, and leave everything durable. Consumers keep their leases: they come back to the next broker on this
        store, or lose them there when they do not."""
        self.release_waiters()
        await self._stop()
        try:
            await self._save_snapshots(everything=True)
            await self._catalog.write()
            await self.group_expiry.save()
        except TowlineError as error:
            log.error("the broker could not be closed in order: %s; the next start replays the logs", error)
        for dispatcher in self.topics.dispatchers():
            dispatcher.close()
        await self.store.close()

    async def _stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Run a loop in the background. Its name is in the log when one of its steps takes too long."""
        task = asyncio.get_running_loop().create_task(self.lag.timed(name, coroutine), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _repeat(self, seconds: float, what: str, task: Callable[[], Awaitable[None]]) -> None:
        self._start(every(seconds, what, task), what)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s ended, and comes back with a new start only", task.get_name(), exc_info=error)

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

    async def _reclaim(self) -> bool:
        """Make room: a memory store has little. False for others."""
        if not self.settings.store.startswith("memory:"):
            return False
        await self._agenda.save()
        await self._agenda.settle()
        await self._agenda.trim()
        self._agenda.repay(await reclaim(self.store, list(self.topics.values())))
        return True

    # Consuming

    async def hand_back(self, request: HandBack, data: bytes | memoryview, *, token: bytes = b"") -> HandedBack:
        """Take over messages of another broker, with which a consumer failed and which it cannot give back there."""
        check_topic(request.topic)
        check_group(request.group)
        if request.config is not None and request.config.ephemeral:
            self.groups.named(request.topic, request.group)  # only its consumer knows its start
        frame = self._sender.check(data, token).let_go()
        dispatcher = await self.groups.for_consumer(wire.Attach(request.topic, request.group, "", request.config))
        return await self._handbacks.take(dispatcher, request, frame)

    # Topics

    async def put_topic(self, request: wire.PutTopic) -> None:
        await self.topics.put(request)

    def template(self) -> wire.Templated:
        return wire.Templated(self._catalog.template)

    async def delete_topic(self, name: str) -> None:
        await self.scheduler.drop_topic(name)
        # Consumers that come back at once wait until it is gone, and make it anew.
        async with self.groups.making:
            topic = self.topics.named(name)
            for dispatcher in list(topic.groups.values()):
                await self.groups.delete_now(dispatcher)
            for stream in (streams := streams_of_topic(topic.config)):
                await self.store.trim(stream, self.store.bounds(stream).end)
            del self.topics[name]
            self.remains.left(streams)
            self._dedup.forget_topic(name, self.time.now_us())
            self._catalog.drop_topic(name)
            await self._catalog.save()
        if len(self._dedup):
            # As after a purge: a crash must not bring back its ids, whose messages are gone.
            await self._save_snapshots()

    async def purge(self, request: Purge) -> Purged:
        topic = self.topics.named(request.topic)
        purged = await purge(topic, self.store, self._durability, self._save_snapshots, dry_run=request.dry_run)
        if not request.dry_run:
            # An id whose message is gone no longer counts: a new message with it is meant.
            self._dedup.forget_topic(request.topic, self.time.now_us(), delayed=False)
            await self._save_snapshots()
        return purged

    def has_topic(self, name: str) -> bool:
        return name in self.topics

    def topics_of(self, transaction: str, token: bytes) -> list[str]:
        return self.transactions.topics_of(transaction, token)

    def owners_of_sink(self, sink: str) -> set[bytes]:
        return {self.staging.owner(sink)}

    async def topic_states(self) -> list[wire.TopicState]:
        names = in_slices(sorted(self.topics))
        return [self.topic_state(name) async for name in names if name in self.topics]

    def topic_state(self, name: str) -> wire.TopicState:
        return self.topics.named(name).state(self.store, self.scheduler.schedule.counts.get(name, 0))

    async def brokers(self, request: ListBrokers) -> Brokers:
        return self.registry.brokers()

    # Groups

    def has_group(self, topic: str, group: str) -> bool:
        found = self.topics.get(topic)
        return found is not None and group in found.groups

    async def group_states(self, topic: str = "") -> list[wire.GroupState]:
        found: list[Dispatcher] = []
        async for name in in_slices(chosen(topic, self.topics)):
            groups = self.topics.named(name).groups if name == topic or name in self.topics else {}
            found += [groups[group] for group in sorted(groups)]
        now_s = self.clock.steady_s()
        return [
            group_state(one, now_s, self.group_expiry.left_s(one)) async for one in in_slices(found) if not one.closed
        ]

    def group_state(self, topic: str, name: str) -> wire.GroupState:
        dispatcher = self.groups.named(topic, name)
        return group_state(dispatcher, self.clock.steady_s(), self.group_expiry.left_s(dispatcher))

    # Figures

    async def measure(self, request: access.Measure) -> access.Measured:
        topics = [self.topics.named(request.topic)] if request.topic else list(self.topics.values())
        broker = {} if request.topic else await self.stat()
        delayed, notice = self.scheduler.schedule.counts, self.group_expiry.notice
        return await measure(self.store, self.clock, topics, delayed, broker, notice)

    def trouble(self) -> str:
        """Why the broker cannot do its work; empty if it can."""
        return "the broker is shutting down" if self.closing else str(self.store.failure or "")

    async def stat(self) -> dict[str, Any]:
        """The figures; others run while very many groups are gone through."""
        return self._figures(await figures_in_slices(list(self.topics.dispatchers())))

    def figures(self) -> dict[str, Any]:
        return self._figures(figures_of(list(self.topics.dispatchers())))

    def _figures(self, of_groups: Mapping[str, int]) -> dict[str, Any]:
        return {
            "name": self.settings.name,
            "epoch": self.epoch,
            "uptime_s": round(self.clock.steady_s() - self._opened_s, 3),
            "store": self.settings.store.partition(":")[0],
            "durability": self.settings.durability,
            "topics": len(self.topics),
            **of_groups,
            "connections": len(self.registry.visitors),
            "unread_bytes": self.answers.used_bytes,
            "cut_readers": self.answers.cut,
            "brokers": len(self.registry.alive()),
            "messages_in": self._sender.messages,
            "bytes_in": self._sender.bytes,
            **self._recollection.figures(),
            "prepared": len(self.transactions),
            **self.scheduler.figures(),
            **self.overdue.figures(),
            **self.lag.figures(),
            "snapshot_s": round(self._saving_took_s, 3),
            "snapshot_age_s": round(self.clock.steady_s() - self._saved_s, 3),
            "snapshot_every_s": self.settings.maintenance_s,
            **self.group_expiry.figures(),
            **self.remains.figures(),
        }

    # Maintenance

    async def begin_backup(self) -> BackupBegun:
        """Save snapshots, and keep the log behind them until the backup is done."""
        self.backups.check()
        async with self._maintaining:
            begun = self.backups.begin()
            await self._save_snapshots(everything=True)
            await self._catalog.write()
        return begun

    async def maintain(self) -> None:
        """Snapshots first, because they release events; then retention."""
        async with self._maintaining:
            await self._maintain()

    async def _maintain(self) -> None:
        part = TimeSlice()
        self.groups.bury_rest()
        await self.groups.drop_rest()
        await part.rest()
        self.scheduler.pass_quietly()
        self.scheduler.held.try_again()
        if self.settings.retention_s:
            self.scheduler.rewrite_older(self.clock.now_us() - round(self.settings.retention_s * SECOND_US))
        await part.rest()
        await self._recollection.tidy(self.clock.now_us())
        await self._save_snapshots()
        await self._catalog.write()
        if self.backups.are_held():
            return
        await self._agenda.trim()
        await self._catalog.tidy()
        await self._reclaim()
        await self.transactions.tidy()
        await self.staging.tidy()
        async for topic in in_slices(list(self.topics.values()), part):
            for lane in topic.lanes:
                lane.forget_recent()
        letters: dict[str, int] = {}
        for dispatcher in list(self.topics.dispatchers()):
            await part.rest()
            letters |= await expire(dispatcher)
        await part.rest()
        retaining = retain(
            self.store, self.clock, dict(self.topics), letters, self._pins, self.settings, self.holds, self.overdue
        )
        trimmed = await self.lag.timed("retention", retaining)
        if trimmed.surplus_bytes and self.settings.store.startswith("file:"):
            # Elsewhere delayed messages keep nothing else.
            self.scheduler.make_room(trimmed.holders, self.settings.retention_bytes)
        await self.group_expiry.look()

    async def _pins(self) -> dict[str, int]:
        """The records that recovery would need, from the documents as they are written now."""
        pins = await self._snapshots.pins(self.topics.dispatchers)
        return pins | self.transactions.pins() | self.staging.pins() | self._agenda.pins() | self._catalog.pins()

    async def _save_snapshots(self, *, everything: bool = False) -> None:
        begun_s = self.clock.steady_s()
        # Times are written by the wall clock.
        self.time.look()
        # The schedule first: delivered ids that it releases are then in the snapshot of producers.
        await self._agenda.save()
        await asyncio.sleep(0)
        groups = self._snapshots.save(list(self.topics.dispatchers()), everything=everything)
        await self.lag.timed("snapshots of groups", groups)
        await asyncio.sleep(0)
        topics = list(self.topics.values())
        producers = self._producers_file.save(topics, self._agenda.ends(), self._producers, self._dedup)
        await self.lag.timed("snapshots of producers", producers)
        await self.transactions.save(everything=everything)
        await self.staging.save(everything=everything)
        self._saved_s = self.clock.steady_s()
        self._saving_took_s = self._saved_s - begun_s

    async def _watch(self) -> None:
        self.time.look()
        self.scheduler.watch_clock()
        if self.store.failure is not None and not self._failed:
            self._failed = True
            self._tell_of_failure(self.store.failure)
        await self.consumers.sweep()

    def _tell_of_failure(self, failure: TowlineError) -> None:
        """Tell waiting consumers that nothing will come."""
        log.critical(
            "the store failed, and consumers that wait are told so: %s. See to the disk or the database, and start the "
            "broker anew",
            failure,
        )
        for dispatcher in self.topics.dispatchers():
            dispatcher.fail_waiters(failure)
        self.on_store_failure()
