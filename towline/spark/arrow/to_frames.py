"""Rows in, frames out: the reverse of `from_frames`. Columns are taken over as Arrow lays them out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from towline.client.bulk.publish import Addressed
from towline.errors import BadRequest, TooLarge
from towline.frame.encode import assemble
from towline.frame.layout import DEDUP, DELIVER_AT, HEADERS, KEY, SHARD_KEY, pad8
from towline.model import LANES, check_topic

__all__ = ["WRITABLE", "Encoder", "Numbering", "Numbers", "check_columns", "unnumbered"]

FRAMES_PER_ID: Final = 128
"""A broker remembers the last 256 frames of a producer: no id is used for more than half as many."""

TEXTS: Final = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
WRITABLE: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "body": ("binary or string", lambda type_: type_ in TEXTS),
    "key": ("string", lambda type_: type_ in TEXTS),
    "headers": ("map<string,string>", pa.types.is_map),
    "priority": ("string", lambda type_: pa.types.is_string(type_) or pa.types.is_large_string(type_)),
    "topic": ("string", lambda type_: pa.types.is_string(type_) or pa.types.is_large_string(type_)),
    "shard_key": ("string", lambda type_: type_ in TEXTS),
    "dedup_id": ("string", lambda type_: type_ in TEXTS),
    "delay": ("a number of seconds", lambda type_: pa.types.is_integer(type_) or pa.types.is_floating(type_)),
    "deliver_at": ("timestamp", pa.types.is_timestamp),
}
"""The columns that a message can be made of: the type of each, in words and as a check."""

_PACK: Final = msgspec.msgpack.Encoder().encode
_US: Final = 1_000_000
DEDUP_ID_MAX: Final = 200


def check_columns(schema: pa.Schema, topic: str) -> None:
    """An error names the first column that does not fit."""
    for field in schema:
        if field.name not in WRITABLE:
            raise BadRequest(f"schema: a message has no column {field.name!r}; it may have {', '.join(WRITABLE)}")
        what, fits = WRITABLE[field.name]
        if not fits(field.type):
            raise BadRequest(f"schema: column {field.name} is {field.type}, but must be {what}")
    if "body" not in schema.names:
        raise BadRequest("schema: there is no column body, which is the message")
    if not topic and "topic" not in schema.names:
        raise BadRequest("no topic: give the option topic, or a column topic")
    if "delay" in schema.names and "deliver_at" in schema.names:
        raise BadRequest("schema: give one of the columns delay and deliver_at")


class Numbers(NamedTuple):
    """The producer's fields in the header of a frame."""

    producer_id: int = 0
    producer_seq: int = 0


NONE: Final = Numbers()


def unnumbered(checksum: int) -> Numbers:
    """For frames that are staged: they are known by the epoch that they are published in."""
    del checksum
    return NONE


class Numbering:
    """Numbers for frames that are the same whenever the same frames are made again under the same name, in their order.
    Another frame in the same place has another number: it is never taken for the one that was there before. Where a
    name stands for the contents of the frames, their place is enough."""

    def __init__(self, name: str, *, by_place: bool = False) -> None:
        self._name = name
        self._by_place = by_place
        self._count = 0

    def __call__(self, checksum: int) -> Numbers:
        block, place = divmod(self._count, FRAMES_PER_ID)
        self._count += 1
        digest = hashlib.blake2b(f"{self._name}/{block}".encode(), digest_size=8).digest()
        number = place + 1 if self._by_place else (place + 1) << 32 | checksum
        return Numbers(int.from_bytes(digest, "big") >> 1 or 1, number)


class _Lane(NamedTuple):
    topic: str
    lane: int
    shards: int


class Encoder:
    """Makes frames of batches, one for each topic and lane that a batch touches."""

    def __init__(
        self,
        topic: str,
        priority: str,
        token: str,
        shards_of: Callable[[str], int],
        *,
        compress: bool,
        max_frame_bytes: int,
        frame_rows: int,
    ) -> None:
        self._topic = topic
        self._priority = priority
        self._token = token.encode()
        self._shards_of = shards_of
        self._compress = compress
        self._max_frame_bytes = max_frame_bytes
        self._frame_rows = frame_rows

    def frames(self, batch: pa.RecordBatch, numbers: Callable[[int], Numbers], now_us: int) -> Iterator[Addressed]:
        """The frames of a batch, in the order of its rows within each lane. `numbers` is called with a frame's
        checksum."""
        for begin in range(0, batch.num_rows, self._frame_rows):
            for topic, part in self._by_topic(batch.slice(begin, self._frame_rows)):
                shards = self._shards_of(topic)
                for lane, rows in self._by_shard(topic, shards, part) if shards else self._by_priority(part):
                    yield from self._cut(_Lane(topic, lane, shards), rows, numbers, now_us)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if "topic" not in batch.schema.names:
            yield self._topic, batch
            return
        column = batch.column("topic")
        if self._topic:
            column = pc.fill_null(column, self._topic)
        for topic, rows in _groups(batch, column, "topic"):
            yield check_topic(topic), rows

    def _by_priority(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        default = self._priority or "middle"
        if "priority" not in batch.schema.names:
            yield LANES.index(default), batch
            return
        for priority, rows in _groups(batch, pc.fill_null(batch.column("priority"), default), "priority"):
            if priority not in LANES:
                raise BadRequest(f"column priority: {priority[:50]!r} is not one of high, middle, low")
            yield LANES.index(priority), rows

    def _by_shard(self, topic: str, shards: int, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        if "priority" in batch.schema.names and batch.column("priority").null_count < batch.num_rows:
            raise BadRequest(f"topic {topic} is ordered: there is no priority in it")
        if self._priority:
            raise BadRequest(
                f"option priority={self._priority}: topic {topic} is ordered, there is no priority in it: leave the "
                "option out, or write ordered topics apart from others"
            )
        names = [name for name in ("shard_key", "key") if name in batch.schema.names]
        chosen = pc.coalesce(*(batch.column(name).cast(pa.binary()) for name in names)) if names else None
        if chosen is None or chosen.null_count:
            raise BadRequest(f"topic {topic} is ordered, with {shards} shards: every row needs a shard_key or a key")
        lanes = np.fromiter((crc32c(key) % shards for key in chosen.to_pylist()), np.int64, len(chosen))
        times = _times(batch)
        # Delayed messages go in frames of their own: they must not take others along.
        late = np.zeros(len(lanes), bool) if times is None else times != 0
        for lane in np.unique(lanes).tolist():
            for delayed in (False, True):
                rows = np.flatnonzero((lanes == lane) & (late == delayed))
                if len(rows):
                    yield lane, batch.take(pa.array(rows))

    def _cut(
        self, to: _Lane, rows: pa.RecordBatch, numbers: Callable[[int], Numbers], now_us: int
    ) -> Iterator[Addressed]:
        if rows.nbytes < self._max_frame_bytes:
            frame = self._frame(to, rows, numbers, now_us)
            if len(frame) <= self._max_frame_bytes:
                yield Addressed(*to, frame)
                return
        if rows.num_rows == 1:
            raise TooLarge(
                f"a message for topic {to.topic} is over the broker's limit of {self._max_frame_bytes} bytes"
            )
        middle = rows.num_rows // 2
        # A slice shares the buffers of the whole, which would count again: make it its own.
        for half in (rows.slice(0, middle), rows.slice(middle)):
            yield from self._cut(to, _own(half), numbers, now_us)

    def _frame(self, to: _Lane, rows: pa.RecordBatch, numbers: Callable[[int], Numbers], now_us: int) -> bytes:
        names = rows.schema.names
        body = rows.column("body")
        if body.null_count:
            raise BadRequest("column body: a message without a body: use an empty one if that is meant")
        flags, parts = 0, _text_parts(body)
        for name, flag in (("key", KEY), ("headers", HEADERS), ("dedup_id", DEDUP), ("shard_key", SHARD_KEY)):
            column = rows.column(name) if name in names else None
            if column is not None and column.null_count < len(column):
                flags |= flag
                if name == "dedup_id":
                    _check_dedup_ids(column)
                parts += _text_parts(_packed(column) if name == "headers" else column)
        times = _times(rows)
        if times is not None and bool(times.any()):
            flags |= DELIVER_AT
            parts.append(times.astype("<i8").tobytes())
        about = f"{to.topic}/{to.lane}/{flags}/{rows.num_rows}".encode()
        checksum = reduce(lambda before, part: crc32c(part, before), parts, crc32c(about))
        head = (*numbers(checksum), now_us, 0, 0)
        return assemble(parts, flags, rows.num_rows, head, token=self._token, compress=self._compress)


def _own(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pa.array(np.arange(rows.num_rows)))


def _groups(batch: pa.RecordBatch, column: Any, name: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each value of a column, in the order in which the values come first."""
    if column.null_count:
        raise BadRequest(f"column {name}: it is null, and there is no option {name} to take its place")
    coded = column.dictionary_encode()
    for code, value in enumerate(coded.dictionary.to_pylist()):
        same = pc.equal(coded.indices, code)
        yield value, batch if len(coded.dictionary) == 1 else batch.filter(same)


def _text_parts(column: Any) -> list[bytes | memoryview]:
    """A text column of a frame: offsets, and the bytes of all values back to back."""
    column = column.cast(pa.binary())
    if column.null_count:
        column = pc.fill_null(column, b"")
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, "<i4", len(column) + 1, 4 * column.offset)
    low, high = int(offsets[0]), int(offsets[-1])
    packed = (offsets - low).astype("<u4").tobytes()
    data = memoryview(data_buffer)[low:high] if data_buffer is not None else memoryview(b"")
    return [packed, pad8(len(packed)), data, pad8(len(data))]


def _packed(column: Any) -> Any:
    """A map column as MessagePack, one value for each row."""
    maps = ({} if value is None else dict(value) for value in column.to_pylist())
    try:
        return pa.array([_PACK(msgspec.convert(one, dict[str, str])) if one else b"" for one in maps], pa.binary())
    except msgspec.ValidationError as error:
        raise BadRequest(f"column headers: strings by name, without null: {error}") from None


def _check_dedup_ids(column: Any) -> None:
    lengths = pc.binary_length(column.cast(pa.binary()))
    if pc.max(lengths).as_py() > DEDUP_ID_MAX or pc.min(lengths).as_py() < 1:
        raise BadRequest(f"column dedup_id: each has 1 to {DEDUP_ID_MAX} bytes: use a hash of a longer one")


def _times(rows: pa.RecordBatch) -> Any:
    """The deliver-at column: a time, or below 0 a delay; None if there is neither."""
    if "deliver_at" in rows.schema.names:
        times = rows.column("deliver_at").cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
        return np.maximum(pc.fill_null(times, 0).to_numpy(zero_copy_only=False), 0)
    if "delay" not in rows.schema.names:
        return None
    seconds = pc.fill_null(rows.column("delay").cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    if bool((seconds < 0).any()) or bool(~np.isfinite(seconds).all()):
        raise BadRequest("column delay: seconds, 0 or more")
    micros = np.rint(seconds * _US).astype(np.int64)
    # Small numbers would be read as levels; a delay that short is none.
    return np.where(micros < 1_000, 0, -micros)
