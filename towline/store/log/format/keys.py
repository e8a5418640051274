"""The keys of one sealed segment, as hashes, in a file beside it: `.key`.

    magic     TWK1
    checksum  CRC-32C of the head
    length    of the head
    head      MessagePack
    hashes    for each stream with keys, one u32 for each record: CRC-32 of its key, 0 for a record without one

Because there is one number for each record, the place of a hash gives the record. A search is one pass of `bytes.find`
over 4 bytes a record. The file is a cache, made some time after the segment was sealed; without it the segment itself
is searched.
"""

from __future__ import annotations

import os
import struct
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
from crc32c import crc32c

from towline.errors import BadFrame, TooLarge
from towline.files import open_private
from towline.frame import Frame
from towline.frame.layout import FLAGS_AT, KEY
from towline.store.log.format.index import ENTRY
from towline.store.log.write.disk import DiskIo

__all__ = [
    "Breaks",
    "KeyRun",
    "build_keys",
    "extents",
    "frame_in",
    "hash_of",
    "key_path",
    "load_head",
    "read_hashes",
    "search_hashes",
]

MAGIC: Final = b"TWK1"
PREFIX: Final = struct.Struct("<4sII")
READ_BYTES: Final = 1 << 20
GAP_MAX: Final = 16 << 10
BREAKS: Final = 19
"""How much longer than its work a break is, where others need the processor; …"""
BREAKS_IDLE: Final = 1
"""… and where nobody does."""
BREAK_MAX_S: Final = 0.25
_U32: Final = 0xFFFFFFFF


class KeyRun(msgspec.Struct, frozen=True, array_like=True):
    """The place of a stream's hashes: none of its records in this segment has a key if `count` is 0."""

    base: int
    position: int
    count: int
    checksum: int


class _Head(msgspec.Struct, array_like=True):
    segment: int
    runs: dict[str, KeyRun | None]
    """None for a stream that cannot be indexed, because records of it are missing in between."""


def key_path(folder: Path, number: int) -> Path:
    return folder / f"{number:020}.key"


def hash_of(key: bytes) -> int:
    return crc32(key)


def build_keys(
    io: DiskIo,
    fd: int,
    path: Path,
    *,
    number: int,
    runs: Mapping[str, Sequence[int]],
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Write the file of a segment: `runs` are its consume logs. Takes breaks, so that others get on."""
    breaks = Breaks(pause)
    found: dict[str, KeyRun | None] = {}
    columns: list[array[int]] = []
    position = 0
    for name, entries in runs.items():
        hashes = _hashes(io, fd, entries, breaks)
        if hashes is None:
            found[name] = None
            continue
        data = memoryview(hashes).cast("B") if hashes else b""
        found[name] = KeyRun(entries[0] if len(entries) else 0, position, len(hashes), crc32c(data))
        position += 4 * len(hashes)
        if hashes:
            columns.append(hashes)
    head = msgspec.msgpack.encode(_Head(number, found))
    prefix = PREFIX.pack(MAGIC, crc32c(head), len(head))
    # Not synced, nor written through `io`: it is a cache with checksums, and must not hold up writes that wait for the
    # disk.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with os.fdopen(open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(prefix + head)
            for column in columns:
                file.write(memoryview(column).cast("B"))
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


class Breaks:
    """The interpreter lets one thread run at a time: leave most of it to the threads that serve, if any do."""

    def __init__(
        self,
        pause: Callable[[float], object],
        *,
        wall: Callable[[], float] = time.perf_counter,
        mine: Callable[[], float] = time.thread_time,
        all_threads: Callable[[], float] = time.process_time,
    ) -> None:
        self._pause = pause
        self._wall, self._mine, self._all = wall, mine, all_threads
        self._since = wall(), mine(), all_threads()
        self._worked_from = wall()
        self._others = 1.0
        """The share of a processor that other threads of this process have used of late."""

    def take(self) -> None:
        worked_s = self._wall() - self._worked_from
        longer = BREAKS_IDLE + (BREAKS - BREAKS_IDLE) * min(2 * self._others, 1.0)
        self._pause(min(longer * worked_s, BREAK_MAX_S))
        now = self._wall(), self._mine(), self._all()
        wall_s, mine_s, all_s = (after - before for after, before in zip(now, self._since, strict=True))
        self._since, self._worked_from = now, now[0]
        self._others = max(all_s - mine_s, 0.0) / wall_s if wall_s > 0 else 1.0


def _hashes(io: DiskIo, fd: int, entries: Sequence[int], breaks: Breaks) -> array[int] | None:
    """One for each record of a run; empty if none has a key, None if records are missing."""
    hashes, keyed, expected = array("I"), False, entries[0]
    for begin, length, at, stop in extents(entries, 0, len(entries)):
        data = memoryview(io.pread(fd, length, begin))
        for index in range(at, stop, ENTRY):
            base, place, size, _ = entries[index : index + ENTRY]
            if base != expected:
                return None
            expected = base + (size & _U32)
            some = _frame_hashes(frame_in(data, begin, place, size), size & _U32)
            keyed = keyed or some is not None
            hashes.extend(some if some is not None else array("I", bytes(4 * (size & _U32))))
        breaks.take()
    return hashes if keyed else array("I")


def extents(entries: Sequence[int], at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Frames that are read with one call: their beginning, the bytes they take, and their entries."""
    while at < stop:
        end = begin = entries[at + 1] >> 32
        until = at
        while until < stop:
            place = entries[until + 1]
            position = place >> 32
            if until > at and (position - end > GAP_MAX or position + (place & _U32) - begin > READ_BYTES):
                break
            end = position + (place & _U32)
            until += ENTRY
        yield begin, end - begin, at, until
        at = until


def frame_in(data: memoryview, begin: int, place: int, size: int) -> memoryview:
    """A frame among bytes that were read from `begin` on. It is the end of its record, but for its padding."""
    at = (place >> 32) + (place & _U32) - begin - ((size >> 32) + 7 & ~7)
    return data[at : at + (size >> 32)]


def _frame_hashes(content: memoryview, count: int) -> array[int] | None:
    """None if the frame has no keys, or cannot be read: then nobody gets its messages anyway."""
    if len(content) < 16 or not content[FLAGS_AT] & KEY:
        return None
    try:
        keys = Frame(content).texts(KEY)
    except (BadFrame, TooLarge):
        return None
    return array("I", map(crc32, keys)) if keys is not None and len(keys) == count else None


def load_head(io: DiskIo, fd: int, number: int) -> tuple[dict[str, KeyRun | None], int] | None:
    """The places of the hashes of each stream, and of the first of all; None if the file is damaged."""
    raw = io.pread(fd, PREFIX.size, 0)
    if len(raw) < PREFIX.size:
        return None
    magic, checksum, length = PREFIX.unpack(raw)
    head = io.pread(fd, length, PREFIX.size) if magic == MAGIC and length <= 64 << 20 else b""
    if len(head) != length or crc32c(head) != checksum or not head:
        return None
    try:
        found = msgspec.msgpack.decode(head, type=_Head)
    except msgspec.MsgspecError:
        return None
    return (found.runs, PREFIX.size + length) if found.segment == number else None


def read_hashes(io: DiskIo, fd: int, run: KeyRun, begin: int) -> bytes | None:
    data = io.pread(fd, 4 * run.count, begin + run.position)
    return data if len(data) == 4 * run.count and crc32c(data) == run.checksum else None


def search_hashes(hashes: bytes, wanted: int, start: int) -> int:
    """The first record from `start` on with this hash, as a number from the run's base; -1 if there is none."""
    needle = wanted.to_bytes(4, "little")
    at = hashes.find(needle, 4 * start)
    while at >= 0 and at & 3:
        at = hashes.find(needle, at + 1)
    return at >> 2 if at >= 0 else -1
