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

from towline.broker.access.rules import May
from towline.broker.answer_budget import AnswerBudget
from towline.broker.browse.browse import browse_dead, browse_lane, figures_in_slices, figures_of, find, group_state
from towline.broker.browse.scan import StreamScanner
from towline.broker.browse.trace import trace
from towline.broker.cluster.membership import Membership
from towline.broker.cluster.shard_homes import ShardHomes
from towline.broker.consume import dead_letters
from towline.broker.consume.consumers import Consumers
from towline.broker.consume.dead_letters import expire, resend, revise
from towline.broker.consume.dispatcher import Dispatcher
from towline.broker.consume.groups import Groups
from towline.broker.consume.member import Member
from towline.broker.consume.prefix_subscription import PrefixSubscription, chosen
from towline.broker.consume.seek import purge, report, seek
from towline.broker.consume.snapshots import Snapshots
from towline.broker.consume.waiting_pull import Taker
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
from towline.broker.schedule.queries import cancel_delayed, list_delayed, move_delayed
from towline.broker.schedule.scheduler import Scheduler
from towline.broker.topics.catalog import WRITE_S, Catalog
from towline.broker.topics.gone_streams import GoneStreams, streams_of_topic
from towline.broker.topics.topics import Topics
from towline.broker.topics.uncatalogued import find_uncatalogued
from towline.clock import SECOND_US, SYSTEM, Clock, SteadyClock, TimeSlice, in_slices
from towline.delivery import Dedup
from towline.errors import NewerFormat, QueueFull, TowlineError
from towline.format import FORMAT, NOTE, Note, instead_of, writer_in
from towline.frame import FRAME_MAX
from towline.model import (
    Durability,
    GroupConfig,
    TopicConfig,
    check_group,
    check_topic,
    parse_delay_levels,
)
from towline.protocol import access
from towline.protocol import messages as wire
from towline.protocol.backup import BackupBegun
from towline.protocol.cluster import Brokers, HandBack, HandedBack, ListBrokers
from towline.protocol.groups import Pause, Seek, Sought
from towline.protocol.publications import Report
from towline.protocol.topics import EditTopic, Purge, Purged
from towline.settings import BrokerSettings
from towline.store import Store
from towline.version import __version__

__all__ = ["Broker"]

log = logging.getLogger("towline.broker")

PULLS_PER_EPOCH = 1 << 40


class Broker:
    """Open it with `Broker.open`; close it to leave everything durable and tidy."""

    realms: Any = None
    """Where brokers share a database: what there is of it here."""

    def __init__(self, store: Store, settings: BrokerSettings, clock: Clock, lag: LoopLag | None = None) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.time = SteadyClock(clock)
        self.lag = lag or LoopLag()
        """One for each event loop: realms have it in common."""
        self.epoch = 0
        """How many there are; the server says so, where there is one."""
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
        self._pulls: Iterator[int] = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened_s = self._saved_s = clock.steady_s()
        self._saving_took_s = 0.0
        """Of the last snapshots that were complete."""
        self.registry = Membership(store, settings, clock, lambda: len(self.topics))
        self.homes = ShardHomes(self.registry, self.topics, clock)
        self.groups.on_installed = self.homes.install
        self.holds = Holds(store, clock, settings)
        self.overdue = OverdueMessages(store, clock, settings)
        self.group_expiry = GroupExpiry(store, clock, settings, self.topics, self.groups)
        self.backups = Backups(store, clock, settings.store)
        self.answers = AnswerBudget(settings.max_unread_total_bytes)
        self._maintaining = asyncio.Lock()

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
        """A broker that has come back, and does nothing by itself. If it cannot, the store is closed."""
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
        """Which version wrote what this one does not understand, and what to do."""
        others = (
            f"Towline {self._writer} has written to this store last" if self._writer else "Another version wrote it"
        )
        return f"{others}: {instead_of(self._writer)}, or bring back a backup"

    async def _recover(self) -> None:
        note = await self._begin_epoch()
        # On a broker that is at work, whoever is served by it goes on meanwhile.
        part = TimeSlice()
        await self._recover_topics(part)
        await self._recover_schedule(part)
        await self._recover_producers(part)
        self._open_for_sends()
        await self._recover_transactions()
        await self._catalog.renew()
        await self._catalog.save()
        if note != (mine := msgspec.json.encode(Note(FORMAT, __version__))):
            await self.store.save(NOTE, mine)
        await self._open_monitor()
        self.consumers.await_orphans()
        self.consumers.recall_limits()
        self._start(self.groups.forget_left(), "forgetting streams of deleted groups")

    async def _begin_epoch(self) -> bytes | None:
        """Count this start of the broker. Returns the note of whoever wrote to the store last."""
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
        """Topics and their groups, and what is left of those that are gone."""
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
        """What is known of producers and of dedup ids, from the file and from what was appended since."""
        lanes = {
            lane.stream: (name, number)
            async for name, topic in in_slices(self.topics.items(), part)
            for number, lane in enumerate(topic.lanes)
        }
        self._dedup = Dedup(round(self.settings.dedup_window_s * SECOND_US), self.settings.dedup_max_ids)
        self._producers = await recover_producers(
            self.store, self._producers_file, lanes, list(self._agenda.ends()), self._dedup, self.time.now_us(), part
        )
        await part.rest()

    def _open_for_sends(self) -> None:
        """All that appends messages, which needs the producers."""
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

    async def _recover_transactions(self) -> None:
        """Transactions that are prepared, and what is staged: both may append what they wait with."""
        self.transactions = PreparedTransactions(
            self.store,
            self.clock,
            self._sender,
            self.settings,
            self._reclaim,
            time=self.time,
            expect_shards=self.topics.expect_shards,
        )
        await self.transactions.recover()
        self.registry.prepared = self.transactions.lanes
        self.staging = await Staging.open(self.store, self.clock, self._sender, self._durability, self._reclaim)

    async def _open_monitor(self) -> None:
        delayed = lambda: self.scheduler.schedule.counts  # noqa: E731
        self.outlook = Monitor(
            self.topics, delayed, store=self.store, clock=self.clock, settings=self.settings, overdue=self.overdue
        )
        await self.outlook.alarms.load()

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
        """Let it run by itself. By its name people learn of steps of it that take too long."""
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

    async def _reclaim(self) -> None:
        """A memory store has little room."""
        if not self.settings.store.startswith("memory:"):
            return
        await self._agenda.save()
        await self._agenda.settle()
        await self._agenda.trim()
        self._agenda.repay(await reclaim(self.store, list(self.topics.values())))

    # Consuming

    async def fan(self, request: wire.Attach, *, address: str = "", may: Callable[[str], bool]) -> PrefixSubscription:
        return await self.consumers.fan(request, address=address, may=may)

    async def attach(self, request: wire.Attach, *, address: str = "") -> Member:
        return await self.consumers.attach(request, address=address)

    async def pull(
        self, member: Member | PrefixSubscription, request: wire.Pull, taker: Taker | None = None
    ) -> tuple[wire.Pulled, list[bytes | memoryview]]:
        return await self.consumers.pull(member, request, taker)

    async def settle(self, member: Member | PrefixSubscription, acts: Sequence[wire.Act]) -> wire.Settled:
        return await self.consumers.settle(member, acts)

    async def detach(self, member: Member | PrefixSubscription) -> None:
        await self.consumers.detach(member)

    async def kick(self, topic: str, group: str, consumer: str) -> None:
        """What a consumer holds goes back to its group; it may attach again, and then holds nothing."""
        done = await self.consumers.leave(self.groups.named(topic, group).member(consumer), vanished=False)
        if done is not None:
            await done

    async def hand_back(self, request: HandBack, data: bytes | memoryview, *, token: bytes = b"") -> HandedBack:
        """Messages of another broker, which a consumer failed with and cannot give back there."""
        check_topic(request.topic)
        check_group(request.group)
        if request.config is not None and request.config.ephemeral:
            self.groups.named(request.topic, request.group)  # only its consumer knows where it begins
        frame = self._sender.check(data, token).let_go()
        dispatcher = await self.groups.for_consumer(wire.Attach(request.topic, request.group, "", request.config))
        return await self._handbacks.take(dispatcher, request, frame)

    # Topics

    async def create_topic(self, config: TopicConfig) -> None:
        await self.topics.create(config)

    async def put_topic(self, request: wire.PutTopic) -> None:
        await self.topics.put(request)

    async def edit_topic(self, request: EditTopic) -> None:
        await self.topics.edit(request)

    def template(self) -> wire.Templated:
        return wire.Templated(self._catalog.template)

    def shard_count(self, name: str) -> int:
        return self.topics.shard_count(name)

    def expect_shards(self, heads: Sequence[wire.FrameHead]) -> None:
        self.topics.expect_all(heads)

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
            # As after a purge: a crash must not bring back its ids, which would stand for messages that are gone.
            await self._save_snapshots()

    async def purge(self, request: Purge) -> Purged:
        topic = self.topics.named(request.topic)
        purged = await purge(topic, self.store, self._durability, self._save_snapshots, dry_run=request.dry_run)
        if not request.dry_run:
            # An id stands for a message that is gone: who sends it again means it.
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

    async def put_group(self, config: GroupConfig) -> None:
        await self.groups.put(config)

    async def pause(self, request: Pause) -> None:
        await self.groups.pause(request)

    async def delete_group(self, topic: str, name: str) -> None:
        await self.groups.delete(topic, name)

    async def seek(self, request: Seek) -> Sought:
        dispatcher = self.groups.named(request.topic, request.group)
        if not request.dry_run:
            dispatcher.use()
        return await seek(dispatcher, request, self._durability)

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

    # Delayed messages

    async def delayed(self, request: wire.ListDelayed, may: May | None = None) -> wire.Delayed:
        if request.topic:
            self.topics.named(request.topic)
        return await list_delayed(self.scheduler, request, may)

    async def cancel_delayed(self, request: wire.CancelDelayed) -> wire.DelayedCancelled:
        self.topics.named(request.topic)
        return await cancel_delayed(self.scheduler, request)

    async def move_delayed(self, request: wire.MoveDelayed) -> wire.DelayedMoved:
        self.topics.named(request.topic)
        return await move_delayed(self.scheduler, request)

    # Dead letters and looking around

    async def resend(self, request: wire.Resend) -> wire.Resent:
        return await resend(await self._dead_letters(request.topic, request.group), request, self._durability)

    async def revise_dead(self, request: wire.ReviseDead) -> wire.Revised:
        return await revise(await self._dead_letters(request.topic, request.group), request, self._durability)

    async def purge_dead(self, request: wire.PurgeDead) -> wire.DeadPurged:
        return await dead_letters.purge(await self._dead_letters(request.topic, request.group), request.before)

    async def _dead_letters(self, topic: str, group: str) -> Dispatcher:
        """The group of dead letters that somebody sees to."""
        dispatcher = await self.groups.buried(topic, group)
        dispatcher.use()
        return dispatcher

    async def browse(self, request: wire.Browse) -> tuple[wire.Browsed, list[bytes | memoryview]]:
        if request.group:
            return await browse_dead(await self.groups.buried(request.topic, request.group), request)
        return await browse_lane(self.store, self.topics.named(request.topic).lane(request.lane), request)

    async def locate(self, request: wire.Locate) -> wire.Located:
        lane = self.topics.named(request.topic).lane(request.lane)
        return wire.Located(min(await self.store.locate(lane.stream, request.time_us), lane.end))

    async def find(self, request: wire.Find) -> tuple[wire.Found, list[bytes | memoryview]]:
        return await find(self.store, self.topics.named(request.topic).lane(request.lane), request)

    async def report(self, request: Report) -> None:
        asked = wire.Attach(self.topics.named(request.topic).config.name, check_group(request.group), "outside")
        await report(await self.groups.for_consumer(asked), request.positions, self._durability)

    async def trace(self, request: wire.Trace) -> wire.Traced:
        return await trace(self.groups.named(request.topic, request.group), request)

    async def measure(self, request: access.Measure) -> access.Measured:
        topics = [self.topics.named(request.topic)] if request.topic else list(self.topics.values())
        broker = {} if request.topic else await self.stat()
        delayed, notice = self.scheduler.schedule.counts, self.group_expiry.notice
        return await measure(self.store, self.clock, topics, delayed, broker, notice)

    def trouble(self) -> str:
        """Why the broker cannot do its work; empty if it can."""
        return "the broker is shutting down" if self.closing else str(self.store.failure or "")

    async def stat(self) -> dict[str, Any]:
        """The figures, for whoever asks; very many groups are gone through while others have their turn."""
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
            **self.holds.figures(),
            **self.lag.figures(),
            "snapshot_s": round(self._saving_took_s, 3),
            "snapshot_age_s": round(self.clock.steady_s() - self._saved_s, 3),
            "snapshot_every_s": self.settings.maintenance_s,
            **self.group_expiry.figures(),
            **self.remains.figures(),
        }

    # By itself

    async def begin_backup(self) -> BackupBegun:
        """Snapshots are saved, and the log behind them is kept, until the backup is done."""
        self.backups.check()
        async with self._maintaining:
            begun = self.backups.begin()
            await self._save_snapshots(everything=True)
            await self._catalog.write()
        return begun

    async def maintain(self) -> None:
        """Snapshots first, because they let go of events; then retention."""
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
            # Elsewhere what is delayed keeps nothing else.
            self.scheduler.make_room(trimmed.holders, self.settings.retention_bytes)
        await self.group_expiry.look()

    async def _pins(self) -> dict[str, int]:
        """What a start would need, that begins with the documents as they are written now."""
        pins = await self._snapshots.pins(self.topics.dispatchers)
        return pins | self.transactions.pins() | self.staging.pins() | self._agenda.pins() | self._catalog.pins()

    async def _save_snapshots(self, *, everything: bool = False) -> None:
        begun_s = self.clock.steady_s()
        # What is written is by the clock as it is.
        self.time.look()
        # The schedule first: what it lets go of is then in what is remembered of producers.
        await self._agenda.save()
        await asyncio.sleep(0)
        groups = self._snapshots.save(list(self.topics.dispatchers()), everything=everything)
        await self.lag.timed("snapshots of groups", groups)
        await asyncio.sleep(0)
        topics = list(self.topics.values())
        producers = self._producers_file.save(topics, self._agenda.ends(), self._producers, self._dedup)
        await self.lag.timed("snapshots of producers", producers)
        await self.transactions.save(everything=everything)
        await self.staging.save()
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
        """Consumers that wait are told: nothing will come."""
        log.critical(
            "the store failed, and consumers that wait are told so: %s. See to the disk or the database, and start the "
            "broker anew",
            failure,
        )
        for dispatcher in self.topics.dispatchers():
            dispatcher.fail_waiters(failure)
        self.on_store_failure()
