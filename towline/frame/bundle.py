"""The frames of one call, checked together: header by header in one go, column by column over all of them.

Where the messages of a call are dealt out to many lanes, its frames are many and small. They have the same columns, the
same producer and the same token, so most of what is to be checked can be asked once for all.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import gt
from typing import Final, NamedTuple

from crc32c import crc32c

from towline.frame.decode import Buffer
from towline.frame.layout import (
    COUNT_MAX,
    CRC_FROM,
    EVENTS,
    FRAME_MAX,
    HEADER,
    MAGIC,
    TOKEN_MAX,
    UNKNOWN_FLAGS,
    ZSTD,
    numbers_in,
    texts_in,
)

__all__ = ["Bundle"]

_NOT_PLAIN: Final = UNKNOWN_FLAGS | ZSTD | EVENTS
_OFFSET: Final = struct.Struct("<I").unpack_from
_OFFSETS_MAX: Final = 1 << 16
_TOP_BITS: Final = int.from_bytes(b"\0\0\0\x80" * _OFFSETS_MAX, "little")


class Bundle(NamedTuple):
    """What one who passes frames on needs to know of them."""

    flags: int
    """Those of each."""
    lengths: Sequence[int]
    counts: Sequence[int]
    producer_id: int
    """That of all, which may be 0."""
    producer_seqs: Sequence[int]

    @classmethod
    def verify(cls, frames: Sequence[Buffer], token: bytes) -> Bundle | None:
        """What `Frame` and its `verify_whole` check of each, and that it carries this token. None if something is
        wrong, if the frames are not of one kind, or if they hold events: then each is to be looked at for itself, which
        tells what it is."""
        sizes = tuple(map(len, frames))
        if min(sizes) < HEADER.size or max(sizes) > FRAME_MAX:
            return None
        magics, lengths, checksums, flags, token_lengths, counts, columns_lengths, producers, seqs, *_ = zip(
            *map(HEADER.unpack_from, frames), strict=True
        )
        alike = len(set(zip(magics, flags, token_lengths, producers, strict=True))) == 1
        known = magics[0] == MAGIC and not flags[0] & _NOT_PLAIN and token_lengths[0] == len(token) <= TOKEN_MAX
        if not alike or not known or lengths != sizes or not 0 < min(counts) <= max(counts) <= COUNT_MAX:
            return None
        begin = HEADER.size + (len(token) + 7 & ~7)
        if columns_lengths != tuple([length - begin for length in lengths]):
            return None
        if token and {bytes(frame[HEADER.size : HEADER.size + len(token)]) for frame in frames} != {token}:
            return None
        if tuple([crc32c(frame[CRC_FROM:]) for frame in frames]) != checksums:
            return None
        if not _fill(frames, lengths, counts, flags[0], begin):
            return None
        return cls(flags[0], lengths, counts, producers[0], seqs)


def _fill(frames: Sequence[Buffer], lengths: Sequence[int], counts: Sequence[int], flags: int, begin: int) -> bool:
    """Whether the columns, which begin there, fill each frame to its end, and no offsets run backwards."""
    places = [begin] * len(frames)
    for _ in texts_in(flags):
        ends = [at + 4 * count + 4 for at, count in zip(places, counts, strict=True)]
        if any(map(gt, ends, lengths)):
            return False
        pieces = [frame[at:end] for frame, at, end in zip(frames, places, ends, strict=True)]
        if not _ascend(b"".join(pieces)) and not all(map(_ascend, pieces)):
            return False
        places = [
            (end + 7 & ~7) + (_OFFSET(frame, end - 4)[0] - _OFFSET(frame, at)[0] + 7 & ~7)
            for frame, at, end in zip(frames, places, ends, strict=True)
        ]
    width = 8 * len(numbers_in(flags))
    return list(lengths) == [at + width * count for at, count in zip(places, counts, strict=True)]


def _ascend(packed: Buffer) -> bool:
    """Whether no offset is less than the one before it."""
    # As one long number each, all offsets are subtracted from those behind them with a single operation. While they are
    # below 2^31, a difference below 0 borrows from the next one, and leaves the top bit set in its own place.
    low, high = int.from_bytes(packed[:-4], "little"), int.from_bytes(packed[4:], "little")
    if low <= high and len(packed) <= 4 * _OFFSETS_MAX and not (low | high | high - low) & _TOP_BITS:
        return True
    offsets = struct.unpack(f"<{len(packed) // 4}I", packed)
    return list(offsets) == sorted(offsets)
