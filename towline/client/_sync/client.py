"""The blocking client: `towline.connect`."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from towline.client import requests
from towline.client._sync.cluster import Cluster
from towline.client._sync.cluster_consumer import ClusterConsumer
from towline.client._sync.cluster_producer import ClusterProducer
from towline.client._sync.consumer import Consumer
from towline.client._sync.producer import Producer
from towline.client._sync.transaction import Checker, Transacting
from towline.client.admin.access import BlockingAccess
from towline.client.admin.dead_letters import DeadLetters
from towline.client.admin.delayed import Time, as_deliver_at, as_deliver_at_each
from towline.client.admin.messages import Messages
from towline.client.admin.monitoring import Monitoring
from towline.client.cluster.brokers import ClusterBrokers
from towline.client.cluster.routing import count_shards
from towline.client.concurrency.threads import opened
from towline.client.factories import Factories
from towline.client.link.blocking import Link
from towline.client.link.dial import Route, connect_socket
from towline.client.link.flow import drive
from towline.client.operation import Everywhere, Now, Place, There
from towline.client.options import Certificates, ConsumerOptions, Options, ProducerOptions
from towline.client.produce import sharding
from towline.client.produce.encode import Body, Lifetimes, as_body, as_durability
from towline.client.produce.receipts import Receipts
from towline.client.produce.transaction import Senders
from towline.client.telemetry import instrument
from towline.errors import WrongShard
from towline.model import Durability, Priority, Receipt

if TYPE_CHECKING:
    from towline.client.embedded import Embedded

__all__ = ["Client", "connect"]

C = TypeVar("C", Checker, Consumer, Producer)
T = TypeVar("T")

_ATTACH_S: Final = 2.0
"""How long one broker of a cluster may take to let a consumer in, before it is tried again."""


def connect(
    url: str,
    *,
    token: str = "",
    secret: str = "",
    timeout: float = 30.0,
    ssl_context: ssl.SSLContext | None = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    spool_dir: str | Path | None = None,
) -> Client:
    """Connect to a broker.

        with towline.connect("towline://127.0.0.1:7400") as mq:
            mq.send("orders", b"...", key="order-4423")

    `url` names one broker or several (`towline://one:7400,two:7400`: the first that can be reached is used, and the
    next when it fails), with TLS (`towlines://…`), or runs one in this process: `memory:`, `memory:NAME` (shared by
    name), `file:DIR`; settings of such a broker may follow, as in `file:./data?durability=os`.

    `token` says who you are and is kept beside each message; `secret` proves it. No operation takes longer than
    `timeout` seconds (besides what it waits for on purpose): until then a broken connection is made again, and the
    operation goes on; after it, `Unavailable` is raised. `spool_dir` is where consumers with a name keep acks that
    cannot be told.
    """
    return Client(
        Options(
            url, token, secret, timeout, Certificates(ssl_context, ca_file, cert_file, key_file), spool_dir=spool_dir
        )
    )


class Client(Now, Factories[Producer, Consumer], Transacting, Monitoring, Messages, DeadLetters):
    """A connection to a broker; any number of threads may share it. Consumers and producers made from it have
    connections of their own: what one waits for never holds up another."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._embedded: Embedded | None = None
        self._follower: Link | None = None
        self._cluster: Cluster | None = None
        self._children: list[Checker | Consumer | Producer] = []
        if options.target.embedded:
            from towline.client.embedded import acquire

            self._embedded = acquire(options.target, options.timeout_s)
        try:
            self._link = self._new_link()
            self._sender = options.sender()
            self._senders = Senders(options.token)
            self._shards = sharding.ShardMap()
            instrument(self)
            brokers = self._link.run(requests.brokers())
            if brokers.clustered and not options.target.embedded:
                self._cluster = Cluster(ClusterBrokers(brokers), self._link_to, options.timeout_s)
                if brokers.shared:
                    self._cluster.lead(self._link)
                else:
                    # What is numbered by one broker is asked of this one, and of no other.
                    self._link.route.learn([self._link.route.address])
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Client of {self._options.target}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            for child in self._children:
                if isinstance(child, Consumer) and not child.closed:
                    child.nack_handed_out(error)
        self.close()

    def close(self) -> None:
        """Close it, with its consumers and producers (which flush what they have)."""
        children, self._children = self._children, []
        try:
            with ExitStack() as stack:
                # The last one first; and all of them, though one may raise what it could not send.
                for link in (getattr(self, "_link", None), self._cluster, self._follower):
                    if link is not None:
                        stack.callback(link.close)
                for child in children:
                    stack.callback(child.close)
        finally:
            if self._embedded is not None:
                embedded, self._embedded = self._embedded, None
                embedded.release()

    # Sending

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
        durability: Durability | str | None = None,
        compress: bool = False,
        shard_key: str | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
        attempts: int | None = None,
    ) -> Receipt:
        """Send one message. It is stored, as durably as asked, when this returns.

        It is stored once, though the connection may break in between: the broker knows what it has seen. With a
        `dedup_id` it is also stored once though you send it again, maybe from another process: while the broker knows
        the id (10 minutes, unless set otherwise), you get the receipt of the first one on that topic. After `ttl`
        seconds it is not delivered any more. A handler that works on it for longer than `timeout` seconds is
        interrupted, and it has failed. It is tried `attempts` times at most, whatever the retry policy of a group.

        With a `delay` in seconds, a `deliver_at` (a time with its time zone, or Unix time) or a `delay_level` (a number
        of the broker's table: 1 is 1 s, 18 is 2 h) consumers get it then, not before; the receipt's lane is `delay`.

        In an ordered topic the messages of one `shard_key` (or, without it, of one key) are delivered in order; delayed
        ones take their place in it when they are due.
        """
        level = -1 if durability is None else as_durability(durability)
        lives = self._sender.lives(ttl, timeout, attempts)
        at_us = as_deliver_at(delay, deliver_at, delay_level)
        if shard_key is not None or self._shards.get(topic) or self._cluster is not None:
            content = sharding.Content.of_one(body, key, headers, shard_key, dedup_id=dedup_id, deliver_at_us=at_us)
            return (self._send(self._common(priority, level, compress, lives), topic, content))[0]
        call = requests.send(
            self._sender,
            topic,
            as_body(body),
            key=key,
            priority=priority,
            headers=headers,
            durability=level,
            compress=compress,
            max_request_bytes=self._max_request_bytes,
            dedup_id=dedup_id,
            deliver_at_us=at_us,
            lives=lives,
        )
        try:
            answer = self._link.ask(call)
        except WrongShard:
            content = sharding.Content.of_one(body, key, headers, None, dedup_id=dedup_id, deliver_at_us=at_us)
            return (self._send(self._common(priority, level, compress, lives), topic, content))[0]
        return requests.receipt(topic, priority, answer)

    def send_many(
        self,
        topic: str,
        bodies: Sequence[Body],
        *,
        keys: Sequence[str | None] | None = None,
        priority: Priority = "middle",
        headers: Sequence[Mapping[str, str] | None] | Mapping[str, str] | None = None,
        dedup_ids: Sequence[str | None] | None = None,
        delay: float | None = None,
        deliver_at: Time | None = None,
        delay_level: int | None = None,
        delays: Sequence[float | datetime | None] | None = None,
        durability: Durability | str | None = None,
        compress: bool = False,
        shard_keys: Sequence[str | None] | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
        attempts: int | None = None,
    ) -> Receipts:
        """Send many messages at a time, by far the quickest way: up to 10,000 messages or 1 MiB are stored together,
        all or none; more are cut into several such batches, and the first that fails ends it.

        `delay`, `deliver_at` and `delay_level` are for all of them; `delays` has one for each: seconds, or a time."""
        level, lives = as_durability(durability), self._sender.lives(ttl, timeout, attempts)
        common = self._common(priority, level, compress, lives)
        times = as_deliver_at_each(len(bodies), delay, deliver_at, delay_level, delays)
        content = sharding.Content(bodies, keys, headers, shard_keys, dedup_ids, times)
        return self._send(common, topic, content)

    def _common(self, priority: Priority, durability: int, compress: bool, lives: Lifetimes) -> sharding.Common:
        limit = self._max_request_bytes
        return sharding.Common(self._sender, self._shards, priority, durability, compress, limit, lives)

    def _make_producer(self, options: ProducerOptions) -> Producer:
        cluster = self._cluster
        if cluster is None:
            producer = self._producer(self._new_link(), options, self._shards)
        else:

            def make(broker: str, shards: sharding.ShardMap) -> Producer:
                return self._producer(cluster.new_link(broker), options.at(broker, shared=cluster.fleet.shared), shards)

            producer = ClusterProducer(cluster, make, self._shards, options.spool_dir is not None)
        instrument(producer)
        return self._adopt(producer)

    def _producer(self, link: Link, options: ProducerOptions, shards: sharding.ShardMap) -> Producer:
        shipping = options.shipping(self._options.sender, self._max_request_bytes, link.connection, shards)
        return Producer(link, shipping, options.limits(self._max_request_bytes))

    # Consuming

    def _make_consumer(self, options: ConsumerOptions) -> Consumer:
        if self._cluster is None or self._cluster.fleet.shared:
            link = self._new_link() if self._cluster is None else self._cluster.following_link()
            return self._adopt(self._consumer(link, options))
        cluster, named = self._cluster, options.named()

        def make(broker: str) -> Consumer:
            return self._consumer(cluster.new_link(broker), named.at(broker, self._options.spool_dir), _ATTACH_S)

        about = named._replace(spool_dir=None).subscription(self._options.timeout_s)
        return self._adopt(opened(ClusterConsumer(cluster, make, about, self._sender, options.idle_timeout)))

    def _consumer(self, link: Link, options: ConsumerOptions, attach_s: float | None = None) -> Consumer:
        subscription = options.subscription(self._options.timeout_s, self._options.spool_dir)
        timeout_s, link.timeout_s = link.timeout_s, min(link.timeout_s, attach_s or link.timeout_s)
        consumer = opened(Consumer(link, subscription))
        link.timeout_s = timeout_s
        return consumer

    # The broker

    @property
    def access(self) -> BlockingAccess:
        """Users, tokens, rules and the audit log of a broker with security."""
        return BlockingAccess(self._link.run)

    # Connections

    @property
    def _fleet(self) -> ClusterBrokers | None:
        return None if self._cluster is None else self._cluster.fleet

    def _carry_out(self, place: Place) -> Any:
        if isinstance(place, There | Everywhere):
            assert self._cluster is not None, "only where there are many brokers, one of them is chosen"
            if isinstance(place, There):
                return self._cluster.run(*place)
            return self._cluster.outcomes_by(place.make_flow)
        return self._link.run(place.flow)

    @property
    def _max_request_bytes(self) -> int:
        welcome = self._link.connection.welcome
        assert welcome is not None, "a client is made once it has met its broker"
        return welcome.max_request_bytes

    def _new_link(self) -> Link:
        return self._link_to(())

    def _link_to(self, addresses: tuple[tuple[str, int], ...]) -> Link:
        """A link to one of these, in turn; without any, to those of the URL."""
        options = self._options
        return Link(options.route(addresses), self._dial, options.connection(), options.timeout_s)

    def _one_link(self, broker: str = "") -> Link:
        if self._cluster is None:
            return self._link
        if not self._cluster.fleet.shared:
            return self._cluster.link(broker) if broker else self._cluster.any_link()
        self._follower = self._follower or self._cluster.following_link()
        return self._follower

    def _count_shards(self, topic: str) -> int:
        assert self._cluster is not None, "only where there are many brokers, they are asked beforehand"
        return drive(count_shards(self._cluster.fleet, self._shards, topic, needed=False), self._carry_out)

    def _homes(self) -> Callable[[str, int], str] | None:
        return None if self._cluster is None or self._cluster.fleet.shared else self._cluster.fleet.home

    def _links_of_all(self) -> list[Link]:
        if self._cluster is None:
            return [self._new_link()]
        return [self._cluster.new_link(one.id) for one in self._cluster.fleet.members]

    def _dial(self, route: Route, timeout_s: float) -> socket.socket:
        dial = None if self._embedded is None else self._embedded.dial
        return connect_socket(route, timeout_s, self._options.ssl_context, dial)

    def _adopt(self, child: C) -> C:
        """Closed together with the client, unless it is closed before."""
        self._children = [other for other in self._children if not other.closed]
        self._children.append(child)
        return child
