"""Batches in flight: what the blocking and the asyncio producer share."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

from towline.client.link.connection import Call, Connection
from towline.client.link.dial import Route
from towline.client.produce.accumulator import ClusterAccumulator
from towline.client.produce.batch import ProducerBatch, with_origins
from towline.client.produce.encode import FrameEncoder, Lifetimes
from towline.client.produce.receipts import places
from towline.client.produce.sharding import ShardMap
from towline.errors import NotOwner, ProtocolError, TooLarge, TowlineError, WrongShard
from towline.protocol.messages import FrameHead, Request, Send, Sent
from towline.protocol.topics import ShardCount, Sharded

__all__ = ["BatchSender", "left_open", "raise_unseen"]

_TOLD_MAX: Final = 5
"""Topics that are named."""


class BatchSender:
    """Batches to requests, and answers to batches. `add`, `take` and `settle` are called under the driver's lock, where
    it has one. `spooled` overrides the methods about a spool."""

    keeps = False
    """Batches that cannot be sent are kept on disk."""

    def __init__(
        self,
        sender: FrameEncoder,
        durability: int,
        compress: bool,
        max_frame_bytes: int,
        shards: ShardMap | None = None,
        *,
        reroutes: bool = True,
    ) -> None:
        self.reroutes = reroutes
        """Messages in the wrong shard belong to another one of the same broker."""
        self._sender = sender
        self.shards = ShardMap() if shards is None else shards
        self._max_frame_bytes = max_frame_bytes
        self._durability = durability
        self._compress = compress
        self._answered: list[tuple[ProducerBatch, Call | TowlineError]] = []
        self._calls: dict[ProducerBatch, Call] = {}
        self.redirects: deque[tuple[str, str]] = deque(maxlen=1_000)
        """Topics that another broker serves, and its address."""
        self.recounts: deque[tuple[str, Sharded]] = deque(maxlen=1_000)
        """Topics that have another number of shards, so that their messages belong to other brokers. They are held
        until `ClusterAccumulator.rearrange`."""

    def lives(self, ttl: float | None, timeout: float | None, attempts: int | None) -> Lifetimes:
        return self._sender.lives(ttl, timeout, attempts)

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    @property
    def has_answers(self) -> bool:
        return bool(self._answered)

    def pack(self, parcel: ProducerBatch) -> Call | None:
        """The request for a batch; None if it cannot be made, which is an outcome as well. A batch in the wrong lane is
        not sent again before it is known how many shards its topic has."""
        if isinstance(parcel.refusal, WrongShard) or (not parcel.shards and parcel.has_shard_keys):
            return self._call(parcel, ShardCount(parcel.topic))
        try:
            if not parcel.frame:
                parcel.packed(parcel.frame_by(self._sender, self._compress))
            if len(parcel.frame) > self._max_frame_bytes:
                raise TooLarge(
                    f"{parcel.count} messages of {parcel.size} bytes are over the broker's limit of "
                    f"{self._max_frame_bytes} bytes a frame"
                )
        except TowlineError as error:
            self._answered.append((parcel, error))
            return None
        head = FrameHead(parcel.topic, parcel.lane, len(parcel.frame), parcel.shards)
        return self._call(parcel, Send([head], self._durability), parcel.frame)

    def _call(self, parcel: ProducerBatch, request: Request, *frames: bytes | memoryview) -> Call:
        call = self._calls[parcel] = Call(request, frames, None, lambda call: self._on_done(parcel, call))
        return call

    def _on_done(self, parcel: ProducerBatch, call: Call) -> None:
        del self._calls[parcel]
        self._answered.append((parcel, call))

    def forget(self, parcel: ProducerBatch, error: TowlineError) -> Call | None:
        """Give up a batch that is in flight, unless its answer is here already."""
        call = self._calls.pop(parcel, None)
        if call is not None:
            self._answered.append((parcel, error))
        return call

    def recall(self, parcel: ProducerBatch, connection: Connection, *, left_too: bool = False) -> bool:
        """Take back a batch that is in flight, unless it has left; or even then, if its connection is down."""
        call = self._calls.get(parcel)
        if call is None or call.done or (call.sent and not (left_too and not connection.ready)):
            return False
        connection.abandon(call)
        del self._calls[parcel]
        return True

    def settle(self, accumulator: ClusterAccumulator[Any], now: float) -> list[ProducerBatch]:
        """Apply an answer. Returns the batches that came to an end."""
        answered, self._answered = self._answered, []
        ended: list[ProducerBatch] = []
        for parcel, outcome in answered:
            error = outcome if isinstance(outcome, TowlineError) else outcome.error
            answer = None if isinstance(outcome, TowlineError) else outcome.answer
            if error is None and isinstance(answer, Sharded):
                if self.reroutes:
                    self.shards.put(parcel.topic, answer.shards)
                    ended += accumulator.reroute(parcel, answer.shards)
                else:
                    accumulator.returned(parcel)
                    self.recounts.append((parcel.topic, answer))
                continue
            if error is None and not isinstance(answer, Sent):
                error = ProtocolError(f"a send was answered by {type(answer).__name__}")
            if isinstance(error, NotOwner):
                self.redirects.append((parcel.topic, error.address))
            if error is not None:
                error = self.kept(parcel, error, accumulator, now)
                if error is None or not accumulator.refused(parcel, error, now):
                    ended.append(parcel)
            else:
                assert isinstance(answer, Sent)
                if answer.repeats:
                    about = (answer.firsts[0], parcel.count, answer.appended_at_us, answer.repeats)
                    delayed = bool(answer.delayed)
                    parcel.places = places(parcel.lane, *about, delayed=delayed, shards=parcel.shards)
                accumulator.sent(parcel, answer.firsts[0], answer.appended_at_us, now, delayed=bool(answer.delayed))
                ended.append(parcel)
        return with_origins(ended)

    # A spool

    def kept(
        self, parcel: ProducerBatch, error: TowlineError, accumulator: ClusterAccumulator[Any], now: float
    ) -> TowlineError | None:
        """None if the batch is safe, although it could not be sent; else the error."""
        return error

    def next_spooled(self, now: float) -> Call | None:
        """The request for a frame that waits in the spool."""
        return None

    def rescue(self, parcels: Sequence[ProducerBatch]) -> None:
        """These were given up because the producer is closed."""

    def close(self) -> None:
        """Release the spool."""


def raise_unseen(failed: list[ProducerBatch]) -> None:
    """Raise an error that nobody has seen."""
    if not failed:
        return
    error = failed[0].error
    assert error is not None, "a parcel that failed has an error"
    count = sum(parcel.count for parcel in failed)
    error.add_note(f"{count} messages of the producer were not sent, the first of them to topic {failed[0].topic}")
    raise error


def left_open(route: Route, lost: Sequence[ProducerBatch], more: int = 0, why: str = "") -> str:
    """A producer was not closed, and now it is too late: what is lost with it. Of some `more` no topic is known."""
    topics: Counter[str] = Counter()
    for parcel in lost:
        topics[parcel.topic] += parcel.count
    named = [f"{count:,} for topic {topic}" for topic, count in topics.most_common(_TOLD_MAX)]
    if more or len(topics) > _TOLD_MAX:
        named.append(f"{topics.total() + more:,} in all")
    reason = why or (lost[0].error if lost else "a callback did not return")
    return (
        f"the producer to {route.name} was not closed before the process ended, and lost messages: {', '.join(named)}: "
        f"{reason}. Close producers (`with mq.producer() as producer`), or flush them"
    )
