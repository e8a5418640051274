"""The groups of a broker's topics: find, make, change, pause, delete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from towline.broker.consume.dead_letters import bury
from towline.broker.consume.dispatcher import Dispatcher
from towline.broker.consume.member import Member
from towline.broker.consume.pull_log import recover_group
from towline.broker.consume.seek import report, resumed, seek, start_of
from towline.broker.topics.gone_streams import GoneStreams, may_forget, streams_of_group, trim_group
from towline.clock import SECOND_US, SET_US, Clock, SteadyClock, TimeSlice, in_slices, in_steps
from towline.delivery import Group, Start
from towline.delivery.group.events import Paused, Resumed
from towline.errors import BadRequest, NotFound, TooMany, TowlineError, Unavailable
from towline.model import (
    DEAD_STREAMS,
    MAX_GROUPS_PER_TOPIC,
    PRIVATE,
    PULL_STREAMS,
    Durability,
    GroupConfig,
    check_group,
)
from towline.protocol import messages as wire

if TYPE_CHECKING:
    from towline.broker.consume.snapshots import Snapshots
    from towline.broker.loop_lag import LoopLag
    from towline.broker.topics.catalog import Catalog
    from towline.broker.topics.topic import Topic
    from towline.broker.topics.topics import Topics
    from towline.protocol.groups import Pause, Seek, Sought
    from towline.protocol.publications import Report
    from towline.settings import BrokerSettings
    from towline.store import Store

__all__ = ["Groups"]

log = logging.getLogger("towline.broker")

BURIED_S: Final = 5.0
"""How long readers of dead letters wait for dying messages to be buried; where more and more dies, that has no end."""
LEFT_AT_ONCE: Final = 500
"""Streams without an owner that are forgotten together."""


class Groups:
    """All groups of all topics, each with its dispatcher."""

    def __init__(
        self,
        store: Store,
        settings: BrokerSettings,
        clock: Clock,
        catalog: Catalog,
        topics: Topics,
        *,
        remains: GoneStreams,
        time: SteadyClock,
        next_pull: Callable[[], int],
        closing: Callable[[], bool],
        start: Callable[[Coroutine[Any, Any, None], str], None],
        lag: LoopLag,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._time = time
        self._catalog = catalog
        self._topics = topics
        self._remains = remains
        self._next_pull = next_pull
        self._closing = closing
        self._start = start
        self._lag = lag
        self._durability = Durability.parse(settings.durability)
        self.making = asyncio.Lock()
        """Held while groups are made, changed or deleted."""
        self.on_installed: Callable[[Dispatcher], None] = lambda dispatcher: None
        """Called with a group that is new here."""
        self.on_made: Callable[[GroupConfig], None] = lambda config: None
        """Called with a group that is made anew."""
        self._young: set[Dispatcher] = set()
        """Groups that were made just now: a power cut could still undo them."""
        self.burying: dict[Dispatcher, asyncio.Future[None]] = {}
        """Groups whose dying messages are being buried; done when they are."""

        self._may_be_left = False
        """Whether streams of deleted groups could not be forgotten yet."""

    async def recover(self, snapshots: Snapshots, part: TimeSlice) -> None:
        ahead_us = 0
        async for (topic, name), config in in_slices(list(self._catalog.groups.items()), part):
            if topic not in self._topics:
                self._catalog.drop_group(topic, name)
                continue
            shards, known = self._topics[topic].config.shards, snapshots.groups.get((topic, name))
            rest = snapshots.rests.pop((topic, name), None)
            group = await recover_group(self._store, config, known, part, shards=shards, rest=rest)
            ahead_us = max(await in_steps(group.cap_waits(self._time.now_us()), part), ahead_us)
            self._install(self._topics[topic], group)
        if ahead_us > SET_US:
            log.warning(
                "back-offs or timeouts have begun by a clock that was %.0f s ahead of what it is now: they begin anew",
                ahead_us / SECOND_US,
            )

    def _install(self, topic: Topic, group: Group) -> Dispatcher:
        dispatcher = Dispatcher(
            group,
            topic.lanes,
            self._store,
            self._clock,
            self._time,
            next_pull=self._next_pull,
            durability=self._durability,
            lag=self._lag,
        )
        for lane, source in enumerate(dispatcher.lanes):
            if group.next[lane] > source.end:
                log.error(
                    "%s: its position %d on %s is beyond the end %d, and is set back",
                    dispatcher.label, group.next[lane], source.stream, source.end,
                )  # fmt: skip
                group.next[lane] = source.end
        dispatcher.observe()
        self.on_installed(dispatcher)
        dispatcher.on_dying = self._bury_soon
        topic.groups[group.config.name] = dispatcher
        dispatcher.arm()
        if group.dying:
            self._bury_soon(dispatcher)
        return dispatcher

    # Finding

    def find(self, topic: str, name: str) -> Dispatcher | None:
        return self._topics[topic].groups.get(name) if topic in self._topics else None

    def named(self, topic: str, name: str) -> Dispatcher:
        found = self._topics.named(topic).groups.get(check_group(name))
        if found is None:
            raise NotFound(f"there is no group {name} on topic {topic}")
        return found

    async def for_consumer(self, request: wire.Attach) -> Dispatcher:
        """A group to consume from; the first consumer makes it, where allowed. So it does with a topic that does not
        exist; if another broker has it, with that one's settings."""
        if request.topic not in self._topics and self._topics.ask_around is not None:
            await self._topics.ask_around(request.topic)
        while True:
            async with self.making:
                dispatcher = await self._found_or_made(request)
            await self._make_durable([dispatcher])
            if not dispatcher.closed or self._closing():  # it may have been deleted meanwhile
                return dispatcher

    async def for_consumers(
        self, requests: Sequence[wire.Attach], seat: Callable[[Dispatcher, wire.Attach], Member]
    ) -> list[Member | TowlineError]:
        """The same for many existing topics: their members, by `seat`, or the errors. Missing groups become durable
        together, and others run in between."""
        found: list[Member | TowlineError] = []
        waiting = iter(requests)
        while len(found) < len(requests):
            async with self.making:
                part = TimeSlice()
                for request in waiting:
                    try:
                        self._topics.named(request.topic)  # one that was deleted meanwhile is not made anew
                        # At once, so that a group without a consumer is not deleted in between.
                        found.append(seat(await self._found_or_made(request), request))
                    except TowlineError as error:
                        found.append(error)
                    if part.over:
                        break
            await asyncio.sleep(0)
        await self._make_durable([one.dispatcher for one in found if isinstance(one, Member)])
        return found

    async def _make_durable(self, dispatchers: Sequence[Dispatcher]) -> None:
        """Return when these are durable, whoever made them."""
        if not self._young.isdisjoint(dispatchers):
            await self._catalog.save()
            self._young.difference_update(dispatchers)

    async def _found_or_made(self, request: wire.Attach) -> Dispatcher:
        topic = self._topics.get(request.topic)
        found = topic.groups.get(request.group) if topic else None
        if found is not None:
            found.use()
            return found
        if not self._settings.auto_create_groups and not request.group.startswith(PRIVATE):
            raise NotFound(
                f"there is no group {request.group} on topic {request.topic}, and this broker does not make groups by "
                "itself: create it first"
            )
        topic = topic or self._topics.for_send(request.topic)
        config = request.config or GroupConfig(request.topic, request.group)
        if (config.topic, config.name) != (request.topic, request.group):
            raise BadRequest(f"settings of group {config.name} on topic {config.topic} do not fit this request")
        return await self._make(topic, config, request.places)

    # Make, change, delete

    async def _make(self, topic: Topic, config: GroupConfig, places: wire.Places | None = None) -> Dispatcher:
        """Make a group; the caller waits with `_make_durable`."""
        if self._closing():
            raise Unavailable("the broker is shutting down")
        if len(topic.groups) >= MAX_GROUPS_PER_TOPIC:
            raise TooMany(
                f"topic {config.topic} has {MAX_GROUPS_PER_TOPIC} groups already: group {config.name} is not made. "
                "`towline group rm` removes those that nobody needs"
            )
        streams = streams_of_group(config.topic, config.name)
        if not config.name.startswith(PRIVATE):
            self._remains.check(streams, f"group {config.name} on topic {config.topic}")
        start = config.start or topic.config.start or self._settings.group_start
        config = msgspec.structs.replace(config, created_at_us=self._clock.now_us(), start=start)
        if (config.topic, config.name) in self._catalog.leaving:
            # The streams of its predecessor would be taken for its own, or be dropped later with its own.
            await self._catalog.save()
            await self._drop_streams(config.topic, config.name)
        dispatcher = self._install(topic, Group(config, topic.config.shards))
        try:
            if places is not None and config.ephemeral:
                begin = resumed(dispatcher, places.topics)
            else:
                positions = await start_of(self._store, topic, config.start)
                begin = Start(positions + tuple(lane.end for lane in dispatcher.lanes[len(topic.lanes) :]))
            # Both or neither: with its events alone, it would come back with other settings.
            _, appended = dispatcher.run(begin, Durability.OS, self._catalog.record_of(config))
            assert appended is not None
        except BaseException:
            del topic.groups[config.name]
            dispatcher.close()
            raise
        self._catalog.recorded(config, appended)
        self._remains.taken(streams)
        self._young.add(dispatcher)
        self.on_made(config)
        return dispatcher

    async def put(self, config: GroupConfig) -> None:
        async with self.making:
            topic = self._topics.named(config.topic)
            dispatcher = topic.groups.get(config.name)
            if dispatcher is None:
                made = await self._make(topic, config)
            else:
                old = dispatcher.group.config
                # Paused is not a setting here: it has a request of its own.
                self._change(
                    dispatcher,
                    msgspec.structs.replace(
                        config,
                        created_at_us=old.created_at_us,
                        paused=old.paused,
                        pause_reason=old.pause_reason,
                        paused_at_us=old.paused_at_us,
                    ),
                )
        if dispatcher is None:
            await self._make_durable([made])
        else:
            await self._catalog.save()

    async def pause(self, request: Pause) -> None:
        async with self.making:
            dispatcher = self.named(request.topic, request.group)
            old, now_us = dispatcher.group.config, self._clock.now_us()
            reason = request.reason if request.paused else ""
            since_us = (old.paused_at_us or now_us) if request.paused else 0
            self._change(
                dispatcher,
                msgspec.structs.replace(old, paused=request.paused, pause_reason=reason, paused_at_us=since_us),
            )
            await self._catalog.save()
            # For traces of messages.
            if request.paused and (not old.paused or reason != old.pause_reason):
                dispatcher.record([Paused(self._time.now_us(), reason)], Durability.OS)
            elif old.paused and not request.paused:
                resumed = Resumed(self._time.now_us(), old.paused_at_us, old.pause_reason)
                dispatcher.record([resumed], Durability.OS)
        dispatcher.wake()

    async def seek(self, request: Seek) -> Sought:
        dispatcher = self.named(request.topic, request.group)
        if not request.dry_run:
            dispatcher.use()
        return await seek(dispatcher, request, self._durability)

    async def report(self, request: Report) -> None:
        asked = wire.Attach(self._topics.named(request.topic).config.name, check_group(request.group), "outside")
        await report(await self.for_consumer(asked), request.positions, self._durability)

    def _change(self, dispatcher: Dispatcher, config: GroupConfig) -> None:
        dispatcher.group.config = config
        dispatcher.use()
        self._catalog.put_group(config)

    async def delete(self, topic: str, name: str) -> None:
        # A consumer that makes it anew at once, as attached ones do, comes after this: its events are not dropped here.
        async with self.making:
            await self.delete_now(self.named(topic, name))

    async def delete_left(self, topic: str, name: str) -> None:
        """Delete a group that goes with its last consumer; unless another one has come meanwhile."""
        async with self.making:
            found = self.find(topic, name)
            if found is not None and not found.members:
                await self.delete_now(found)

    async def delete_unused(self, dispatcher: Dispatcher, expiry_s: float) -> bool:
        """Delete a group that nobody has used for so long; unless somebody does so meanwhile. Returns whether it is
        gone."""
        async with self.making:
            if self._closing() or dispatcher.closed or dispatcher.unused_s < expiry_s:
                return False
            await self.delete_now(dispatcher)
            return True

    async def delete_now(self, dispatcher: Dispatcher) -> None:
        """For callers that hold `making`."""
        self._young.discard(dispatcher)
        topic, name = dispatcher.group.config.topic, dispatcher.group.config.name
        dispatcher.close()
        for member in list(dispatcher.members.values()):
            member.fenced = True
        self._topics[topic].groups.pop(name, None)
        self._catalog.drop_group(topic, name)
        if not dispatcher.group.config.ephemeral:
            await self._catalog.save()
        await self._drop_streams(topic, name)

    async def _drop_streams(self, topic: str, name: str) -> None:
        """Drop the streams of a group whose deletion is durable. Until then it is among those that are leaving."""
        # Writes under way go as well: an event that outlives those before it would fit nothing.
        await self._store.append([], Durability.OS).done
        await trim_group(self._store, topic, name)
        self._remains.left(streams_of_group(topic, name))
        self._may_be_left |= self._older_may_come
        self._catalog.leaving.pop((topic, name), None)

    async def drop_rest(self) -> None:
        """Drop what is left of groups whose deletion failed half-way, or which a start would forget."""
        if self._catalog.leaving:
            async with self.making:
                try:
                    await self._catalog.save()
                    for topic, name in list(self._catalog.leaving):
                        await self._drop_streams(topic, name)
                except TowlineError as error:
                    log.error("streams of deleted groups could not be dropped yet: %s", error)
        if self._may_be_left and not self._older_may_come:
            await self.forget_left()

    async def forget_left(self) -> None:
        """Forget streams of deleted groups, of a broker that was killed, or of a version before."""
        self._may_be_left, forgotten = False, 0
        there = [*self._store.streams(PULL_STREAMS), *self._store.streams(DEAD_STREAMS)]
        try:
            for at in range(0, len(there), LEFT_AT_ONCE):
                older = self._older_may_come  # then they only become empty
                async with self.making:
                    left = [stream for stream in there[at : at + LEFT_AT_ONCE] if self._is_left(stream)]
                    ends = [self._store.bounds(stream).end for stream in left]
                    await asyncio.gather(
                        *(self._store.trim(stream, end, forget=True) for stream, end in zip(left, ends, strict=True))
                    )
                self._may_be_left |= older and bool(left)
                forgotten += 0 if older else len(left)
                await asyncio.sleep(0)
        except TowlineError as error:
            self._may_be_left = True
            log.warning("streams of groups that are there no more are not forgotten yet: %s", error)
        if forgotten:
            log.info("%d streams of groups that are there no more are forgotten", forgotten)

    @property
    def _older_may_come(self) -> bool:
        return getattr(self._store, "older_may_come", False)

    def _is_left(self, stream: str) -> bool:
        """Whether a name has no records any more. With records, it is not known whether it was deleted."""
        _, topic, group = stream.split("/")
        first, end, _ = self._store.bounds(stream)
        unknown = (topic, group) not in self._catalog.groups and may_forget(stream)
        return unknown and (first == end or group.startswith(PRIVATE))

    # Burying

    def _bury_soon(self, dispatcher: Dispatcher) -> None:
        if dispatcher not in self.burying and not self._closing():
            self.burying[dispatcher] = asyncio.get_running_loop().create_future()
            self._start(self._bury(dispatcher), "moving messages to the dead letters")

    def bury_rest(self) -> None:
        """Try again to bury messages that could not be buried when they died."""
        for dispatcher in self._topics.dispatchers():
            if dispatcher.group.dying:
                self._bury_soon(dispatcher)

    async def _bury(self, dispatcher: Dispatcher) -> None:
        try:
            await bury(dispatcher, self._durability)
        except TowlineError as error:
            log.error("%s: dying messages could not be moved to the dead letters yet: %s", dispatcher.label, error)
        finally:
            self.burying.pop(dispatcher).set_result(None)

    async def buried(self, topic: str, name: str) -> Dispatcher:
        """A group after all its dying messages were buried: a message that was given up is found there."""
        dispatcher = self.named(topic, name)
        if (burying := self.burying.get(dispatcher)) is not None:
            await asyncio.wait([burying], timeout=BURIED_S)
        return dispatcher
