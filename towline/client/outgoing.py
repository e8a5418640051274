"""What a user gives us to send, checked; and who it is that sends."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from towline.clock import SYSTEM, Clock
from towline.errors import BadRequest, TooLarge
from towline.frame import TOKEN_MAX, encode
from towline.model import LANES, MAX_SHARDS, Durability, Priority

__all__ = [
    "FRAME_BYTES",
    "FRAME_MESSAGES",
    "Body",
    "Sender",
    "as_bodies",
    "as_body",
    "as_durability",
    "as_headers",
    "as_key",
    "as_lane",
    "as_time_us",
]

FRAME_MESSAGES: Final = 10_000
FRAME_BYTES: Final = 1 << 20
"""Frames are filled up to about this, unless one message alone is larger."""

TTL_MAX_S: Final = 100 * 366 * 86400

Body = bytes | bytearray | memoryview

_LANE_NUMBERS: Final[dict[str | int, int]] = {lane: number for number, lane in enumerate(LANES)}


def as_body(body: Body) -> bytes:
    if type(body) is bytes:
        return body
    if isinstance(body, str):
        raise TypeError("a body is bytes, not str: encode the text first, for example with body.encode()")
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(f"a body is bytes, bytearray or memoryview, not {type(body).__name__}")
    return bytes(body)


def as_bodies(bodies: Sequence[Body]) -> Sequence[bytes]:
    if isinstance(bodies, bytes | bytearray | memoryview | str):
        raise TypeError(f"send_many takes a sequence of bodies, not one {type(bodies).__name__}")
    if not isinstance(bodies, list | tuple):
        bodies = list(bodies)
    if set(map(type, bodies)) <= {bytes}:
        return bodies  # type: ignore[return-value]
    return [as_body(body) for body in bodies]


def as_lane(priority: Priority | int) -> int:
    """The number of a lane: of a priority, or a shard by its number."""
    lane = _LANE_NUMBERS.get(priority)
    if lane is None:
        if type(priority) is int and 0 <= priority < MAX_SHARDS:
            return priority
        raise BadRequest(f"priority {priority!r} is not one of high, middle, low")
    return lane


def as_durability(durability: Durability | str | None) -> int:
    if durability is None:
        return -1
    return int(Durability.parse(durability)) if isinstance(durability, str) else int(Durability(durability))


def as_key(key: str | None) -> str | None:
    if key is None:
        return None
    if type(key) is not str:
        raise TypeError(f"a key is a str, not {type(key).__name__}")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"a key is not valid text: {error.reason}") from None
    return key


def as_headers(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """A copy, so that a later change of the caller's does not change what is sent."""
    if not headers:
        return None
    try:
        return msgspec.convert(dict(headers), dict[str, str])
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise BadRequest(f"headers are strings by name: {error}") from None


def as_time_us(time: datetime | float) -> int:
    """A time, or seconds since 1970, in microseconds."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise BadRequest("a time needs its time zone: datetime.now(UTC), for example")
        time = time.timestamp()
    return max(0, round(time * 1_000_000))


class Sender:
    """Who sends: each frame carries its producer's id and a number of its own, by which the broker knows it again."""

    __slots__ = ("_clock", "_numbers", "_token", "id")

    def __init__(self, token: str = "", clock: Clock = SYSTEM) -> None:
        packed = token.encode()
        if len(packed) > TOKEN_MAX:
            raise TooLarge(f"a token is at most {TOKEN_MAX} bytes long, not {len(packed)}")
        self.id = secrets.randbits(63) or 1
        self._numbers = itertools.count(1)
        self._token = packed
        self._clock = clock

    def expiry_us(self, ttl_s: float | None) -> int:
        """When a message that is sent now ceases to be of use; 0 is never."""
        if ttl_s is None:
            return 0
        if not 0 < ttl_s <= TTL_MAX_S:
            raise BadRequest(f"ttl={ttl_s}: give the seconds that a message lives, more than 0 and up to 100 years")
        return self._clock.now_us() + round(ttl_s * 1_000_000)

    def frame(
        self,
        bodies: Any,
        keys: Any = None,
        headers: Any = None,
        compress: bool = False,
        *,
        shard_keys: Any = None,
        expires_at_us: Any = None,
    ) -> bytes:
        return encode(
            bodies,
            keys=keys,
            headers=headers,
            shard_keys=shard_keys,
            expires_at_us=expires_at_us,
            producer_id=self.id,
            producer_seq=next(self._numbers),
            produced_at_us=self._clock.now_us(),
            token=self._token,
            compress=compress,
        )
