"""The batching producer, blocking: the accumulator, and who empties it."""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence, Set
from types import TracebackType
from typing import Final, Self

from towline.client import process_end
from towline.client.admin.delayed import Time, as_deliver_at
from towline.client.link.blocking import MADE_BEFORE_FORK, Link
from towline.client.link.dial import explain
from towline.client.link.transport import wait_for
from towline.client.produce.accumulator import BatchLimits, ClusterAccumulator, expired
from towline.client.produce.batch import Pending, ProducerBatch, call_back, with_origins
from towline.client.produce.batch_sender import BatchSender, left_open, raise_unseen
from towline.client.produce.encode import FOREVER, Body, Lifetimes, as_body, as_dedup_id, as_headers, as_key
from towline.errors import (
    Closed,
    NotOwner,
    Timeout,
    TowlineError,
)
from towline.model import Priority
from towline.protocol.topics import Sharded

__all__ = ["Pending", "Producer", "drained", "end_all"]

log = logging.getLogger("towline.client")

_STUCK_S: Final = 0.1
"""Who writes for longer than this to a broker that seems to be away is stuck."""
_IDLE_S: Final = 1.0
_END_S: Final = 2.0
"""How long the thread may take to end when the process does."""


class Producer:
    """Sends in the background, many messages at a time. Made by `Client.producer`; any thread may use it.

    with mq.producer() as producer:
        for line in lines:
            producer.send("lines", line)        # returns at once; waits when the buffer is full
    # all are acknowledged here, or the first error is raised

    One that is not closed sends what it holds when the process ends, for a few seconds; what it could not send is
    logged as an error.
    """

    def __init__(self, link: Link, shipping: BatchSender, limits: BatchLimits) -> None:
        self._link = link
        self._accumulator: ClusterAccumulator[Pending] = ClusterAccumulator(limits, Pending)
        self._add, self._add_plain = self._accumulator.add, self._accumulator.add_plain
        self._shipping = shipping
        self._shards = shipping.shards
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._turning = threading.Lock()
        """Held while parcels are taken and sent: none is in between for those who take them away."""
        self._asleep = False
        self._closed = False
        self._why_closed = "the producer was closed"
        self._moved: frozenset[str] = frozenset()
        """Topics that were given away: what comes for them now must go the same way."""
        self._barred = False
        """It is closed, or topics were given away."""
        self._stop = False
        self._alarm, self._bell = socket.socketpair()
        self._alarm.setblocking(False)
        self._bell.setblocking(False)
        self._thread = threading.Thread(target=self._work, name="towline-producer", daemon=True)
        self._thread.start()
        process_end.watch(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._accumulator.messages} messages buffered"
        return f"<Producer to {self._link.route.name}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._closed

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
        shard_key: str | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
        attempts: int | None = None,
    ) -> Pending:
        """Put a message into the buffer. Waits while that is full, for up to `max_block` seconds, then raises
        `QueueFull`. A delay counts from when the broker takes the message."""
        if type(body) is not bytes:
            body = as_body(body)
        if key is not None:
            as_key(key)
        # Most messages have nothing of this, and go the short way.
        if (
            headers is None
            and dedup_id is None
            and delay is None
            and deliver_at is None
            and delay_level is None
            and shard_key is None
            and ttl is None
            and timeout is None
            and attempts is None
        ):
            with self._lock:
                added = None if self._barred else self._add_plain(topic, body, key, priority)
            if added is not None:
                return added
        if headers is not None:
            headers = as_headers(headers)
        if dedup_id is not None:
            as_dedup_id(dedup_id)
        shards, at_us, lives = self._shards.get(topic) or 0, 0, FOREVER
        if delay is not None or deliver_at is not None or delay_level is not None:
            at_us = as_deliver_at(delay, deliver_at, delay_level)
        if ttl is not None or timeout is not None or attempts is not None:
            lives = self._shipping.lives(ttl, timeout, attempts)
        if shard_key is not None and not shards:
            as_key(shard_key)
            # With a spool nobody is asked, who may be away for long.
            shards = 0 if self._shipping.keeps else self._look_up(topic)
        accumulator = self._accumulator
        with self._lock:
            if self._barred or accumulator.is_full:
                self._make_room(topic)
            pending = self._add(topic, body, key, priority, headers, at_us, dedup_id, shards, shard_key, lives)
            if self._asleep and accumulator.stirred:
                self._ring()
        return pending

    def put(  # noqa: PLR0917
        self,
        shards: int,
        topic: str,
        body: bytes,
        key: str | None,
        priority: Priority,
        headers: dict[str, str] | None,
        at_us: int,
        dedup_id: str | None,
        shard_key: str | None,
        lives: Lifetimes,
    ) -> Pending:
        """Send what was checked, for a producer of many brokers, which takes the topic to have so many shards.
        `NotOwner` if they are not so many any more: then the message may belong elsewhere."""
        accumulator = self._accumulator
        with self._lock:
            if self._barred or accumulator.is_full:
                self._make_room(topic)
            if (self._shards.get(topic) or 0) != shards:
                raise NotOwner
            pending = self._add(topic, body, key, priority, headers, at_us, dedup_id, shards, shard_key, lives)
            if self._asleep and accumulator.stirred:
                self._ring()
        return pending

    def _look_up(self, topic: str) -> int:
        """How many shards a topic has, for which we are given a shard key: at least one, or the key has no meaning.
        Without a shard key it is taken for a shared one until the broker says otherwise."""
        if self._closed:
            raise Closed(self._why_closed)
        return self._link.run(self._shards.find(topic, needed=True))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged. Raises the first error that nobody has looked at, and
        `Timeout` when it takes too long."""
        with self._lock:
            if not self._drained(timeout):
                raise Timeout(f"{self._accumulator.messages} messages are not acknowledged yet")
            failed = self._accumulator.take_failed()
        raise_unseen(failed)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then let go. What is not acknowledged in time is given up."""
        with self._lock:
            if self._closed:
                return
            self._closed = self._barred = True
        try:
            self.flush(timeout)
        except Timeout:
            if not self._shipping.keeps:
                raise
        finally:
            self._let_go()

    def _let_go(self, timeout: float | None = None) -> None:
        process_end.forget(self)
        with self._lock:
            self._stop = True
            self._ring()
        # Our thread may be writing to a broker that stands still.
        self._link.cut()
        self._link.close()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._shipping.close()
            self._alarm.close()
            self._bell.close()

    # The end of the process

    def end(self, timeout_s: float, *, final: bool) -> None:
        link, why = self._link, ""
        with self._lock:
            if self._closed:
                return
            if final:
                self._closed = self._barred = True
            if not self._drained(timeout_s):
                self._closed = self._barred = True
                why = "no answer in time" if link.connection.ready else explain(link.route, link.cause)
        if self._closed:
            # A callback that hangs must not keep the process from ending.
            self._let_go(_END_S)
        self.report_lost(why)

    def report_lost(self, why: str = "") -> None:
        with self._lock:
            stuck = self._accumulator.messages if self._closed else 0
            lost = [parcel for parcel in self._accumulator.take_failed() if parcel.error is not None]
        if lost or stuck:
            log.error("%s", left_open(self._link.route, lost, stuck, why))

    def forked(self) -> None:
        self._why_closed = MADE_BEFORE_FORK.format("producer")
        self._closed = self._barred = True
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._accumulator = ClusterAccumulator(self._accumulator.limits, Pending)

    # For a producer of many brokers

    @property
    def link(self) -> Link:
        return self._link

    @property
    def owes(self) -> bool:
        """Something waits here, or is on its way."""
        return self._accumulator.messages > 0

    @property
    def buffered(self) -> int:
        return self._accumulator.messages

    def seal(self) -> list[ProducerBatch]:
        """Let nothing linger; what is not acknowledged yet."""
        with self._lock:
            waiting = self._accumulator.seal()
            self._ring()
            return waiting

    def take_failed(self) -> list[ProducerBatch]:
        with self._lock:
            return self._accumulator.take_failed()

    @property
    def redirects(self) -> deque[tuple[str, str]]:
        return self._shipping.redirects

    @property
    def recounts(self) -> deque[tuple[str, Sharded]]:
        return self._shipping.recounts

    @property
    def lock(self) -> threading.Lock:
        """Held by whoever uses the `exchange`."""
        return self._lock

    @property
    def exchange(self) -> ClusterAccumulator[Pending]:
        return self._accumulator

    def rearranged(self, failed: list[ProducerBatch]) -> None:
        """Messages were put here, or taken away; some belonged nowhere."""
        with self._lock:
            self._accumulator.note_failed(failed)
            ended = with_origins(failed)
            self._conclude(ended)
            self._changed.notify_all()
            self._ring()
        for parcel in ended:
            _announce(parcel)

    def evacuate(self) -> list[ProducerBatch]:
        """Give away what never left."""

        link = self._link
        if not link.lock.acquire(timeout=_STUCK_S):
            link.cut()
            link.lock.acquire()
        link.lock.release()

        def never_left(parcel: ProducerBatch) -> bool:
            with link.lock:
                return self._shipping.recall(parcel, link.connection)

        with self._lock:
            parcels = self._accumulator.evacuate(never_left)
            if parcels:
                self._changed.notify_all()
            return parcels

    def give_away(self, topics: Set[str]) -> list[ProducerBatch]:
        """Give away everything of these topics, in order, for the broker that serves them now. That one knows what
        arrived here; so the connection is broken, and what was not answered goes along."""
        link = self._link
        # Our thread may be writing to a broker that stands still.
        link.cut()
        with self._turning, self._lock:
            self._moved |= topics
            self._barred = True
            with link.lock:
                link.give_up(NotOwner("topics moved"))
                ended = self._shipping.settle(self._accumulator, time.monotonic())
                parcels = self._accumulator.evacuate(
                    lambda parcel: self._shipping.recall(parcel, link.connection, left_too=True), topics.__contains__
                )
            self._conclude(ended)
            self._changed.notify_all()
        for parcel in ended:
            _announce(parcel)
        return parcels

    def topics(self) -> set[str]:
        """What waits here, or is on its way."""
        with self._lock:
            return self._accumulator.topics()

    def welcome(self, topic: str) -> None:
        """A topic that was given away is served here again."""
        if topic in self._moved:
            with self._lock:
                self._moved -= {topic}
                self._barred = self._closed or bool(self._moved)

    def adopt(self, parcel: ProducerBatch) -> None:
        """Take on what another could not send."""
        with self._lock:
            self._accumulator.adopt(parcel)
            self._ring()

    # With the lock held

    def _drained(self, timeout: float | None) -> bool:
        """Wait until everything sent so far came to an end; False if it takes too long."""
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = self._accumulator.seal()
        self._ring()
        for parcel in waiting:
            while not parcel.done:
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                self._changed.wait(left_s)
        return True

    def _make_room(self, topic: str) -> None:
        until = time.monotonic() + self._accumulator.limits.max_block_s
        while self._accumulator.is_full and not self._closed and topic not in self._moved:
            left_s = until - time.monotonic()
            # Who sends from a callback would wait for itself.
            if left_s <= 0 or threading.current_thread() is self._thread:
                raise self._accumulator.still_full()
            self._changed.wait(left_s)
        if self._closed:
            raise Closed(self._why_closed)
        if topic in self._moved:
            raise NotOwner

    def _ring(self) -> None:
        self._asleep = False
        try:
            self._bell.send(b"\0")
        except BlockingIOError:
            pass

    # The thread that sends

    def _work(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            log.exception("the producer's thread failed")
            self._end(TowlineError(f"the producer's thread failed: {error}"))
            raise
        self._end(Closed("the producer was closed before the message was acknowledged"))

    def _end(self, error: TowlineError) -> None:
        with self._lock:
            self._closed = self._barred = True
            ended = self._accumulator.fail_all(error)
            self._shipping.rescue(ended)
            ended = with_origins(ended)
            self._conclude(ended)
        for parcel in ended:
            _announce(parcel)

    def _turn(self) -> bool:
        with self._turning:
            with self._lock:
                if self._stop:
                    return False
                parcels = self._accumulator.take(time.monotonic())
            for parcel in parcels:
                call = self._shipping.pack(parcel)
                if call is not None:
                    try:
                        self._link.start(call)
                    except Closed as error:
                        self._shipping.forget(parcel, error)
        self._empty_spool()
        self._sleep()
        self._settle()
        return True

    def _empty_spool(self) -> None:
        spooled = self._shipping.next_spooled(time.monotonic())
        if spooled is not None:
            try:
                self._link.start(spooled)
            except Closed as error:
                spooled.fail(error)

    def _sleep(self) -> None:
        with self._lock:
            now = time.monotonic()
            next_at = self._accumulator.next_at()
            wait_s = _IDLE_S if next_at is None else min(_IDLE_S, next_at - now)
            if self._accumulator.stirred or self._shipping.has_answers:
                wait_s = 0.0
            self._asleep = wait_s > 0
        if self._shipping.busy:
            self._link.pump(max(0.0, wait_s), self._alarm.fileno())
        elif wait_s > 0:
            wait_for(self._alarm.fileno(), select.POLLIN, wait_s)
        with self._lock:
            self._asleep = False
        _silence(self._alarm)

    def _settle(self) -> None:
        now = time.monotonic()
        for parcel in self._accumulator.expired(now):
            call = self._shipping.forget(parcel, expired(parcel))
            if call is not None:
                with self._link.lock:
                    self._link.connection.abandon(call)
        with self._lock:
            ended = self._shipping.settle(self._accumulator, now)
            self._conclude(ended)
        for parcel in ended:
            _announce(parcel)

    def _conclude(self, ended: list[ProducerBatch]) -> None:
        for parcel in ended:
            parcel.frame = b""
            parcel.done = True
        if ended:
            self._changed.notify_all()


def drained(producers: Sequence[Producer], timeout: float | None) -> bool:
    """Wait until everything sent so far came to an end; False if it takes too long."""
    deadline = None if timeout is None else time.monotonic() + timeout
    waiting = [parcel for producer in producers for parcel in producer.seal()]
    try:
        for parcel in waiting:
            parcel.wait(None if deadline is None else max(deadline - time.monotonic(), 0.0))
    except Timeout:
        return False
    return True


def end_all(producers: Sequence[Producer], timeout_s: float, *, final: bool) -> bool:
    """The end of the process for the producers of one. True if it is the end."""
    final = not drained(producers, timeout_s) or final
    for producer in producers:
        if final:
            producer.end(0.0, final=True)
        else:
            producer.report_lost()
    return final


def _announce(parcel: ProducerBatch) -> None:
    waiter = parcel.waiter
    if waiter is not None:
        waiter.set()
    call_back(parcel)


def _silence(alarm: socket.socket) -> None:
    try:
        alarm.recv(4096)
    except BlockingIOError:
        pass
