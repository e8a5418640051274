"""Many frames at once: columns are laid out once for all of them, and each frame is made of slices.

A frame alone costs some 20 calls, whatever it holds. Where the messages of one call are dealt out to many lanes, that
would be most of the work.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from crc32c import crc32c

from towline.errors import BadFrame, TooLarge
from towline.frame.encode import little_endian, number_column, packed_headers, too_large, utf8
from towline.frame.layout import (
    COUNT_MAX,
    COVERED,
    CRC_FROM,
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
    pad8,
)
from towline.frame.spare import SPARE

__all__ = ["Series"]

_NO_PREFIX = bytes(CRC_FROM)
_ZEROS = tuple(map(pad8, range(8)))


class _Text(NamedTuple):
    flag: int
    offsets: array[int]
    packed: bytes
    """The same, as they lie in a frame."""
    data: bytes


class Series:
    """Messages in the order in which they go into frames: the first so many into the first one, and so on."""

    __slots__ = ("_bodies", "_expires_at_us", "_flags", "_numbers", "_offsets", "_packed", "_texts", "_token")

    def __init__(
        self,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[str | None] | None = None,
        headers: Sequence[dict[str, str] | None] | None = None,
        shard_keys: Sequence[str | None] | None = None,
        expires_at_us: int = 0,
        limit: int = 0,
        token: bytes = b"",
    ) -> None:
        """Expiry and limit are those of all messages."""
        if len(token) > TOKEN_MAX:
            raise TooLarge(f"a token is at most {TOKEN_MAX} bytes long, not {len(token)}")
        texts: list[tuple[int, Sequence[bytes] | Sequence[str], bytes]] = []
        if keys is not None:
            texts.append((KEY, *utf8(keys)))
        if headers is not None:
            packed = packed_headers(headers)
            texts.append((HEADERS, packed, b"".join(packed)))
        if shard_keys is not None:
            texts.append((SHARD_KEY, *utf8(shard_keys)))
        for _, values, _ in texts:
            if len(values) != len(bodies):
                raise BadFrame(f"a column of {len(values)} values beside {len(bodies)} bodies")
        self._bodies = bodies
        self._offsets, self._packed = _offsets(bodies)
        self._texts = [_Text(flag, *_offsets(values), data) for flag, values, data in texts if data]
        self._token = token
        self._expires_at_us = expires_at_us
        self._flags = (EXPIRES_AT if expires_at_us else 0) | (LIMIT if limit else 0)
        self._numbers = [number_column([number]) for number in (expires_at_us, limit) if number]

    def frames(
        self, counts: Sequence[int], producer_id: int, producer_seqs: Iterator[int], produced_at_us: int
    ) -> tuple[memoryview, list[int]]:
        """Frames of so many messages each, back to back, and their lengths. Each has the next number of its producer.
        The memory is used for others once nobody looks at it."""
        expiry = self._expires_at_us
        token_length = len(self._token)
        token = self._token + pad8(token_length)
        head_length = HEADER.size + len(token)
        bodies, body_offsets, packed_offsets = self._bodies, self._offsets, self._packed
        parts, lengths, start = list[bytes](), list[int](), 0
        # One piece of code, without calls of our own: small frames are many.
        for count in counts:
            if not 0 < count <= COUNT_MAX:
                raise TooLarge(f"a frame holds 1 to {COUNT_MAX} messages, not {count}")
            stop, flags, at = start + count, self._flags, len(parts)
            first, behind = 4 * start, 4 * stop + 4
            ahead, gap = 4 * count + 11 & ~7, _ZEROS[4 * count + 4 & 7]
            size = body_offsets[stop] - body_offsets[start]
            parts += (_NO_PREFIX, b"", token, packed_offsets[first:behind], gap, *bodies[start:stop], _ZEROS[size & 7])
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


def _offsets(values: Sequence[bytes] | Sequence[str]) -> tuple[array[int], bytes]:
    try:
        offsets = array("I", accumulate(map(len, values), initial=0))
    except OverflowError:
        raise too_large() from None
    return offsets, little_endian(array("I", offsets))
