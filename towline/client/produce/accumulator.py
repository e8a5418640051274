"""Batching, sans I/O: messages in, batches out, one in flight per lane.

A batch of a lane is filled until it is full or has lingered; while another batch of the same lane is in flight it goes
on being filled, so the slower the broker, the larger the batches. Because only one is in flight, a batch that must be
sent again is never overtaken by the next: order within a lane is kept whatever happens.

Not safe by itself against several threads: the driver calls under a lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from towline.client.link.backoff import Backoff
from towline.client.produce.batch import ProducerBatch
from towline.client.produce.encode import FOREVER, Lifetimes, as_lane
from towline.client.produce.sharding import not_ordered, shard_of
from towline.errors import BadRequest, NotOwner, QueueFull, Timeout, TowlineError, WrongShard
from towline.model import LANES, Priority, check_topic

__all__ = ["Accumulator", "BatchLimits", "ClusterAccumulator", "Lane", "expired", "give_up", "rearrange"]


P = TypeVar("P")

MESSAGE_OVERHEAD: Final = 16
"""Memory of a message besides its bytes."""
_FAILED_MAX: Final = 1_000
"""Failed batches that are remembered until `flush`: a producer may fail for days, and nobody flushes it."""


class BatchLimits(NamedTuple):
    linger_s: float = 0.001
    max_batch_messages: int = 10_000
    max_batch_bytes: int = 1 << 20
    max_buffer_messages: int = 200_000
    max_buffer_bytes: int = 64 << 20
    max_in_flight: int = 8
    delivery_timeout_s: float = 120.0
    max_block_s: float = 60.0

    def checked(self) -> BatchLimits:
        if not 0 <= self.linger_s <= 60 or not 0 < self.delivery_timeout_s <= 86400:
            raise BadRequest("linger_ms is between 0 and 60,000, delivery_timeout between 0 and 86,400 seconds")
        if min(self[1:6]) < 1 or self.max_batch_messages > 1 << 20 or self.max_batch_bytes > 32 << 20:
            raise BadRequest("the limits of a batch or buffer are out of range")
        if not 0 <= self.max_block_s <= 86400:
            raise BadRequest(f"max_block={self.max_block_s:g}: give seconds from 0 to 86,400")
        return self


class Lane:
    __slots__ = ("backoff", "filling", "full", "home", "in_flight", "name", "number", "queued", "retry_at")

    def __init__(self, home: dict[Any, Lane], name: Any, number: int) -> None:
        self.home = home
        self.name = name
        self.number = number
        self.filling: ProducerBatch | None = None
        self.full: deque[ProducerBatch] = deque()
        self.in_flight: ProducerBatch | None = None
        self.queued = False
        self.retry_at = 0.0
        self.backoff: Backoff | None = None

    @property
    def topic(self) -> str:
        name: str = self.name if isinstance(self.name, str) else self.name[0]
        return name

    @property
    def empty(self) -> bool:
        return self.filling is None and not self.full and self.in_flight is None


class Accumulator(Generic[P]):
    """`pending` makes the handle of one message: of a batch, and the message's index in it."""

    def __init__(
        self,
        limits: BatchLimits,
        pending: Callable[[ProducerBatch, int], P],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._messages_max, self._bytes_max = limits.max_buffer_messages, limits.max_buffer_bytes
        self._last_index, self._parcel_bytes = limits.max_batch_messages - 1, limits.max_batch_bytes
        self.messages = 0
        self.bytes = 0
        self.stirred = False
        """Since this was last cleared, something began that the sender must know of."""
        self.pending = pending
        self._flying: dict[ProducerBatch, Lane] = {}
        self.failed: list[ProducerBatch] = []
        """Failed batches, until they are reported; the first ones, where nobody asks."""
        self._lanes: tuple[dict[Any, Lane], ...] = tuple({} for _ in (*LANES, "shards"))
        self._by_priority: dict[str, dict[Any, Lane]] = dict(zip(LANES, self._lanes, strict=False))
        self._unsharded = self._by_priority["middle"]
        self._held: frozenset[str] = frozenset()
        """Topics of which nothing is sent for the moment."""
        self._of_shards = self._lanes[-1]
        """Lanes of ordered topics, by topic, number of shards, shard, and whether they are for delayed messages."""
        self._lingering: deque[tuple[ProducerBatch, Lane]] = deque()
        self._ready: deque[Lane] = deque()
        self._retrying: list[Lane] = []

    @property
    def is_full(self) -> bool:
        return self.messages >= self.limits.max_buffer_messages or self.bytes >= self.limits.max_buffer_bytes

    def still_full(self) -> QueueFull:
        """A sender has waited for room for long enough."""
        waited = f" for {self.limits.max_block_s:g} s (max_block)" if self.limits.max_block_s else ""
        return QueueFull(
            f"the producer's buffer is full{waited}, with {self.messages:,} messages of {self.bytes:,} bytes: the "
            "broker does not keep up, or cannot be reached"
        )

    @property
    def is_empty(self) -> bool:
        return not self.messages

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    # Adding

    def add_plain(self, topic: str, body: bytes, key: str | None, priority: Priority) -> P | None:
        """The short way for a message like those in an open batch. None if it is unlike them, and is to be added by
        `add`. (A lane found by its topic is none of an ordered topic.)"""
        lanes = self._by_priority.get(priority)
        lane = lanes.get(topic) if lanes is not None else None
        parcel = lane.filling if lane is not None else None
        if parcel is None or not parcel.plain or self.messages >= self._messages_max or self.bytes >= self._bytes_max:
            return None
        size, keys, bodies = len(body) + MESSAGE_OVERHEAD, parcel.keys, parcel.bodies
        if key is not None:
            if keys is None:
                return None
            size += len(key) if key.isascii() else 4 * len(key)
        index, total = len(bodies), parcel.size + size
        if index >= self._last_index or total >= self._parcel_bytes:
            return None
        if keys is not None:
            keys.append(key)
        bodies.append(body)
        parcel.size = total
        self.messages += 1
        self.bytes += size
        return self.pending(parcel, index)

    def add(  # noqa: PLR0917 - called for every message: names would cost
        self,
        topic: str,
        body: bytes,
        key: str | None,
        priority: Priority,
        headers: dict[str, str] | None,
        deliver_at_us: int = 0,
        dedup_id: str | None = None,
        shards: int = 0,
        shard_key: str | None = None,
        lives: Lifetimes = FOREVER,
    ) -> P:
        """Add a message to the open batch of its lane."""
        # Messages from before it was known that the topic is ordered still wait as if it were not: they go first.
        if shards and topic in self._unsharded:
            shards = 0
        if shards:
            shard = shard_of(topic, shards, key, shard_key, priority)
            lane = self._shard_lane(topic, shards, shard, bool(deliver_at_us))
        else:
            lanes = self._by_priority.get(priority)
            lane = (lanes.get(topic) if lanes is not None else None) or self._open_lane(topic, priority)
        parcel = lane.filling
        size = len(body) + MESSAGE_OVERHEAD
        if key is not None:
            size += len(key) if key.isascii() else 4 * len(key)
        if shard_key is not None:
            size += 4 * len(shard_key)
        if headers is not None:
            size += 4 * (sum(map(len, headers)) + sum(map(len, headers.values()))) + 8 * len(headers)
        if dedup_id is not None:
            size += len(dedup_id) if dedup_id.isascii() else 4 * len(dedup_id)
        limits = self.limits
        if parcel is None or (parcel.size + size > limits.max_batch_bytes and parcel.bodies):
            if parcel is not None:
                self._close(lane, parcel)
            now = self._clock()
            parcel = lane.filling = ProducerBatch(topic, lane.number, now, now + limits.delivery_timeout_s, shards)
            self._lingering.append((parcel, lane))
            self.stirred = self.stirred or lane.in_flight is None
        bodies = parcel.bodies
        if key is not None or parcel.keys is not None:
            if parcel.keys is None:
                parcel.keys = [None] * len(bodies)
            parcel.keys.append(key)
        if headers is not None or parcel.headers is not None:
            if parcel.headers is None:
                parcel.headers = [None] * len(bodies)
                parcel.plain = False
            parcel.headers.append(headers)
        if shard_key is not None or dedup_id is not None or deliver_at_us or lives is not FOREVER or parcel.has_more:
            parcel.plain = False
            parcel.add_more(dedup_id, deliver_at_us, shard_key, lives)
        index = len(bodies)
        bodies.append(body)
        parcel.size += size
        self.messages += 1
        self.bytes += size
        if index + 1 >= limits.max_batch_messages or parcel.size >= limits.max_batch_bytes:
            self._close(lane, parcel)
        return self.pending(parcel, index)

    def _open_lane(self, topic: str, priority: Priority) -> Lane:
        number = as_lane(priority)
        home = self._lanes[number]
        lane = home[check_topic(topic)] = Lane(home, topic, number)
        return lane

    def _shard_lane(self, topic: str, shards: int, shard: int, delayed: bool) -> Lane:
        """Delayed messages have a lane of their own: they must not take others along."""
        name = topic, shards, shard, delayed
        lane = self._of_shards.get(name)
        if lane is None:
            lane = self._of_shards[name] = Lane(self._of_shards, name, shard)
        return lane

    def _close(self, lane: Lane, parcel: ProducerBatch) -> None:
        lane.filling = None
        parcel.count = len(parcel.bodies)
        lane.full.append(parcel)
        self._enqueue(lane)

    def _enqueue(self, lane: Lane) -> None:
        if not lane.queued and lane.in_flight is None and not lane.retry_at and not self._holds(lane):
            lane.queued = self.stirred = True
            self._ready.append(lane)

    def _holds(self, lane: Lane) -> bool:
        return bool(self._held) and lane.topic in self._held

    # Sending

    def take(self, now: float, at_most: int | None = None) -> list[ProducerBatch]:
        """The batches to send now; with `at_most`, call it again until there is none."""
        self._end_lingering(now)
        self._end_waiting(now)
        parcels: list[ProducerBatch] = []
        most = self.limits.max_in_flight
        if at_most is not None:
            most = min(most, len(self._flying) + at_most)
        while self._ready and len(self._flying) < most:
            lane = self._ready.popleft()
            if not lane.full and lane.filling is not None:
                self._close(lane, lane.filling)
            lane.queued = False
            if lane.full:
                parcel = lane.in_flight = lane.full.popleft()
                self._flying[parcel] = lane
                parcels.append(parcel)
        self.stirred = False
        return parcels

    def seal(self) -> list[ProducerBatch]:
        """Let nothing linger any more. Returns the batches that were not sent yet."""
        parcels: list[ProducerBatch] = []
        for by_name in self._lanes:
            for lane in by_name.values():
                if lane.filling is not None:
                    self._close(lane, lane.filling)
                parcels += lane.full
        return [*self._flying, *parcels]

    def _end_lingering(self, now: float) -> None:
        lingering = self._lingering
        while lingering:
            parcel, lane = lingering[0]
            if lane.filling is parcel:
                if parcel.opened_at + self.limits.linger_s > now:
                    break
                # Where the lane is busy, it follows when that is free.
                self._enqueue(lane)
            lingering.popleft()

    def _end_waiting(self, now: float) -> None:
        for lane in [lane for lane in self._retrying if lane.retry_at <= now]:
            self._retrying.remove(lane)
            lane.retry_at = 0.0
            self._enqueue(lane)

    def next_at(self) -> float | None:
        """The next time at which `take` or `expired` may have something, if nothing else happens."""
        times = [lane.retry_at for lane in self._retrying]
        times += [parcel.deadline for parcel in self._flying]
        if self._lingering and len(self._flying) < self.limits.max_in_flight:
            times.append(self._lingering[0][0].opened_at + self.limits.linger_s)
        return min(times, default=None)

    # Outcomes

    def sent(
        self, parcel: ProducerBatch, first: int, appended_at_us: int, now: float, *, delayed: bool = False
    ) -> None:
        parcel.first = first
        parcel.delayed = delayed
        parcel.appended_at_us = appended_at_us
        lane = self._end_flight(parcel)
        lane.backoff = None
        self._finish(lane, parcel, now)

    def refused(self, parcel: ProducerBatch, error: TowlineError, now: float) -> bool:
        """It was refused. True if it will be tried again; before anything else of its lane."""
        lane = self._end_flight(parcel)
        if (error.retriable or isinstance(error, WrongShard)) and now < parcel.deadline:
            parcel.refusal = error
            lane.full.appendleft(parcel)
            lane.backoff = lane.backoff or Backoff(0.02, 1.0, eager=False)
            # Another broker takes it over in a moment.
            lane.retry_at = now + (0.1 if isinstance(error, NotOwner) else lane.backoff.next_s())
            self._retrying.append(lane)
            return True
        parcel.error = error
        self.note_failed([parcel])
        self._finish(lane, parcel, now)
        return False

    def reroute(self, parcel: ProducerBatch, shards: int) -> list[ProducerBatch]:
        """The topic has so many shards: all batches of the lane are dealt out to the right ones, in order. Messages
        that cannot be placed fail, each as a batch of its own; these are returned."""
        lane = self._end_flight(parcel)
        waiting = [parcel, *lane.full, *([lane.filling] if lane.filling is not None else [])]
        lane.full.clear()
        lane.filling = lane.backoff = None
        del lane.home[lane.name]
        failed: list[ProducerBatch] = []
        for one in waiting:
            one.count = one.count or len(one.bodies)
            self._release(one)
            one.move(self._placed(one, shards, failed))
        self.note_failed(failed)
        return failed

    def _placed(self, parcel: ProducerBatch, shards: int, failed: list[ProducerBatch]) -> list[P]:
        priority = "middle" if parcel.shards else LANES[parcel.lane]
        placed: list[P] = []
        for body, key, headers, at_us, dedup_id, shard_key, lives in parcel.columns():
            try:
                if shard_key is not None and not shards:
                    raise not_ordered(parcel.topic)
                placed.append(
                    self.add(
                        parcel.topic,
                        body,
                        key,
                        priority,
                        headers,
                        at_us,
                        dedup_id=dedup_id,
                        shards=shards,
                        shard_key=shard_key,
                        lives=lives,
                    )
                )
            except TowlineError as error:
                lost = ProducerBatch(parcel.topic, 0, parcel.opened_at, parcel.deadline)
                lost.count, lost.error = 1, error
                failed.append(lost)
                placed.append(self.pending(lost, 0))
        return placed

    # Failing

    def expired(self, now: float) -> list[ProducerBatch]:
        """Batches that are in flight for too long: the driver gives them up with `refused`. Those that wait to be tried
        again are seen when their turn comes."""
        return [parcel for parcel in self._flying if parcel.deadline <= now]

    def fail_all(self, error: TowlineError) -> list[ProducerBatch]:
        """Give up everything that has not been sent."""
        parcels = []
        for by_name in self._lanes:
            for lane in list(by_name.values()):
                waiting = [lane.in_flight, *lane.full, lane.filling]
                lane.in_flight = lane.filling = None
                lane.full.clear()
                for parcel in waiting:
                    if parcel is not None:
                        parcel.count = parcel.count or len(parcel.bodies)
                        parcel.error = error
                        parcels.append(parcel)
                        self._release(parcel)
            by_name.clear()
        self._flying.clear()
        self._ready.clear()
        self._retrying.clear()
        self._lingering.clear()
        self.note_failed(parcels)
        return parcels

    def note_failed(self, parcels: list[ProducerBatch]) -> None:
        """Remember them for `flush`."""
        self.failed += parcels
        if len(self.failed) > 2 * _FAILED_MAX:
            self.failed = [one for one in self.failed if not one.looked_at][:_FAILED_MAX]

    def take_failed(self) -> list[ProducerBatch]:
        """The batches that failed unnoticed, each reported once."""
        failed, self.failed = self.failed, []
        return [parcel for parcel in failed if not parcel.looked_at]

    def _end_flight(self, parcel: ProducerBatch) -> Lane:
        lane = self._flying.pop(parcel)
        lane.in_flight = None
        return lane

    def _finish(self, lane: Lane, parcel: ProducerBatch, now: float) -> None:
        self._release(parcel)
        filling = lane.filling
        if lane.full or (filling is not None and filling.opened_at + self.limits.linger_s <= now):
            self._enqueue(lane)
        elif lane.empty:
            del lane.home[lane.name]

    def _release(self, parcel: ProducerBatch) -> None:
        self.messages -= parcel.count
        self.bytes -= parcel.size


def expired(parcel: ProducerBatch) -> TowlineError:
    return parcel.refusal or Timeout(f"{parcel.count} messages for {parcel.topic} could not be delivered in time")


class ClusterAccumulator(Accumulator[P]):
    """An accumulator that batches can be taken out of, and put into."""

    def evacuate(
        self, never_left: Callable[[ProducerBatch], bool], moves: Callable[[str], bool] | None = None
    ) -> list[ProducerBatch]:
        """Take out what may go to another broker: all that is not in flight, and what `never_left`. Messages that are
        ordered, or have dedup ids, stay; unless all of their topic `moves`."""
        parcels: list[ProducerBatch] = []
        for by_name in self._lanes:
            if by_name is self._of_shards and moves is None:
                continue
            for lane in list(by_name.values()):
                if moves is not None and not moves(lane.topic):
                    continue
                flying = lane.in_flight
                if flying is not None and (moves is not None or not flying.pinned) and never_left(flying):
                    self._end_flight(flying)
                    lane.full.appendleft(flying)
                elif flying is not None and moves is not None:
                    # Later messages must not overtake it.
                    continue
                if lane.filling is not None:
                    lane.filling.count = len(lane.filling.bodies)
                    lane.full.append(lane.filling)
                    lane.filling = None
                leaving = [parcel for parcel in lane.full if moves is not None or not parcel.pinned]
                lane.full = deque(parcel for parcel in lane.full if parcel not in leaving)
                for parcel in leaving:
                    self._release(parcel)
                parcels += leaving
                if lane.empty and not lane.queued and not lane.retry_at:
                    del by_name[lane.name]
        return parcels

    def topics(self) -> set[str]:
        """Topics with batches that wait, or are in flight."""
        return {lane.topic for lane in self._every_lane()}

    def adopt(self, parcel: ProducerBatch) -> None:
        """Add a batch that could not be sent elsewhere."""
        parcel.refusal = None
        if parcel.shards:
            lane = self._shard_lane(parcel.topic, parcel.shards, parcel.lane, parcel.has_times)
        else:
            home = self._lanes[parcel.lane]
            lane = home.get(parcel.topic) or home.setdefault(parcel.topic, Lane(home, parcel.topic, parcel.lane))
        lane.full.append(parcel)
        self.messages += parcel.count
        self.bytes += parcel.size
        self._enqueue(lane)

    # A changed number of shards

    def returned(self, parcel: ProducerBatch) -> None:
        """It was refused, and waits in front of its lane, which is held."""
        lane = self._end_flight(parcel)
        parcel.refusal = None
        lane.full.appendleft(parcel)
        self.hold(parcel.topic)

    def hold(self, topic: str) -> None:
        """Send nothing of this topic for the moment."""
        if topic in self._held:
            return
        self._held |= {topic}
        self._ready = deque(lane for lane in self._ready if lane.topic != topic)
        self._retrying = [lane for lane in self._retrying if lane.topic != topic]
        for lane in self._every_lane():
            if lane.topic == topic:
                lane.queued, lane.retry_at = False, 0.0

    def let_go(self, topic: str) -> None:
        """Send it again."""
        if topic in self._held:
            self._held -= {topic}
            for lane in self._every_lane():
                if lane.topic == topic and not lane.empty:
                    self._enqueue(lane)

    def is_flying(self, topic: str, shards: int) -> bool:
        """Whether a batch of this topic is in flight by another number of shards."""
        return any(parcel.topic == topic and parcel.shards != shards for parcel in self._flying)

    def take_out(self, topic: str, shards: int) -> list[ProducerBatch]:
        """All waiting batches of this topic by another number of shards, lane by lane."""
        taken: list[ProducerBatch] = []
        for lane in self._every_lane():
            count = 0 if isinstance(lane.name, str) else lane.name[1]
            if lane.topic == topic and count != shards:
                taken += [*lane.full, *([lane.filling] if lane.filling is not None else [])]
                lane.full.clear()
                lane.filling = None
                if lane.empty:
                    del lane.home[lane.name]
        for parcel in taken:
            parcel.count = parcel.count or len(parcel.bodies)
            self._release(parcel)
        return taken

    def _every_lane(self) -> list[Lane]:
        return [lane for by_name in self._lanes for lane in by_name.values()]


def rearrange(
    topic: str, shards: int, exchanges: Mapping[str, ClusterAccumulator[P]], home: Callable[[int, bool], str]
) -> list[ProducerBatch] | None:
    """Put all waiting messages of a topic where they belong, now that it has so many shards. `home` returns their
    broker: of a shard, or where there are none, of a message that has a dedup id or not. Nothing is sent meanwhile, so
    that nothing overtakes earlier messages: None, and all is held, while something is still in flight.

    The messages that belong nowhere fail, each as a batch of its own; these are returned. To be called with the locks
    of all accumulators held.
    """
    for one in exchanges.values():
        one.hold(topic)
    if any(one.is_flying(topic, shards) for one in exchanges.values()):
        return None
    taken = [parcel for one in exchanges.values() for parcel in one.take_out(topic, shards)]
    failed: list[ProducerBatch] = []
    # By age: a batch that could not be sent to one broker may have gone on at another.
    for parcel in sorted(taken, key=lambda one: one.opened_at):
        parcel.move([_placed(parcel, columns, shards, exchanges, home, failed) for columns in parcel.columns()])
    for one in exchanges.values():
        one.let_go(topic)
    return failed


def _placed(  # noqa: PLR0917
    parcel: ProducerBatch,
    columns: tuple[Any, ...],
    shards: int,
    exchanges: Mapping[str, ClusterAccumulator[P]],
    home: Callable[[int, bool], str],
    failed: list[ProducerBatch],
) -> P:
    body, key, headers, at_us, dedup_id, shard_key, lives = columns
    topic, priority = parcel.topic, "middle" if parcel.shards else LANES[parcel.lane]
    try:
        if shard_key is not None and not shards:
            raise not_ordered(topic)
        shard = shard_of(topic, shards, key, shard_key, priority) if shards else 0
        target = exchanges[home(shard, dedup_id is not None)]
        placed = target.add(topic, body, key, priority, headers, at_us, dedup_id, shards, shard_key, lives)
    except TowlineError as error:
        lost = ProducerBatch(topic, 0, parcel.opened_at, parcel.deadline)
        lost.count, lost.error = 1, error
        failed.append(lost)
        return next(iter(exchanges.values())).pending(lost, 0)
    new: ProducerBatch = placed._parcel  # type: ignore[attr-defined]
    # A message that is sent from one to the other is not sent for ever.
    new.deadline = min(new.deadline, parcel.deadline)
    return placed


def give_up(topic: str, error: TowlineError, exchanges: Mapping[str, ClusterAccumulator[P]]) -> list[ProducerBatch]:
    """Nobody knows where the messages of a topic belong: all that wait fail. To be called with the locks held."""
    failed = [parcel for one in exchanges.values() for parcel in one.take_out(topic, -1)]
    for parcel in failed:
        parcel.error = error
    for one in exchanges.values():
        one.let_go(topic)
    return failed
