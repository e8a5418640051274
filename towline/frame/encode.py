"""Encoding: lists of messages in, a frame out, with calls that run over a whole column at a time."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, TypedDict, Unpack

import msgspec
from crc32c import crc32c

from towline.errors import BadFrame, TooLarge
from towline.frame.even import even_offsets, even_size
from towline.frame.layout import (
    BODY,
    COUNT_MAX,
    COVERED,
    DEDUP,
    DELIVER_AT,
    EVENTS,
    EXPIRES_AT,
    FRAME_MAX,
    HEADER,
    HEADERS,
    KEY,
    LIMIT,
    MAGIC,
    PREFIX,
    SHARD_KEY,
    TOKEN_MAX,
    ZSTD,
    little_endian,
    numbers_in,
    pad8,
    texts_in,
)
from towline.frame.spare import SPARE
from towline.frame.zstd import compress_columns

__all__ = [
    "SINGLE_MAX",
    "Columns",
    "assemble",
    "earliest_and_latest",
    "encode",
    "encode_columns",
    "encode_events",
    "encode_frame",
    "encode_single",
    "number_column",
    "packed_headers",
    "text_column",
    "too_large",
    "utf8",
]

_LARGE: Final = 64 << 10
"""From here on it is cheaper to add up the checksum part by part than to copy all parts once more."""
SINGLE_MAX: Final = _LARGE
"""A longer body than this is better off in memory that is used again."""
_LOOSE: Final = 50_000
"""More values than this are joined first: one by one they cost more than a copy."""
_ONE = struct.Struct("<II")
_PACK = msgspec.msgpack.Encoder().encode
_UNPACK = msgspec.msgpack.Decoder(dict[str, str]).decode


class Columns(TypedDict, total=False):
    """The columns of a frame besides its bodies. A list of another length than `bodies` is an error; None is an absent
    column, and so is a list of nothing but None or 0."""

    keys: Sequence[str | None] | None
    headers: Sequence[dict[str, str] | None] | None
    dedup_ids: Sequence[str | None] | None
    shard_keys: Sequence[str | None] | None
    expires_at_us: Sequence[int] | None
    deliver_at_us: Sequence[int] | None
    limits: Sequence[int] | None
    producer_id: int
    producer_seq: int
    produced_at_us: int
    token: bytes
    compress: bool


def encode(bodies: Sequence[bytes], **columns: Unpack[Columns]) -> bytes:
    """A frame of these messages."""
    frame = encode_frame(bodies, **columns)
    return frame if isinstance(frame, bytes) else bytes(frame)


def encode_frame(
    bodies: Sequence[bytes],
    *,
    keys: Sequence[str | None] | None = None,
    headers: Sequence[dict[str, str] | None] | None = None,
    dedup_ids: Sequence[str | None] | None = None,
    shard_keys: Sequence[str | None] | None = None,
    expires_at_us: Sequence[int] | None = None,
    deliver_at_us: Sequence[int] | None = None,
    limits: Sequence[int] | None = None,
    producer_id: int = 0,
    producer_seq: int = 0,
    produced_at_us: int = 0,
    token: bytes = b"",
    compress: bool = False,
    reuse: bool = False,
    sizes: Sequence[int] | None = None,
) -> bytes | memoryview:
    """A frame of these messages. With `reuse`, a large one lies in memory that is used for another once nobody looks at
    this one. `sizes` are the lengths of the bodies, if they are known."""
    count = len(bodies)
    flags, parts = 0, list[bytes]()
    # One `if` a column, in the order of the layout: a loop over them costs a frame of one message a microsecond.
    if keys is not None and _has_values(keys, count):
        flags |= KEY
        parts += string_column(keys)
    if headers is not None and _has_values(headers, count):
        flags |= HEADERS
        parts += text_column(packed_headers(headers))
    if dedup_ids is not None and _has_values(dedup_ids, count):
        flags |= DEDUP
        parts += string_column(dedup_ids)
    if shard_keys is not None and _has_values(shard_keys, count):
        flags |= SHARD_KEY
        parts += string_column(shard_keys)
    expiry = (0, 0)
    if expires_at_us is not None and _has_values(expires_at_us, count):
        flags |= EXPIRES_AT
        parts.append(number_column(expires_at_us))
        expiry = earliest_and_latest(expires_at_us)
    if deliver_at_us is not None and _has_values(deliver_at_us, count):
        flags |= DELIVER_AT
        parts.append(number_column(deliver_at_us))
    if limits is not None and _has_values(limits, count):
        flags |= LIMIT
        parts.append(number_column(limits))
    numbers = (producer_id, producer_seq, produced_at_us, *expiry)
    if reuse and not compress and count <= _LOOSE:
        sizes = list(map(len, bodies)) if sizes is None else sizes
        if sum(sizes) >= _LARGE:
            frame = _assemble_again(bodies, sizes, parts, flags=flags, numbers=numbers, token=token)
            if frame is not None:
                return frame
    return assemble([*text_column(bodies, sizes), *parts], flags, count, numbers, token=token, compress=compress)


def encode_single(body: bytes, producer_id: int, producer_seq: int, produced_at_us: int, token: bytes) -> bytes:
    """A frame of one body of up to `SINGLE_MAX` bytes and no other column: the frame of a single send, laid out in one
    step."""
    length, token_length = len(body), len(token)
    assert length <= SINGLE_MAX, length
    assert token_length <= TOKEN_MAX, token_length
    columns_length = 8 + (length + 7 & ~7)
    head = COVERED.pack(0, token_length, 1, columns_length, producer_id, producer_seq, produced_at_us, 0, 0, 0)
    if token:
        head += token + pad8(token_length)
    covered = b"".join((head, _ONE.pack(0, length), body, pad8(length)))
    return PREFIX.pack(MAGIC, PREFIX.size + len(covered), crc32c(covered)) + covered


def encode_events(events: Sequence[bytes], *, produced_at_us: int = 0) -> bytes:
    """A frame of delivery events, as a pull log keeps them."""
    return assemble(text_column(events), EVENTS, len(events), (0, 0, produced_at_us, 0, 0))


def encode_columns(
    texts: Mapping[int, Sequence[bytes]],
    numbers: Mapping[int, Sequence[int]],
    *,
    producer_id: int,
    producer_seq: int,
    produced_at_us: int,
    token: bytes,
    compress: bool,
) -> bytes:
    """A frame of columns taken from another one: by flag, the body among them, each of the same length. Empty columns
    are left out."""
    count = len(texts[BODY])
    flags = sum(flag for flag, column in [*texts.items(), *numbers.items()] if any(column))
    parts: list[bytes] = []
    for flag in texts_in(flags):
        parts += text_column(texts[flag])
    for flag in numbers_in(flags):
        parts.append(number_column(numbers[flag]))
    expiry = earliest_and_latest(numbers[EXPIRES_AT]) if flags & EXPIRES_AT else (0, 0)
    header = (producer_id, producer_seq, produced_at_us, *expiry)
    return assemble(parts, flags, count, header, token=token, compress=compress)


def _has_values(column: Sequence[object], count: int) -> bool:
    if len(column) != count:
        raise BadFrame(f"a column of {len(column)} values beside {count} bodies")
    return any(column)


def utf8(values: Sequence[str | None]) -> tuple[Sequence[bytes] | Sequence[str], bytes]:
    """Texts whose lengths are those of their bytes, and these bytes back to back."""
    try:
        joined = "".join(values)  # type: ignore[arg-type]
        if joined.isascii():
            # Nearly always, and then nothing is done for each.
            return values, joined.encode()  # type: ignore[return-value]
    except TypeError:
        # Some of them are None.
        pass
    encoded = [value.encode() if value else b"" for value in values]
    return encoded, b"".join(encoded)


def packed_headers(headers: Sequence[dict[str, str] | None]) -> list[bytes]:
    return [_pack_headers(value) if value else b"" for value in headers]


def _pack_headers(headers: dict[str, str]) -> bytes:
    try:
        packed = _PACK(headers)
    except UnicodeEncodeError as error:
        raise BadFrame(f"headers are strings by name: {error}") from None
    # Decoded at once, because the other end takes anything but a map of strings for no headers at all.
    try:
        _UNPACK(packed)
    except msgspec.ValidationError as error:
        raise BadFrame(f"headers are strings by name: {error}") from None
    return packed


def earliest_and_latest(expires_at_us: Sequence[int]) -> tuple[int, int]:
    """When the first message expires, and when all have: 0 if one never does."""
    return min(at for at in expires_at_us if at), max(expires_at_us) if all(expires_at_us) else 0


def text_column(values: Sequence[bytes], sizes: Sequence[int] | None = None) -> list[bytes]:
    """Offsets and values, each padded. `sizes` are the lengths of the values, if they are known."""
    if len(values) == 1 and type(values[0]) is bytes and len(values[0]) <= FRAME_MAX:
        # Single messages and single events are most of what is encoded where time matters most.
        length = len(values[0])
        return [_ONE.pack(0, length), values[0], pad8(length)]
    packed, length = _offsets(values, sizes)
    data = b"".join(values)
    if len(data) != length:
        raise TypeError("bodies are bytes: the length of something else is not its number of bytes")
    return [packed, pad8(len(packed)), data, pad8(length)]


def string_column(values: Sequence[str | None]) -> list[bytes]:
    """The offsets and values of texts in UTF-8; empty is none."""
    if len(values) == 1:
        return text_column([values[0].encode() if values[0] else b""])
    found, data = utf8(values)
    packed, length = _offsets(found)
    return [packed, pad8(len(packed)), data, pad8(length)]


def _offsets(values: Sequence[bytes] | Sequence[str], sizes: Sequence[int] | None = None) -> tuple[bytes, int]:
    """Where each value begins and the last ends, as it lies in a frame; and this end."""
    lengths = list(map(len, values)) if sizes is None else sizes
    count, length = len(lengths), sum(lengths)
    # Before the values are joined: a batch that is too large is not copied first.
    if length > FRAME_MAX:
        raise too_large()
    size = even_size(count, 0, lengths[0], length) if count else -1
    if size >= 0 and lengths.count(size) == count:
        return even_offsets(size, count), length
    # An array is made faster of a list than of anything else.
    return little_endian(array("I", list(accumulate(lengths, initial=0)))), length


def number_column(values: Sequence[int]) -> bytes:
    try:
        return little_endian(array("q", values))
    except OverflowError:
        raise BadFrame("a time or timeout of a message does not fit into 64 bits") from None


def assemble(
    parts: Sequence[bytes | memoryview],
    flags: int,
    count: int,
    numbers: tuple[int, ...],
    *,
    token: bytes = b"",
    compress: bool = False,
) -> bytes:
    """Put header, token and columns together; `numbers` are the header's, from the producer's id to the expiry."""
    stored_length = columns_length = _measure(parts, count, token)
    if compress:
        packed = compress_columns(b"".join(parts))
        if len(packed) < columns_length:
            padding = pad8(len(packed))
            parts, flags = (packed, padding), flags | ZSTD
            stored_length = len(packed) + len(padding)
    length, head, token = _head(flags, count, numbers, token, (columns_length, stored_length))
    if length < _LARGE:
        covered = b"".join((head, token, *parts))
        return PREFIX.pack(MAGIC, length, crc32c(covered)) + covered
    checksum = crc32c(token, crc32c(head))
    for part in parts:
        checksum = crc32c(part, checksum)
    return b"".join((PREFIX.pack(MAGIC, length, checksum), head, token, *parts))


def _assemble_again(
    bodies: Sequence[bytes],
    sizes: Sequence[int],
    beside: Sequence[bytes],
    *,
    flags: int,
    numbers: tuple[int, ...],
    token: bytes,
) -> memoryview | None:
    """`assemble` into memory that was used before, if there is some: the bodies are copied into it one by one."""
    count = len(bodies)
    packed, length = _offsets(bodies, sizes)
    ahead, behind = (packed, pad8(len(packed))), (pad8(length), *beside)
    size = _measure((*ahead, *behind), count, token) + length
    length, head, padded = _head(flags, count, numbers, token, (size, size))
    frame = SPARE.join((PREFIX.pack(MAGIC, length, 0), head, padded, *ahead, *bodies, *behind), length)
    if frame is None:
        return None
    PREFIX.pack_into(frame, 0, MAGIC, length, crc32c(frame[PREFIX.size :]))
    return frame.toreadonly()


def _measure(parts: Sequence[bytes | memoryview], count: int, token: bytes) -> int:
    """The length of the columns; raises if a frame cannot be made of them."""
    if count == 0:
        raise BadFrame("a frame holds at least one message")
    if count > COUNT_MAX:
        raise TooLarge(f"a frame holds at most {COUNT_MAX} messages, not {count}")
    if len(token) > TOKEN_MAX:
        raise TooLarge(f"a token is at most {TOKEN_MAX} bytes long, not {len(token)}")
    length = sum(map(len, parts))
    if length > FRAME_MAX:
        raise too_large()
    return length


def _head(
    flags: int, count: int, numbers: tuple[int, ...], token: bytes, lengths: tuple[int, int]
) -> tuple[int, bytes, bytes]:
    """The length of the frame, the covered part of its header, and the token as it stands behind it. `lengths` are
    those of the columns, unpacked and as they are stored."""
    columns_length, stored_length = lengths
    token_length = len(token)
    if token:
        token += pad8(token_length)
    length = HEADER.size + len(token) + stored_length
    if length > FRAME_MAX:
        raise too_large()
    return length, COVERED.pack(flags, token_length, count, columns_length, *numbers, 0), token


def too_large() -> TooLarge:
    return TooLarge(f"a frame holds at most {FRAME_MAX} bytes: send fewer messages at a time, or a smaller one")
