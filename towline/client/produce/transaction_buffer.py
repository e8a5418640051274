"""The messages of a transaction, gathered until they are sent. Sans I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeVar

from towline.client.produce.encode import (
    FOREVER,
    Body,
    Lifetimes,
    as_bodies,
    as_body,
    as_dedup_id,
    as_headers,
    as_key,
    as_lane,
)
from towline.client.produce.receipts import places
from towline.client.produce.sharding import not_ordered, shards_by_key
from towline.errors import BadRequest, TooLarge
from towline.model import LANES, Priority, Receipt, check_topic
from towline.protocol.messages import FrameHead

__all__ = ["FRAMES_MAX", "MESSAGES_MAX", "TransactionBuffer"]

MESSAGES_MAX: Final = 100_000
FRAMES_MAX: Final = 200
"""Lanes that a transaction may touch: fewer than a broker remembers frames of one producer, so that it recognises a
transaction that is sent again."""

T = TypeVar("T")

Frames = Callable[..., bytes | memoryview]
"""Makes a frame of bodies, keys, headers, dedup ids, times of delivery, and by name the less usual columns."""

Place = tuple[str, int, bool]
"""Topic, priority, and whether the messages are delayed: those have a frame of their own."""


class _Lane:
    """The messages of one topic and priority. A column that none of them has so far is absent."""

    __slots__ = ("bodies", "dedup_ids", "expiries_us", "headers", "keys", "limits", "shard_keys", "times")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[str | None] = []
        self.headers: list[dict[str, str] | None] = []
        self.dedup_ids: list[str | None] = []
        self.times: list[int | None] = []
        self.expiries_us: list[int | None] = []
        self.limits: list[int | None] = []
        self.shard_keys: list[str | None] = []

    def lives(self, numbers: Sequence[int]) -> dict[str, Any]:
        """The less usual columns of these messages."""
        given = {"expires_at_us": self.expiries_us, "limits": self.limits}
        found: dict[str, Any] = {
            name: [value or 0 for value in _some(column, numbers)] for name, column in given.items() if column
        }
        return found | {"shard_keys": _some(self.shard_keys, numbers)} if self.shard_keys else found

    def columns(self, numbers: Sequence[int]) -> tuple[list[bytes], Any, Any, Any, Any]:
        """All columns, or None; each as long as the bodies. Delayed messages are a lane of their own."""
        bodies = self.bodies if len(numbers) == len(self.bodies) else [self.bodies[number] for number in numbers]
        others = (self.keys, self.headers, self.dedup_ids, self.times)
        keys, headers, ids, times = [_some(column, numbers) if column else None for column in others]
        return bodies, keys, headers, ids, times

    def by_shard(self, topic: str, shards: int, priority: int) -> dict[int, list[int]]:
        """The messages of each shard."""
        everything = range(len(self.bodies))
        own, keys = (_some(column, everything) for column in (self.shard_keys, self.keys))
        chosen = [key if one is None else one for one, key in zip(own, keys, strict=True)]
        found: dict[int, list[int]] = {}
        for number, shard in enumerate(shards_by_key(topic, shards, chosen, LANES[priority])):
            found.setdefault(shard, []).append(number)
        return found


class _Part(NamedTuple):
    """The messages of one frame."""

    topic: str
    lane: int
    shards: int
    messages: _Lane
    numbers: Sequence[int]


class TransactionBuffer:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lanes: dict[Place, _Lane] = {}
        self._parts: list[_Part] = []
        self._places: list[tuple[_Lane, int]] = []
        self._size = 0

    def __len__(self) -> int:
        """The number of messages."""
        return len(self._places)

    def add(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None,
        priority: Priority,
        headers: Mapping[str, str] | None,
        dedup_id: str | None,
        deliver_at_us: int = 0,
        lives: Lifetimes = FOREVER,
        shard_key: str | None = None,
    ) -> int:
        """Add a message; returns its index. A message that is refused leaves the buffer as it was."""
        lane, packed, named = as_lane(priority), as_body(body), as_headers(headers)
        as_key(key)
        as_key(shard_key)
        as_dedup_id(dedup_id)
        place = (check_topic(topic), lane, bool(deliver_at_us))
        # The least that it takes; the encoded request is measured before it is sent.
        size = len(packed) + len(key or "") + len(dedup_id or "") + len(shard_key or "")
        if named is not None:
            size += sum(len(name) + len(value) for name, value in named.items())
        self._check_room(place, 1, size)
        messages = self._lanes.setdefault(place, _Lane())
        count = len(messages.bodies)
        _put(messages.keys, key, count)
        _put(messages.headers, named, count)
        _put(messages.dedup_ids, dedup_id, count)
        _put(messages.times, deliver_at_us or None, count)
        _put(messages.expiries_us, lives.expires_at_us or None, count)
        _put(messages.limits, lives.limit or None, count)
        _put(messages.shard_keys, shard_key, count)
        messages.bodies.append(packed)
        self._places.append((messages, count))
        self._size += size
        return len(self._places) - 1

    def add_many(
        self,
        topic: str,
        bodies: Sequence[Body],
        *,
        priority: Priority,
        keys: Sequence[str | None] | None = None,
        shard_keys: Sequence[str | None] | None = None,
    ) -> range:
        """Add many messages that have at most keys besides their bodies; returns their indices."""
        place, packed = (check_topic(topic), as_lane(priority), False), as_bodies(bodies)
        size = sum(map(len, packed))
        for name, column in (("keys", keys), ("shard keys", shard_keys)):
            if column is not None and len(column) != len(packed):
                raise BadRequest(f"{len(column)} {name} for {len(packed)} bodies")
            size += sum(len(as_key(key) or "") for key in column or ())
        if packed:
            self._check_room(place, len(packed), size)
            lane = self._lanes.setdefault(place, _Lane())
            count = len(lane.bodies)
            for mine, given in ((lane.keys, keys), (lane.shard_keys, shard_keys)):
                if given is not None:
                    mine.extend([*[None] * (count - len(mine)), *given])
            lane.bodies += packed
            self._places += zip(repeat(lane), range(count, count + len(packed)), strict=False)
            self._size += size
        return range(len(self._places) - len(packed), len(self._places))

    def _check_room(self, place: Place, count: int, size: int) -> None:
        if len(self._places) + count > MESSAGES_MAX:
            raise TooLarge(f"a transaction holds at most {MESSAGES_MAX:,} messages: commit it, and begin another")
        if place not in self._lanes and len(self._lanes) >= FRAMES_MAX:
            raise _too_many_lanes()
        if self._size + size > self._max_bytes:
            raise _too_many_bytes(self._max_bytes)

    def topics(self) -> dict[str, bool]:
        """The topics; and whether any message has a shard key, so that it must be an ordered topic."""
        found: dict[str, bool] = {}
        for (topic, _, _), messages in self._lanes.items():
            found[topic] = found.get(topic, False) or bool(messages.shard_keys)
        return found

    def place(self, shards_of: Callable[[str], int | None]) -> list[tuple[str, int]]:
        """Find the lane of each message, given the shard counts of topics. Returns the shards that are touched: topic
        and number."""
        parts: list[_Part] = []
        for (topic, lane, _), messages in self._lanes.items():
            shards = shards_of(topic) or 0
            if shards:
                found = messages.by_shard(topic, shards, lane)
                parts += [_Part(topic, shard, shards, messages, numbers) for shard, numbers in found.items()]
            elif messages.shard_keys:
                raise not_ordered(topic)
            else:
                parts.append(_Part(topic, lane, 0, messages, range(len(messages.bodies))))
        if len(parts) > FRAMES_MAX:
            raise _too_many_lanes()
        self._parts = parts
        return [(part.topic, part.lane) for part in parts if part.shards]

    def frames(self, make: Frames) -> tuple[list[FrameHead], list[bytes | memoryview]]:
        """One frame for each lane, and one for its delayed messages, in the order in which they were first sent to;
        with their places."""
        parts = self._parts
        frames = [make(*part.messages.columns(part.numbers), **part.messages.lives(part.numbers)) for part in parts]
        if sum(map(len, frames)) > self._max_bytes:
            raise _too_many_bytes(self._max_bytes)
        heads = [
            FrameHead(one.topic, one.lane, len(frame), one.shards) for one, frame in zip(parts, frames, strict=True)
        ]
        return heads, frames

    def receipts(
        self,
        firsts: Sequence[int],
        at_us: int,
        repeats: Sequence[tuple[int, int, int, int, int]],
        delayed: Sequence[int],
    ) -> list[Receipt]:
        """The receipts, in the order in which the messages were sent."""
        if len(firsts) != len(self._parts):
            raise BadRequest(f"{len(firsts)} frames were stored of {len(self._parts)}")
        found: dict[_Lane, dict[int, Receipt]] = {}
        for n, (topic, lane, shards, messages, numbers) in enumerate(self._parts):
            mine = [repeat for repeat in repeats if repeat[0] == n]
            where = places(lane, firsts[n], len(numbers), at_us, mine, delayed=n in delayed, shards=shards)
            receipts = found.setdefault(messages, {})
            for number, (at, seq, when) in zip(numbers, where, strict=True):
                receipts[number] = Receipt(topic, at, seq, when)
        return [found[lane][index] for lane, index in self._places]


def _put(column: list[T | None], value: T | None, count: int) -> None:
    """Note a value of message number `count`; those before it may have none, and then take no room."""
    if value is not None:
        column += [None] * (count - len(column))
        column.append(value)


def _some(column: Sequence[T | None], numbers: Sequence[int]) -> list[T | None]:
    """The values of these messages; behind its last value a column has none."""
    if len(column) == len(numbers):
        return list(column)
    return [column[number] if number < len(column) else None for number in numbers]


def _too_many_lanes() -> TooLarge:
    return TooLarge(
        f"a transaction touches at most {FRAMES_MAX} lanes (a topic has one for each priority, or one for each shard)"
    )


def _too_many_bytes(limit: int) -> TooLarge:
    return TooLarge(
        f"a transaction holds at most {limit:,} bytes, because it is stored as one unit: send less in one, or raise "
        "max_frame_bytes of the broker"
    )
