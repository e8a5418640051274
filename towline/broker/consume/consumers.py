"""The consumers of a broker: attach, pull, settle, leave, vanish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from towline.broker.consume.member import Member
from towline.broker.consume.prefix_subscription import PrefixSubscription, PrefixSubscriptions
from towline.broker.consume.seek import check_places, place_of
from towline.clock import in_slices
from towline.errors import NotFound, TowlineError
from towline.model import check_consumer, check_group, check_topic
from towline.protocol import messages as wire

if TYPE_CHECKING:
    from towline.broker.broker import Broker
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.broker.consume.fetch import Buffers
    from towline.broker.consume.groups import Groups
    from towline.broker.consume.waiting_pull import Taker
    from towline.broker.topics.topics import Topics

__all__ = ["Consumers"]

log = logging.getLogger("towline.broker")


class Consumers:
    """Consumers that are connected, those that may come back in a moment, and those from before the broker's start."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        groups: Groups,
        start: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._clock = broker.clock
        self._topics = topics
        self._groups = groups
        self._start = start
        self._subscriptions = PrefixSubscriptions(topics, lambda: broker.closing)
        topics.on_made = self._subscriptions.made
        self._orphans: dict[tuple[str, str, str], float] = {}
        """Consumers with leases from before the start, and the deadline of their return."""
        self._deserted: dict[Dispatcher, float] = {}
        """Ephemeral groups whose last consumer vanished, and the deadline of its return."""

    def await_orphans(self) -> None:
        """After a start, and from when the broker can be reached: consumers have the time of a heartbeat to come back
        with their leases. None of these times out before that, though its time was over while the broker was away."""
        heartbeat_s = self._settings.heartbeat_s
        deadline_s = self._clock.steady_s() + heartbeat_s
        for dispatcher in self._topics.dispatchers():
            if dispatcher.group.leases:
                dispatcher.extend_leases(heartbeat_s)
            config = dispatcher.group.config
            for consumer in dispatcher.group.in_flight:
                self._orphans[config.topic, config.name, consumer] = deadline_s

    def recall_limits(self) -> None:
        for dispatcher in self._topics.dispatchers():
            if dispatcher.group.leases:
                recalling = dispatcher.recall_limits(self._settings.heartbeat_s)
                self._start(recalling, "reading the limits of messages that are out")

    # Attach

    async def fan(self, request: wire.Attach, *, address: str = "", may: Callable[[str], bool]) -> PrefixSubscription:
        """Attach to all topics under a prefix, as far as `may` allows; to those as well that are made later."""
        return await self._subscriptions.open(self._checked(request), partial(self._join, address=address), may)

    async def attach(self, request: wire.Attach, *, address: str = "") -> Member:
        check_topic(request.topic)
        check_group(request.group)
        check_consumer(request.consumer)
        checked = self._checked(request)
        dispatcher = await self._groups.for_consumer(checked)
        while await dispatcher.make_way(request.consumer, request.holding):
            dispatcher = await self._groups.for_consumer(checked)
        return self._seat(dispatcher, request, address=address)

    async def _join(self, requests: Sequence[wire.Attach], *, address: str) -> list[Member | TowlineError]:
        """Attach to many topics at a time; the errors, by topic."""
        asked = [self._checked(request) for request in requests]
        for request in asked:
            if (dispatcher := self._groups.find(request.topic, request.group)) is not None:
                with suppress(TowlineError):  # then it cannot be joined either
                    await dispatcher.make_way(request.consumer, request.holding)
        seated: list[Member] = []

        def seat(dispatcher: Dispatcher, request: wire.Attach) -> Member:
            seated.append(self._seat(dispatcher, request, address=address))
            return seated[-1]

        try:
            return await self._groups.for_consumers(asked, seat)
        except BaseException:
            if seated:
                self.let_go(seated)
            raise

    def _seat(self, dispatcher: Dispatcher, request: wire.Attach, *, address: str) -> Member:
        member = Member(self._broker, dispatcher, request.consumer, address, self._clock.steady_s())
        self._orphans.pop((request.topic, request.group, request.consumer), None)
        self._deserted.pop(dispatcher, None)
        dispatcher.attach(member, request.holding)
        return member

    def _checked(self, request: wire.Attach) -> wire.Attach:
        """The request without positions of another store: their numbers mean nothing here."""
        if request.places is None:
            return request
        check_places(request.topic, request.places)
        ours = request.places.store == self._broker.store_id
        return request if ours else msgspec.structs.replace(request, places=None)

    def places(self, member: Member | PrefixSubscription) -> wire.Places | None:
        """The positions of a consumer without a group that was just attached: in the topics where its group may have
        begun anew."""
        if not member.config.ephemeral:
            return None
        begun = [one.dispatcher for one in member.members if not one.dispatcher.group.turns]
        return wire.Places(self._broker.store_id, [place_of(dispatcher) for dispatcher in begun])

    # Pull and settle

    async def pull(
        self, member: Member | PrefixSubscription, request: wire.Pull, taker: Taker | None = None
    ) -> tuple[wire.Pulled, Buffers]:
        if self._broker.closing and request.wait_ms:
            request = msgspec.structs.replace(request, wait_ms=0)
        if isinstance(member, PrefixSubscription):
            return await member.pull(request, taker)
        return await member.dispatcher.pull(member, request, taker)

    async def settle(self, member: Member | PrefixSubscription, acts: Sequence[wire.Act]) -> wire.Settled:
        if isinstance(member, PrefixSubscription):
            return await member.settle(acts)
        return await member.dispatcher.settle(member, acts)

    def beat(self, member: Member | PrefixSubscription) -> None:
        now_s = self._clock.steady_s()
        for one in member.members:
            one.last_seen_s = now_s

    def held(self, member: Member | PrefixSubscription, holding: Sequence[int]) -> wire.Held:
        """Which of these pulls a consumer still holds, and the messages that were taken away."""
        return (
            member.held_of(holding)
            if isinstance(member, PrefixSubscription)
            else member.dispatcher.held(member, holding)
        )

    # Leave

    async def kick(self, topic: str, group: str, consumer: str) -> None:
        """What a consumer holds goes back to its group; it may attach again, and then holds nothing."""
        done = await self.leave(self._groups.named(topic, group).member(consumer), vanished=False)
        if done is not None:
            await done

    async def detach(self, member: Member | PrefixSubscription) -> None:
        """Give back what is still held; returns when that is as durable as an ack."""
        leaving = [one for one in self._subscriptions.leave(member) if not one.fenced]
        given_back = [await self.leave(one, vanished=False) async for one in in_slices(leaving)]
        for done in given_back:
            if done is not None:
                await done

    def disconnected(self, member: Member | PrefixSubscription) -> None:
        """Its connection broke: it may come back for a moment, then its messages go to others. It keeps them if the
        broker stops: it cannot come back before the next start."""
        if isinstance(member, PrefixSubscription):
            self._subscriptions.await_back(member, self._clock.steady_s() + self._settings.heartbeat_s)
        leaving = [one for one in self._subscriptions.leave(member) if not one.fenced and one.grace is None]
        if not leaving or self._broker.closing:
            return
        # One timer for all topics of a subscription: they vanish one after the other, and others run in between.
        loop = asyncio.get_running_loop()
        grace = loop.call_later(
            self._settings.reconnect_grace_s, lambda: self._start(self._vanish(leaving), "consumers that vanished")
        )
        if isinstance(member, Member):
            member.grace = grace

    async def _vanish(self, members: Sequence[Member]) -> None:
        """Drop the members that did not come back; nothing happens to those that did, under their names."""
        async for member in in_slices(members):
            if self._broker.closing:
                return
            try:
                await self.leave(member, vanished=True, reason=_broke(member))
            except TowlineError as error:
                log.error("%s: %s", member.dispatcher.label, error)

    def let_go(self, members: Sequence[Member]) -> None:
        """Drop members that nobody knows of. Those that cannot leave now do a little later."""
        self._start(self._let_go(members), "consumers that could not attach")

    async def _let_go(self, members: Sequence[Member]) -> None:
        async for member in in_slices(members):
            with suppress(TowlineError):
                await self.leave(member, vanished=False)

    async def leave(self, member: Member, *, vanished: bool, reason: str = "") -> asyncio.Future[None] | None:
        """Returns when it is as durable as an ack."""
        done = await member.dispatcher.leave(member, vanished=vanished, reason=reason)
        self._desert(member.dispatcher, vanished=vanished)
        return done

    def _desert(self, dispatcher: Dispatcher, *, vanished: bool) -> None:
        """An ephemeral group goes with its last consumer; if that vanished, only when it does not come back."""
        config = dispatcher.group.config
        if not config.ephemeral or dispatcher.members or dispatcher.closed or self._broker.closing:
            return
        if vanished:
            self._deserted[dispatcher] = self._clock.steady_s() + self._settings.heartbeat_s
        else:
            left = self._groups.delete_left(config.topic, config.name)
            self._start(left, "removing groups of consumers that left")

    async def sweep(self) -> None:
        """Consumers that were silent for too long lose their leases, and so do those that did not come back."""
        if self._broker.closing or self._broker.store.failure is not None:
            # Where nothing can be recorded, nothing is taken from anyone; a new start sees to it.
            return
        now_s = self._clock.steady_s()
        async for dispatcher in in_slices(list(self._topics.dispatchers())):
            for member, vanished, reason in parting_members(dispatcher, now_s, self._settings.heartbeat_s):
                await self.leave(member, vanished=vanished, reason=reason)
        self._subscriptions.sweep(now_s)
        for dispatcher in list(self._deserted):
            # While one is deleted, the consumer of another may come back.
            if dispatcher.closed or now_s > self._deserted.get(dispatcher, now_s):
                self._deserted.pop(dispatcher, None)
                if not dispatcher.closed:
                    await self._groups.delete_left(dispatcher.group.config.topic, dispatcher.group.config.name)
        async for name, deadline_s in in_slices(list(self._orphans.items())):
            if now_s > deadline_s and name in self._orphans:
                topic, group, consumer = name
                reason = f"consumer {consumer} did not come back after the broker's restart"
                dropped = True
                with suppress(NotFound):  # its group is gone meanwhile
                    dropped = await self._groups.named(topic, group).drop(consumer, reason)
                if dropped:
                    self._orphans.pop(name, None)


def _broke(member: Member) -> str:
    return f"the connection of consumer {member.consumer} ({member.address}) broke"


def parting_members(dispatcher: Dispatcher, now_s: float, heartbeat_s: float) -> Iterator[tuple[Member, bool, str]]:
    """The consumers of a group that have been silent for too long; and those that have left, where it could not be
    recorded then. With whether they vanished, and the reason."""
    for member in list(dispatcher.members.values()):
        if member.parting is not None or now_s - member.last_seen_s > heartbeat_s:
            unheard = f"consumer {member.consumer} ({member.address}) was not heard of for {heartbeat_s:g} s"
            vanished, reason = member.parting or (True, unheard)
            yield member, vanished, reason
