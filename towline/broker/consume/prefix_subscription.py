"""A consumer of all topics under a prefix: one subscription, a member of the group of each topic.

A pull is answered from one topic; those that have as much as the pull wants at least take turns. Pull numbers are the
broker's, so an act finds its topic by its pull. Topics that are made later join when they are made: a waiting pull is
woken.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from towline.broker.consume.dispatcher import LOST_MAX, ROOM_S, Dispatcher, NoRoom
from towline.broker.consume.member import Member
from towline.clock import TimeSlice, in_slices
from towline.errors import LeaseLost, NotFound, TooMany, TowlineError, Unreadable
from towline.log_lines import RateLimitedLog
from towline.model import GroupConfig, check_consumer, check_group, check_pattern, is_pattern, matches
from towline.protocol import messages as wire
from towline.protocol.consume import ACK

if TYPE_CHECKING:
    from towline.broker.consume.fetch import Buffers
    from towline.broker.consume.waiting_pull import Taker
    from towline.protocol.cluster import ClientState

__all__ = ["PrefixSubscription", "PrefixSubscriptions", "chosen"]

log = logging.getLogger("towline.broker")

PULLS_MAX: Final = 100_000
"""Bound on remembered pulls; a consumer does not hold so many."""
NEWS_MAX: Final = 100
"""Groups with other settings that are reported to a consumer at a time."""
AWAY_MAX: Final = 10_000
"""Consumers whose connection broke, for which new topics are noted; the oldest go first."""
AGAIN_S: Final = 5.0
"""The pause before a topic that could not be joined is tried again."""
JOIN_MAX: Final = 500
"""Topics that are joined together; new groups among them become durable together."""

Join = Callable[[Sequence[wire.Attach]], Awaitable[Sequence[Member | TowlineError]]]


class PrefixSubscription:
    """Takes the place of a `Member` in a session when a consumer subscribes by prefix."""

    broker: Any = None
    """The broker of its topics."""

    def __init__(
        self, request: wire.Attach, join: Join, may: Callable[[str], bool], closing: Callable[[], bool]
    ) -> None:
        self.pattern = request.topic
        self.consumer = request.consumer
        self.config = request.config or GroupConfig("any", request.group)
        self.shards = 0
        self._request = request
        self._join = join
        self._may = may
        self._closing = closing
        self._members: dict[str, Member] = {}
        self._joining: dict[str, bool] = {}
        """Topics to join, and whether they are new."""
        self._coming: dict[str, bool] = {}
        """Topics that are being joined now."""
        self._failing: dict[str, bool] = {}
        """Topics that could not be joined, and are tried again later."""
        self._log = RateLimitedLog(log, per_minute=1)
        self._ready: OrderedDict[str, None] = OrderedDict()
        """Topics that may have something to deliver, in the order of their turns."""
        self._short: OrderedDict[str, None] = OrderedDict()
        """Topics that had less than the pull under way wants."""
        self._pulls: OrderedDict[int, Member] = OrderedDict()
        self._news: dict[str, None] = {}
        """Topics whose group has other settings than were asked for, which were not reported yet."""
        self._touched: dict[Dispatcher, None] = {}
        """Groups whose timer may have to be set anew before a pull waits."""
        self._changed = asyncio.Event()
        self._left = False
        self._doubts = 0
        """Checks of all topics that are under way because rules have changed."""
        self._waiting = 0
        """Waiting pulls: two for a moment, when one takes the place of the other."""

    @property
    def resource(self) -> str:
        return self.pattern

    @property
    def place(self) -> tuple[str, str]:
        """The key under which a consumer of an ephemeral group comes back."""
        return self.pattern, self.config.name

    @property
    def unjoined(self) -> list[str]:
        """New topics that it has not joined yet."""
        parts = (self._failing, self._coming, self._joining)
        return list(dict.fromkeys(name for part in parts for name, new in part.items() if new))

    @property
    def waiting(self) -> bool:
        return self._waiting > 0

    @property
    def held(self) -> list[int]:
        return sorted(self._pulls)

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    @property
    def in_flight(self) -> int:
        return sum(member.in_flight for member in self._members.values())

    def describe(self, about: ClientState) -> ClientState:
        return msgspec.structs.replace(
            about,
            role="consumer",
            topic=self.pattern,
            group=self.config.name,
            consumer=self.consumer,
            in_flight=self.in_flight,
            waiting=self.waiting,
        )

    # Topics

    def invite(self, topics: Iterable[str], *, new: bool) -> None:
        """These topics exist; they are joined by the next pull, or by the one that waits."""
        found = [name for name in topics if matches(self.pattern, name) and not self._is_member(name)]
        self._joining.update(dict.fromkeys(found, new))
        if self._joining:
            self._changed.set()

    async def join(self, places: wire.Places | None = None) -> None:
        """Join the pending topics. One that is gone by now, or may not be joined, is left out. `places` are the
        consumer's own positions."""
        known = {} if places is None else {place.topic: place for place in places.topics}
        part = TimeSlice()
        while self._joining and not self._left and (joining := self._next_to_join()):
            coming = list(joining)
            for name in coming:
                self._coming[name] = self._joining.pop(name)
            try:
                allowed = [name async for name in in_slices(coming, part) if self._may(name)]
                joining = {name: joining[name] for name in allowed}
                requests = [self._request_for(name, known, places, new=new) for name, new in joining.items()]
                found = await self._join(requests) if requests else ()
            except BaseException:
                self._joining = joining | self._joining
                raise
            finally:
                for name in coming:
                    del self._coming[name]
            self._joined(joining, found)

    def _next_to_join(self) -> dict[str, bool]:
        """A topic that is being joined comes when that has ended: it may have been made anew since."""
        return dict(islice(((name, new) for name, new in self._joining.items() if name not in self._coming), JOIN_MAX))

    def _joined(self, joining: Mapping[str, bool], found: Sequence[Member | TowlineError]) -> None:
        if self._left:
            _let_go(one for one in found if isinstance(one, Member))
            return
        failed: dict[str, TowlineError] = {}
        for name, one in zip(joining, found, strict=True):
            if isinstance(one, Member):
                if one.dispatcher.closed and name in self._joining:
                    continue  # it was made anew since
                self._add(name, one)
                self._joining.pop(name, None)
            elif isinstance(one, (NotFound, TooMany)):
                log.info("consumer %s of %s: %s", self.consumer, self.pattern, one)
            else:
                failed[name] = one
        if failed:
            self._put_off({name: joining[name] for name in failed}, next(iter(failed.values())))

    def _put_off(self, failed: Mapping[str, bool], why: TowlineError) -> None:
        """These topics could not be joined: the others do not wait for them."""
        if not self._members:
            self._joining = {**failed, **self._joining}
            raise why
        loop = asyncio.get_running_loop()
        text = "consumer %s of %s: %d topics could not be joined, and are tried again: %s"
        self._log.say(loop.time(), logging.WARNING, text, self.consumer, self.pattern, len(failed), why)
        if not self._failing:
            loop.call_later(AGAIN_S, self._try_again)
        self._failing.update(failed)

    def _try_again(self) -> None:
        failing, self._failing = self._failing, {}
        for name, new in failing.items() if not self._left else ():
            self.invite((name,), new=new or self._joining.get(name, False))

    def _request_for(
        self, name: str, known: Mapping[str, wire.Place], places: wire.Places | None, *, new: bool
    ) -> wire.Attach:
        # All messages of a topic that is made while the consumer is attached are new.
        config = msgspec.structs.replace(self.config, topic=name, **({"start": "earliest"} if new else {}))
        request = wire.Attach(name, self.config.name, self.consumer, config, self._request.holding)
        if places is None:
            return request
        here = wire.Places(places.store, [known[name]] if name in known else [])
        return msgspec.structs.replace(request, places=here)

    def _add(self, name: str, member: Member) -> None:
        self._members[name] = member
        member.subscription = self
        if _settings(member.config) != _settings(self.config):
            self._news[name] = None
        for pull in member.held:
            self._note(pull, member)
        member.dispatcher.watch(self._note_change)
        self._note_change(member.dispatcher)

    def take_news(self, first: str = "") -> list[GroupConfig]:
        """Groups that have other settings than were asked for, each reported once; that of the topic `first` for
        sure."""
        if not self._news:
            return []
        names = [name for name in (first,) if name in self._news]
        names += islice((name for name in self._news if name != first), NEWS_MAX - len(names))
        for name in names:
            del self._news[name]
        return [self._members[name].config for name in names]

    def _is_member(self, name: str) -> bool:
        member = self._members.get(name)
        if member is not None and member.dispatcher.closed:
            self._drop(name)
            return False
        return member is not None

    def _notice_closed(self) -> None:
        """Groups that were deleted are made anew, as for any other consumer; topics that were deleted are not."""
        gone = [name for name in list(self._members) if not self._is_member(name)]
        self._joining.update(dict.fromkeys(gone, False))

    def retain(self) -> AsyncIterator[Member]:
        """The rules have changed: leave the topics that are not allowed any more. Others run in between; from this call
        on nothing is delivered of such topics."""
        self._doubts += 1
        return self._retain()

    async def _retain(self) -> AsyncIterator[Member]:
        try:
            async for name in in_slices(list(self._members)):
                if name in self._members and not self._may(name):
                    yield self._drop(name)
        finally:
            self._doubts -= 1

    def _drop(self, name: str) -> Member:
        member = self._members.pop(name)
        member.subscription = None
        member.dispatcher.unwatch(self._note_change)
        self._touched.pop(member.dispatcher, None)
        self._ready.pop(name, None)
        self._short.pop(name, None)
        self._news.pop(name, None)
        return member

    def leave(self) -> list[Member]:
        """Leave all topics; returns the members that are to leave."""
        self._left = True
        self._changed.set()
        return [self._drop(name) for name in list(self._members)]

    # Pulling

    def _note_change(self, dispatcher: Dispatcher) -> None:
        """A topic may have something to deliver."""
        self._ready.setdefault(dispatcher.group.config.topic, None)
        self._touched[dispatcher] = None
        self._changed.set()

    def end_waiting(self) -> None:
        """A waiting pull checks whether it still should wait."""
        self._changed.set()

    async def pull(self, request: wire.Pull, taker: Taker | None = None) -> tuple[wire.Pulled, Buffers]:
        settled = await self.settle(request.acts) if request.acts else wire.Settled()
        once = msgspec.structs.replace(request, wait_ms=0, acts=[])
        loop, waits = asyncio.get_running_loop(), request.wait_ms > 0
        begun_s = loop.time()
        deadline_s = begun_s + request.wait_ms / 1000
        room_until_s = deadline_s if waits else begun_s + ROOM_S
        least = request.min_messages if waits else 1
        self._reconsider()
        while True:
            self._changed.clear()
            await self.join()
            try:
                pulled, buffers = await self._pull_from_any(once, least, taker)
            except NoRoom:
                assert taker is not None
                left_s = room_until_s - loop.time()
                if left_s > 0 and not self._left and await taker.wait_for_room(once.max_bytes, left_s):
                    continue
                if not waits and not request.acts:
                    raise
                pulled, buffers = wire.Pulled(0, []), []
                break
            if pulled.pull or self._left or self._closing() or (taker is not None and taker.ending):
                break
            if taker is not None:
                taker.let_go()  # nobody waits for messages holding room
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._wait()
            except TimeoutError:
                self._notice_closed()
                # Messages that have come by now are enough.
                self._reconsider()
                with suppress(NoRoom):
                    pulled, buffers = await self._pull_from_any(once, 1, taker)
                break
        news = self.take_news(pulled.topic)
        return msgspec.structs.replace(pulled, refused=settled.refused, lost=settled.lost, groups=news), buffers

    def _reconsider(self) -> None:
        """Topics that had too little for one pull may have enough for another."""
        for name in self._short:
            self._ready.setdefault(name, None)
        self._short.clear()

    async def _wait(self) -> None:
        for member in self._members.values():
            member.dispatcher.check_store()  # they have it in common
            break
        while self._touched:
            self._touched.popitem()[0].arm()
        self._waiting += 1
        try:
            await self._changed.wait()
        finally:
            self._waiting -= 1

    async def _pull_from_any(self, request: wire.Pull, least: int, taker: Taker | None) -> tuple[wire.Pulled, Buffers]:
        """Pull from the first topic in turn that has enough; it goes to the end of the line then."""
        part = TimeSlice()
        for _ in range(len(self._ready)):
            await part.rest()  # many have nothing
            if not self._ready:
                break
            name, _ = self._ready.popitem(last=False)
            member = self._members[name]
            if member.dispatcher.closed or (self._doubts and not self._may(name)):
                continue
            try:
                pulled, buffers = await member.dispatcher.pull(member, request, taker, least=least, room_s=0.0)
            except Unreadable:
                continue  # its turn comes when its group goes on; the others do not wait for it
            except NoRoom:
                self._ready[name] = None
                self._ready.move_to_end(name, last=False)
                raise  # nor would there be room for the others' messages
            if least > 1 and not pulled.pull:
                self._short[name] = None
            if pulled.pull:
                self._ready[name] = None
                self._short.pop(name, None)
                self._note(pulled.pull, member)
                return msgspec.structs.replace(pulled, topic=name, shards=member.shards), buffers
        return wire.Pulled(0, []), []

    def _note(self, pull: int, member: Member) -> None:
        self._pulls[pull] = member
        while len(self._pulls) > PULLS_MAX:
            self._pulls.popitem(last=False)

    # Settling

    async def settle(self, acts: Sequence[wire.Act]) -> wire.Settled:
        refused: list[tuple[int, str, str]] = []
        lost: list[wire.Lost] = []
        for number, act in enumerate(acts):
            member = self._pulls.get(act.pull)
            try:
                if member is None:
                    raise LeaseLost(f"pull {act.pull} is not leased to consumer {self.consumer} of {self.pattern}")
                for other, one in self._parts_of(act, member):
                    settled = await other.dispatcher.settle(other, [one])
                    refused += [(number, code, text) for _, code, text in settled.refused]
                    lost += settled.lost
                    if settled.refused:
                        # If the permission is refused, nothing is carried out.
                        break
            except TowlineError as error:
                refused.append((number, error.code, str(error)))
        self._forget_settled()
        return wire.Settled(refused, lost)

    def held_of(self, holding: Sequence[int]) -> wire.Held:
        """Which of these pulls it still holds, of whichever topics, and the messages that were taken away."""
        by_member: dict[Member, list[int]] = {}
        for pull in holding:
            member = self._pulls.get(pull)
            if member is not None and not (member.fenced or member.dispatcher.closed):
                by_member.setdefault(member, []).append(pull)
        answers = [member.dispatcher.held(member, pulls) for member, pulls in by_member.items()]
        lost = [each for one in answers for each in one.lost]
        return wire.Held([pull for one in answers for pull in one.held], lost[:LOST_MAX])

    def _parts_of(self, act: wire.Act, member: Member) -> list[tuple[Member, wire.Act]]:
        """The act, and for one of everything up to a pull also those of the pulls from other topics."""
        if not act.up_to:
            return [(member, act)]
        others = [(one, wire.Act(ACK, pull)) for pull, one in self._pulls.items() if pull < act.pull]
        return [(member, act), *((one, each) for one, each in others if one is not member and _is_open(one, each))]

    def _forget_settled(self) -> None:
        """Forget old settled pulls; not the last ones, for which an act may be sent twice."""
        while len(self._pulls) > 1_000:
            pull, member = next(iter(self._pulls.items()))
            if pull in member.dispatcher.group.leases:
                return
            del self._pulls[pull]


class PrefixSubscriptions:
    """All prefix subscriptions of a broker."""

    def __init__(self, topics: Collection[str], closing: Callable[[], bool]) -> None:
        self._topics = topics
        self._closing = closing
        self._subscriptions: set[PrefixSubscription] = set()
        self._away: dict[tuple[str, str], tuple[float, set[str]]] = {}
        """By place, ephemeral consumers whose connection broke: the deadline of their return, and topics new to
        them."""

    async def open(self, request: wire.Attach, join: Join, may: Callable[[str], bool]) -> PrefixSubscription:
        check_pattern(request.topic)
        check_group(request.group)
        check_consumer(request.consumer)

        subscription = PrefixSubscription(request, join, may, self._closing)
        subscription.invite(self._topics, new=False)
        if subscription.config.ephemeral:
            _, new = self._away.pop(subscription.place, (0.0, set[str]()))
            # The one before it may be here still: that its connection broke can be noticed later.
            subscription.invite(
                new.union(*(other.unjoined for other in self._subscriptions if other.place == subscription.place)),
                new=True,
            )
        self._subscriptions.add(subscription)
        try:
            await subscription.join(request.places)
        except BaseException:
            # Nobody will ever pull through it.
            self._subscriptions.discard(subscription)
            _let_go(subscription.leave())
            raise
        return subscription

    def made(self, topic: str) -> None:
        for subscription in self._subscriptions:
            subscription.invite((topic,), new=True)
        for (pattern, _), (_, new) in self._away.items():
            if matches(pattern, topic):
                new.add(topic)

    def await_back(self, subscription: PrefixSubscription, deadline_s: float) -> None:
        """All messages of a topic that is made before it comes back are new to it."""
        if subscription.config.ephemeral:
            self._away[subscription.place] = deadline_s, set(subscription.unjoined)
            if len(self._away) > AWAY_MAX:
                del self._away[next(iter(self._away))]

    def sweep(self, now_s: float) -> None:
        for place in [place for place, (deadline_s, _) in self._away.items() if now_s > deadline_s]:
            del self._away[place]

    def leave(self, member: Member | PrefixSubscription) -> list[Member]:
        """A consumer leaves, of one topic or of many: the members that are to leave."""
        if not isinstance(member, PrefixSubscription):
            return [member]
        self._subscriptions.discard(member)
        return member.leave()


def chosen(topic: str, topics: Iterable[str]) -> list[str]:
    """The topic of this name, those under a prefix, or all of them."""
    if topic and not is_pattern(topic):
        return [topic]
    return sorted(name for name in topics if matches(topic, name)) if topic else sorted(topics)


def _let_go(members: Iterable[Member]) -> None:
    found = list(members)
    if found:
        found[0].broker.consumers.let_go(found)


def _settings(config: GroupConfig) -> tuple[object, ...]:
    """The settings of a group that a consumer can ask for."""
    return config.retry, config.timeout_s, config.max_in_flight, config.mode


def _is_open(member: Member, act: wire.Act) -> bool:
    return act.pull in member.dispatcher.group.leases
