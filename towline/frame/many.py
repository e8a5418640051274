"""Many frames at once: columns are laid out once for all of them, and each frame is made of slices.

A frame alone costs some 20 calls, whatever it holds. Where the messages of one call are dealt out to many lanes, that
would be most of the work.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import gt, itemgetter
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from towline.errors import BadFrame, TooLarge
from towline.frame.decode import Buffer
from towline.frame.encode import number_column, packed_headers, too_large, utf8
from towline.frame.even import even_offsets, even_size
from towline.frame.layout import (
    COUNT_MAX,
    COVERED,
    CRC_FROM,
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
    UNKNOWN_FLAGS,
    ZSTD,
    little_endian,
    numbers_in,
    pad8,
    texts_in,
)
from towline.frame.spare import SPARE

__all__ = ["Bundle", "Series"]


_NO_PREFIX = bytes(CRC_FROM)
_ZEROS = tuple(map(pad8, range(8)))


class _Text(NamedTuple):
    flag: int
    offsets: list[int]
    packed: bytes
    """The same, as they lie in a frame."""
    data: bytes


class Series:
    """Messages dealt out to frames. `groups` are the frames: the indices of the messages of each."""

    __slots__ = (
        "_bodies",
        "_expires_at_us",
        "_flags",
        "_groups",
        "_numbers",
        "_offsets",
        "_packed",
        "_texts",
        "_token",
    )

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        bodies: Sequence[bytes],
        *,
        sizes: Sequence[int] | None = None,
        keys: Sequence[str | None] | None = None,
        headers: Sequence[dict[str, str] | None] | None = None,
        shard_keys: Sequence[str | None] | None = None,
        expires_at_us: int = 0,
        limit: int = 0,
        token: bytes = b"",
    ) -> None:
        """Expiry and limit are those of all messages; `sizes` are the lengths of the bodies, if they are known."""
        if len(token) > TOKEN_MAX:
            raise TooLarge(f"a token is at most {TOKEN_MAX} bytes long, not {len(token)}")
        for column in (sizes, keys, headers, shard_keys):
            if column is not None and len(column) != len(bodies):
                raise BadFrame(f"a column of {len(column)} values beside {len(bodies)} bodies")
        for size in {*map(len, groups)}:
            if not 0 < size <= COUNT_MAX:
                raise TooLarge(f"a frame holds 1 to {COUNT_MAX} messages, not {size}")
        pick = _picker(list(chain.from_iterable(groups)))
        texts: list[tuple[int, Sequence[bytes] | Sequence[str], bytes]] = []
        if keys is not None:
            texts.append((KEY, *utf8(pick(keys))))
        if headers is not None:
            packed = packed_headers(pick(headers))
            texts.append((HEADERS, packed, b"".join(packed)))
        if shard_keys is not None:
            texts.append((SHARD_KEY, *utf8(pick(shard_keys))))
        self._groups = groups
        # Bodies lie in memory as they were made. Their lengths are taken in that order.
        sizes = list(map(len, bodies)) if sizes is None else sizes
        offsets: tuple[Sequence[int], bytes] | None = _even(sizes, sum(map(len, groups)))
        self._offsets, self._packed = offsets or _offsets(pick(sizes))
        self._bodies = pick(bodies)
        self._texts = [_Text(flag, *_offsets(map(len, values)), data) for flag, values, data in texts if data]
        self._token = token
        self._expires_at_us = expires_at_us
        self._flags = (EXPIRES_AT if expires_at_us else 0) | (LIMIT if limit else 0)
        self._numbers = [number_column([number]) for number in (expires_at_us, limit) if number]

    def frames(
        self, producer_id: int, producer_seqs: Iterator[int], produced_at_us: int
    ) -> tuple[memoryview, list[int]]:
        """The frames, back to back, and their lengths. Each has the next number of its producer. The memory is used for
        others once nobody looks at it."""
        expiry = self._expires_at_us
        token_length = len(self._token)
        token = self._token + pad8(token_length)
        head_length = HEADER.size + len(token)
        bodies, body_offsets, packed_offsets = self._bodies, self._offsets, self._packed
        parts, lengths, start = list[bytes](), list[int](), 0
        # One piece of code, without calls of our own: small frames are many.
        for group in self._groups:
            count = len(group)
            stop, flags, at = start + count, self._flags, len(parts)
            first, behind = 4 * start, 4 * stop + 4
            ahead, gap = 4 * count + 11 & ~7, _ZEROS[4 * count + 4 & 7]
            size = body_offsets[stop] - body_offsets[start]
            parts += (_NO_PREFIX, b"", token, packed_offsets[first:behind], gap)
            parts += bodies[start:stop]
            parts.append(_ZEROS[size & 7])
            length = ahead + (size + 7 & ~7)
            for flag, offsets, packed, data in self._texts:
                low, high = offsets[start], offsets[stop]
                if low != high:
                    flags |= flag
                    parts += (packed[first:behind], gap, data[low:high], _ZEROS[high - low & 7])
                    length += ahead + (high - low + 7 & ~7)
            for number in self._numbers:
                parts.append(number * count)
                length += 8 * count
            parts[at + 1] = COVERED.pack(
                flags, token_length, count, length, producer_id, next(producer_seqs), produced_at_us, expiry, expiry, 0
            )
            length += head_length
            if length > FRAME_MAX:
                raise too_large()
            lengths.append(length)
            start = stop
        whole = _joined(parts, sum(lengths))
        end = 0
        for length in lengths:
            begin, end = end, end + length
            PREFIX.pack_into(whole, begin, MAGIC, length, crc32c(whole[begin + CRC_FROM : end]))
        return whole.toreadonly(), lengths


def _joined(parts: list[bytes], size: int) -> memoryview:
    whole = SPARE.join(parts, size)
    if whole is None:
        whole = memoryview(bytearray().join(parts))
        if len(whole) != size:
            raise TypeError("bodies are bytes: the length of something else is not its number of bytes")
    return whole


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Picks the values at these indices out of a column: with one call for all of them."""
    return itemgetter(*places) if len(places) > 1 else lambda column: [column[place] for place in places]


def _even(sizes: Sequence[int], count: int) -> tuple[range, bytes] | None:
    """The offsets of any `count` of the bodies, if these are all of one length."""
    size = sizes[0] if sizes else 0
    if not size or even_size(count, 0, size, count * size) < 0 or sizes.count(size) != len(sizes):
        return None
    return range(0, count * size + 1, size), even_offsets(size, count)


def _offsets(lengths: Iterable[int]) -> tuple[list[int], bytes]:
    offsets = list(accumulate(lengths, initial=0))
    try:
        return offsets, little_endian(array("I", offsets))
    except OverflowError:
        raise too_large() from None


_NOT_PLAIN: Final = UNKNOWN_FLAGS | ZSTD | EVENTS
_OFFSET: Final = struct.Struct("<I").unpack_from
_OFFSETS_MAX: Final = 1 << 16
_TOP_BITS: Final = int.from_bytes(b"\0\0\0\x80" * _OFFSETS_MAX, "little")


class Bundle(NamedTuple):
    """Facts about frames that are passed on."""

    flags: int
    """Of each frame."""
    lengths: Sequence[int]
    counts: Sequence[int]
    producer_id: int
    """Of all frames; it may be 0."""
    producer_seqs: Sequence[int]

    @classmethod
    def verify(cls, frames: Sequence[Buffer], token: bytes) -> Bundle | None:
        """Checks each frame as `Frame` and its `verify_whole` do, and that it carries this token. None if something is
        wrong, if the frames are not of one kind, or if they hold events: then each is to be checked by itself, which
        gives the reason."""
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
