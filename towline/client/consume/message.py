"""Messages as consumers see them."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from towline.client.consume.outcome import settle
from towline.client.consume.time_limit import HandlerTimeout
from towline.frame.layout import attempts_in
from towline.model import DIED_AT, DIED_ATTEMPT, DIED_ORIGIN, DIED_REASON, LANES, Priority, lane_name, message_id

if TYPE_CHECKING:
    from towline.client.consume.message_block import MessageBlock

__all__ = ["ACKED", "NACKED", "OPEN", "RETURNED", "TAKEN", "TOLD", "DeadLetter", "Message"]

OPEN: Final = 0
ACKED: Final = 1
"""Acked by the user; not sent to the broker yet."""
TOLD: Final = 2
"""Acked, and sent to the broker or on the way."""
NACKED: Final = 3
RETURNED: Final = 4
"""Of a shard, behind a message that is retried: it goes back to the broker with that one."""
TAKEN: Final = 5
"""The broker has taken it away, or must have by now."""
_HEADER_OVERHEAD: Final = 150
"""Bytes of objects, beside the text."""


class Message(msgspec.Struct, gc=False, eq=False, weakref=False):
    """One message. `ack`, `nack`, `retry` and `dead` settle it: they return at once, and the consumer tells the broker
    soon after (see `Consumer.flush`).

        with message:               # leaves: ack
            handle(message.body)    # raises: nack with the exception as the reason; the exception goes on to you

    `Retry` and `Reject` say more: when it comes again, or that it never does.
    """

    body: bytes
    _index: int
    _section: MessageBlock

    def __repr__(self) -> str:
        body = self.body if len(self.body) <= 40 else self.body[:40] + b"..."
        return f"<Message {self.id} attempt {self.attempt} {body!r}>"

    @property
    def topic(self) -> str:
        return self._section.topic

    @property
    def lane(self) -> str:
        """Its priority, or its shard in an ordered topic; `own-middle` when it was sent again to its group alone."""
        return lane_name(self._section.lane, self._section.shards)

    @property
    def priority(self) -> Priority:
        section = self._section
        if not section.shards:
            return LANES[section.lane % len(LANES)]
        return LANES[section.lane - section.shards] if section.lane >= section.shards else "middle"

    @property
    def shard_key(self) -> str | None:
        """The key that keeps messages in order in an ordered topic: its own, or else the key."""
        return self._section.shard_key(self._index)

    @property
    def expires_at(self) -> datetime | None:
        """The end of its lifetime; None is never."""
        at_us = self._section.expires_at_us(self._index)
        return _time(at_us) if at_us else None

    @property
    def timeout(self) -> float | None:
        """For how many seconds it may be worked on, if its sender set that. `with message:` and handlers of an `App`
        are interrupted then."""
        return self._section.timeout_s(self._index)

    @property
    def max_attempts(self) -> int | None:
        """How often it is tried in all, if its sender set that; None is the group's retry policy."""
        return attempts_in(self._section.limit(self._index)) or None

    @property
    def lease_left(self) -> float | None:
        """For how many seconds more it is leased; None is until it is settled, or the consumer is gone."""
        return self._section.lease_left_s()

    @property
    def seq(self) -> int:
        """Its number in its lane."""
        return self._section.seq(self._index)

    @property
    def id(self) -> str:
        """`topic/lane/number`: it is found by this for as long as it is kept. A dead letter that was sent again, on a
        lane of its group's own, has the id of the original message. Of a cluster whose brokers keep their own messages
        it ends in `@` and the broker."""
        if self._section.lane >= (self._section.shards or len(LANES)) and (origin := self.headers.get(DIED_ORIGIN)):
            return origin
        name = message_id(self._section.topic, self.lane, self.seq)
        return f"{name}@{self._section.broker}" if self._section.broker else name

    @property
    def key(self) -> str | None:
        return self._section.key(self._index)

    @property
    def headers(self) -> dict[str, str]:
        return self._section.headers(self._index)

    @property
    def attempt(self) -> int:
        """1 at the first delivery, one more after each that failed."""
        return self._section.attempt

    @property
    def token(self) -> str:
        """The token of the producer's connection."""
        return self._section.token

    @property
    def source(self) -> str:
        """The address of the producer; empty if it is not known."""
        packed = self._section.source
        return str(ipaddress.ip_address(packed)) if len(packed) in (4, 16) else ""

    @property
    def appended_at_us(self) -> int:
        """When the broker took it, in microseconds since 1970."""
        return self._section.appended_at_us

    @property
    def appended_at(self) -> datetime:
        return _time(self._section.appended_at_us)

    @property
    def produced_at_us(self) -> int:
        """When the producer sent it, by the producer's clock."""
        return self._section.produced_at_us(self._index)

    @property
    def produced_at(self) -> datetime:
        return _time(self.produced_at_us)

    @property
    def lost(self) -> bool:
        """The lease is gone: another consumer has the message or will have it. Stop working on it."""
        lease = self._section.lease
        return lease is not None and (lease.lost or self._section.flags[self._index] in (RETURNED, TAKEN))

    @property
    def settled(self) -> bool:
        """It was acked or nacked here, or is lost."""
        return self._section.flags[self._index] != OPEN

    def ack(self) -> None:
        """Settle it as done. Raises `Closed` if its consumer was closed meanwhile, which has given it back."""
        section, index = self._section, self._index
        lease = section.lease
        if lease is None or section.flags[index] != OPEN:
            section.check_acked(index)
            return
        # In this order: the thread that collects the acks clears `dirty` first and reads the flags then.
        section.flags[index] = ACKED
        if not lease.dirty:
            if lease.closed:
                section.flags[index] = OPEN
                lease.check_open()
            lease.touch()

    def nack(self, reason: str = "", delay: float | None = None) -> None:
        """Settle it as failed: deliver it again after `delay` seconds, or by the group's retry policy."""
        self._section.nack(self._index, 1, reason, delay)

    def retry(self, delay: float) -> None:
        """Deliver it again after `delay` seconds."""
        self._section.nack(self._index, 1, "", delay)

    def dead(self, reason: str = "") -> None:
        """It can never succeed: straight to the dead letters."""
        self._section.nack(self._index, 2, reason, None)

    def __enter__(self) -> Self:
        if self._section.timed:
            self._section.begin(self._index)
        return self

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._section.timed:
            try:
                late = self._section.end(self._index, error)
            except HandlerTimeout:
                # It came in this very moment.
                late = self._section.end(self._index, error)
            if late is not None:
                raise late from error
        # An interrupt or a cancellation is no fault of the message: it stays open, and goes back with the consumer.
        if error is None:
            if not self.settled:
                self.ack()
        elif isinstance(error, Exception):
            settle((self,), error)


class DeadLetter:
    """A message that was given up, and the reason. It is kept until its group or topic is deleted, or retention drops
    it."""

    __slots__ = ("body", "broker", "headers", "key", "number", "resent", "shard_key", "timeout")

    def __init__(self, message: Message, *, resent: bool) -> None:
        self.number = message.seq
        """Its number among the dead letters of its group: for `resend`."""
        self.body = message.body
        self.key = message.key
        self.headers = message.headers
        self.shard_key = message.shard_key
        self.timeout = message.timeout
        self.resent = resent
        self.broker = ""

    def __repr__(self) -> str:
        return f"<DeadLetter {self.number} of {self.origin}, attempt {self.attempt}: {self.reason[:80]}>"

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        headers = sum(len(name) + len(value) + _HEADER_OVERHEAD for name, value in self.headers.items())
        return len(self.body) + len(self.key or "") + len(self.shard_key or "") + headers

    @property
    def origin(self) -> str:
        """The id of the original message."""
        return self.headers.get(DIED_ORIGIN, "")

    @property
    def attempt(self) -> int:
        text = self.headers.get(DIED_ATTEMPT, "")
        return int(text) if text.isascii() and text.isdigit() else 0

    @property
    def reason(self) -> str:
        return self.headers.get(DIED_REASON, "")

    @property
    def died_at_us(self) -> int:
        """When it was given up, in microseconds since 1970."""
        try:
            return round(float(self.headers.get(DIED_AT, "0")) * 1_000_000)
        except (ValueError, OverflowError):
            return 0

    @property
    def died_at(self) -> datetime:
        return _time(self.died_at_us)


def _time(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1e6, UTC)
