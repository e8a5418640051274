"""Producers and consumers of a client, with their options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, Literal, TypeVar

from towline.client.consume.lease import LostLease
from towline.client.consume.pull_size import PullLimits
from towline.client.options import ConsumerOptions, ProducerOptions
from towline.model import Durability, RetryPolicy

__all__ = ["Factories"]

P = TypeVar("P")
C = TypeVar("C")


class Factories(Generic[P, C]):
    """Makes producers `P` and consumers `C`."""

    def _make_producer(self, options: ProducerOptions) -> P:
        raise NotImplementedError

    def _make_consumer(self, options: ConsumerOptions) -> C:
        raise NotImplementedError

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
    ) -> P:
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
        return self._make_producer(options)

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
    ) -> C:
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
        return self._make_consumer(options)
