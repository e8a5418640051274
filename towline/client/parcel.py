"""Messages that travel together, and what a producer gives back for each of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from towline.errors import Timeout, TowlineError, from_code
from towline.model import DELAY, LANES, Receipt, lane_name

__all__ = ["Parcel", "Pending", "call_back"]

log = logging.getLogger("towline.client")

_WAITERS = threading.Lock()


class Parcel:
    """The messages of one frame. What happens, happens to all of them; so their state is kept once."""

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
        "first",
        "frame",
        "headers",
        "keys",
        "lane",
        "looked_at",
        "opened_at",
        "places",
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
        self.keys: list[str | None] | None = None
        self.headers: list[dict[str, str] | None] | None = None
        self.dedup_ids: list[str | None] | None = None
        self.times: list[int] | None = None
        """What the deliver-at column says, if a message is delayed."""
        self.delayed = False
        self.shard_keys: list[str | None] | None = None
        self.size = 0
        self.count = 0
        self.frame = b""
        self.first = -1
        self.appended_at_us = 0
        self.places: list[tuple[int, int, int]] | None = None
        """Lane, number and time of each message, if some of them came before, by their dedup ids."""
        self.done = False
        self.error: TowlineError | None = None
        self.refusal: TowlineError | None = None
        """Why it has to be tried again."""
        self.looked_at = False
        """Somebody knows of the error."""
        self.waiter: Any = None
        """What a driver's `Pending` waits with, made by the first that waits."""
        self.callbacks: list[tuple[Callable[[Any], object], Any]] = []

    def __repr__(self) -> str:
        state = "failed" if self.error else "sent" if self.done else "waiting"
        lane, count = lane_name(self.lane, self.shards), self.count or len(self.bodies)
        return f"<Parcel {self.topic}/{lane} of {count} messages, {state}>"

    def packed(self, frame: bytes) -> None:
        """It is a frame now; what it was made of is not needed any more."""
        self.frame = frame
        self.bodies = []
        self.keys = self.headers = self.dedup_ids = self.times = self.shard_keys = None

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

    def receipt(self, index: int) -> Receipt:
        if self.error is not None:
            self.looked_at = True
            # A new one each time: an exception that is raised again and again grows with every time.
            raise from_code(self.error.code, str(self.error))
        if self.places is not None:
            lane, seq, at_us = self.places[index]
            return Receipt(self.topic, LANES[lane], seq, at_us)
        name = DELAY if self.delayed else lane_name(self.lane, self.shards)
        return Receipt(self.topic, name, self.first + index if self.first >= 0 else -1, self.appended_at_us)


class Pending(msgspec.Struct, gc=False, eq=False, weakref=False):
    """A message on its way. Ask it for its `result`, or do not: `flush` and `close` of the producer wait for all."""

    _parcel: Parcel
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
        """Wait, and give the receipt, or raise what went wrong."""
        self._wait(timeout)
        return self._parcel.receipt(self._index)

    def exception(self, timeout: float | None = None) -> TowlineError | None:
        self._wait(timeout)
        self._parcel.looked_at = True
        return self._parcel.error

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


def call_back(parcel: Parcel) -> None:
    while parcel.callbacks:
        try:
            function, pending = parcel.callbacks.pop()
        except IndexError:
            return
        try:
            function(pending)
        except Exception:
            log.exception("a callback of a sent message failed")
