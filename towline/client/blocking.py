"""The blocking client: `towline.connect`."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from towline.client import flows, sharding
from towline.client.consumer import Consumer
from towline.client.dial import Route, connect_socket
from towline.client.link import Link
from towline.client.message import DeadLetter, Message, Page
from towline.client.options import Certificates, ConsumerOptions, Options, ProducerOptions
from towline.client.outgoing import Body, as_body, as_durability, as_time_us
from towline.client.producer import Producer
from towline.client.receipts import Receipts
from towline.client.subscription import Limits, LostLease
from towline.errors import WrongShard
from towline.model import Durability, GroupConfig, Priority, Receipt, RetryPolicy
from towline.protocol.messages import GroupState, Purged, Sought, TopicState

if TYPE_CHECKING:
    from towline.client.embedded import Embedded

__all__ = ["Client", "connect"]

C = TypeVar("C", Consumer, Producer)


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
) -> Client:
    """Connect to a broker.

        with towline.connect("towline://127.0.0.1:7400") as mq:
            mq.send("orders", b"...", key="order-4423")

    `url` names one broker or several (`towline://one:7400,two:7400`: the first that can be reached is used, and the
    next when it fails), with TLS (`towlines://…`), or runs one in this process: `memory:`, `memory:NAME` (shared by
    name), `file:DIR`; settings of such a broker may follow, as in `file:./data?durability=os`.

    `token` says who you are and is kept beside each message; `secret` proves it. No operation takes longer than
    `timeout` seconds (besides what it waits for on purpose): until then a broken connection is made again, and the
    operation goes on; after it, `Unavailable` is raised.
    """
    return Client(Options(url, token, secret, timeout, Certificates(ssl_context, ca_file, cert_file, key_file)))


class Client:
    """A connection to a broker; any number of threads may share it. Consumers and producers made from it have
    connections of their own: what one waits for never holds up another."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._embedded: Embedded | None = None
        self._children: list[Consumer | Producer] = []
        if options.target.embedded:
            from towline.client.embedded import acquire

            self._embedded = acquire(options.target, options.timeout_s)
        try:
            self._link = self._new_link()
            self._sender = options.sender()
            self._shards = sharding.ShardMap()
            self._link.run(flows.ping())
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
        self.close()

    def close(self) -> None:
        """Close it, with its consumers and producers (which flush what they have)."""
        children, self._children = self._children, []
        try:
            for child in children:
                child.close()
        finally:
            if hasattr(self, "_link"):
                self._link.close()
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
        durability: Durability | str | None = None,
        compress: bool = False,
        shard_key: str | None = None,
        ttl: float | None = None,
    ) -> Receipt:
        """Send one message. It is stored, as durably as asked, when this returns.

        In an ordered topic the messages of one `shard_key` (or, without it, of one key) are delivered in order. A
        message that was not consumed after `ttl` seconds is not delivered any more.

        It is stored once, though the connection may break in between: the broker knows a message that it has seen.
        """
        level = -1 if durability is None else as_durability(durability)
        if shard_key is not None or self._shards.get(topic):
            content = sharding.Content.of_one(body, key, headers, shard_key)
            return self._link.run(sharding.send(self._common(priority, level, compress, ttl), topic, content))
        call = flows.send(
            self._sender,
            topic,
            as_body(body),
            key=key,
            priority=priority,
            headers=headers,
            durability=level,
            compress=compress,
            max_request_bytes=self._max_request_bytes,
            ttl=ttl,
        )
        try:
            answer = self._link.ask(call)
        except WrongShard:
            content = sharding.Content.of_one(body, key, headers, None)
            return self._link.run(sharding.send(self._common(priority, level, compress, ttl), topic, content))
        return flows.receipt(topic, priority, answer)

    def send_many(
        self,
        topic: str,
        bodies: Sequence[Body],
        *,
        keys: Sequence[str | None] | None = None,
        priority: Priority = "middle",
        headers: Sequence[Mapping[str, str] | None] | Mapping[str, str] | None = None,
        durability: Durability | str | None = None,
        compress: bool = False,
        shard_keys: Sequence[str | None] | None = None,
        ttl: float | None = None,
    ) -> Receipts:
        """Send many messages at a time, by far the quickest way: up to 10,000 messages or 1 MiB are stored together,
        all or none; more are cut into several such batches, and the first that fails ends it."""
        common = self._common(priority, as_durability(durability), compress, ttl)
        content = sharding.Content(bodies, keys, headers, shard_keys)
        return self._link.run(sharding.send_many(common, topic, content))

    def _common(self, priority: Priority, durability: int, compress: bool, ttl: float | None) -> sharding.Common:
        limit = self._max_request_bytes
        return sharding.Common(self._sender, self._shards, priority, durability, compress, limit, ttl)

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
        block: bool = True,
        durability: Durability | str | None = None,
        compress: bool = False,
    ) -> Producer:
        """A producer that sends in the background: single sends, batched for you.

        A batch is sent when it is full, or `linger_ms` after its first message; while one is on its way, the next one
        fills. What the broker cannot take now (`QueueFull`, `DiskFull`, `Unavailable`) is tried again for up to
        `delivery_timeout` seconds, in order. A full buffer makes `send` wait, or raise `QueueFull` without `block`."""
        options = ProducerOptions(
            linger_ms,
            max_batch_messages,
            max_batch_bytes,
            max_buffer_messages,
            max_buffer_bytes,
            max_in_flight,
            delivery_timeout,
            durability,
            compress,
        )
        limits = options.limits(self._max_request_bytes)
        shipping = options.shipping(self._options.sender(), self._max_request_bytes, self._shards)
        return self._adopt(Producer(self._new_link(), shipping, limits, block))

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
        start: Literal["earliest", "latest"] = "earliest",
        retry: RetryPolicy | None = None,
        lease_timeout: float = 0.0,
        max_in_flight: int | None = None,
        ack_interval: float = 0.1,
        on_lost: Callable[[LostLease], None] | None = None,
        mode: Literal["at-least-once", "at-most-once"] = "at-least-once",
    ) -> Consumer:
        """A consumer of a topic: one of a `group` that shares the work, or, without a group, one that sees every
        message itself (its progress is kept under its `name`; without a name it is forgotten when it leaves).

        `start`, `retry`, `lease_timeout`, `max_in_flight` and `mode` are settings of the group: they count when it is
        made by this call. With the mode `"at-most-once"` what is delivered counts as consumed: there is nothing to ack,
        and nothing comes twice.

        Iteration asks for up to `max_messages` at a time, fewer while the handler is slow, and has `prefetch` batches
        coming while one is worked on. Acks and nacks of single messages are told to the broker together, after
        `ack_interval` seconds at the latest. `on_lost` is called when messages were taken away from this consumer."""
        options = ConsumerOptions(
            topic,
            group,
            name,
            Limits(max_messages, max_bytes),
            prefetch,
            idle_timeout,
            start,
            retry,
            lease_timeout,
            max_in_flight,
            ack_interval,
            on_lost,
            mode,
        )
        subscription, link = options.subscription(self._options.timeout_s), self._new_link()
        try:
            return self._adopt(Consumer(link, subscription))
        except BaseException:
            link.close()
            raise

    # Topics and groups

    def create_topic(self, name: str, *, retention_s: float | None = None, shards: int = 0) -> None:
        """Make a topic; `Conflict` if there is one already. (Most brokers make topics upon the first send.)

        With `shards` it is an ordered one: messages of one shard key are delivered in order, each shard to one consumer
        at a time. One shard is serial consumption."""
        self._link.run(flows.create_topic(name, retention_s, shards))
        self._shards.forget(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages, groups and dead letters."""
        self._link.run(flows.delete_topic(name))

    def topics(self) -> list[TopicState]:
        return self._link.run(flows.topics())

    def topic(self, name: str) -> TopicState:
        return self._link.run(flows.topic(name))

    def groups(self, topic: str = "") -> list[GroupState]:
        """The groups of a topic, or of all topics."""
        return self._link.run(flows.groups(topic))

    def group(self, topic: str, name: str) -> GroupState:
        return self._link.run(flows.group(topic, name))

    def put_group(self, config: GroupConfig) -> None:
        """Make a group, or change its settings.

        mq.put_group(GroupConfig("orders", "billing", retry=RetryPolicy(max_attempts=3)))
        """
        self._link.run(flows.put_group(config))

    def delete_group(self, topic: str, name: str) -> None:
        """Forget a group, its progress and its dead letters."""
        self._link.run(flows.delete_group(topic, name))

    # Moving groups and emptying topics

    def seek(self, topic: str, group: str, to: flows.Target, *, dry_run: bool = False) -> Sought:
        """Let a group go on elsewhere: at the `"earliest"` message or behind the `"latest"`, at a time, or at sequence
        numbers by lane (`{"middle": 17}`; of an ordered topic `{3: 17}`), where lanes that are not named stay.

        Backwards, all from there on is delivered again. Forwards, all up to there is passed over, also what waits to be
        tried again. Consumers lose what they hold of these messages. A `dry_run` only says how many that would be."""
        return self._link.run(flows.seek(topic, group, to, dry_run=dry_run))

    def pause(self, topic: str, group: str, reason: str = "") -> None:
        """Let a group rest: its consumers get nothing until it is resumed, also after a restart of the broker."""
        self._link.run(flows.pause(topic, group, paused=True, reason=reason))

    def resume(self, topic: str, group: str) -> None:
        self._link.run(flows.pause(topic, group, paused=False, reason=""))

    def purge(self, topic: str, *, dry_run: bool = False) -> Purged:
        """Drop all messages of a topic; its groups go on with what comes then. Dead letters are kept."""
        return self._link.run(flows.purge(topic, dry_run=dry_run))

    def edit_topic(self, name: str, *, retention_s: float | None) -> None:
        """Change how long a topic keeps its messages: 0 is for ever, None as the broker does."""
        self._link.run(flows.edit_topic(name, retention_s))

    # Looking

    def browse(
        self,
        topic: str,
        lane: Priority | int = "middle",
        *,
        first: int = 0,
        max_messages: int = 100,
        max_bytes: int = 4 << 20,
    ) -> Page[Message]:
        """Read messages of a lane (a priority, or the number of a shard) without consuming them, from number `first`
        on."""
        return self._link.run(flows.browse(topic, lane, first, max_messages, max_bytes))

    def dead_letters(
        self, topic: str, group: str, *, first: int = 0, max_messages: int = 100, max_bytes: int = 4 << 20
    ) -> Page[DeadLetter]:
        """The messages that a group gave up."""
        return self._link.run(flows.dead_letters(topic, group, first, max_messages, max_bytes))

    def resend(self, topic: str, group: str, dead: Sequence[int] | None = None) -> int:
        """Deliver dead letters to their group again: those with these numbers, or all. How many it were."""
        return self._link.run(flows.resend(topic, group, dead))

    def locate(self, topic: str, lane: Priority | int, time: datetime | float) -> int:
        """The number of the first message of a lane that was appended at this time (or Unix time) or later."""
        return self._link.run(flows.locate(topic, lane, as_time_us(time)))

    def stat(self) -> dict[str, Any]:
        """Figures of the broker, by name."""
        return self._link.run(flows.stat())

    # Connections

    @property
    def _max_request_bytes(self) -> int:
        welcome = self._link.connection.welcome
        assert welcome is not None, "a client is made once it has met its broker"
        return welcome.max_request_bytes

    def _new_link(self) -> Link:
        options = self._options
        return Link(options.route(), self._dial, options.connection(), options.timeout_s)

    def _dial(self, route: Route, timeout_s: float) -> socket.socket:
        dial = None if self._embedded is None else self._embedded.dial
        return connect_socket(route, timeout_s, self._options.ssl_context, dial)

    def _adopt(self, child: C) -> C:
        self._children.append(child)
        return child
