# Generated from towline/client/_async/cluster.py by scripts/unasync.py: change it there.
"""A cluster as a blocking client sees it: a link to each broker, a thread that watches, and what goes where."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, Protocol, TypeVar

from towline.client.cluster.brokers import LATE_S, NEWS_S, ClusterBrokers, Liveness, address_of, next_look
from towline.client.cluster.routing import Outcome
from towline.client.concurrency.threads import Event, Lock, Worker, gather, sleep
from towline.client.link.blocking import Link, no_answer
from towline.client.link.connection import Buffer, Call
from towline.client.link.flow import Flow, Start, Step, drive
from towline.errors import Closed, NotOwner, TowlineError, Unavailable
from towline.protocol.cluster import BrokerState, ListBrokers
from towline.protocol.topics import ShardCount

__all__ = ["Cluster"]

log = logging.getLogger("towline.client")

T = TypeVar("T")

_TICK_S: Final = 0.1
_ASK_S: Final = 1.0
"""How long a broker may take to say who is there, before the next one is asked."""
_SLICE_S: Final = 0.1
_SOON_S: Final = 0.02
"""The same where brokers share a store, and the one that was asked is late: another one may have the topic."""
_CONNECT_S: Final = 1.0
"""How long it may take to connect to one broker, on a slow network and with TLS."""
_FOLLOW_S: Final = 0.05
_FOLLOWING_MAX: Final = 1_000
_AWAY_S: Final = 1.0
"""How long something that goes to all brokers tries to reach one that is said to be away."""


class Child(Protocol):
    @property
    def closed(self) -> bool: ...

    def tend(self, now: float) -> None:
        """Look after the branches at single brokers. Called ten times a second."""


class Cluster:
    def __init__(
        self, fleet: ClusterBrokers, make_link: Callable[[tuple[tuple[str, int], ...]], Link], timeout_s: float
    ) -> None:
        self.fleet = fleet
        self.timeout_s = timeout_s
        self._make_link = make_link
        self._salt = secrets.token_hex(4)
        self._links: dict[tuple[str, str], Link] = {}
        self._started: dict[Call, tuple[str, Link]] = {}
        self._buffers: dict[Call, Sequence[Buffer]] = {}
        """What calls that were started carry, in case they have to be asked elsewhere."""
        self._lock = Lock()
        self._children: list[Child] = []
        self._watch = make_link(tuple(address_of(one) for one in fleet.members))
        self._following: list[tuple[Link, Liveness]] = []
        self._asking: Call | None = None
        self._asked_at = 0.0
        self._ask_at = 0.0
        self._closing = Event()
        self._worker = Worker("towline-cluster", self._work)

    def __repr__(self) -> str:
        return f"<Cluster {self.fleet!r}>"

    # Links

    def following_link(self) -> Link:
        """Where brokers share a store: a link that goes to the one that serves what it asks for."""
        link = self._make_link(tuple(address_of(one) for one in self.fleet.members))
        link.follow()
        self.lead(link)
        return link

    def lead(self, link: Link) -> None:
        """See to it that this link does not wait for a broker that is gone, where others serve the same."""
        with self._lock:
            open_ones = [one for one in self._following if not one[0].closed]
            self._following = [*open_ones[-_FOLLOWING_MAX:], (link, Liveness())]

    def any_link(self) -> Link:
        """To a broker that is there."""
        return self._reach(lambda: self.fleet.route(secrets.token_hex(4), ""))[1]

    def new_link(self, broker: str) -> Link:
        """A link of one's own to a broker."""
        state = self.fleet.get(broker)
        if state is None:
            raise Unavailable(f"broker {broker} is not in the cluster any more")
        return self._make_link((address_of(state),))

    def link(self, broker: str) -> Link:
        """The link that all share who ask this broker only now and then."""
        state = self.fleet.get(broker)
        if state is None:
            raise Unavailable(f"broker {broker} is not in the cluster any more")
        with self._lock:
            if self._closing.is_set():
                raise Closed("the client was closed")
            key = broker, state.address
            found = self._links.get(key)
            if found is None:
                found = self._links[key] = self._make_link((address_of(state),))
            return found

    # Running

    def run(
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

        def do(step: Step) -> Any:
            if isinstance(step, Start):
                deadline = started[step.call] = self._deadline(step.call)
                if self.fleet.shared and not at:
                    self._buffers[step.call] = step.call.buffers
                _, link = self._started[step.call] = self._choose(topic, at)
                # If there is no room for it, it leaves when it is waited for.
                link.start(step.call, min(deadline, time.monotonic() + _SLICE_S), deadline)
                return None
            assert isinstance(step, Call), "only requests are routed"
            return self._follow(topic, step, at, started.get(step) or self._deadline(step), served, if_alive)

        try:
            return drive(flow, do)
        finally:
            for call in started:  # those that were not waited for are not ours any more
                self._started.pop(call, None)
                self._buffers.pop(call, None)

    def _deadline(self, call: Call) -> float:
        return time.monotonic() + self.timeout_s + call.patience_s

    def _choose(self, topic: str, at: str, but: frozenset[str] = frozenset()) -> tuple[str, Link]:
        fleet = self.fleet
        if at:
            return at, self.link(at)
        return self._reach(
            lambda: fleet.owner(topic) or fleet.pick(self._salt + topic, but) or fleet.route(self._salt, topic)
        )

    def _reach(self, find: Callable[[], str]) -> tuple[str, Link]:
        """The broker that is found, and the link to it. It may leave the cluster in this moment."""
        while True:
            broker = find()
            try:
                return broker, self.link(broker)
            except Unavailable:
                if self.fleet.get(broker) is not None:
                    raise

    def _follow(  # noqa: PLR0917
        self, topic: str, call: Call, at: str, deadline: float, served: list[str] | None, if_alive: bool
    ) -> Any:
        """Ask; and where brokers share a store, ask again whom the answer points to."""
        if not self.fleet.shared or at:
            return self._ask(topic, call, at, deadline, served, if_alive)
        request, buffers, again = call.request, self._buffers.pop(call, call.buffers), call
        while True:
            try:
                answer = self._ask(topic, again, at, deadline)
            except NotOwner as error:
                self.fleet.learn_owner(topic, error.address)
                if time.monotonic() + LATE_S >= deadline:
                    raise  # who asked at the last moment would only learn that there was no answer
                sleep(_FOLLOW_S)
                again = Call(request, buffers)
                continue
            call.error, call.answer, call.attachments = None, again.answer, again.attachments
            return answer

    def _ask(  # noqa: PLR0917
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
            while not self._go_on(link, call, deadline, started):
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

    def _go_on(self, link: Link, call: Call, deadline: float, started: float) -> bool:
        """Ask, or wait for the answer, for a moment; True when it is there."""
        now = time.monotonic()
        until = min(deadline, now + _SLICE_S)
        if call.number < 0 and not link.start(call, until, deadline):
            return False
        late = self.fleet.shared and now - started > LATE_S
        return link.wait(call, min(deadline, now + _SOON_S) if late else until, _CONNECT_S)

    def _has_moved(self, topic: str, broker: str, started: float, now: float) -> bool:
        """Whether another broker serves the topic by now, so that nothing is to be waited for from this one. It may be
        that it answers, if only with where to go: for a moment it is waited for."""
        return self.fleet.shared and now - started > LATE_S / 2 and self.fleet.owner(topic) not in (None, broker)

    def _recall(self, link: Link, call: Call) -> bool:
        """Take a call back from a broker that is away. What may have reached it stays with it: at another one it might
        be doubled. Where brokers share a store, they all know what came."""
        if call.number < 0:
            return True
        if not link.lock.acquire(timeout=_SLICE_S):
            return False  # another thread writes, perhaps this call
        try:
            stays = call.sent and not self.fleet.shared and not isinstance(call.request, ShardCount)
            if call.done or stays:
                return False
            link.connection.abandon(call)
            call.number = -1
            return True
        finally:
            link.lock.release()

    # All of them

    def outcomes_by(self, make_flow: Callable[[str], Flow[T]]) -> list[Outcome[T]]:
        """Run a flow at every broker, made by its id."""
        return gather(lambda one: self._outcome(one, make_flow(one.id)), self.fleet.members)

    def _outcome(self, member: BrokerState, flow: Flow[T]) -> Outcome[T]:
        if self.fleet.usable(member.id):
            try:
                return Outcome(member, self.run("", flow, member.id, if_alive=True), None)
            except TowlineError as error:
                return Outcome(member, None, error)
        link = self._make_link((address_of(member),))
        link.timeout_s = min(_AWAY_S, self.timeout_s)
        try:
            return Outcome(member, link.run(flow), None)
        except TowlineError as error:
            return Outcome(member, None, error)
        finally:
            link.close()

    # Watching

    def adopt(self, child: Child) -> None:
        with self._lock:
            self._children = [one for one in self._children if not one.closed] + [child]

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                self._rest()
                now = time.monotonic()
                self.fleet.refresh()
                self._look(now)
                self._lead_all(now)
                for child in list(self._children):
                    if not child.closed:
                        child.tend(now)
            except Closed:
                return
            except Exception:
                log.exception("watching the brokers of a cluster failed")
                self._closing.wait(_TICK_S)

    def _rest(self) -> None:
        """Until the next look; news from a broker are heard at once."""
        until = time.monotonic() + _TICK_S
        if self._asking is not None:
            self._watch.wait(self._asking, until, _CONNECT_S)
        else:
            self._closing.wait(_TICK_S)

    def _look(self, now: float) -> None:
        """Ask a broker, now and then, who is there; when it does not answer, the next one."""
        link, call = self._watch, self._asking
        if call is None:
            if now >= self._ask_at:
                wait_ms = round(NEWS_S * 1000) if self.fleet.shared else 0
                call = self._asking = Call(ListBrokers(self.fleet.mark, wait_ms))
                self._asked_at = now
                link.start(call)
        elif call.done:
            self._asking = None
            self._ask_at = next_look(self.fleet, call, self._asked_at, now)
            if call.error is None:
                self.fleet.update(call.answer)
                for one in (link, *(each for each, _ in self._following)):
                    one.route.learn([address_of(member) for member in self.fleet.members])
        elif now - self._asked_at > _ASK_S + (LATE_S if self.fleet.shared else 0.0):
            with link.lock:
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
                link.cut()

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            links, self._links = self._links, {}
        with ExitStack() as stack:
            # The last one first; and all of them, though one may fail to.
            for link in (*links.values(), *(each for each, _ in self._following)):
                stack.callback(link.close)
            stack.callback(self._worker.end)
            stack.callback(self._watch.close)
