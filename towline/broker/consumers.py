"""The consumers of a broker: how they come, pull and settle, and how they leave or vanish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from towline.broker.delivering import Buffers
from towline.broker.fan import Fan, Fans
from towline.broker.groups import Groups
from towline.broker.maintenance import sweep_members
from towline.broker.member import Member
from towline.broker.topics import Topics
from towline.broker.waiter import Taker
from towline.errors import NotFound, TowlineError
from towline.model import check_consumer, check_group, check_topic
from towline.protocol import messages as wire

if TYPE_CHECKING:
    from towline.broker.broker import Broker

__all__ = ["Consumers"]

log = logging.getLogger("towline.broker")


class Consumers:
    """Those that are connected, those that may come back in a moment, and those of before the broker's start."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        groups: Groups,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._clock = broker.clock
        self._topics = topics
        self._groups = groups
        self._start = start
        self._fans = Fans(topics, lambda: broker.closing)
        topics.on_made = self._fans.made
        self._orphans: dict[tuple[str, str, str], float] = {}
        """Consumers that held something when the broker stopped, and until when they may come back."""

    def await_orphans(self) -> None:
        deadline_s = self._clock.steady_s() + self._settings.heartbeat_s
        for dispatcher in self._topics.dispatchers():
            config = dispatcher.group.config
            for consumer in dispatcher.group.in_flight:
                self._orphans[config.topic, config.name, consumer] = deadline_s

    # Coming

    async def fan(self, request: wire.Attach, *, address: str = "", may: Callable[[str], bool]) -> Fan:
        """Attach to all topics under a prefix, as far as one `may`; to those as well that are made later."""
        return await self._fans.open(request, partial(self.attach, address=address), may)

    async def attach(self, request: wire.Attach, *, address: str = "") -> Member:
        check_topic(request.topic)
        check_group(request.group)
        check_consumer(request.consumer)
        dispatcher = await self._groups.for_consumer(request)
        member = Member(self._broker, dispatcher, request.consumer, address, self._clock.steady_s())
        self._orphans.pop((request.topic, request.group, request.consumer), None)
        dispatcher.attach(member, request.holding)
        return member

    # Working

    async def pull(
        self, member: Member | Fan, request: wire.Pull, taker: Taker | None = None
    ) -> tuple[wire.Pulled, Buffers]:
        if self._broker.closing and request.wait_ms:
            request = msgspec.structs.replace(request, wait_ms=0)
        if isinstance(member, Fan):
            return await member.pull(request, taker)
        return await member.dispatcher.pull(member, request, taker)

    async def settle(self, member: Member | Fan, acts: Sequence[wire.Act]) -> wire.Settled:
        if isinstance(member, Fan):
            return await member.settle(acts)
        return await member.dispatcher.settle(member, acts)

    def beat(self, member: Member | Fan) -> None:
        now_s = self._clock.steady_s()
        for one in member.members:
            one.last_seen_s = now_s

    # Leaving

    def detach(self, member: Member | Fan) -> None:
        for one in self._fans.leave(member):
            if not one.fenced:
                self.leave(one, vanished=False)

    def disconnected(self, member: Member | Fan) -> None:
        """Its connection broke: it may come back for a moment, then what it holds goes to others."""
        for one in self._fans.leave(member):
            if one.fenced or one.grace is not None:
                continue
            loop = asyncio.get_running_loop()
            reason = f"the connection of consumer {one.consumer} ({one.address}) broke"
            one.grace = loop.call_later(self._settings.reconnect_grace_s, self._vanish, one, reason)

    def _vanish(self, member: Member, reason: str) -> None:
        try:
            self.leave(member, vanished=True, reason=reason)
        except TowlineError as error:
            log.error("%s: %s", member.dispatcher.label, error)

    def leave(self, member: Member, *, vanished: bool, reason: str = "") -> None:
        dispatcher = member.dispatcher
        dispatcher.leave(member, vanished=vanished, reason=reason)
        if dispatcher.group.config.ephemeral and not dispatcher.members and not self._broker.closing:
            self._start(self._groups.delete_left(dispatcher.group.config.topic, dispatcher.group.config.name))

    async def sweep(self) -> None:
        """Those that were silent for too long lose what they hold, and so do those that did not come back."""
        now_s = self._clock.steady_s()
        for dispatcher in sweep_members(list(self._topics.dispatchers()), now_s, self._settings.heartbeat_s):
            config = dispatcher.group.config
            if config.ephemeral and not dispatcher.members:
                await self._groups.delete_left(config.topic, config.name)
        for name, deadline_s in list(self._orphans.items()):
            if now_s > deadline_s:
                topic, group, consumer = name
                reason = f"consumer {consumer} did not come back after the broker's restart"
                with suppress(NotFound):  # its group is gone meanwhile
                    self._groups.named(topic, group).drop(consumer, vanished=True, reason=reason)
                del self._orphans[name]
