"""Options of `connect`, of producers and of consumers."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from towline.client.consume.ack_spool import AckSpool
from towline.client.consume.group_settings import RequestedSettings
from towline.client.consume.lease import LostLease
from towline.client.consume.pull_size import PullLimits
from towline.client.consume.subscription import Subscription
from towline.client.link.connection import Connection
from towline.client.link.dial import Certificates, Route, make_ssl_context
from towline.client.link.url import Target, parse_url
from towline.client.produce.accumulator import BatchLimits
from towline.client.produce.batch_sender import BatchSender
from towline.client.produce.encode import FrameEncoder, as_durability
from towline.client.produce.frame_spool import FrameSpool
from towline.client.produce.sharding import ShardMap
from towline.client.produce.spooled_sender import SpooledBatchSender
from towline.errors import BadRequest
from towline.model import (
    PRIVATE,
    Durability,
    GroupConfig,
    RetryPolicy,
    check_consumer,
    check_group,
    check_topics,
)
from towline.protocol.base import HEAD_ROOM

__all__ = ["Certificates", "ConsumerOptions", "Options", "ProducerOptions"]


class Options:
    """The address of the broker, and the client's identity. The secret is kept here and shown nowhere."""

    def __init__(
        self,
        url: str,
        token: str,
        secret: str,
        timeout: float,
        certificates: Certificates,
        *,
        spool_dir: str | Path | None = None,
        caller: str = "",
    ) -> None:
        if not 0 < timeout <= 86400:
            raise BadRequest(f"timeout={timeout}: give seconds, more than 0 and up to 86,400")
        self.target: Target = parse_url(url)
        self.token = token
        self.timeout_s = timeout
        self.spool_dir = spool_dir
        self.caller = caller
        self.ssl_context = make_ssl_context(self.target, certificates)
        self._secret = secret
        if len(secret) > 512:
            raise BadRequest("a secret is at most 512 characters long")

    def __repr__(self) -> str:
        return f"<Options {self.target}>"

    def route(self, addresses: tuple[tuple[str, int], ...] = ()) -> Route:
        return Route(self.target._replace(addresses=addresses) if addresses else self.target)

    def connection(self) -> Connection:
        return Connection(self.token, self._secret, self.caller)

    def sender(self) -> FrameEncoder:
        return FrameEncoder(self.token)


class ConsumerOptions(NamedTuple):
    topic: str
    group: str | None
    name: str | None
    limits: PullLimits
    prefetch: int
    idle_timeout: float | None
    start: Literal["earliest", "latest"] | None
    retry: RetryPolicy | None
    lease_timeout: float
    max_in_flight: int | None
    ack_interval: float
    on_lost: Callable[[LostLease], None] | None
    spool_dir: str | Path | None = None
    mode: Literal["at-least-once", "at-most-once"] = "at-least-once"
    own_name: str | None = None
    """The name of a consumer without a name, where several are to have the same."""

    def named(self) -> ConsumerOptions:
        """With a name of its own."""
        return self._replace(own_name=_own_name())

    def at(self, broker: str, spool_dir: str | Path | None) -> ConsumerOptions:
        """For the consumer at one broker of a cluster: acts that cannot be sent are kept for that broker."""
        folder = self.spool_dir or (spool_dir if self.name is not None else None)
        return self if folder is None else self._replace(spool_dir=Path(folder) / broker)

    def subscription(self, timeout_s: float, spool_dir: str | Path | None = None) -> Subscription:
        """`spool_dir` is the client's, for consumers that have a name and no folder of their own."""
        if self.spool_dir is not None and self.name is None:
            raise BadRequest(
                f"a consumer of {self.topic} with a spool_dir needs a name, by which its acks are found again"
            )
        folder = self.spool_dir or (spool_dir if self.name is not None else None)
        if not 0 <= self.prefetch <= 100:
            raise BadRequest(f"prefetch={self.prefetch}: give a number from 0 to 100")
        if not 0.001 <= self.ack_interval <= 60:
            raise BadRequest(f"ack_interval={self.ack_interval}: give seconds from 0.001 to 60")
        if self.idle_timeout is not None and not 0 <= self.idle_timeout <= 86400 * 366:
            raise BadRequest(f"idle_timeout={self.idle_timeout}: give seconds, 0 or more")
        if self.start not in (None, "earliest", "latest"):
            raise BadRequest(f"start={self.start!r}: give 'earliest' or 'latest'")
        if self.mode not in ("at-least-once", "at-most-once"):
            raise BadRequest(f"mode={self.mode!r}: give 'at-least-once' or 'at-most-once'")
        name = check_consumer(self.name) if self.name is not None else self.own_name or _own_name()
        group = check_group(self.group) if self.group is not None else PRIVATE + name
        if self.group is not None and group.startswith(PRIVATE):
            raise BadRequest(f"group {group!r}: names that begin with {PRIVATE} are for consumers without a group")
        config = GroupConfig(
            check_topics(self.topic).rstrip("*") or "any",
            group,
            start=self.start or "",
            retry=self.retry if self.retry is not None else RetryPolicy(),
            timeout_s=self.lease_timeout,
            max_in_flight=self.max_in_flight if self.max_in_flight is not None else 100_000,
            ephemeral=self.group is None and self.name is None,
            mode=self.mode,
        )
        return Subscription(
            self.topic,
            group,
            name,
            config,
            unique=self.name is None,
            timeout_s=timeout_s,
            limits=self.limits.checked(),
            prefetch=self.prefetch,
            idle_timeout_s=self.idle_timeout,
            ack_interval_s=self.ack_interval,
            on_lost=self.on_lost,
            spool=None if folder is None else AckSpool(folder, self.topic, group, name),
            requested=self._requested(),
        )

    def _requested(self) -> RequestedSettings:
        """The given options that are settings of the group. Defaults do not count."""
        mode = self.mode if self.mode != "at-least-once" else None
        return RequestedSettings(self.retry, self.lease_timeout or None, self.max_in_flight, mode)


class ProducerOptions(NamedTuple):
    linger_ms: float
    max_batch_messages: int
    max_batch_bytes: int
    max_buffer_messages: int
    max_buffer_bytes: int
    max_in_flight: int
    delivery_timeout: float
    max_block: float
    durability: Durability | str | None
    compress: bool
    spool_dir: str | Path | None = None
    spool_bytes: int = 256 << 20
    reroutes: bool = True
    """All shards of a topic are at the same broker."""

    def at(self, broker: str, *, shared: bool) -> ProducerOptions:
        """For the producer at one broker of a cluster, whose brokers may share a store."""
        folder = None if self.spool_dir is None else Path(self.spool_dir) / broker
        return self._replace(spool_dir=folder, reroutes=shared)

    def limits(self, max_request_bytes: int) -> BatchLimits:
        return BatchLimits(
            self.linger_ms / 1000,
            self.max_batch_messages,
            min(self.max_batch_bytes, max_request_bytes - HEAD_ROOM),
            self.max_buffer_messages,
            self.max_buffer_bytes,
            self.max_in_flight,
            self.delivery_timeout,
            self.max_block,
        ).checked()

    def shipping(
        self, make_sender: Callable[[], FrameEncoder], max_request_bytes: int, connection: Connection, shards: ShardMap
    ) -> BatchSender:
        durability, max_frame_bytes = as_durability(self.durability), max_request_bytes - HEAD_ROOM
        if self.spool_dir is None:
            about = durability, self.compress, max_frame_bytes, shards
            return BatchSender(make_sender(), *about, reroutes=self.reroutes)
        spool = FrameSpool(self.spool_dir, self.spool_bytes)
        return SpooledBatchSender(
            make_sender,
            durability,
            self.compress,
            max_frame_bytes,
            spool=spool,
            connection=connection,
            shards=shards,
            reroutes=self.reroutes,
        )


def _own_name() -> str:
    """A name that no other consumer has, and that people can recognise."""
    host = "".join(letter for letter in socket.gethostname()[:20] if letter.isascii() and letter.isalnum()) or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
