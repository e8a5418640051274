"""A record of the message log: a stamp by the broker, the stream's name, and the frame as it came.

    stamp   64 bytes, see `STAMP`
    name    the stream's name in UTF-8, padded with zeros to a multiple of 8
    frame   padded with zeros to a multiple of 8; a trim mark has none, nor has the mark of a stream that is forgotten

The stamp's checksum is CRC-32C over the rest of the stamp and the name. It begins not with zero but with a number made
of the segment and the position: a copy of a record in the body of a message is thus never taken for a record, even when
recovery searches for the next one behind damage. The frame has its own checksum.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
from crc32c import crc32c

from towline.frame.layout import CRC_FROM
from towline.frame.layout import MAGIC as FRAME_MAGIC

__all__ = [
    "FORGET",
    "FRAME",
    "MAGIC",
    "NAME_MAX",
    "STAMP",
    "TRIM",
    "VOID",
    "Record",
    "frame_intact",
    "pad",
    "seal_stamp",
    "seed",
    "stamp_tail",
]

MAGIC: Final = b"TWR1"
VOID: Final = b"TWR0"
"""The magic of a record that recovery has dropped for good."""
STAMP: Final = struct.Struct("<4sIIIHBBHHQqII16s")
"""magic, crc, record_length, frame_length, name_length, kind, source_length, unit_index, unit_size, base_seq,
appended_at_us, count, synced, source. `synced` is the position in this segment before which all was on the disk when
this record was stamped: it tells recovery apart what a power cut may have torn from what was damaged later."""

NAME_MAX: Final = 1024
FRAME: Final = 1
TRIM: Final = 2
FORGET: Final = 3
"""The stream is forgotten; its base is the number that the next record would have got."""

_TAIL: Final = struct.Struct("<IIHBBHHQqII16s")
_HEAD: Final = struct.Struct("<4sI")
_FRAME_HEAD: Final = struct.Struct("<III")
_ZEROS: Final = tuple(b"\0" * (-length & 7) for length in range(8))

stamp_tail = _TAIL.pack


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as it is in a segment. `frame` is not verified by itself: see `intact`."""

    position: int
    length: int
    kind: int
    stream: str
    base: int
    count: int
    at_us: int
    source: bytes
    unit_index: int
    unit_size: int
    synced: int
    frame: memoryview
    intact: bool


def pad(length: int) -> bytes:
    """The zeros that follow `length` bytes up to the next multiple of 8."""
    return _ZEROS[length & 7]


def seed(segment: int, position: int) -> int:
    """The start value of the stamp's checksum at this place."""
    return (segment * 0x9E3779B1 + position) & 0xFFFFFFFF


def seal_stamp(segment: int, position: int, tail: bytes, name: bytes) -> bytes:
    """The stamp and the name behind it, padded: all of a record before its frame."""
    covered = tail + name
    return _HEAD.pack(MAGIC, crc32c(covered, seed(segment, position))) + covered + _ZEROS[len(name) & 7]


def frame_intact(frame: memoryview) -> bool:
    """Whether these bytes are a frame of their length with a matching checksum."""
    if len(frame) < CRC_FROM:
        return False
    magic, length, checksum = _FRAME_HEAD.unpack_from(frame)
    return bool(magic == FRAME_MAGIC and length == len(frame) and crc32c(frame[CRC_FROM:]) == checksum)
