# Generated from towline/client/_async/cluster_producer.py by scripts/unasync.py: change it there.
"""The batching producer of a cluster: a producer for each broker that it sends to.

A topic has one broker at a time, so that what this producer sends to it stays in order; another topic, or another
producer, has another. When that broker is away, the topic goes on at the next one, with everything that never left. A
batch that was on its way stays with its broker, which may have it: it is sent there again when the broker returns, or
fails after `delivery_timeout`. Ordered topics wait for the brokers of their shards.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from towline.client import process_end
from towline.client._sync.cluster import Cluster
from towline.client._sync.cluster_sender import count_shards
from towline.client._sync.producer import Pending, Producer, drained, end_all
from towline.client.admin.delayed import Time, as_deliver_at
from towline.client.cluster.brokers import DEDUP, Liveness
from towline.client.cluster.reshard import Recount, not_asked
from towline.client.cluster.routing import Outcome
from towline.client.concurrency.threads import Lock, Worker
from towline.client.link.blocking import MADE_BEFORE_FORK
from towline.client.produce.batch_sender import raise_unseen
from towline.client.produce.encode import Body, as_body, as_dedup_id, as_headers, as_key, as_lives
from towline.client.produce.sharding import ShardMap, shard_of
from towline.client.produce.sharding import count_shards as ask_shards
from towline.errors import Closed, NotOwner, Refused, Timeout, TooMany, Unavailable
from towline.model import Priority
from towline.protocol.topics import Sharded

__all__ = ["ClusterProducer"]


class ClusterProducer(Producer):
    """Sends in the background, many messages at a time, to the brokers of a cluster. Made by `Client.producer`."""

    _closing = True  # until it is made

    def __init__(
        self, cluster: Cluster, make: Callable[[str, ShardMap], Producer], shards: ShardMap, keeps: bool
    ) -> None:
        # Not the parent's: this one has no connection of its own.
        self._cluster = cluster
        self._fleet = cluster.fleet
        self._make = make
        self._shards = shards
        self._counts = shards if self._fleet.shared else ShardMap()
        """How many shards we take topics to have: it says at which broker a message belongs. Where they keep their own,
        it changes only when nothing is on its way by the number before (see `exchange.rearrange`)."""
        self._recounts: dict[str, list[Outcome[Sharded]] | None] = {}
        """Topics that are held, because a broker says that they have another number of shards; and what all brokers
        say, once they were asked."""
        self._asking: list[Worker] = []
        self._keeps = keeps
        self._salt = secrets.token_hex(4)
        self._guard = Lock()
        self._branches: dict[str, Producer] = {}
        self._alive: dict[str, Liveness] = {}
        self._routes: dict[str, Producer] = {}
        self._version = self._fleet.version
        self._closing = False
        """Nothing more is taken. It is `closed` when all is sent, and need not be looked after any more."""
        self._closed = False
        self._why_closed = "the producer was closed"
        cluster.adopt(self)
        process_end.watch(self)

    def __repr__(self) -> str:
        return f"<ClusterProducer of {len(self._branches)} brokers{', closed' if self._closed else ''}>"

    def send(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        priority: Priority = "middle",
        headers: Mapping[str, str] | None = None,
        dedup_id: str | None = None,
        delay: float | None = None,
        deliver_at: Time | None = None,
        delay_level: int | None = None,
        shard_key: str | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
        attempts: int | None = None,
    ) -> Pending:
        if self._closing:
            raise Closed(self._why_closed)
        body, packed, at_us = as_body(body), as_headers(headers), as_deliver_at(delay, deliver_at, delay_level)
        as_key(key)
        as_key(shard_key)
        as_dedup_id(dedup_id)
        lives = as_lives(ttl, timeout, attempts)
        while True:
            shards = self._counts.get(topic)
            if shards is None or (shard_key is not None and not shards):
                self._count_shards(topic, needed=shard_key is not None)
                shards = self._counts.get(topic)
            count = shards or 0
            branch = self._branch_for(topic, count, key, shard_key, priority, dedup_id)
            try:
                return branch.put(count, topic, body, key, priority, packed, at_us, dedup_id, shard_key, lives)
            except NotOwner:
                # It was just given away, or has another number of shards.
                self._routes.pop(topic, None)

    def _branch_for(  # noqa: PLR0917
        self,
        topic: str,
        shards: int,
        key: str | None,
        shard_key: str | None,
        priority: Priority,
        dedup_id: str | None,
    ) -> Producer:
        if shards and not self._fleet.shared:
            return self._branch(self._fleet.home(topic, shard_of(topic, shards, key, shard_key, priority)))
        if dedup_id is not None and not self._fleet.shared:
            return self._branch(self._fleet.home(topic, DEDUP))
        return self._routes.get(topic) or self._route(topic)

    def _count_shards(self, topic: str, *, needed: bool) -> None:
        """Find out how many shards a topic has. What nobody could say is taken for a shared one, until the broker that
        it is sent to says otherwise."""
        if self._fleet.shared:
            self._count_at_owner(topic, needed=needed)
            return
        shards = 0
        if needed or not self._keeps or self._fleet.pick(topic) is not None:
            try:
                shards = count_shards(self._cluster, self._shards, topic, needed=needed)
            except (Unavailable, Refused, TooMany):
                if needed:
                    raise
        with self._guard:
            # What was sent as to a shared one goes first; its broker will say so.
            if self._counts.get(topic) is None:
                self._counts.put(topic, shards)

    def _count_at_owner(self, topic: str, *, needed: bool) -> None:
        if self._keeps:
            # The producer of the broker finds out when it can be reached.
            return
        try:
            self._cluster.run(topic, self._shards.find(topic, needed=needed))
        except (Unavailable, Refused, TooMany):
            if needed:
                raise

    def _route(self, topic: str) -> Producer:
        with self._guard:
            found = self._routes[topic] = self._serving(topic)
            return found

    def _serving(self, topic: str) -> Producer:
        """The producer of the broker that this topic is sent to now."""
        while True:
            broker = self._fleet.route(self._salt, topic)
            try:
                found = self._branch(broker)
            except Unavailable:
                if self._fleet.get(broker) is None:
                    continue  # it left the cluster in this moment
                raise
            found.welcome(topic)
            return found

    def _branch(self, broker: str) -> Producer:
        found = self._branches.get(broker)
        if found is None:
            with self._guard:
                found = self._branches.get(broker)
                if found is None:
                    found = self._branches[broker] = self._make(broker, self._counts)
                    # We end it ourselves, when what it gave to others has been sent, too.
                    process_end.forget(found)
                    self._alive[broker] = Liveness(fleet=self._fleet)
        return found

    # In the thread that watches

    def tend(self, now: float) -> None:
        with self._guard:
            if self._closed:
                return
            away = [broker for broker, branch in self._branches.items() if self._is_away(broker, branch, now)]
            self._take_redirects()
            if self._version != self._fleet.version:
                self._version = self._fleet.version
                if self._fleet.shared:
                    self._move_topics()
                self._routes.clear()
            if not self._fleet.shared:
                for broker in away:
                    self._evacuate(broker)
                self._recount()

    def _is_away(self, broker: str, branch: Producer, now: float) -> bool:
        link = branch.link
        away = self._alive[broker].is_away(now, link, waiting=branch.owes)
        if away:
            self._fleet.suspect(broker)
        elif link.connection.ready:
            self._fleet.trust(broker)
        return away or (branch.owes and not self._fleet.usable(broker))

    def _take_redirects(self) -> None:
        for branch in self._branches.values():
            while branch.redirects:
                self._fleet.learn_owner(*branch.redirects.popleft())

    def _move_topics(self) -> None:
        """What is not served any more where it was sent goes to where it is."""
        for broker, branch in list(self._branches.items()):
            topics = branch.topics() | {topic for topic, route in self._routes.items() if route is branch}
            moved = {topic for topic in topics if self._fleet.route(self._salt, topic) != broker}
            for parcel in branch.give_away(moved) if moved else ():
                self._serving(parcel.topic).adopt(parcel)

    def _evacuate(self, broker: str) -> None:
        if self._fleet.pick("", (broker,)) is None:
            # There is nowhere to go.
            return
        for parcel in self._branches[broker].evacuate():
            target = self._fleet.pick(self._salt + parcel.topic, (broker,)) or broker
            self._branch(target).adopt(parcel)

    def _recount(self) -> None:
        """Topics have another number of shards: when all brokers have said how many, what waits for them goes to the
        brokers that it belongs to now."""
        for branch in self._branches.values():
            while branch.recounts:
                topic, _ = branch.recounts.popleft()
                if topic not in self._recounts:
                    self._recounts[topic] = None
                    self._asking = [one for one in self._asking if not one.done]
                    self._asking.append(Worker("towline-recount", self._ask_all, topic))
        for topic, outcomes in list(self._recounts.items()):
            if outcomes is not None:
                self._rearrange(topic, outcomes)

    def _ask_all(self, topic: str) -> None:
        try:
            self._recounts[topic] = self._cluster.outcomes_by(lambda _: ask_shards(topic))
        except Exception as error:
            self._recounts[topic] = not_asked(self._fleet, error)

    def _rearrange(self, topic: str, outcomes: list[Outcome[Sharded]]) -> None:
        recount = Recount(self._fleet, self._salt, topic, outcomes)
        for broker in recount.homes:
            self._branch(broker)
        branches = dict(self._branches)
        with ExitStack() as locks:
            for branch in branches.values():
                locks.enter_context(branch.lock)
            exchanges = {broker: branch.exchange for broker, branch in branches.items()}
            failed = recount.carry_out(exchanges, self._counts)
        if failed is None:
            return
        self._shards.forget(topic)
        self._routes.pop(topic, None)
        del self._recounts[topic]
        for branch in branches.values():
            branch.rearranged(failed)
            failed = []

    # The end

    def flush(self, timeout: float | None = None) -> None:
        if not drained(self._all(), timeout):
            raise Timeout(f"{sum(branch.buffered for branch in self._all())} messages are not acknowledged yet")
        raise_unseen([parcel for branch in self._all() for parcel in branch.take_failed()])

    def _all(self) -> list[Producer]:
        with self._guard:
            return list(self._branches.values())

    def close(self, timeout: float | None = None) -> None:
        with self._guard:
            if self._closing:
                return
            self._closing = True
        deadline = None if timeout is None else time.monotonic() + timeout
        process_end.forget(self)
        try:
            self.flush(timeout)
        except BaseException as error:
            for branch in self._all_at_last():
                with suppress(Timeout):
                    branch.close(0.0)
            if not (isinstance(error, Timeout) and self._keeps):
                raise
        else:
            with ExitStack() as stack:
                # Something may have come in that very moment.
                for branch in self._all_at_last():
                    left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                    stack.callback(branch.close, left_s)

    def _all_at_last(self) -> list[Producer]:
        self._closed = True
        for asking in self._asking:
            asking.end(0.0)
        return self._all()

    def end(self, timeout_s: float, *, final: bool) -> None:
        if not self._closing:
            self._closing = final
            self._closing = self._closed = end_all(self._all(), timeout_s, final=final)

    def forked(self) -> None:
        self._closing = self._closed = True
        self._why_closed = MADE_BEFORE_FORK.format("producer")
        self._guard = Lock()
        for branch in self._branches.values():
            branch.forked()
