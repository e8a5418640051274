"""The asyncio client: `towline.aio.connect`."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, cast

from towline.client import requests
from towline.client._async.cluster import Cluster
from towline.client._async.cluster_consumer import ClusterConsumer
from towline.client._async.cluster_producer import ClusterProducer
from towline.client._async.cluster_sender import count_shards, send_many
from towline.client._async.consumer import Batch, Consumer
from towline.client._async.producer import Pending, Producer
from towline.client._async.transaction import Checker, OnCheck, PreparedTransaction, Transaction
from towline.client.admin._async.access import Access
from towline.client.admin._async.alarms import Alarms
from towline.client.admin._async.cluster import ClusterAdmin
from towline.client.admin._async.dead_letters import DeadLetters
from towline.client.admin._async.delayed import Delayed
from towline.client.admin._async.groups import Groups
from towline.client.admin._async.messages import Messages
from towline.client.admin._async.monitor import Monitor
from towline.client.admin._async.router import Router
from towline.client.admin._async.topics import Topics
from towline.client.admin._async.transactions import Transactions
from towline.client.admin.delayed import Time, as_deliver_at, as_deliver_at_each
from towline.client.cluster.brokers import ClusterBrokers
from towline.client.concurrency.tasks import Opening
from towline.client.consume.lease import LostLease
from towline.client.consume.pull_size import PullLimits
from towline.client.link.aio import AioLink, dialler
from towline.client.options import Certificates, ConsumerOptions, Options, ProducerOptions
from towline.client.produce import sharding
from towline.client.produce.encode import Body, Lifetimes, as_body, as_durability
from towline.client.produce.receipts import Receipts
from towline.client.produce.transaction import DirectTransaction, Senders, StoredTransaction
from towline.client.telemetry import instrument
from towline.errors import Closed, WrongShard
from towline.model import Durability, Priority, Receipt, RetryPolicy

if TYPE_CHECKING:
    from towline.client.embedded import Embedded

__all__ = [
    "Batch",
    "Checker",
    "Client",
    "Consumer",
    "Pending",
    "PreparedTransaction",
    "Producer",
    "Transaction",
    "connect",
]

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
) -> Opening[Client]:
    """Connect to a broker.

        async with towline.aio.connect("towline://127.0.0.1:7400") as mq:
            await mq.send("orders", b"...", key="order-4423")

    or, without a block, `mq = await towline.aio.connect(url)` and, in the end, `await mq.close()`.

    `url` names one broker or several (`towline://one:7400,two:7400`: the first that can be reached is used, and the
    next when it fails), with TLS (`towlines://…`), or runs one in this process: `memory:`, `memory:NAME` (shared by
    name), `file:DIR`; settings of such a broker may follow, as in `file:./data?durability=os`.

    `token` says who you are and is kept beside each message; `secret` proves it. No operation takes longer than
    `timeout` seconds (besides what it waits for on purpose): until then a broken connection is made again, and the
    operation goes on; after it, `Unavailable` is raised. `spool_dir` is where consumers with a name keep acks that
    cannot be told.
    """
    return Opening(
        Client(
            Options(
                url,
                token,
                secret,
                timeout,
                Certificates(ssl_context, ca_file, cert_file, key_file),
                spool_dir=spool_dir,
            )
        )
    )


def connect_for(
    caller: str,
    url: str,
    *,
    token: str = "",
    secret: str = "",
    timeout: float = 30.0,
    ssl_context: ssl.SSLContext | None = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
) -> Opening[Client]:
    """The same for a gateway that asks for others: wrong passwords count for the address of its caller, if the broker
    knows it for a gateway."""
    certificates = Certificates(ssl_context, ca_file, cert_file, key_file)
    return Opening(Client(Options(url, token, secret, timeout, certificates, caller=caller)))


class _NotThere:
    """In place of what a client has once it is connected."""

    def __getattr__(self, name: str) -> Any:
        raise Closed("the client is not connected: enter it with `async with`")


class Client(Topics, Groups, Messages, Delayed, DeadLetters, Transactions, Monitor, Alarms, ClusterAdmin):
    """A connection to a broker; any number of tasks may share it. Consumers and producers made from it have
    connections of their own: what one waits for never holds up another."""

    _link: AioLink = cast("AioLink", _NotThere())
    _router: Router = cast("Router", _link)

    def __init__(self, options: Options) -> None:
        self._options = options
        self._embedded: Embedded | None = None
        self._follower: AioLink | None = None
        self._cluster: Cluster | None = None
        self._children: list[Checker | Consumer | Producer] = []
        self._sender = options.sender()
        self._senders = Senders(options.token)
        self._shards = sharding.ShardMap()
        instrument(self)

    async def start(self) -> None:
        """Meet the broker; `connect` does this for you."""
        options = self._options
        if options.target.embedded:
            from towline.client.embedded import acquire_here

            self._embedded = await acquire_here(options.target, options.timeout_s)
        try:
            self._link = self._new_link()
            brokers = await self._link.run(requests.brokers())
            if brokers.clustered and not options.target.embedded:
                self._cluster = Cluster(ClusterBrokers(brokers), self._link_to, options.timeout_s)
                if brokers.shared:
                    self._cluster.lead(self._link)
                else:
                    # What is numbered by one broker is asked of this one, and of no other.
                    self._link.route.learn([self._link.route.address])
            self._router = Router(self._link, self._cluster, self._shards)
        except BaseException:
            await self.close()
            raise

    def __repr__(self) -> str:
        return f"<Client of {self._options.target}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            for child in self._children:
                if isinstance(child, Consumer) and not child.closed:
                    child.nack_handed_out(error)
        await self.close()

    async def close(self) -> None:
        """Close it, with its consumers and producers (which flush what they have)."""
        children, self._children = self._children, []
        try:
            async with AsyncExitStack() as stack:
                # The last one first; and all of them, though one may raise what it could not send.
                for link in (vars(self).get("_link"), self._cluster, self._follower):
                    if link is not None:
                        stack.push_async_callback(link.close)
                for child in children:
                    stack.push_async_callback(child.close)
        finally:
            if self._embedded is not None:
                embedded, self._embedded = self._embedded, None
                await embedded.release_here()

    # Sending

    async def send(
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
            receipts = await self._send(self._common(priority, level, compress, lives), topic, content)
            return receipts[0]
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
            answer = await self._link.ask(call)
        except WrongShard:
            content = sharding.Content.of_one(body, key, headers, None, dedup_id=dedup_id, deliver_at_us=at_us)
            receipts = await self._send(self._common(priority, level, compress, lives), topic, content)
            return receipts[0]
        return requests.receipt(topic, priority, answer)

    async def send_many(
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
        return await self._send(common, topic, content)

    async def _send(self, common: sharding.Common, topic: str, content: sharding.Content) -> Receipts:
        if self._cluster is None:
            return await self._link.run(sharding.send_many(common, topic, content))
        return await send_many(self._cluster, common, topic, content)

    def _common(self, priority: Priority, durability: int, compress: bool, lives: Lifetimes) -> sharding.Common:
        most = self._max_request_bytes
        return sharding.Common(self._sender, self._shards, priority, durability, compress, most, lives)

    def producer(
        self,
        *,
        linger_ms: float = 1.0,
        max_batch_messages: int = 10_000,
        max_batch_bytes: int = 1 << 20,
        max_buffer_messages: int = 200_000,
        max_buffer_bytes: int = 64 << 20,
        max_in_flight: int = 8,
        delivery_timeout: float = 120.0,
        max_block: float = 60.0,
        durability: Durability | str | None = None,
        compress: bool = False,
        spool_dir: str | Path | None = None,
        spool_bytes: int = 256 << 20,
    ) -> Producer:
        """A producer that sends in the background: single sends, batched for you.

        A batch is sent when it is full, or `linger_ms` after its first message; while one is in flight, the next one
        fills. A send that the broker refuses for now (`QueueFull`, `DiskFull`, `Unavailable`) is tried again for up to
        `delivery_timeout` seconds, in order. A full buffer makes `send` wait for up to `max_block` seconds, and raise
        `QueueFull` then; with 0, at once.

        With a `spool_dir`, messages that no broker took by then wait there, up to `spool_bytes`, instead of failing:
        they are sent in order when one is back, by this producer or the next one with this folder.
        """
        options = ProducerOptions(
            linger_ms,
            max_batch_messages,
            max_batch_bytes,
            max_buffer_messages,
            max_buffer_bytes,
            max_in_flight,
            delivery_timeout,
            max_block,
            durability,
            compress,
            spool_dir,
            spool_bytes,
        )
        cluster = self._cluster
        if cluster is None:
            producer = self._producer(self._new_link(), options, self._shards)
        else:

            def make(broker: str, shards: sharding.ShardMap) -> Producer:
                return self._producer(cluster.new_link(broker), options.at(broker, shared=cluster.fleet.shared), shards)

            producer = ClusterProducer(cluster, make, self._shards, options.spool_dir is not None)
        instrument(producer)
        return self._adopt(producer)

    def _producer(self, link: AioLink, options: ProducerOptions, shards: sharding.ShardMap) -> Producer:
        shipping = options.shipping(self._options.sender, self._max_request_bytes, link.connection, shards)
        return Producer(link, shipping, options.limits(self._max_request_bytes))

    # Consuming

    def consumer(
        self,
        topic: str,
        group: str | None = None,
        *,
        name: str | None = None,
        max_messages: int = 5000,
        max_bytes: int = 4 << 20,
        prefetch: int = 1,
        idle_timeout: float | None = None,
        start: Literal["earliest", "latest"] | None = None,
        retry: RetryPolicy | None = None,
        lease_timeout: float = 0.0,
        max_in_flight: int | None = None,
        ack_interval: float = 0.1,
        on_lost: Callable[[LostLease], None] | None = None,
        spool_dir: str | Path | None = None,
        mode: Literal["at-least-once", "at-most-once"] = "at-least-once",
    ) -> Opening[Consumer]:
        """A consumer of a topic: one of a `group` that shares the work, or, without a group, one that sees every
        message itself (its progress is kept under its `name`; without a name it is forgotten when it leaves).

        `start`, `retry`, `lease_timeout`, `max_in_flight` and `mode` are settings of the group: they count when it is
        made by this call (one that has others keeps them, and a warning says so). With the mode `"at-most-once"`
        delivered messages count as consumed: there is nothing to ack, and nothing comes twice.

        Iteration asks for up to `max_messages` at a time, fewer while the handler is slow (as `pull()` does, unless it
        is given a number), and has `prefetch` batches coming while one is worked on. While messages come one by one and
        the handler is quick, they are sent on as they come, up to 64 frames ahead; with `prefetch=0` nothing comes
        ahead. Acks and nacks of single messages are sent to the broker together, after `ack_interval` seconds at the
        latest. `on_lost` is called when messages were taken away from this consumer. With a `spool_dir` (or one given
        to `connect`) and a `name`, acks and nacks that cannot be sent are kept there until they can, also by the next
        consumer of this name.
        """
        options = ConsumerOptions(
            topic,
            group,
            name,
            PullLimits(max_messages, max_bytes),
            prefetch,
            idle_timeout,
            start,
            retry,
            lease_timeout,
            max_in_flight,
            ack_interval,
            on_lost,
            spool_dir,
            mode,
        )
        if self._cluster is None or self._cluster.fleet.shared:
            link = self._new_link() if self._cluster is None else self._cluster.following_link()
            subscription = options.subscription(self._options.timeout_s, self._options.spool_dir)
            return Opening(self._adopt(Consumer(link, subscription)))
        cluster, named = self._cluster, options.named()

        async def make(broker: str) -> Consumer:
            link, of_broker = cluster.new_link(broker), named.at(broker, self._options.spool_dir)
            timeout_s, link.timeout_s = link.timeout_s, min(link.timeout_s, _ATTACH_S)
            consumer = Consumer(link, of_broker.subscription(self._options.timeout_s, self._options.spool_dir))
            await consumer.start()
            link.timeout_s = timeout_s
            return consumer

        about = named._replace(spool_dir=None).subscription(self._options.timeout_s)
        return Opening(self._adopt(ClusterConsumer(cluster, make, about, self._sender, options.idle_timeout)))

    # Transactions

    def transaction(
        self, *, timeout: float | None = 60.0, durability: Durability | str | None = None, compress: bool = False
    ) -> Transaction:
        """A transaction: messages for any topics, seen by nobody until it is committed, then all at once; each lane
        gets them in order and with nothing between. They are gathered here, so nobody is held up meanwhile, and sent as
        one unit: up to 100,000 messages, 200 lanes and the broker's `max_frame_bytes` (16 MiB). One that began longer
        than `timeout` seconds ago is aborted instead of committed."""
        core = DirectTransaction(
            self._senders,
            shards=self._shards,
            homes=self._homes(),
            max_request_bytes=self._max_request_bytes,
            durability=as_durability(durability),
            timeout_s=timeout,
            compress=compress,
        )
        return Transaction(self._one_link, self._count_shards, core)

    def prepare(
        self,
        producer_group: str,
        name: str = "",
        *,
        check_after: float | None = None,
        durability: Durability | str | None = None,
    ) -> PreparedTransaction:
        """A prepared transaction, for messages that belong to a transaction of your own database: the broker keeps them
        out of sight (`store`), you commit your own, then `commit` or `rollback`. If the broker hears nothing for
        `check_after` seconds (60, unless set otherwise there), it asks any client that has said `on_check` for this
        producer group; `name` is your own reference, by which that client finds out."""
        core = StoredTransaction(
            self._sender,
            producer_group,
            name,
            check_after,
            shards=self._shards,
            homes=self._homes(),
            max_request_bytes=self._max_request_bytes,
            durability=as_durability(durability),
        )
        return PreparedTransaction(self._one_link, self._count_shards, core)

    def on_check(self, producer_group: str, callback: OnCheck) -> Checker:
        """Have `callback(check)` called, in the background, when the broker wants to know what became of a prepared
        transaction of this producer group. It says "commit", "rollback", or None if it cannot tell yet; it may be a
        coroutine function."""
        return self._adopt(Checker(self._links_of_all(), producer_group, callback))

    # The broker

    @property
    def access(self) -> Access:
        """Users, tokens, rules and the audit log of a broker with security."""
        return Access(self._router)

    # Connections

    @property
    def _max_request_bytes(self) -> int:
        welcome = self._link.connection.welcome
        assert welcome is not None, "a client is made once it has met its broker"
        return welcome.max_request_bytes

    def _new_link(self) -> AioLink:
        return self._link_to(())

    def _link_to(self, addresses: tuple[tuple[str, int], ...]) -> AioLink:
        """A link to one of these, in turn; without any, to those of the URL."""
        options = self._options
        dial = dialler(options.ssl_context, None if self._embedded is None else self._embedded.dial)
        return AioLink(options.route(addresses), dial, options.connection(), options.timeout_s)

    def _one_link(self, broker: str = "") -> AioLink:
        if self._cluster is None:
            return self._link
        if not self._cluster.fleet.shared:
            return self._cluster.link(broker) if broker else self._cluster.any_link()
        self._follower = self._follower or self._cluster.following_link()
        return self._follower

    async def _count_shards(self, topic: str) -> int:
        assert self._cluster is not None, "only where there are many brokers, they are asked beforehand"
        return await count_shards(self._cluster, self._shards, topic, needed=False)

    def _homes(self) -> Callable[[str, int], str] | None:
        return None if self._cluster is None or self._cluster.fleet.shared else self._cluster.fleet.home

    def _links_of_all(self) -> list[AioLink]:
        if self._cluster is None:
            return [self._new_link()]
        return [self._cluster.new_link(one.id) for one in self._cluster.fleet.members]

    def _adopt(self, child: C) -> C:
        """Closed together with the client, unless it is closed before."""
        self._children = [other for other in self._children if not other.closed]
        self._children.append(child)
        return child
