"""The asyncio producer. The counterpart of `producer`."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from towline.client import process_end
from towline.client.admin.delayed import Time, as_deliver_at
from towline.client.concurrency.tasks import Lock
from towline.client.link.aio import AioLink
from towline.client.produce.accumulator import BatchLimits, ClusterAccumulator, expired
from towline.client.produce.batch import ProducerBatch, call_back, with_origins
from towline.client.produce.batch_sender import BatchSender, left_open, raise_unseen
from towline.client.produce.encode import FOREVER, Body, Lifetimes, as_body, as_dedup_id, as_headers, as_key
from towline.errors import Closed, NotOwner, Timeout, TowlineError
from towline.model import Priority, Receipt
from towline.protocol.topics import Sharded

__all__ = ["Pending", "Producer", "drained", "end_all"]

log = logging.getLogger("towline.client")

_IDLE_S: Final = 1.0

_NOTHING_MORE: Final = (None,) * 9


class Pending(msgspec.Struct, gc=False, eq=False, weakref=False):
    """A message on its way: `await` it for its receipt, or do not; `flush` and `close` of the producer wait for all."""

    _parcel: ProducerBatch
    _index: int

    def __repr__(self) -> str:
        return f"<Pending message {self._index} of {self._parcel!r}>"

    def __await__(self) -> Generator[Any, None, Receipt]:
        yield from _done(self._parcel).__await__()
        return self._parcel.receipt(self._index)

    def done(self) -> bool:
        return self._parcel.done

    @property
    def spooled(self) -> bool:
        """It waits on the local disk for a broker; its receipt has no number."""
        return self._parcel.spooled

    def result(self) -> Receipt:
        """The receipt of a message that is done; or raises what went wrong."""
        if not self._parcel.done:
            raise Timeout("the message is not acknowledged yet: await it")
        return self._parcel.receipt(self._index)

    def exception(self) -> TowlineError | None:
        if not self._parcel.done:
            raise Timeout("the message is not acknowledged yet: await it")
        return self._parcel.error_of(self._index)

    def add_done_callback(self, function: Callable[[Pending], object]) -> None:
        """Call `function(pending)` when it is done, or at once if it is done already."""
        self._parcel.callbacks.append((function, self))
        if self._parcel.done:
            call_back(self._parcel)


async def _done(parcel: ProducerBatch) -> None:
    if not parcel.done:
        if parcel.waiter is None:
            parcel.waiter = asyncio.get_running_loop().create_future()
        # Shielded: one who is cancelled does not cancel it for the others.
        await asyncio.shield(parcel.waiter)


async def drained(producers: Sequence[Producer], timeout: float | None) -> bool:
    """Wait until everything sent so far came to an end; False if it takes too long."""
    waiting = [parcel for producer in producers for parcel in producer.seal()]
    for producer in producers:
        producer.flushing += 1
    try:
        async with asyncio.timeout(timeout):
            for parcel in waiting:
                await _done(parcel)
    except TimeoutError:
        return False
    finally:
        for producer in producers:
            producer.flushing -= 1
    return True


def end_all(producers: Sequence[Producer], timeout_s: float, *, final: bool) -> bool:
    """The end of the process, or of the event loop, for the producers of one. True if it is the end."""
    for producer in producers:
        producer.end(timeout_s, final=final)
    return final


class Producer:
    """Sends in the background, many messages at a time. Made by `Client.producer`.

    async with mq.producer() as producer:
        for line in lines:
            await producer.send("lines", line)      # goes on at once; waits when the buffer is full
    # all are acknowledged here, or the first error is raised

    One that is not closed loses what it holds when its event loop ends, with a `RuntimeWarning` that says how much.
    """

    _closed = True  # until it is made

    def __init__(self, link: AioLink, shipping: BatchSender, limits: BatchLimits) -> None:
        self._link = link
        self._accumulator: ClusterAccumulator[Pending] = ClusterAccumulator(limits, Pending)
        self._shipping = shipping
        self._shards = shipping.shards
        self._lock = Lock()
        self._stirred = asyncio.Event()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._failed = False
        self._moved: frozenset[str] = frozenset()
        self._barred = False
        self.flushing = 0
        """Who waits until everything is acknowledged."""
        self._ending = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._work(), name="towline-producer")
        process_end.watch(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._accumulator.messages} messages buffered"
        return f"<Producer to {self._link.route.name}, {state}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        return self._closed

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
        shard_key: str | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
        attempts: int | None = None,
    ) -> Pending:
        """Put a message into the buffer. Waits while that is full, for up to `max_block` seconds, then raises
        `QueueFull`. A delay counts from when the broker takes the message."""
        if type(body) is not bytes:
            body = as_body(body)
        as_key(key)
        more = (headers, dedup_id, delay, deliver_at, delay_level, shard_key, ttl, timeout, attempts)
        # Most messages have nothing of this, and go the short way.
        if more == _NOTHING_MORE and not self._barred:
            added = self._accumulator.add_plain(topic, body, key, priority)
            if added is not None:
                return added
        packed = as_headers(headers)
        as_dedup_id(dedup_id)
        at_us = as_deliver_at(delay, deliver_at, delay_level)
        plain = ttl is None and timeout is None and attempts is None
        lives = FOREVER if plain else self._shipping.lives(ttl, timeout, attempts)
        shards = self._shards.get(topic) or 0
        if shard_key is not None and not shards:
            as_key(shard_key)
            # With a spool nobody is asked, who may be away for long.
            shards = 0 if self._shipping.keeps else await self._look_up(topic)
        if self._barred or self._accumulator.is_full:
            await self._make_room(topic)
        pending = self._accumulator.add(
            topic,
            body,
            key,
            priority,
            packed,
            at_us,
            dedup_id=dedup_id,
            shards=shards,
            shard_key=shard_key,
            lives=lives,
        )
        if self._accumulator.stirred:
            self._stir()
        return pending

    async def put(  # noqa: PLR0917
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
        """See `producer.Producer`."""
        if self._barred or self._accumulator.is_full:
            await self._make_room(topic)
        if (self._shards.get(topic) or 0) != shards:
            raise NotOwner
        columns = topic, body, key, priority, headers, at_us, dedup_id, shards, shard_key, lives
        pending = self._accumulator.add(*columns)
        if self._accumulator.stirred:
            self._stir()
        return pending

    async def _look_up(self, topic: str) -> int:
        """See `producer.Producer`."""
        if self._closed:
            raise Closed("the producer was closed")
        return await self._link.run(self._shards.find(topic, needed=True))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged. Raises the first error that nobody has looked at, and
        `Timeout` when it takes too long."""
        if not await drained([self], timeout):
            raise Timeout(f"{self._accumulator.messages} messages are not acknowledged yet")
        raise_unseen(self._accumulator.take_failed())

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then let go. What is not acknowledged in time is given up."""
        if self._closed and not self._failed:
            return
        self._closed, self._barred, self._failed = True, True, False
        try:
            await self.flush(timeout)
        except Timeout:
            if not self._shipping.keeps:
                raise
        finally:
            process_end.forget(self)
            self._ending = True
            self._task.cancel()
            await asyncio.wait([self._task])
            await self._link.close()
            self._give_up(Closed("the producer was closed before the message was acknowledged"))
            self._shipping.close()

    # The end of the process, or of the event loop

    def __del__(self) -> None:
        self.end(0.0, final=True)

    def end(self, timeout_s: float, *, final: bool) -> None:
        """Nothing can be sent any more: keep it on the disk, or say what is lost."""
        if self._closed or not final or not self._accumulator.messages:
            return
        self._closed = self._barred = True
        parcels = self._accumulator.fail_all(Closed("its event loop ended before they were acknowledged"))
        self._shipping.rescue(parcels)
        self._shipping.close()
        lost = [parcel for parcel in parcels if parcel.error is not None]
        if lost:
            warnings.warn(left_open(self._link.route, lost), RuntimeWarning, stacklevel=2, source=self)

    def forked(self) -> None:
        self._closed = self._barred = True

    # For a producer of many brokers

    @property
    def link(self) -> AioLink:
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
        waiting = self._accumulator.seal()
        self._stir()
        return waiting

    def take_failed(self) -> list[ProducerBatch]:
        return self._accumulator.take_failed()

    @property
    def redirects(self) -> deque[tuple[str, str]]:
        return self._shipping.redirects

    @property
    def recounts(self) -> deque[tuple[str, Sharded]]:
        return self._shipping.recounts

    @property
    def lock(self) -> Lock:
        """Held by whoever uses the `exchange`."""
        return self._lock

    @property
    def exchange(self) -> ClusterAccumulator[Pending]:
        return self._accumulator

    def rearranged(self, failed: list[ProducerBatch]) -> None:
        """Messages were put here, or taken away; some belonged nowhere."""
        self._accumulator.note_failed(failed)
        self._end(with_origins(failed))
        self._let_in()
        self._stir()

    def evacuate(self) -> list[ProducerBatch]:
        """Give away what never left."""
        parcels = self._accumulator.evacuate(lambda parcel: self._shipping.recall(parcel, self._link.connection))
        if parcels:
            self._let_in()
        return parcels

    def give_away(self, topics: Set[str]) -> list[ProducerBatch]:
        """See `producer.Producer`."""
        self._moved |= topics
        self._barred = True
        link = self._link
        link.give_up(NotOwner("topics moved"))
        self._end(self._shipping.settle(self._accumulator, time.monotonic()))
        parcels = self._accumulator.evacuate(
            lambda parcel: self._shipping.recall(parcel, link.connection, left_too=True), topics.__contains__
        )
        self._let_in()
        return parcels

    def topics(self) -> set[str]:
        """What waits here, or is on its way."""
        return self._accumulator.topics()

    def welcome(self, topic: str) -> None:
        """A topic that was given away is served here again."""
        if topic in self._moved:
            self._moved -= {topic}
            self._barred = self._closed or bool(self._moved)

    def adopt(self, parcel: ProducerBatch) -> None:
        """Take on what another could not send."""
        self._accumulator.adopt(parcel)
        self._stir()

    async def _make_room(self, topic: str) -> None:
        max_block_s = self._accumulator.limits.max_block_s
        try:
            async with asyncio.timeout(max_block_s):
                while self._accumulator.is_full and not self._closed and topic not in self._moved:
                    if not max_block_s:
                        raise TimeoutError
                    await self._wait_for_room()
        except TimeoutError:
            if self._accumulator.is_full:
                raise self._accumulator.still_full() from None
        if self._closed:
            raise Closed("the producer was closed")
        if topic in self._moved:
            raise NotOwner

    async def _wait_for_room(self) -> None:
        room = asyncio.get_running_loop().create_future()
        self._waiting.append(room)
        try:
            await room
        finally:
            if room in self._waiting:
                self._waiting.remove(room)

    # The task that sends

    def _stir(self) -> None:
        self._stirred.set()
        if self._task.cancelled():
            # Somebody cancelled all tasks that there were, but the loop goes on.
            self._task = self._loop.create_task(self._work(), name="towline-producer")

    async def _work(self) -> None:
        try:
            while True:
                try:
                    await self._work_on()
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if self._ending or not self.flushing or task is None:
                        raise
                    # The loop is to end, and who waits for us has begun to close: that comes first.
                    task.uncancel()
        except Exception as error:
            log.exception("the producer's task failed")
            self._closed = self._barred = self._failed = True
            self._give_up(TowlineError(f"the producer's task failed: {error}"))

    def _give_up(self, error: TowlineError) -> None:
        left = self._accumulator.fail_all(error)
        self._shipping.rescue(left)
        self._end(with_origins(left))

    async def _work_on(self) -> None:
        while True:
            self._stirred.clear()
            # What is taken is started in the same moment: while we wait for room, topics may be given away.
            await self._link.room()
            while parcels := self._accumulator.take(time.monotonic(), 1):
                call = self._shipping.pack(parcels[0])
                if call is not None:
                    call.wake = self._stirred.set
                    self._link.start_now(call)
                await self._link.room()
            spooled = self._shipping.next_spooled(time.monotonic())
            if spooled is not None:
                spooled.wake = self._stirred.set
                self._link.start_now(spooled)
            await self._sleep()
            now = time.monotonic()
            for parcel in self._accumulator.expired(now):
                call = self._shipping.forget(parcel, expired(parcel))
                if call is not None:
                    self._link.connection.abandon(call)
            self._end(self._shipping.settle(self._accumulator, now))

    async def _sleep(self) -> None:
        next_at = self._accumulator.next_at()
        wait_s = _IDLE_S if next_at is None else min(_IDLE_S, next_at - time.monotonic())
        if self._shipping.has_answers or wait_s <= 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(wait_s):
                await self._stirred.wait()
        except TimeoutError:
            pass

    def _end(self, ended: list[ProducerBatch]) -> None:
        for parcel in ended:
            parcel.frame = b""
            parcel.done = True
            if parcel.waiter is not None and not parcel.waiter.done():
                parcel.waiter.set_result(None)
            call_back(parcel)
        if ended:
            self._let_in()

    def _let_in(self) -> None:
        """There is room again."""
        while self._waiting:
            room = self._waiting.popleft()
            if not room.done():
                room.set_result(None)
