"""The layout of a frame: a batch of messages for one stream, column by column.

All numbers are little-endian. A frame is

    header   72 bytes, see `HEADER`
    token    the producer's token, `token_length` bytes, padded with zeros to a multiple of 8
    columns  the columns that `flags` names, in the order below, each padded with zeros to a multiple of 8

A *text* column is `count + 1` offsets (u32), padded to 8, then the bytes of all values back to back: value i is
`data[offset[i] - offset[0] : offset[i + 1] - offset[0]]`. Offsets never run backwards, but need not begin at 0, so that
a sub-range of a frame is made of slices. A *number* column is `count` signed 64-bit numbers. The body column is always
there.

| flag | column     | kind   | holds |
|------|------------|--------|-------|
|      | body       | text   | the message |
| 1    | key        | text   | business reference in UTF-8; empty is none |
| 2    | headers    | text   | a MessagePack map of strings; empty is none |
| 4    | dedup id   | text   | the user's id against double sends; empty is none |
| 8    | shard key  | text   | what keeps messages in order; empty is none |
| 16   | expires at | number | microseconds since 1970; 0 is never |
| 32   | deliver at | number | microseconds since 1970; 0 is at once; below 0 see below |
| 64   | limit      | number | see below; 0 is none of its own |
| 128  | produced at | number | where a frame's messages were produced at different times: microseconds since 1970 |

On the way to the broker a deliver-at below 0 is a delay, so that the producer's clock does not matter: -1 to -999 is a
level of the broker's table of delays, and anything below is that many microseconds. The broker puts the time in its
place.

A limit holds two numbers, each 0 where the group's counts. Its lower 48 bits are the microseconds that working on the
message may take, the 15 above them how often it is tried, in all. A limit below 0 is none.

With flag 256 the columns region is one zstd frame that unpacks to `columns_length` bytes, padded with zeros to a
multiple of 8. With flag 512 the bodies are delivery events, not messages. All other flags are 0.

Neither the frame nor its unpacked columns are larger than `FRAME_MAX`.

The checksum is CRC-32C over everything behind it, so it covers all but magic, length and itself; magic and length are
checked by their values.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Final

__all__ = [
    "BESIDE_BODIES",
    "BODY",
    "COUNT_MAX",
    "COVERED",
    "CRC_FROM",
    "DEDUP",
    "DELIVER_AT",
    "EVENTS",
    "EXPIRES_AT",
    "FLAGS_AT",
    "FRAME_MAX",
    "HEADER",
    "HEADERS",
    "KEY",
    "LIMIT",
    "MAGIC",
    "NUMBER_COLUMNS",
    "PREFIX",
    "PRODUCED_AT",
    "SHARD_KEY",
    "TEXT_COLUMNS",
    "TIMEOUT_BITS",
    "TOKEN_MAX",
    "UNKNOWN_FLAGS",
    "ZSTD",
    "attempts_in",
    "count_in",
    "limit_of",
    "little_endian",
    "numbers_in",
    "pad8",
    "texts_in",
    "timeout_us_in",
    "unpacked_bytes",
]

MAGIC: Final = 0x31465754  # "TWF1"
HEADER: Final = struct.Struct("<IIIHHIIQQqqqq")
"""magic, length, crc, flags, token_length, count, columns_length, producer_id, producer_seq, produced_at_us,
earliest_expiry_us, latest_expiry_us, reserved (0)."""

PREFIX: Final = struct.Struct("<III")
"""The header up to and with the checksum …"""
FLAGS_AT: Final = PREFIX.size
"""Offset of the flags within the header."""
COVERED: Final = struct.Struct("<HHIIQQqqqq")
"""… and the rest of it, from where the checksum covers."""
CRC_FROM: Final = PREFIX.size

_COUNT: Final = struct.Struct("<I").unpack_from
_COUNT_AT: Final = CRC_FROM + 4
_FLAGS: Final = struct.Struct("<H").unpack_from

BODY: Final = 0
KEY: Final = 1
HEADERS: Final = 2
DEDUP: Final = 4
SHARD_KEY: Final = 8
EXPIRES_AT: Final = 16
DELIVER_AT: Final = 32
LIMIT: Final = 64
PRODUCED_AT: Final = 128
ZSTD: Final = 256
EVENTS: Final = 512
UNKNOWN_FLAGS: Final = 0xFFFF & ~(255 | ZSTD | EVENTS)

TEXT_COLUMNS: Final = (KEY, HEADERS, DEDUP, SHARD_KEY)
NUMBER_COLUMNS: Final = (EXPIRES_AT, DELIVER_AT, LIMIT, PRODUCED_AT)
BESIDE_BODIES: Final = sum((*TEXT_COLUMNS, *NUMBER_COLUMNS))
"""A frame with any of these flags has more than bodies."""

TIMEOUT_BITS: Final = 48
TOKEN_MAX: Final = 64
COUNT_MAX: Final = 1 << 20
FRAME_MAX: Final = 64 << 20

# Computed beforehand, because every frame that passes through a broker asks.
_TEXTS: Final = tuple((BODY, *(flag for flag in TEXT_COLUMNS if flag & flags)) for flags in range(16))
_NUMBERS: Final = tuple(tuple(flag for flag in NUMBER_COLUMNS if flag & flags << 4) for flags in range(16))
_ZEROS: Final = tuple(bytes(-length % 8) for length in range(8))


def count_in(frame: bytes | bytearray | memoryview) -> int:
    """The number of messages of a frame, without decoding it."""
    count: int = _COUNT(frame, _COUNT_AT)[0]
    return count


def unpacked_bytes(frame: bytes | bytearray | memoryview) -> int:
    """The memory that opening a frame takes: of a compressed one, the length that it states."""
    if len(frame) < HEADER.size or not _FLAGS(frame, CRC_FROM)[0] & ZSTD:
        return len(frame)
    columns_length: int = _COUNT(frame, _COUNT_AT + 4)[0]
    return max(len(frame), HEADER.size + columns_length)


def texts_in(flags: int) -> tuple[int, ...]:
    """The text columns of a frame with these flags, in their order; the body comes first."""
    return _TEXTS[flags & 15]


def numbers_in(flags: int) -> tuple[int, ...]:
    """The number columns of a frame with these flags, in their order."""
    return _NUMBERS[flags >> 4 & 15]


def little_endian(numbers: array[int]) -> bytes:
    """The bytes of the array as they lie in a frame; the array is not to be used any more."""
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers.tobytes()


def limit_of(timeout_us: int, attempts: int) -> int:
    """The timeout and the attempts in a message's limit."""
    return attempts << TIMEOUT_BITS | timeout_us


def timeout_us_in(limit: int) -> int:
    return limit & (1 << TIMEOUT_BITS) - 1 if limit > 0 else 0


def attempts_in(limit: int) -> int:
    return limit >> TIMEOUT_BITS if limit > 0 else 0


def pad8(length: int) -> bytes:
    """The zeros that follow `length` bytes up to the next multiple of 8."""
    return _ZEROS[length & 7]
