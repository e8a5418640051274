"""Messages that are to be stored together, gathered until then. Sans I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, TypeVar

from towline.client.outgoing import FOREVER, Body, Lives, as_bodies, as_body, as_dedup_id, as_headers, as_key, as_lane
from towline.errors import BadRequest, TooLarge
from towline.model import DELAY, LANES, Priority, Receipt, check_topic
from towline.protocol.messages import FrameHead

__all__ = ["FRAMES_MAX", "MESSAGES_MAX", "Draft", "place_before", "places"]

MESSAGES_MAX: Final = 100_000
FRAMES_MAX: Final = 200
"""Lanes that a transaction may touch: fewer than a broker remembers frames of one producer, so that it knows a
transaction that is sent again."""

T = TypeVar("T")

Frames = Callable[..., bytes | memoryview]
"""Makes a frame of bodies, keys, headers, dedup ids, times of delivery, and by name what few messages have."""

Place = tuple[str, int, bool]
"""Topic, lane, and whether the messages are delayed: those have a frame of their own."""


class _Lane:
    """The messages for one lane. What none of them has so far is no column."""

    __slots__ = ("bodies", "dedup_ids", "expiries_us", "headers", "keys", "timeouts_us", "times")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[str | None] = []
        self.headers: list[dict[str, str] | None] = []
        self.dedup_ids: list[str | None] = []
        self.times: list[int | None] = []
        self.expiries_us: list[int | None] = []
        self.timeouts_us: list[int | None] = []

    def lives(self) -> dict[str, list[int]]:
        """Columns of what few messages have."""
        count = len(self.bodies)
        given = {"expires_at_us": self.expiries_us, "timeouts_us": self.timeouts_us}
        return {
            name: [*(value or 0 for value in column), *[0] * (count - len(column))]
            for name, column in given.items()
            if column
        }

    def columns(self) -> tuple[list[bytes], Any, Any, Any, Any]:
        """All of them, or None; each as long as the bodies. Delayed messages are a lane of their own."""
        count = len(self.bodies)
        others = (self.keys, self.headers, self.dedup_ids)
        keys, headers, ids = [[*column, *[None] * (count - len(column))] if column else None for column in others]
        return self.bodies, keys, headers, ids, self.times or None


class Draft:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lanes: dict[Place, _Lane] = {}
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
        lives: Lives = FOREVER,
    ) -> int:
        """Add a message; its number within the draft. What is refused leaves the draft as it was."""
        lane, packed, named = as_lane(priority), as_body(body), as_headers(headers)
        as_key(key)
        as_dedup_id(dedup_id)
        place = (check_topic(topic), lane, bool(deliver_at_us))
        # The least that it takes; what was made of it is measured before it is sent.
        size = len(packed) + len(key or "") + len(dedup_id or "")
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
        _put(messages.timeouts_us, lives.timeout_us or None, count)
        messages.bodies.append(packed)
        self._places.append((messages, count))
        self._size += size
        return len(self._places) - 1

    def add_many(self, topic: str, bodies: Sequence[Body], *, priority: Priority) -> range:
        """Add many messages that have nothing but bodies; their numbers within the draft."""
        place, packed = (check_topic(topic), as_lane(priority), False), as_bodies(bodies)
        size = sum(map(len, packed))
        if packed:
            self._check_room(place, len(packed), size)
            lane = self._lanes.setdefault(place, _Lane())
            count = len(lane.bodies)
            lane.bodies += packed
            self._places += zip(repeat(lane), range(count, count + len(packed)), strict=False)
            self._size += size
        return range(len(self._places) - len(packed), len(self._places))

    def _check_room(self, place: Place, count: int, size: int) -> None:
        if len(self._places) + count > MESSAGES_MAX:
            raise TooLarge(f"a transaction holds at most {MESSAGES_MAX:,} messages: commit it, and begin another")
        if place not in self._lanes and len(self._lanes) >= FRAMES_MAX:
            raise TooLarge(f"a transaction touches at most {FRAMES_MAX} lanes (a topic has one for each priority)")
        if self._size + size > self._max_bytes:
            raise _too_many_bytes(self._max_bytes)

    def frames(self, make: Frames) -> tuple[list[FrameHead], list[bytes | memoryview]]:
        """One frame for each lane, and one for what is delayed on it, in the order in which they were first sent to."""
        frames = [make(*lane.columns(), **lane.lives()) for lane in self._lanes.values()]
        if sum(map(len, frames)) > self._max_bytes:
            raise _too_many_bytes(self._max_bytes)
        heads = [FrameHead(*place[:2], len(frame)) for place, frame in zip(self._lanes, frames, strict=True)]
        return heads, frames

    def receipts(
        self,
        firsts: Sequence[int],
        at_us: int,
        repeats: Sequence[tuple[int, int, int, int, int]],
        delayed: Sequence[int],
    ) -> list[Receipt]:
        """Where each message is, in the order in which they were sent."""
        if len(firsts) != len(self._lanes):
            raise BadRequest(f"{len(firsts)} frames were stored of {len(self._lanes)}")
        found: dict[_Lane, list[Receipt]] = {}
        for n, ((topic, lane, _), messages) in enumerate(self._lanes.items()):
            mine = [repeat for repeat in repeats if repeat[0] == n]
            found[messages] = [
                Receipt(topic, at, seq, when)
                for at, seq, when in places(lane, firsts[n], len(messages.bodies), at_us, mine, delayed=n in delayed)
            ]
        return [found[lane][index] for lane, index in self._places]


def _put(column: list[T | None], value: T | None, count: int) -> None:
    """Note a value of message number `count`; those before it may have none, and then take no room."""
    if value is not None:
        column += [None] * (count - len(column))
        column.append(value)


def places(
    lane: int,
    first: int,
    count: int,
    at_us: int,
    repeats: Sequence[tuple[int, int, int, int, int]],
    *,
    delayed: bool = False,
) -> list[tuple[str, int, int]]:
    """Lane, sequence number and time of each message of a frame, some of which may have come before."""
    name = DELAY if delayed else LANES[lane]
    if not repeats:
        return [(name, seq, at_us) for seq in range(first, first + count)]
    before = {index: place_before(at, seq, when) for _, index, at, seq, when in repeats}
    found: list[tuple[str, int, int]] = []
    seq = first
    for index in range(count):
        known = before.get(index)
        found.append(known or (name, seq, at_us))
        seq += known is None
    return found


def place_before(lane: int, seq: int, at_us: int) -> tuple[str, int, int]:
    """Where a message is that came before: below 0 the number is one of a delayed message's."""
    return (LANES[lane], seq, at_us) if seq >= 0 else (DELAY, ~seq, at_us)


def _too_many_bytes(limit: int) -> TooLarge:
    return TooLarge(
        f"a transaction holds at most {limit:,} bytes, because it is stored as one unit: send less in one, or raise "
        "max_frame_bytes of the broker"
    )
