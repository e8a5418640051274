"""Damage or a torn write; and the numbers that were given in damaged bytes.

Before it is written, a segment is zeros. A write that a crash has cut short leaves zeros where nothing arrived: whole
sectors, or all behind some byte. Wrong bytes without such a hole were written whole and damaged since, so they may have
been acknowledged: they are not cut, and the numbers in them are not given again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from crc32c import crc32c

from towline.frame.layout import COUNT_MAX, count_in
from towline.store.log.format.record import FRAME, NAME_MAX, STAMP, VOID, Record, frame_intact, seed
from towline.store.log.write.disk import DiskIo

__all__ = ["Swallowed", "Wreck", "examine", "is_torn"]

_SECTOR: Final = 512
_PADDING: Final = 7
_RECORD_MIN: Final = STAMP.size + 8 + 72


class Swallowed(NamedTuple):
    """Numbers that may have been given in damaged bytes: of this stream, as far as can be read; up to `end`, or else at
    most so many."""

    position: int
    stream: str
    end: int
    most: int


class Wreck(NamedTuple):
    """Bytes that are no record: up to `end` they were written whole once; behind it a write was cut short."""

    end: int
    swallowed: list[Swallowed]


def is_torn(record: Record, io: DiskIo, fd: int, size: int) -> bool:
    """Whether this record looks as if not all of its frame was written."""
    if record.position + record.length == size:
        return False  # a log is cut to its length when it is closed, after all of it was synced
    length = record.length - (-len(record.frame) & 7)
    return _has_hole(io.pread(fd, length, record.position), record.position)


def examine(io: DiskIo, fd: int, number: int, position: int, end: int, *, size: int, synced: bool) -> Wreck:
    """Examine bytes of a segment in which no stamp is valid. Bytes that were `synced` are not torn, whatever they look
    like."""
    swallowed: list[Swallowed] = []
    while position < end:
        raw = io.pread(fd, STAMP.size + NAME_MAX, position).ljust(STAMP.size, b"\0")
        mended = _mended(raw, seed(number, position))
        stamp = mended or raw
        _, _, length, frame_length, name_length, kind, _, _, _, base, _, count, *_ = STAMP.unpack_from(stamp)
        named = STAMP.size + name_length
        frame_at = named + (-name_length & 7)
        plausible = length == frame_at + (frame_length + 7 & ~7)
        head_length = named if name_length <= NAME_MAX else STAMP.size
        if not synced and (end - position < head_length or (plausible and position + length > size)):
            break  # the written bytes end before the record does
        data = io.pread(fd, length, position) if plausible and position + length <= size else b""
        frame = memoryview(data)[frame_at : frame_at + frame_length]
        intact = frame_intact(frame)
        name = stamp[STAMP.size : named].decode("utf-8", "replace")
        if mended and raw[:4] != VOID and kind == FRAME:
            if not (synced or intact) and _has_hole(data[: frame_at + frame_length], position):
                break
            swallowed.append(Swallowed(position, name, base + count, count))
        elif not mended and intact:
            if not synced and _has_hole(data[:named], position):
                break
            swallowed.append(Swallowed(position, name, 0, count_in(frame)))
        elif not mended:
            if not synced and _has_hole(io.pread(fd, end - position, position), position):
                break
            most = max((end - position) // _RECORD_MIN, 1) * COUNT_MAX
            swallowed.append(Swallowed(position, "", 0, most))
            length = end - position
        position += length
    return Wreck(position, swallowed)


def _mended(raw: bytes, begin: int) -> bytes | None:
    """Stamp and name as they were, if no more than one byte of them is wrong: then one change makes the checksum right,
    and no other one of this size does."""
    checksum = int.from_bytes(raw[4:8], "little")

    def wrong(stamp: bytes) -> int:
        end = STAMP.size + int.from_bytes(stamp[16:18], "little")
        return crc32c(stamp[8:end], begin) ^ checksum

    syndrome = wrong(raw)
    if any(not syndrome & ~(0xFF << shift) for shift in (0, 8, 16, 24)):
        return raw  # it is the magic, or the checksum itself
    for at in (16, 17):  # the length of the name, on which it depends what the checksum covers
        for value in range(256):
            changed = raw[:at] + bytes([value]) + raw[at + 1 :]
            if not wrong(changed):
                return changed
    length = min(STAMP.size + int.from_bytes(raw[16:18], "little"), len(raw)) - 8
    zeros = bytes(length)
    nothing = crc32c(zeros)
    for at in range(length):
        # The effect of each bit of this byte on a checksum does not depend on the other bytes.
        bits = [crc32c(zeros[:at] + bytes([1 << bit]) + zeros[at + 1 :]) ^ nothing for bit in range(8)]
        low, high = _sums(bits[:4]), _sums(bits[4:])
        for nibble, effect in enumerate(low):
            if syndrome ^ effect in high:
                flip = high.index(syndrome ^ effect) << 4 | nibble
                return raw[: 8 + at] + bytes([raw[8 + at] ^ flip]) + raw[9 + at :]
    return None


def _sums(effects: list[int]) -> list[int]:
    """The sums of all combinations of these."""
    sums = [0]
    for effect in effects:
        sums += [one ^ effect for one in sums]
    return sums


def _has_hole(data: bytes, position: int) -> bool:
    """Whether a sector of it, or its end, is nothing but zeros; a few of them may be padding."""
    written = len(data.rstrip(b"\0"))
    if len(data) - written > _PADDING:
        return True
    at = 0
    while at < written:
        until = min((position + at) // _SECTOR * _SECTOR + _SECTOR - position, written)
        if not data[at:until].strip(b"\0"):
            return True
        at = until
    return False
