"""Frames in, an Arrow batch out: column by column, without a loop over messages.

`MESSAGES` names every column of a message; a batch is made of those columns that are asked for, and nothing is done for
the others. A batch joins as many frames as it is given.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from towline.errors import BadFrame, BadRequest
from towline.frame import Frame, decode_headers
from towline.frame.layout import (
    BODY,
    DEDUP,
    DELIVER_AT,
    EXPIRES_AT,
    HEADERS,
    KEY,
    LIMIT,
    PRODUCED_AT,
    SHARD_KEY,
    TIMEOUT_BITS,
)
from towline.model import DIED_AT, DIED_ATTEMPT, DIED_ORIGIN, DIED_REASON, LANES

__all__ = ["DEAD", "MESSAGES", "NEVER_NULL", "OWN", "Origin", "Records", "chosen", "message_batch", "text_array"]

TIME: Final = pa.timestamp("us", tz="UTC")
TEXTS: Final = pa.map_(pa.string(), pa.string())

MESSAGES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("lane", pa.string()),
        ("seq", pa.int64()),
        ("id", pa.string()),
        ("key", pa.string()),
        ("body", pa.binary()),
        ("headers", TEXTS),
        ("appended_at", TIME),
        ("produced_at", TIME),
        ("priority", pa.string()),
        ("shard", pa.int32()),
        ("shard_key", pa.string()),
        ("dedup_id", pa.string()),
        ("deliver_at", TIME),
        ("expires_at", TIME),
        ("timeout_s", pa.float64()),
        ("attempt", pa.int32()),
        ("source", pa.string()),
        ("token", pa.string()),
        ("producer_id", pa.int64()),
        ("producer_seq", pa.int64()),
        ("broker", pa.string()),
    ]
)
"""Every column of a message. `body` may also be asked for as a string. `attempt` is filled in where a group is named:
see `attempt_column.py`."""

NEVER_NULL: Final = frozenset(("topic", "lane", "seq", "id", "body", "appended_at"))
"""Columns that every message has. Spark does not look for nulls in columns that are declared to have none, which makes
rows cheaper; files of the archive do not declare it."""

DEAD: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("group", pa.string()),
        ("number", pa.int64()),
        ("origin", pa.string()),
        ("key", pa.string()),
        ("body", pa.binary()),
        ("headers", TEXTS),
        ("attempt", pa.int32()),
        ("reason", pa.string()),
        ("died_at", TIME),
        ("broker", pa.string()),
    ]
)
"""Dead letters: `origin` is the id of the original message."""

OWN: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("group", pa.string()),
        *[(field.name, field.type) for field in MESSAGES if field.name not in ("topic", "id", "attempt", "shard")],
        ("origin", pa.string()),
    ]
)
"""Messages of a group's own lanes: dead letters that were sent again, and messages handed over from a broker that was
away. `origin` is the id of the original message."""


class Origin(NamedTuple):
    """The common values of all messages of a batch."""

    topic: str
    lane: str = ""
    group: str = ""
    broker: str = ""


class Records(Protocol):
    """Some records of one frame, as stores and brokers give them."""

    @property
    def first(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def frame(self) -> bytes | memoryview: ...
    @property
    def appended_at_us(self) -> int: ...
    @property
    def source(self) -> bytes: ...


def chosen(full: pa.Schema, names: Sequence[str] | None) -> pa.Schema:
    """The columns of these names, in this order; all of them for None."""
    if names is None:
        return full
    unknown = [name for name in names if name not in full.names]
    if unknown:
        raise BadRequest(f"there is no column {unknown[0]!r}: there are {', '.join(full.names)}")
    return pa.schema([full.field(name) for name in names])


def message_batch(origin: Origin, pieces: Sequence[Records], columns: pa.Schema = MESSAGES) -> pa.RecordBatch:
    """The messages of `pieces`, in their order, as one batch of these columns."""
    stack = _Stack(origin, pieces)
    arrays = [_COLUMNS[field.name](stack, field.type) for field in columns]
    if not arrays:
        # A batch without columns still has rows.
        return pa.RecordBatch.from_struct_array(pa.array([{}] * stack.total, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


class _Stack:
    """Parts of frames, on top of each other."""

    def __init__(self, origin: Origin, pieces: Sequence[Records]) -> None:
        self.origin = origin
        self.pieces = pieces
        self.frames = [Frame(piece.frame) for piece in pieces]
        self.counts = np.fromiter((piece.count for piece in pieces), np.int64, len(pieces))
        self.total = int(self.counts.sum())
        self._seq: Any = None

    def constant(self, value: str | None, type_: Any) -> Any:
        # Of a length that comes again: then only a slice has to be made.
        return _repeated(value, type_, -(-self.total // 8192) * 8192).slice(0, self.total)

    def seq(self) -> Any:
        if self._seq is None:
            firsts = np.fromiter((piece.first for piece in self.pieces), np.int64, len(self.pieces))
            shifts = firsts - (np.cumsum(self.counts) - self.counts)
            if (shifts == shifts[0]).all():
                self._seq = np.arange(shifts[0], shifts[0] + self.total, dtype=np.int64)
            else:
                self._seq = np.arange(self.total, dtype=np.int64) + np.repeat(shifts, self.counts)
        return self._seq

    def by_frame(self, values: Sequence[int]) -> Any:
        """One number for each frame, repeated for its messages."""
        return np.repeat(np.fromiter(values, np.int64, len(values)), self.counts)

    def text_by_frame(self, values: Sequence[bytes], text_of: Callable[[bytes], str | None], type_: Any) -> Any:
        """One text for each frame; there are few different ones."""
        distinct = {value: number for number, value in enumerate(dict.fromkeys(values))}
        if len(distinct) == 1:
            return self.constant(text_of(values[0]), type_)
        texts = pa.array([text_of(value) for value in distinct], type_)
        return texts.take(pa.array(self.by_frame([distinct[value] for value in values])))

    def numbers(self, flag: int, missing: Sequence[int] | None = None) -> Any:
        """A number column; where a frame has none, `missing` gives the value for all of it."""
        parts: list[Any] = []
        for at, (frame, piece) in enumerate(zip(self.frames, self.pieces, strict=True)):
            place = frame.number_column(flag)
            if place is None:
                parts.append(np.full(piece.count, missing[at] if missing else 0, np.int64))
            else:
                begin = place + 8 * piece.start
                parts.append(np.frombuffer(frame.columns[begin : begin + 8 * piece.count], "<i8"))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def has(self, flag: int) -> bool:
        return any(frame.flags & flag for frame in self.frames)

    def texts(self, flag: int) -> tuple[Any, bytes | memoryview]:
        """Offsets and bytes of a text column, as Arrow lays them out."""
        offsets = np.empty(self.total + 1, np.uint32)
        data: list[memoryview] = []
        at = length = 0
        for frame, piece in zip(self.frames, self.pieces, strict=True):
            count = piece.count
            column = frame.text_column(flag)
            if column is None:
                offsets[at : at + count] = length
            else:
                begin = column.offsets_at + 4 * piece.start
                own = np.frombuffer(frame.columns, "<u4", count + 1, begin)
                low, high = int(own[0]), int(own[-1])
                if not column.base <= low <= high <= column.base + column.data_length:
                    raise BadFrame(f"the offsets of {count} messages of a frame run backwards")
                # Modulo 2**32: the difference may be below 0, the sum is not.
                np.add(own[:-1], np.uint32((length - low) & 0xFFFFFFFF), out=offsets[at : at + count])
                place = column.data_at - column.base
                data.append(frame.columns[place + low : place + high])
                length += high - low
            at += count
        offsets[at] = length
        if not bool((offsets[1:] >= offsets[:-1]).all()):
            raise BadFrame(f"the offsets of {self.total} messages run backwards")
        return offsets.view(np.int32), data[0] if len(data) == 1 else b"".join(data)


@lru_cache(maxsize=64)
def _repeated(value: str | int | None, type_: Any, count: int) -> Any:
    return pa.nulls(count, type_) if value is None else pa.repeat(pa.scalar(value, type_), count)


def _bits(mask: Any) -> Any:
    return pa.py_buffer(np.packbits(mask, bitorder="little").tobytes())


def text_array(offsets: Any, data: bytes | memoryview, type_: Any, *, empty_is_none: bool) -> Any:
    """A binary or string array of these offsets and bytes. Invalid UTF-8 is replaced in a string array."""
    validity, nulls = None, 0
    if empty_is_none:
        present = offsets[1:] > offsets[:-1]
        nulls = len(present) - int(np.count_nonzero(present))
        validity = _bits(present) if nulls else None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    array = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers, nulls)
    if type_ == pa.binary():
        return array
    if bytes(data).isascii():
        return pa.Array.from_buffers(type_, len(offsets) - 1, buffers, nulls)
    try:
        return array.cast(type_)
    except pa.ArrowInvalid:
        mended = [None if value is None else value.decode("utf-8", "replace") for value in array.to_pylist()]
        return pa.array(mended, type_)


def _text_column(flag: int, *, empty_is_none: bool = True) -> Callable[[_Stack, Any], Any]:
    def build(stack: _Stack, type_: Any) -> Any:
        if flag and not stack.has(flag):
            return pa.nulls(stack.total, type_)
        offsets, data = stack.texts(flag)
        return text_array(offsets, data, type_, empty_is_none=empty_is_none)

    return build


def _time_array(times: Any, type_: Any, *, zero_is_none: bool) -> Any:
    if not zero_is_none:
        return pa.array(times, pa.int64()).view(type_)
    present = times != 0
    return pa.array(times, pa.int64(), mask=~present).view(type_)


def _time_column(flag: int) -> Callable[[_Stack, Any], Any]:
    def build(stack: _Stack, type_: Any) -> Any:
        if not stack.has(flag):
            return pa.nulls(stack.total, type_)
        return _time_array(stack.numbers(flag), type_, zero_is_none=True)

    return build


def _produced_at(stack: _Stack, type_: Any) -> Any:
    missing = [frame.produced_at_us for frame in stack.frames]
    times = stack.numbers(PRODUCED_AT, missing) if stack.has(PRODUCED_AT) else stack.by_frame(missing)
    return _time_array(times, type_, zero_is_none=True)


def _appended_at(stack: _Stack, type_: Any) -> Any:
    times = stack.by_frame([piece.appended_at_us for piece in stack.pieces])
    return _time_array(times, type_, zero_is_none=False)


def _timeout(stack: _Stack, type_: Any) -> Any:
    if not stack.has(LIMIT):
        return pa.nulls(stack.total, type_)
    # As `timeout_us_in` does it: the bits above these are the attempts.
    limits = stack.numbers(LIMIT)
    times = np.where(limits > 0, limits & ((1 << TIMEOUT_BITS) - 1), 0)
    return pa.array(times / 1_000_000, type_, mask=times == 0)


def _id(stack: _Stack, type_: Any) -> Any:
    prefix = f"{stack.origin.topic}/{stack.origin.lane}/"
    return pc.binary_join_element_wise(prefix, pa.array(stack.seq()).cast(type_), "")


def _headers(stack: _Stack, type_: Any) -> Any:
    if not stack.has(HEADERS):
        return pa.nulls(stack.total, type_)
    offsets, data = stack.texts(HEADERS)
    present = offsets[1:] > offsets[:-1]
    maps = _unpacked(offsets, bytes(data), int(np.count_nonzero(present)))
    sizes = np.zeros(stack.total, np.int32)
    sizes[present] = np.fromiter(map(len, maps), np.int32, len(maps))
    ends = np.zeros(stack.total + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    keys = pa.array(list(chain.from_iterable(maps)), pa.string())
    values = pa.array(list(chain.from_iterable(map(dict.values, maps))), pa.string())
    entries = pa.StructArray.from_arrays([keys, values], fields=[type_.key_field, type_.item_field])
    nulls = stack.total - int(np.count_nonzero(present))
    buffers = [_bits(present) if nulls else None, pa.py_buffer(ends)]
    return pa.Array.from_buffers(type_, stack.total, buffers, nulls, children=[entries])


_MAPS = msgspec.msgpack.Decoder(list[dict[str, str]])


def _unpacked(offsets: Any, data: bytes, count: int) -> list[dict[str, str]]:
    """The maps that stand back to back in `data`: with the head of an array before them, they are one value."""
    try:
        return _MAPS.decode(b"\xdd" + count.to_bytes(4, "big") + data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        ends = offsets.tolist()
        return [decode_headers(data[begin:end]) for begin, end in zip(ends, ends[1:], strict=False) if end > begin]  # noqa: RUF007


@lru_cache(maxsize=10_000)
def _address(source: bytes) -> str | None:
    return str(ipaddress.ip_address(source)) if len(source) in (4, 16) else None


def _decoded(text: bytes) -> str | None:
    return text.decode("utf-8", "replace") or None


def _number_of_producer(name: str) -> Callable[[_Stack, Any], Any]:
    def build(stack: _Stack, type_: Any) -> Any:
        # A producer's id has 64 bits; where the highest is set it reads as a negative number.
        values = [(getattr(frame, name) + (1 << 63)) % (1 << 64) - (1 << 63) for frame in stack.frames]
        return pa.array(stack.by_frame(values), type_)

    return build


def _shard(stack: _Stack, type_: Any) -> Any:
    lane = stack.origin.lane
    return stack.constant(int(lane) if lane.isdigit() else None, type_)  # type: ignore[arg-type]


def _header_column(name: str) -> Callable[[_Stack, Any], Any]:
    """A column from the headers that the broker has written into a dead letter."""

    def build(stack: _Stack, type_: Any) -> Any:
        values = pc.map_lookup(_headers(stack, TEXTS), pa.scalar(name), "last")
        if type_ == TIME:
            micros = pc.round(pc.multiply(values.cast(pa.float64()), 1_000_000.0))
            return micros.cast(pa.int64()).view(type_)
        return values.cast(type_)

    return build


_attempt = _header_column(DIED_ATTEMPT)
_COLUMNS: Final[dict[str, Callable[[_Stack, Any], Any]]] = {
    "topic": lambda stack, type_: stack.constant(stack.origin.topic, type_),
    "lane": lambda stack, type_: stack.constant(stack.origin.lane, type_),
    "group": lambda stack, type_: stack.constant(stack.origin.group, type_),
    "broker": lambda stack, type_: stack.constant(stack.origin.broker or None, type_),
    "seq": lambda stack, type_: pa.array(stack.seq(), type_),
    "number": lambda stack, type_: pa.array(stack.seq(), type_),
    "id": _id,
    "key": _text_column(KEY),
    "body": _text_column(BODY, empty_is_none=False),
    "headers": _headers,
    "appended_at": _appended_at,
    "produced_at": _produced_at,
    "priority": lambda stack, type_: stack.constant(stack.origin.lane if stack.origin.lane in LANES else None, type_),
    "shard": _shard,
    "shard_key": _text_column(SHARD_KEY),
    "dedup_id": _text_column(DEDUP),
    "deliver_at": _time_column(DELIVER_AT),
    "expires_at": _time_column(EXPIRES_AT),
    "timeout_s": _timeout,
    "source": lambda stack, type_: stack.text_by_frame([piece.source for piece in stack.pieces], _address, type_),
    "token": lambda stack, type_: stack.text_by_frame([frame.token for frame in stack.frames], _decoded, type_),
    "producer_id": _number_of_producer("producer_id"),
    "producer_seq": _number_of_producer("producer_seq"),
    "origin": _header_column(DIED_ORIGIN),
    "attempt": lambda stack, type_: _attempt(stack, type_) if stack.origin.group else pa.nulls(stack.total, type_),
    "reason": _header_column(DIED_REASON),
    "died_at": _header_column(DIED_AT),
}
