"""The consumer of a cluster: a consumer at each broker, and a task for each that pulls when somebody wants messages.

Messages are acked at the broker that they came from. A broker that is away is tried again and again; its messages that
we hold can be worked on and settled meanwhile. Nacks that cannot be told are handed to another broker (see `handover`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from operator import length_hint
from typing import Final

from towline.client._async.cluster import Cluster
from towline.client._async.consumer import Batch, Consumer
from towline.client.cluster.brokers import Liveness
from towline.client.cluster.handover import Handover, Pace
from towline.client.cluster.rank import Demand, Rank, is_turn_of
from towline.client.concurrency.tasks import Condition, Event, Worker, gather
from towline.client.consume.lease import Lease
from towline.client.consume.message import Message
from towline.client.consume.pull_size import PullLimits
from towline.client.consume.subscription import Subscription
from towline.client.link.backoff import Backoff
from towline.client.link.connection import Call
from towline.client.link.flow import Flow, Start
from towline.client.produce.encode import FrameEncoder
from towline.errors import Closed, Timeout, TowlineError, Unavailable
from towline.model import GroupConfig

__all__ = ["ClusterConsumer"]

log = logging.getLogger("towline.client")

_SLICE_S: Final = 0.5
"""A pull that is to wait longer is made of several, so that none is under way for long when nobody waits any more."""
_TURN_S: Final = 0.05
"""How long each broker is asked when they are asked in turn."""
_GRACE_S: Final = 0.5
_SETTLE_S: Final = 0.1
"""How long an ack waits for a broker that is away."""


class ClusterBatch(Batch):
    """The messages of one pull from one broker of a cluster."""

    async def ack(self, *, up_to: bool = False) -> None:
        """Done with all of them that are not settled yet; with `up_to`, also with all pulled from this broker before.
        It is durable when this returns, unless the broker is away: then it is told when that is back."""
        await self._settle(self._ack_flow(up_to))

    async def nack(self, reason: str = "", delay: float | None = None) -> None:
        """All of them that are not settled yet have failed. If their broker is away, another one is given them."""
        await self._settle(self._nack_flow(reason, delay))

    async def _settle(self, flow: Flow[None]) -> None:
        link, answer, error, liveness = self._link, None, None, Liveness()
        deadline = time.monotonic() + link.timeout_s
        try:
            while True:
                with link.lock:
                    step = flow.send(answer) if error is None else flow.throw(error)
                answer = error = None
                if isinstance(step, Start):
                    await link.start(step.call)
                    continue
                assert isinstance(step, Call), "settling asks, and does not wait for anything else"
                await link.start(step)
                while not await link.wait(step, min(deadline, time.monotonic() + _SETTLE_S)):
                    if not link.connection.ready or liveness.is_away(time.monotonic(), link):
                        return
                    if time.monotonic() >= deadline:
                        raise Timeout(f"{link.route.name}: no answer to an ack within {link.timeout_s:g} seconds")
                answer, error = step.answer, step.error
        except StopIteration:
            self._subscription.losses.report()


class _Branch:
    """The consumer at one broker, and the task that pulls for it."""

    def __init__(self, owner: ClusterConsumer, broker: str) -> None:
        self._owner = owner
        self.broker = broker
        self.consumer: Consumer | None = None
        self.lease: Lease | None = None
        """What was pulled and not handed out yet."""
        self.served: Demand | None = None
        """The demand that there is nothing for here."""
        self.pulling = False
        self.turn = owner.next_turn()
        self.pace = Pace()
        self.closed = Event()
        self.worker = Worker(f"towline-pull-{broker}", self._work)

    @property
    def ready(self) -> bool:
        return self.consumer is not None and self.consumer.link.connection.ready

    async def _work(self) -> None:
        backoff = Backoff(0.05, 1.0, eager=False)
        while not self.closed.is_set():
            try:
                if self.consumer is None:
                    await self._attach()
                elif not await self._serve(self.consumer):
                    return
                backoff.reset()
            except Closed:
                if self.closed.is_set():
                    return
            except TowlineError as error:
                if not error.retriable:
                    self._owner.failed(error)
                log.debug("a consumer at broker %s: %s", self.broker, error)
                await self.closed.wait(backoff.next_s())
            except Exception:
                log.exception("a consumer at broker %s failed", self.broker)
                await self.closed.wait(backoff.next_s())

    async def _attach(self) -> None:
        consumer = await self._owner.make(self.broker)
        with self._owner.changed:
            if not self.closed.is_set():
                self.consumer = consumer
                self._owner.changed.notify_all()
                return
        await consumer.close()

    async def _serve(self, consumer: Consumer) -> bool:
        """Serve one demand. False at the end."""
        owner = self._owner
        with owner.changed:
            while not self.closed.is_set() and (
                self.lease is not None or owner.demand is None or owner.demand is self.served
            ):
                await owner.changed.wait()
            demand = owner.demand
            if self.closed.is_set() or demand is None:
                return not self.closed.is_set()
            if not owner.is_turn_of(self, demand):
                await owner.changed.wait(_TURN_S)
                return True
            self.pulling, self.turn = True, owner.next_turn()
        try:
            lease = await self._pull(consumer, demand)
        except BaseException:
            self.pulling = False
            raise
        with owner.changed:
            self.pulling, self.lease = False, lease
            if lease is None and demand.is_over(time.monotonic()):
                self.served = demand
            owner.changed.notify_all()
        return True

    async def _pull(self, consumer: Consumer, demand: Demand) -> Lease | None:
        if demand.limits is None:
            return await consumer.link.run(consumer.subscription.next())
        wait_s = min(max(demand.until - time.monotonic(), 0.0), _TURN_S if demand.in_turn else _SLICE_S)
        return await consumer.link.run(consumer.subscription.pull(demand.limits, wait_s))

    def take(self, demand: Demand) -> Lease | None:
        """What is here for a demand. Called by the owner, under its lock."""
        lease, self.lease = self.lease, None
        if lease is None or lease.lost or self.consumer is None:
            return None
        if demand.limits is not None and len(lease) > demand.limits.max_messages and not demand.in_turn:
            with self.consumer.link.lock:
                self.consumer.subscription.put_back(lease)
            return None
        return lease

    def stop(self) -> None:
        self.closed.set()
        with self._owner.changed:
            self._owner.changed.notify_all()

    async def desert(self) -> None:
        """Its broker has left the cluster."""
        if self.consumer is not None:
            self.consumer.subscription.deserted = True
        await self.end()

    async def end(self) -> None:
        """Leave, and wait for the task."""
        self.stop()
        if self.consumer is not None:
            await self.consumer.close()
        await self.worker.end()


class ClusterConsumer(Consumer):
    """Pulls messages of one topic from all brokers of a cluster. Made by `Client.consumer`."""

    def __init__(
        self,
        cluster: Cluster,
        make: Callable[[str], Awaitable[Consumer]],
        about: Subscription,
        sender: FrameEncoder,
        idle_timeout_s: float | None,
    ) -> None:
        # Not the parent's: this one has no connection of its own. `about` only says who we are.
        self._cluster = cluster
        self._subscription = about
        self._sender = sender
        self._idle_timeout_s = idle_timeout_s
        self.make = make
        self.changed = Condition()
        self.demand: Demand | None = None
        self._error: TowlineError | None = None
        self._branches: dict[str, _Branch] = {}
        self._leaving: list[Worker] = []
        self._turn = 0
        self._turns = 0
        self._closed = False
        self._lease = Lease.none()
        self._left: Iterator[Message] = iter(())

    def __repr__(self) -> str:
        return f"<ClusterConsumer {self.name} of {self.topic}, group {self.group}, {len(self._branches)} brokers>"

    async def start(self) -> None:
        await self._grow()
        try:
            await self._wait_attached(self._cluster.timeout_s)
        except BaseException:
            await self.close()
            raise
        self._cluster.adopt(self)

    async def _wait_attached(self, timeout_s: float) -> None:
        """Wait for all brokers that are there; but not long for the last ones."""
        begun = time.monotonic()
        with self.changed:
            while True:
                if self._error is not None:
                    raise self._error
                missing = [one for one in self._branches.values() if one.consumer is None]
                some = len(missing) < len(self._branches)
                awaited = [one for one in missing if self._cluster.fleet.usable(one.broker)]
                waited_s = time.monotonic() - begun
                if some and (not awaited or waited_s > _GRACE_S):
                    return
                if waited_s > timeout_s:
                    raise Unavailable(f"no broker of the cluster could be reached within {timeout_s:g} seconds")
                await self.changed.wait(0.05)

    def failed(self, error: TowlineError) -> None:
        with self.changed:
            self._error = error
            self.changed.notify_all()

    # What it looks like

    @property
    def config(self) -> GroupConfig:
        return next((one.config for one in self._consumers()), self._subscription.config)

    @property
    def in_flight(self) -> int:
        return sum(one.in_flight for one in self._consumers())

    @property
    def lost(self) -> int:
        return sum(one.lost for one in self._consumers())

    def _consumers(self) -> list[Consumer]:
        return [one.consumer for one in list(self._branches.values()) if one.consumer is not None]

    # Pulling

    async def pull(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        wait: float = 1.0,
        min_messages: int = 1,
    ) -> Batch:
        """Ask all brokers for messages, and take what the first has. `min_messages` counts at each broker. Without
        `max_messages` it is fewer while you are slow with them, as in an iteration."""
        self._check()
        asked: PullLimits = self._subscription.limits.asked(max_messages, max_bytes, min_messages)
        self._put_back_left()
        if not 0 <= wait <= 86400:
            wait = 0.0 if wait < 0 else 86400.0
        found = await self._take(Demand(asked, time.monotonic() + wait, in_turn=self._in_turn))
        if found is None:
            return ClusterBatch(self._any().link, self._any().subscription, None)
        branch, lease = found
        return ClusterBatch(branch.link, branch.subscription, lease)

    def _any(self) -> Consumer:
        return self._consumers()[0]

    async def _take(self, demand: Demand) -> tuple[Consumer, Lease] | None:
        with self.changed:
            self.demand = demand
            try:
                while True:
                    self._raise_error()
                    self.changed.notify_all()
                    found = self._next_lease(demand)
                    if found is not None:
                        break
                    now = time.monotonic()
                    if demand.is_over(now) and (
                        now > demand.until + _GRACE_S
                        or all(one.served is demand or not one.ready for one in self._branches.values())
                    ):
                        return None
                    await self.changed.wait(0.05 if demand.is_over(now) else min(demand.until - now, 1.0))
            finally:
                self.demand = None
        found[0].handed_out()
        return found

    @property
    def _in_turn(self) -> bool:
        return any(one.subscription.terms.at_most_once for one in self._consumers())

    def is_turn_of(self, branch: _Branch, demand: Demand) -> bool:
        return is_turn_of(branch, self._branches.values(), demand)

    def next_turn(self) -> int:
        self._turns += 1
        return self._turns

    def _next_lease(self, demand: Demand) -> tuple[Consumer, Lease] | None:
        """In turn, so that no broker is forgotten behind a busy one."""
        branches = list(self._branches.values())
        for step in range(len(branches)):
            branch = branches[(self._turn + step) % len(branches)]
            lease = branch.take(demand)
            if lease is not None:
                assert branch.consumer is not None
                self._turn += step + 1
                return branch.consumer, lease
        return None

    def _raise_error(self) -> None:
        self._check()
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def _next_batch(self, *, single: bool = False) -> Batch | None:
        self._check()
        idle_s, limits, in_turn = self._idle_timeout_s, None, self._in_turn
        if in_turn:
            own = self._subscription.limits
            limits = PullLimits(1, own.max_bytes) if single else own._replace(adapts=True)
        until = time.monotonic() + (idle_s if idle_s is not None else 1e9)
        found = await self._take(Demand(limits, until, in_turn=in_turn))
        return None if found is None else ClusterBatch(found[0].link, found[0].subscription, found[1])

    # Settling

    async def standing(self) -> Rank:
        self._check()
        found = [await one.standing() for one in self._consumers() if one.link.connection.ready]
        return max(found, key=lambda one: one.total, default=Rank(-1, 0))

    async def flush(self) -> None:
        self._check()
        consumers = self._consumers()
        for one in sorted(consumers, key=lambda each: not each.link.connection.ready):
            if one.link.connection.ready or one.subscription.holds:
                await one.flush()

    def nack_handed_out(self, error: Exception) -> None:
        for one in self._consumers():
            with one.link.lock:
                one.subscription.nack_handed_out(error, self._lease, length_hint(self._left))

    async def close(self) -> None:
        with self.changed:
            if self._closed:
                return
            self._closed = True
            branches = list(self._branches.values())
            self.changed.notify_all()
        for branch in branches:
            branch.stop()
        if branches:
            await self._hand_over_all(time.monotonic(), at_once=True)
            await gather(_Branch.end, branches)
        for leaving in self._leaving:
            await leaving.end(0.0)

    # In the task that watches

    async def tend(self, now: float) -> None:
        await self._grow()
        await self._hand_over_all(now, at_once=False)

    async def _grow(self) -> None:
        """A branch for each broker there is."""
        with self.changed:
            if self._closed:
                return
            members = {one.id for one in self._cluster.fleet.members}
            gone = [self._branches.pop(broker) for broker in list(self._branches) if broker not in members]
            for broker in members - self._branches.keys():
                self._branches[broker] = _Branch(self, broker)
        self._leaving = [one for one in self._leaving if not one.done]
        self._leaving += [Worker("towline-leave", branch.desert) for branch in gone]

    async def _hand_over_all(self, now: float, *, at_once: bool) -> None:
        for branch in list(self._branches.values()):
            consumer = branch.consumer
            if consumer is None or consumer.link.connection.ready:
                branch.pace.back()
                continue
            if at_once or branch.pace.is_due(now):
                await self._hand_over(branch, consumer)

    async def _hand_over(self, branch: _Branch, consumer: Consumer) -> None:
        link = consumer.link
        with link.lock:
            if link.connection.ready:
                return
            handover = Handover(consumer.subscription, link.connection)
        if not len(handover):
            with link.lock:
                again = handover.undone()
        else:
            again = await self._try_others(branch.broker, consumer, handover)
            if handover.refused is not None:
                branch.pace.in_vain(time.monotonic())
        for call in again:
            await link.start(call)

    async def _try_others(self, broker: str, consumer: Consumer, handover: Handover) -> list[Call]:
        tried = {broker}
        while (other := self._cluster.fleet.pick(self.topic, tried)) is not None:
            try:
                await self._cluster.run(self.topic, handover.flow(self._sender), at=other)
            except TowlineError as error:
                log.warning("%s: broker %s does not take nacks of broker %s: %s", self.topic, other, broker, error)
                tried.add(other)
                continue
            with consumer.link.lock:
                handover.done()
            log.info("%s: %d nacks of broker %s went to broker %s", self.topic, len(handover), broker, other)
            return []
        with consumer.link.lock:
            return handover.undone()
