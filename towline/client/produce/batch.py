"""Batches of a producer, and the pending result of each message."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from towline.client.produce.encode import FrameEncoder, Lifetimes
from towline.errors import Timeout, TowlineError, from_code
from towline.frame import Frame
from towline.frame.layout import DELIVER_AT, SHARD_KEY
from towline.model import DELAY, Receipt, lane_name

__all__ = ["Pending", "ProducerBatch", "call_back", "with_origins"]

log = logging.getLogger("towline.client")

_WAITERS = threading.Lock()
_ORIGINS = threading.Lock()


class ProducerBatch:
    """The messages of one frame. They have one outcome, so their state is kept once."""

    __slots__ = (
        "appended_at_us",
        "bodies",
        "callbacks",
        "count",
        "deadline",
        "dedup_ids",
        "delayed",
        "done",
        "error",
        "expiries_us",
        "first",
        "frame",
        "headers",
        "keys",
        "lane",
        "left",
        "limits",
        "looked_at",
        "moved",
        "opened_at",
        "origins",
        "pinned",
        "places",
        "plain",
        "refusal",
        "shard_keys",
        "shards",
        "size",
        "times",
        "topic",
        "waiter",
    )

    def __init__(self, topic: str, lane: int, opened_at: float, deadline: float, shards: int = 0) -> None:
        self.topic = topic
        self.lane = lane
        self.shards = shards
        self.opened_at = opened_at
        self.deadline = deadline
        self.bodies: list[bytes] = []
        self.plain = True
        """Its messages have bodies, perhaps keys, and nothing else."""
        self.keys: list[str | None] | None = None
        self.headers: list[dict[str, str] | None] | None = None
        self.dedup_ids: list[str | None] | None = None
        self.pinned = False
        """It belongs to one broker, which knows its dedup ids."""
        self.times: list[int] | None = None
        """The deliver-at column, if a message is delayed."""
        self.delayed = False
        self.shard_keys: list[str | None] | None = None
        self.expiries_us: list[int] | None = None
        self.limits: list[int] | None = None
        self.size = 0
        self.count = 0
        self.frame: bytes | memoryview = b""
        self.first = -1
        self.appended_at_us = 0
        self.places: list[tuple[str, int, int]] | None = None
        """Lane, number and time of each message, if some of them are repeats by their dedup ids."""
        self.done = False
        self.error: TowlineError | None = None
        self.refusal: TowlineError | None = None
        """Why it has to be tried again."""
        self.looked_at = False
        """The error was seen by the user."""
        self.waiter: Any = None
        """The waiter of a driver's `Pending`, made by the first that waits."""
        self.callbacks: list[tuple[Callable[[Any], object], Any]] = []
        self.moved: list[Any] | None = None
        """Its messages went into other batches: their handles there."""
        self.left = 0
        """How many of those batches are not done yet."""
        self.origins: list[ProducerBatch] = []
        """The batches that messages of this one came from."""

    def __repr__(self) -> str:
        state = "failed" if self.error else "sent" if self.done else "waiting"
        lane, count = lane_name(self.lane, self.shards), self.count or len(self.bodies)
        return f"<ProducerBatch {self.topic}/{lane} of {count} messages, {state}>"

    @property
    def has_more(self) -> bool:
        """Whether it has one of the less usual columns."""
        return (
            self.dedup_ids is not None
            or self.times is not None
            or self.shard_keys is not None
            or self.expiries_us is not None
            or self.limits is not None
        )

    @property
    def has_times(self) -> bool:
        """Whether a message is delayed."""
        return self.times is not None if not self.frame else bool(Frame(self.frame).flags & DELIVER_AT)

    @property
    def has_shard_keys(self) -> bool:
        return self.shard_keys is not None if not self.frame else bool(Frame(self.frame).flags & SHARD_KEY)

    def add_more(self, dedup_id: str | None, deliver_at_us: int, shard_key: str | None, lives: Lifetimes) -> None:
        """The less usual fields of the message that is about to be added."""
        count = len(self.bodies)
        if dedup_id is not None or self.dedup_ids is not None:
            self.dedup_ids = self.dedup_ids if self.dedup_ids is not None else [None] * count
            self.dedup_ids.append(dedup_id)
            self.pinned = True
        if deliver_at_us or self.times is not None:
            self.times = self.times if self.times is not None else [0] * count
            self.times.append(deliver_at_us)
        if shard_key is not None or self.shard_keys is not None:
            self.shard_keys = self.shard_keys if self.shard_keys is not None else [None] * count
            self.shard_keys.append(shard_key)
        if lives.expires_at_us or self.expiries_us is not None:
            self.expiries_us = self.expiries_us if self.expiries_us is not None else [0] * count
            self.expiries_us.append(lives.expires_at_us)
        if lives.limit or self.limits is not None:
            self.limits = self.limits if self.limits is not None else [0] * count
            self.limits.append(lives.limit)

    def frame_by(self, sender: FrameEncoder, compress: bool) -> bytes | memoryview:
        """The frame of its messages, by this encoder."""
        columns = self.bodies, self.keys, self.headers, compress, self.dedup_ids, self.times
        return sender.frame(*columns, shard_keys=self.shard_keys, expires_at_us=self.expiries_us, limits=self.limits)

    def packed(self, frame: bytes | memoryview) -> None:
        """It is a frame now; the columns that it was made of are dropped."""
        self.frame = frame
        self.bodies = []
        self._clear()

    def wait(self, timeout: float | None) -> None:
        """Wait in a thread. Whoever ends it sets `done` first and looks for a waiter then."""
        with _WAITERS:
            if self.waiter is None:
                self.waiter = threading.Event()
        if not self.done and not self.waiter.wait(timeout):
            raise Timeout("the message is not acknowledged yet")

    @property
    def spooled(self) -> bool:
        return self.done and self.error is None and self.first < 0

    def columns(
        self,
    ) -> Iterator[tuple[bytes, str | None, dict[str, str] | None, int, str | None, str | None, Lifetimes]]:
        """Body, key, headers, deliver-at, dedup id, shard key and lifetime of each message, out of the frame if it is
        one already."""
        count, frame = self.count or len(self.bodies), Frame(self.frame) if self.frame else None
        none: list[None] = [None] * count
        yield from zip(
            self.bodies if frame is None else frame.bodies(),
            (self.keys if frame is None else frame.keys()) or none,
            (self.headers if frame is None else frame.headers()) or none,
            (self.times if frame is None else frame.deliver_at_us()) or [0] * count,
            (self.dedup_ids if frame is None else frame.dedup_ids()) or none,
            (self.shard_keys if frame is None else frame.shard_keys()) or none,
            map(
                Lifetimes,
                (self.expiries_us if frame is None else frame.expires_at_us()) or [0] * count,
                (self.limits if frame is None else frame.limits()) or [0] * count,
            ),
            strict=True,
        )

    def move(self, pendings: list[Any]) -> None:
        """Its messages are in other batches now; it is done when they are."""
        self.moved, self.frame, self.bodies = pendings, b"", []
        self._clear()
        parcels = {id(one._parcel): one._parcel for one in pendings}
        self.left = len(parcels)
        for parcel in parcels.values():
            parcel.origins.append(self)

    def _clear(self) -> None:
        self.keys = self.headers = self.dedup_ids = self.shard_keys = None
        self.times = self.expiries_us = self.limits = None

    def error_of(self, index: int) -> TowlineError | None:
        if self.moved is not None:
            error: TowlineError | None = self.moved[index]._parcel.error_of(self.moved[index]._index)
            return error
        self.looked_at = True
        return self.error

    def receipt(self, index: int) -> Receipt:
        if self.moved is not None:
            receipt: Receipt = self.moved[index]._parcel.receipt(self.moved[index]._index)
            return receipt
        if self.error is not None:
            self.looked_at = True
            # A new one each time: an exception that is raised again and again grows with every time.
            raise from_code(self.error.code, str(self.error))
        if self.places is not None:
            lane, seq, at_us = self.places[index]
            return Receipt(self.topic, lane, seq, at_us)
        name = DELAY if self.delayed else lane_name(self.lane, self.shards)
        return Receipt(self.topic, name, self.first + index if self.first >= 0 else -1, self.appended_at_us)


class Pending(msgspec.Struct, gc=False, eq=False, weakref=False):
    """A message that is being sent. Wait for its `result`, or do not: `flush` and `close` of the producer wait for
    all."""

    _parcel: ProducerBatch
    _index: int

    def __repr__(self) -> str:
        return f"<Pending message {self._index} of {self._parcel!r}>"

    def done(self) -> bool:
        return self._parcel.done

    @property
    def spooled(self) -> bool:
        """It waits on the local disk for a broker; its receipt has no number."""
        return self._parcel.spooled

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait, and return the receipt, or raise the error."""
        self._wait(timeout)
        return self._parcel.receipt(self._index)

    def exception(self, timeout: float | None = None) -> TowlineError | None:
        self._wait(timeout)
        return self._parcel.error_of(self._index)

    def add_done_callback(self, function: Callable[[Pending], object]) -> None:
        """Call `function(pending)` when it is done: from the producer's thread, or at once if it is done already."""
        self._parcel.callbacks.append((function, self))
        # Both look after the other has acted: whoever takes it from the list calls it.
        if self._parcel.done:
            call_back(self._parcel)

    def _wait(self, timeout: float | None) -> None:
        parcel = self._parcel
        if not parcel.done:
            parcel.wait(timeout)


def with_origins(ended: list[ProducerBatch]) -> list[ProducerBatch]:
    """The batch, and those whose last open messages were in it."""
    every = list(ended)
    for parcel in every:
        for origin in parcel.origins:
            # Its messages may be with several brokers, and so with several threads.
            with _ORIGINS:
                origin.left -= 1
                last = not origin.left
            if last:
                every.append(origin)
    return every


def call_back(parcel: ProducerBatch) -> None:
    while parcel.callbacks:
        try:
            function, pending = parcel.callbacks.pop()
        except IndexError:
            return
        try:
            function(pending)
        except Exception:
            log.exception("a callback of a sent message failed")
