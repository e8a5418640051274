"""A cluster as an asyncio client sees it. The counterpart of `cluster`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol, TypeVar

from towline.client.cluster.brokers import LATE_S, NEWS_S, ClusterBrokers, Liveness, address_of, next_look
from towline.client.cluster.routing import Outcome
from towline.client.link.aio import AioLink
from towline.client.link.blocking import no_answer
from towline.client.link.connection import Buffer, Call
from towline.client.link.flow import Flow, Start, Step, drive_later
from towline.errors import Closed, NotOwner, TowlineError, Unavailable
from towline.protocol.cluster import BrokerState, ListBrokers
from towline.protocol.topics import ShardCount

__all__ = ["Child", "Cluster"]

log = logging.getLogger("towline.client")

T = TypeVar("T")

_TICK_S: Final = 0.1
_ASK_S: Final = 1.0
_SLICE_S: Final = 0.1
_SOON_S: Final = 0.02
_FOLLOW_S: Final = 0.05
_FOLLOWING_MAX: Final = 1_000
_AWAY_S: Final = 1.0

MakeLink = Callable[[tuple[tuple[str, int], ...]], AioLink]


class Child(Protocol):
    @property
    def closed(self) -> bool: ...

    async def tend(self, now: float) -> None:
        """Look after the branches at single brokers. Called ten times a second."""


class Cluster:
    def __init__(self, fleet: ClusterBrokers, make_link: MakeLink, timeout_s: float) -> None:
        self.fleet = fleet
        self.timeout_s = timeout_s
        self._make_link = make_link
        self._salt = secrets.token_hex(4)
        self._links: dict[tuple[str, str], AioLink] = {}
        self._started: dict[Call, tuple[str, AioLink]] = {}
        self._buffers: dict[Call, Sequence[Buffer]] = {}
        """What calls that were started carry, in case they have to be asked elsewhere."""
        self._children: list[Child] = []
        self._watch = make_link(tuple(address_of(one) for one in fleet.members))
        self._following: list[tuple[AioLink, Liveness]] = []
        self._asking: Call | None = None
        self._asked_at = 0.0
        self._ask_at = 0.0
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._work(), name="towline-cluster")

    def __repr__(self) -> str:
        return f"<Cluster {self.fleet!r}>"

    # Links

    def following_link(self) -> AioLink:
        """Where brokers share a store: a link that goes to the one that serves what it asks for."""
        link = self._make_link(tuple(address_of(one) for one in self.fleet.members))
        link.follow()
        self.lead(link)
        return link

    def lead(self, link: AioLink) -> None:
        """See to it that this link does not wait for a broker that is gone, where others serve the same."""
        open_ones = [one for one in self._following if not one[0].closed]
        self._following = [*open_ones[-_FOLLOWING_MAX:], (link, Liveness())]

    def any_link(self) -> AioLink:
        """To a broker that is there."""
        return self.link(self.fleet.route(secrets.token_hex(4), ""))

    def new_link(self, broker: str) -> AioLink:
        """A link of one's own to a broker."""
        state = self.fleet.get(broker)
        if state is None:
            raise Unavailable(f"broker {broker} is not in the cluster any more")
        return self._make_link((address_of(state),))

    def link(self, broker: str) -> AioLink:
        """The link that all share who ask this broker only now and then."""
        state = self.fleet.get(broker)
        if state is None:
            raise Unavailable(f"broker {broker} is not in the cluster any more")
        if self._closed:
            raise Closed("the client was closed")
        key = broker, state.address
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = self._make_link((address_of(state),))
        return found

    # Running

    async def run(
        self,
        topic: str,
        flow: Flow[T],
        at: str = "",
        served: list[str] | None = None,
        if_alive: bool = False,
    ) -> T:
        """Run a flow at the broker that is right for a topic, or another one when that cannot be reached; or `at` one
        broker and no other. `served` is told who answered. With `if_alive`, nobody waits for a broker that is away."""
        started: dict[Call, float] = {}

        async def do(step: Step) -> Any:
            if isinstance(step, Start):
                started[step.call] = self._deadline(step.call)
                if self.fleet.shared and not at:
                    self._buffers[step.call] = step.call.buffers
                _, link = self._started[step.call] = self._choose(topic, at)
                # If there is no room for it, it leaves when it is waited for.
                await link.start(step.call, min(self.timeout_s, _SLICE_S))
                return None
            assert isinstance(step, Call), "only requests are routed"
            return await self._follow(topic, step, at, started.get(step) or self._deadline(step), served, if_alive)

        try:
            return await drive_later(flow, do)
        finally:
            for call in started:  # those that were not waited for are not ours any more
                self._started.pop(call, None)
                self._buffers.pop(call, None)

    def _deadline(self, call: Call) -> float:
        return time.monotonic() + self.timeout_s + call.patience_s

    def _choose(self, topic: str, at: str, but: frozenset[str] = frozenset()) -> tuple[str, AioLink]:
        broker = at or self.fleet.owner(topic) or self.fleet.pick(self._salt + topic, but)
        broker = broker or self.fleet.route(self._salt, topic)
        return broker, self.link(broker)

    async def _follow(  # noqa: PLR0917
        self, topic: str, call: Call, at: str, deadline: float, served: list[str] | None, if_alive: bool
    ) -> Any:
        """Ask; and where brokers share a store, ask again whom the answer points to."""
        if not self.fleet.shared or at:
            return await self._ask(topic, call, at, deadline, served, if_alive)
        request, buffers, again = call.request, self._buffers.pop(call, call.buffers), call
        while True:
            try:
                answer = await self._ask(topic, again, at, deadline)
            except NotOwner as error:
                self.fleet.learn_owner(topic, error.address)
                if time.monotonic() + LATE_S >= deadline:
                    raise  # who asked at the last moment would only learn that there was no answer
                await asyncio.sleep(_FOLLOW_S)
                again = Call(request, buffers)
                continue
            call.error, call.answer, call.attachments = None, again.answer, again.attachments
            return answer

    async def _ask(  # noqa: PLR0917
        self,
        topic: str,
        call: Call,
        at: str,
        deadline: float,
        served: list[str] | None = None,
        if_alive: bool = False,
    ) -> Any:
        known = self._started.pop(call, None)
        broker, link = known if known is not None else self._choose(topic, at)
        begun = started = time.monotonic()
        liveness: Liveness | None = None
        tried: frozenset[str] = frozenset()
        try:
            while not await self._go_on(link, call, deadline, started):
                now = time.monotonic()
                liveness = liveness or Liveness(started, self.fleet)
                away = liveness.is_away(now, link)
                if away:
                    self.fleet.suspect(broker)
                if now >= deadline or (if_alive and not self.fleet.usable(broker)):
                    sent, waited_s = call.sent > 0, round(now - begun, 1)
                    raise no_answer(link.route, link.cause, link.connection.ready, waited_s, sent=sent)
                if at:
                    continue
                if (away or self._has_moved(topic, broker, started, now)) and self._recall(link, call):
                    tried |= {broker} if away else set()
                    if not self.fleet.pick("", tried):
                        tried = frozenset()
                    broker, link = self._choose(topic, at, tried)
                    started, liveness = time.monotonic(), None
        except BaseException:
            link.connection.abandon(call)
            raise
        if call.error is not None:
            raise call.error
        self.fleet.trust(broker)
        if served is not None:
            served.append(broker)
        return call.answer

    async def _go_on(self, link: AioLink, call: Call, deadline: float, started: float) -> bool:
        """See `cluster.Cluster`."""
        now = time.monotonic()
        slice_s = max(0.0, min(deadline - now, _SLICE_S))
        if call.number < 0 and not await link.start(call, slice_s):
            return False
        late = self.fleet.shared and now - started > LATE_S
        return await link.wait(call, min(slice_s, _SOON_S) if late else slice_s)

    def _has_moved(self, topic: str, broker: str, started: float, now: float) -> bool:
        """See `cluster.Cluster`."""
        return self.fleet.shared and now - started > LATE_S / 2 and self.fleet.owner(topic) not in (None, broker)

    def _recall(self, link: AioLink, call: Call) -> bool:
        """See `cluster.Cluster`."""
        if call.number < 0:
            return True
        stays = call.sent and not self.fleet.shared and not isinstance(call.request, ShardCount)
        if call.done or stays:
            return False
        link.connection.abandon(call)
        call.number = -1
        return True

    # All of them

    async def outcomes_by(self, make_flow: Callable[[str], Flow[T]]) -> list[Outcome[T]]:
        """Run a flow at every broker, made by its id."""
        return list(await asyncio.gather(*(self._outcome(one, make_flow(one.id)) for one in self.fleet.members)))

    async def _outcome(self, member: BrokerState, flow: Flow[T]) -> Outcome[T]:
        if self.fleet.usable(member.id):
            try:
                return Outcome(member, await self.run("", flow, member.id, if_alive=True), None)
            except TowlineError as error:
                return Outcome(member, None, error)
        link = self._make_link((address_of(member),))
        link.timeout_s = min(_AWAY_S, self.timeout_s)
        try:
            return Outcome(member, await link.run(flow), None)
        except TowlineError as error:
            return Outcome(member, None, error)
        finally:
            await link.close()

    # Watching

    def adopt(self, child: Child) -> None:
        self._children = [one for one in self._children if not one.closed] + [child]

    async def _work(self) -> None:
        while True:
            try:
                await self._rest()
                now = time.monotonic()
                self.fleet.refresh()
                await self._look(now)
                self._lead_all(now)
                for child in list(self._children):
                    if not child.closed:
                        await child.tend(now)
            except Closed:
                return
            except Exception:
                log.exception("watching the brokers of a cluster failed")
                await asyncio.sleep(_TICK_S)

    async def _rest(self) -> None:
        """Until the next look; news from a broker are heard at once."""
        if self._asking is not None:
            await self._watch.wait(self._asking, _TICK_S)
        else:
            await asyncio.sleep(_TICK_S)

    async def _look(self, now: float) -> None:
        """Ask a broker, now and then, who is there; when it does not answer, the next one."""
        link, call = self._watch, self._asking
        if call is None:
            if now >= self._ask_at:
                wait_ms = round(NEWS_S * 1000) if self.fleet.shared else 0
                call = self._asking = Call(ListBrokers(self.fleet.mark, wait_ms))
                self._asked_at = now
                await link.start(call)
        elif call.done:
            self._asking = None
            self._ask_at = next_look(self.fleet, call, self._asked_at, now)
            if call.error is None:
                self.fleet.update(call.answer)
                for one in (link, *(each for each, _ in self._following)):
                    one.route.learn([address_of(member) for member in self.fleet.members])
        elif now - self._asked_at > _ASK_S + (LATE_S if self.fleet.shared else 0.0):
            link.connection.abandon(call)
            if link.connection.ready:  # else it goes on to the next one by itself
                link.route.failed()
            self._asking = None
            link.give_up(TimeoutError("no answer"))

    def _lead_all(self, now: float) -> None:
        for link, liveness in self._following:
            if self.fleet.is_late(link, liveness, now):
                better = self.fleet.better_place(link.connection.topic, link.at)
                if better is not None:
                    link.lead_to(better)
        for (broker, _), link in list(self._links.items()):
            silent = link.connection.unanswered and now - link.last_received > LATE_S
            if silent and self.fleet.is_deposed(broker):
                # Whoever has more to say than the connection takes would wait for it.
                link.give_up(NotOwner("another broker serves all that this one had"))

    async def close(self) -> None:
        self._closed = True
        self._task.cancel()
        await asyncio.wait([self._task])
        links, self._links = self._links, {}
        async with AsyncExitStack() as stack:
            # All of them, though one may fail to.
            for link in (*links.values(), *(each for each, _ in self._following), self._watch):
                stack.push_async_callback(link.close)
