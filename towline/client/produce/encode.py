"""Encoding: messages of the user, checked and made into frames; and the producer id in them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from towline.client.link.connection import Buffer
from towline.clock import SYSTEM, Clock
from towline.errors import BadRequest, TooLarge
from towline.frame import TOKEN_MAX, encode, encode_frame
from towline.frame.encode import encode_columns, encode_single
from towline.frame.layout import limit_of, unpacked_bytes
from towline.frame.many import Series
from towline.model import LANES, MAX_SHARDS, Durability, Priority

__all__ = [
    "FOREVER",
    "FRAME_BYTES",
    "FRAME_MESSAGES",
    "Body",
    "Columns",
    "FrameEncoder",
    "Lifetimes",
    "as_bodies",
    "as_body",
    "as_dedup_id",
    "as_durability",
    "as_headers",
    "as_key",
    "as_keys",
    "as_lane",
    "as_lives",
    "as_sought_key",
    "as_time_us",
    "too_large",
]


FRAME_MESSAGES: Final = 10_000
FRAME_BYTES: Final = 1 << 20
"""Frames are filled up to about this, unless one message alone is larger."""

TTL_MAX_S: Final = 100 * 366 * 86400
TIMEOUT_MAX_S: Final = 86400
ATTEMPTS_MAX: Final = 10_000

Body = bytes | bytearray | memoryview

DEDUP_ID_MAX: Final = 200
"""Bytes of a dedup id that a broker takes."""

SOUGHT_MAX: Final = 8192

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
    bodies = tuple(bodies)  # the caller may change its list while the first of many frames is on its way
    if set(map(type, bodies)) <= {bytes}:
        return bodies  # type: ignore[return-value]
    return tuple([as_body(body) for body in bodies])


def as_lane(priority: Priority | int) -> int:
    """The number of a lane: of a priority, or a shard by its number."""
    lane = _LANE_NUMBERS.get(priority)
    if lane is None:
        if type(priority) is int and 0 <= priority < MAX_SHARDS:
            return priority
        raise BadRequest(f"priority {priority!r} is not one of high, middle, low")
    return lane


_DURABILITIES: Final[dict[object, int]] = {None: -1} | {each.name.lower(): int(each) for each in Durability}


def as_durability(durability: Durability | str | None) -> int:
    try:
        known = _DURABILITIES.get(durability)
        if known is not None:
            return known
        assert durability is not None, "None is known"
        return int(Durability.parse(durability) if isinstance(durability, str) else Durability(durability))
    except (TypeError, ValueError):
        raise BadRequest(f"durability {durability!r} is not one of fsync, os, received") from None


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


def as_sought_key(key: str | None) -> str:
    """A key to search for; empty is none."""
    sought = as_key(key) or ""
    if len(sought) > SOUGHT_MAX:
        raise BadRequest(f"a key of {len(sought)} characters: those of up to {SOUGHT_MAX} can be looked for")
    return sought


def as_keys(keys: Sequence[str | None]) -> Sequence[str | None]:
    """Several keys: nothing is done for each where all are plain."""
    keys = keys if isinstance(keys, list | tuple) else list(keys)
    if set(map(type, keys)) == {str} and "".join(keys).isascii():  # type: ignore[arg-type]
        return keys
    return [as_key(key) for key in keys]


def as_dedup_id(dedup_id: str | None) -> str | None:
    if dedup_id is None:
        return None
    if type(dedup_id) is not str:
        raise TypeError(f"a dedup id is a str, not {type(dedup_id).__name__}")
    try:
        length = len(dedup_id.encode())
    except UnicodeEncodeError as error:
        raise BadRequest(f"a dedup id is not valid text: {error.reason}") from None
    if not 0 < length <= DEDUP_ID_MAX:
        raise BadRequest(f"a dedup id has 1 to {DEDUP_ID_MAX} bytes, not {length}: use a hash of a longer one")
    return dedup_id


def as_headers(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """A copy, so that a later change of the caller's does not change what is sent."""
    if not headers:
        return None
    try:
        copied = msgspec.convert(dict(headers), dict[str, str])
        for text in (*copied, *copied.values()):
            if not text.isascii():
                text.encode()
    except (TypeError, ValueError):  # msgspec's error is a ValueError
        raise BadRequest(f"headers are strings by name{_wrong_header(headers)}") from None
    return copied


def _wrong_header(headers: object) -> str:
    if not isinstance(headers, Mapping):
        return f", not {type(headers).__name__}"
    for name, value in headers.items():
        for each in (name, value):
            if not isinstance(each, str):
                return f": header {name!r} has {type(each).__name__} in place of str"
            if each.encode("utf-8", "replace").decode() != each:
                return f": header {name!r} is not valid text"
    return ""


def as_time_us(time: datetime | float) -> int:
    """A time, or seconds since 1970, in microseconds."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise BadRequest("a time needs its time zone: datetime.now(UTC), for example")
        time = time.timestamp()
    elif not isinstance(time, int | float):
        raise TypeError(f"a time is a datetime or the seconds since 1970, not {type(time).__name__}")
    return max(0, round(time * 1_000_000))


class Lifetimes(NamedTuple):
    """The lifetime of a message, and how long and how often it may be worked on; 0 is the group's setting, or no
    limit."""

    expires_at_us: int = 0
    limit: int = 0
    """The timeout and the number of attempts, as frames hold them."""

    def columns(self, count: int) -> dict[str, list[int]]:
        """The columns of so many messages with the same lifetime."""
        found = {}
        if self.expires_at_us:
            found["expires_at_us"] = [self.expires_at_us] * count
        if self.limit:
            found["limits"] = [self.limit] * count
        return found


FOREVER: Final = Lifetimes()


def as_lives(ttl_s: float | None, timeout_s: float | None, attempts: int | None, clock: Clock = SYSTEM) -> Lifetimes:
    """The lifetime, timeout and attempts of a message that is sent now."""
    if ttl_s is None and timeout_s is None and attempts is None:
        return FOREVER
    if ttl_s is not None and not 0 < ttl_s <= TTL_MAX_S:
        raise BadRequest(f"ttl={ttl_s}: give the seconds that a message lives, more than 0 and up to 100 years")
    if timeout_s is not None and not 0 < timeout_s <= TIMEOUT_MAX_S:
        raise BadRequest(f"timeout={timeout_s}: give the seconds that a handler may take, more than 0 and up to a day")
    if attempts is not None and not (type(attempts) is int and 1 <= attempts <= ATTEMPTS_MAX):
        raise BadRequest(f"attempts={attempts}: give how often the message is tried in all, from 1 to {ATTEMPTS_MAX:,}")
    expires_at_us = 0 if ttl_s is None else clock.now_us() + round(ttl_s * 1_000_000)
    timeout_us = 0 if timeout_s is None else max(round(timeout_s * 1_000_000), 1)
    return Lifetimes(expires_at_us, limit_of(timeout_us, attempts or 0))


class FrameEncoder:
    """Encodes frames: each carries its producer's id and a number of its own, by which the broker recognises it."""

    __slots__ = ("_clock", "_numbers", "_token", "id")

    def __init__(self, token: str = "", clock: Clock = SYSTEM) -> None:
        packed = token.encode()
        if len(packed) > TOKEN_MAX:
            raise TooLarge(f"a token is at most {TOKEN_MAX} bytes long, not {len(packed)}")
        self.id = secrets.randbits(63) or 1
        self._numbers = itertools.count(1)
        self._token = packed
        self._clock = clock

    def lives(self, ttl_s: float | None, timeout_s: float | None, attempts: int | None = None) -> Lifetimes:
        """The expiry, the timeout and the attempts of messages that are sent now."""
        return as_lives(ttl_s, timeout_s, attempts, self._clock)

    def single(self, body: bytes) -> bytes:
        """The frame of a short message that has a body only."""
        return encode_single(body, self.id, next(self._numbers), self._clock.now_us(), self._token)

    def frame(  # noqa: PLR0917 - called for every message: names would cost
        self,
        bodies: Any,
        keys: Any = None,
        headers: Any = None,
        compress: bool = False,
        dedup_ids: Any = None,
        deliver_at_us: Sequence[int] | None = None,
        *,
        shard_keys: Any = None,
        expires_at_us: Any = None,
        limits: Any = None,
        sizes: Sequence[int] | None = None,
    ) -> bytes | memoryview:
        return encode_frame(
            bodies,
            keys=keys,
            headers=headers,
            dedup_ids=dedup_ids,
            deliver_at_us=deliver_at_us,
            shard_keys=shard_keys,
            expires_at_us=expires_at_us,
            limits=limits,
            producer_id=self.id,
            producer_seq=next(self._numbers),
            produced_at_us=self._clock.now_us(),
            token=self._token,
            compress=compress,
            reuse=True,
            sizes=sizes,
        )

    def series(
        self, groups: Sequence[Sequence[int]], bodies: Sequence[bytes], lives: Lifetimes, **columns: Any
    ) -> tuple[memoryview, list[int]]:
        """Frames of the messages at these indices, back to back, and their lengths: cheaper than one by one."""
        expires_at_us, limit = lives
        series = Series(groups, bodies, expires_at_us=expires_at_us, limit=limit, token=self._token, **columns)
        return series.frames(self.id, self._numbers, self._clock.now_us())

    def loose_frame(
        self,
        bodies: Sequence[bytes],
        keys: Any,
        headers: Any,
        dedup_ids: Any,
        deliver_at_us: Sequence[int] | None,
        **lives: Any,
    ) -> bytes:
        """A frame without a number: something else ensures that it is stored once."""
        return encode(
            bodies,
            keys=keys,
            headers=headers,
            dedup_ids=dedup_ids,
            deliver_at_us=deliver_at_us,
            produced_at_us=self._clock.now_us(),
            token=self._token,
            **lives,
        )

    def frame_again(
        self, texts: Mapping[int, Sequence[bytes]], numbers: Mapping[int, Sequence[int]], produced_at_us: int
    ) -> bytes:
        """A frame of messages that were sent before, by anybody: its columns by their flags, and the time at which they
        were produced, or the last of them."""
        return encode_columns(
            texts,
            numbers,
            producer_id=self.id,
            producer_seq=next(self._numbers),
            produced_at_us=produced_at_us,
            token=self._token,
            compress=False,
        )


class Columns:
    """Columns of many messages, cut into frames that fit."""

    def __init__(
        self,
        bodies: Sequence[bytes],
        keys: Any,
        headers: Any,
        dedup_ids: Any,
        times: Sequence[int] | None,
        *,
        max_frame_bytes: int,
        lives: Lifetimes = FOREVER,
        valid_keys: bool = False,
    ) -> None:
        """`valid_keys`: the keys were checked before."""
        self.lives = lives
        for name, column in (("keys", keys), ("headers", headers), ("dedup_ids", dedup_ids)):
            if column is not None and not isinstance(column, Mapping) and len(column) != len(bodies):
                raise BadRequest(f"{len(column)} {name} for {len(bodies)} bodies")
        self.bodies = bodies
        self.sizes = list(map(len, bodies))
        self.times = times
        self.keys = keys if keys is None or valid_keys else as_keys(keys)
        self.dedup_ids = dedup_ids if dedup_ids is None else [as_dedup_id(one) for one in dedup_ids]
        if isinstance(headers, Mapping):
            self.headers = [as_headers(headers)] * len(bodies) if headers else None
        else:
            self.headers = headers if headers is None else [as_headers(value) for value in headers]
        self.limit = max_frame_bytes

    def frames(self, sender: FrameEncoder, compress: bool) -> Iterator[tuple[Buffer, int]]:
        for begin, end in self.cuts():
            yield from self._encoded(sender, compress, begin, end)

    def cuts(self, frames: int = 1) -> Iterator[tuple[int, int]]:
        """The places of the cuts, if what is between two of them goes into so many frames."""
        sizes, limit, most = self.sizes, min(frames * FRAME_BYTES, self.limit), frames * FRAME_MESSAGES
        if len(sizes) <= most and sum(sizes) <= limit:
            if sizes:
                yield 0, len(sizes)
            return
        begin = total = 0
        for at, size in enumerate(sizes):
            if at > begin and (total + size > limit or at - begin >= most):
                yield begin, at
                begin, total = at, 0
            total += size
        yield begin, len(sizes)

    def _encoded(self, sender: FrameEncoder, compress: bool, begin: int, end: int) -> Iterator[tuple[Buffer, int]]:
        whole = begin == 0 and end == len(self.bodies)
        bodies, sizes = (self.bodies, self.sizes) if whole else (self.bodies[begin:end], self.sizes[begin:end])
        keys = self.keys if whole or self.keys is None else self.keys[begin:end]
        headers = self.headers if whole or self.headers is None else self.headers[begin:end]
        dedup_ids = self.dedup_ids if whole or self.dedup_ids is None else self.dedup_ids[begin:end]
        times = self.times if whole or self.times is None else self.times[begin:end]
        lives = self.lives.columns(end - begin)
        frame = sender.frame(bodies, keys, headers, compress, dedup_ids, times, sizes=sizes, **lives)
        if unpacked_bytes(frame) <= self.limit:
            yield frame, end - begin
            return
        # Keys and headers were not counted. Where they are large, halves will do.
        if end - begin == 1:
            raise too_large(len(bodies[0]), self.limit)
        middle = (begin + end) // 2
        yield from self._encoded(sender, compress, begin, middle)
        yield from self._encoded(sender, compress, middle, end)


def too_large(body_bytes: int, limit: int) -> TooLarge:
    return TooLarge(
        f"a message of {body_bytes} bytes is over the broker's limit of {limit} bytes a request (max_frame_bytes)"
    )
