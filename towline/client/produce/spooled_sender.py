"""BatchSender with a spool: batches that no broker takes in time wait on the local disk, and are sent when one is
back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from towline.client.link.backoff import Backoff
from towline.client.link.connection import Call, Connection
from towline.client.produce.accumulator import ClusterAccumulator
from towline.client.produce.batch import ProducerBatch
from towline.client.produce.batch_sender import BatchSender
from towline.client.produce.encode import FrameEncoder
from towline.client.produce.frame_spool import FrameSpool, SpooledFrame
from towline.client.produce.reshard import MIDDLE, cut_by_shard
from towline.client.produce.sharding import ShardMap, not_ordered
from towline.errors import Closed, ProtocolError, QueueFull, TooLarge, TowlineError, Unavailable, WrongShard
from towline.frame import Frame
from towline.protocol.messages import FrameHead, Send, Sent
from towline.protocol.topics import ShardCount, Sharded

__all__ = ["SpooledBatchSender"]

log = logging.getLogger("towline.client")


class SpooledBatchSender(BatchSender):
    """Frames that may have reached the broker keep their producer id and number, and the sender gets a new id; frames
    that never left have an id of the spool's own. So the broker, which remembers a window of numbers for each id, can
    tell of each frame from the spool whether it has it already."""

    keeps = True

    def __init__(
        self,
        make_sender: Callable[[], FrameEncoder],
        durability: int,
        compress: bool,
        max_frame_bytes: int,
        *,
        spool: FrameSpool,
        connection: Connection,
        shards: ShardMap,
        reroutes: bool,
    ) -> None:
        super().__init__(make_sender(), durability, compress, max_frame_bytes, shards, reroutes=reroutes)
        self._make_sender = make_sender
        self._own_sender = make_sender()
        self._spool = spool
        self._connection = connection
        self._straight: set[ProducerBatch] = set()
        self._emptying: Call | None = None
        self._head: SpooledFrame | None = None
        self._units: list[list[SpooledFrame]] = []
        """The rest of the head, each unit to be sent by a request; empty if its shards must be asked for first."""
        self._emptied: Call | None = None
        self._backoff = Backoff(0.02, 1.0, eager=False)
        self._retry_at = 0.0

    @property
    def busy(self) -> bool:
        return super().busy or self._emptying is not None

    @property
    def has_answers(self) -> bool:
        return super().has_answers or self._emptied is not None

    def pack(self, parcel: ProducerBatch) -> Call | None:
        if not self._spool.goes_before(parcel.topic, parcel.lane, parcel.shards):
            return super().pack(parcel)
        # Others of its lane go first. Where they cannot, it joins them at once instead of waiting in memory.
        if not self._connection.ready:
            self._straight.add(parcel)
        self._answered.append((parcel, Unavailable(f"messages for {parcel.topic} wait for others in the spool")))
        return None

    def next_spooled(self, now: float) -> Call | None:
        if self._emptying is not None or now < self._retry_at or not self._spool.lanes:
            return None
        if self._head is None:
            self._head = self._spool.next()
            if self._head is None:
                return None
            self._units = [[self._head]] if self._head.shards >= 0 else []
        if self._units:
            unit = self._units[0]
            heads = [FrameHead(one.topic, one.lane, len(one.frame), one.shards) for one in unit]
            self._emptying = Call(Send(heads, unit[0].durability), [one.frame for one in unit], None, self._on_emptied)
        else:
            self._emptying = Call(ShardCount(self._head.topic), (), None, self._on_emptied)
        return self._emptying

    def _on_emptied(self, call: Call) -> None:
        self._emptied = call

    def settle(self, accumulator: ClusterAccumulator[Any], now: float) -> list[ProducerBatch]:
        if self._emptied is not None:
            self._settle_emptied(self._emptied, now)
        return super().settle(accumulator, now)

    def _settle_emptied(self, call: Call, now: float) -> None:
        head, error, answer = self._head, call.error, call.answer
        self._emptying = self._emptied = None
        if head is None or isinstance(error, Closed):
            return
        if error is None and isinstance(answer, Sharded):
            self._units = self._cut(head, answer.shards)
        elif error is None and isinstance(answer, Sent):
            self._backoff.reset()
            self._units.pop(0)
        elif isinstance(error, WrongShard) and self.reroutes:
            # Nothing of it was stored. How many shards are there?
            self._units = []
            self._retry_at = now + self._backoff.next_s()
            return
        elif error is not None and error.retriable:
            self._retry_at = now + self._backoff.next_s()
            return
        else:
            error = error or ProtocolError(f"a send was answered by {type(answer).__name__}")
            log.error("topic %s: a frame of the spool is refused, and put aside: %s", head.topic, error)
            for one in [one for unit in self._units for one in unit] or [head]:
                self._spool.put_aside(one)
            self._units = []
        if not self._units:
            self._head = None
            self._spool.sent(head)

    def _cut(self, head: SpooledFrame, shards: int) -> list[list[SpooledFrame]]:
        cut = cut_by_shard(head.topic, Frame(head.frame), head.lane if not head.shards else MIDDLE, shards)
        if cut.lost is not None:
            what = "messages without a key are put aside: it is ordered" if shards else not_ordered(head.topic)
            log.error("topic %s: of a frame of the spool, %s", head.topic, what)
            self._spool.put_aside(msgspec.structs.replace(head, frame=cut.lost))
        return [
            [SpooledFrame(head.topic, lane, head.durability, data, shards) for lane, data in unit] for unit in cut.units
        ]

    def kept(
        self, parcel: ProducerBatch, error: TowlineError, accumulator: ClusterAccumulator[Any], now: float
    ) -> TowlineError | None:
        straight = parcel in self._straight
        self._straight.discard(parcel)
        if not self._may_wait(error):
            return error
        if not straight and now < parcel.deadline and not isinstance(error, Closed):
            return error
        try:
            self._keep(parcel)
        except TowlineError as full:
            return full
        accumulator.sent(parcel, -1, 0, now)
        return None

    def _may_wait(self, error: TowlineError) -> bool:
        """Whether the broker may take it later. One that cannot be reached has not refused it, whatever it answered
        before; and a batch in the wrong shard is sent to the right one when the spool is emptied."""
        if isinstance(error, WrongShard):
            return self.reroutes
        return isinstance(error, Unavailable | Closed) or (error.retriable and not self._connection.ready)

    def _keep(self, parcel: ProducerBatch) -> None:
        if parcel.frame:
            # Whether the broker has it is not known. Its number must not fall out of the broker's window meanwhile.
            self._sender = self._make_sender()
        else:
            parcel.packed(parcel.frame_by(self._own_sender, self._compress))
        if len(parcel.frame) > self._max_frame_bytes:
            raise TooLarge(f"{parcel.count} messages for {parcel.topic} are over {self._max_frame_bytes} bytes a frame")
        shards = parcel.shards or (-1 if parcel.has_shard_keys else 0)
        self._spool.append(SpooledFrame(parcel.topic, parcel.lane, self._durability, bytes(parcel.frame), shards))

    def rescue(self, parcels: Sequence[ProducerBatch]) -> None:
        for parcel in parcels:
            try:
                self._keep(parcel)
            except QueueFull as error:
                log.error("%d messages for %s are lost: %s", parcel.count, parcel.topic, error)
            except TowlineError as error:
                parcel.error = error
            else:
                parcel.error = None

    def close(self) -> None:
        self._spool.close()
