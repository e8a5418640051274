"""Scanning a segment file record by record, and past damage to the next record behind it.

The file is read through a window of a few MiB, never mapped: a live broker truncates a segment when it seals it, and a
mapped reader would die of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from towline.format import not_understood
from towline.store.log.format.record import FORGET, FRAME, MAGIC, STAMP, TRIM, Record, frame_intact, seed
from towline.store.log.write.disk import DiskIo

__all__ = ["Damage", "Scanner"]

_WINDOW = 4 << 20
_STAMP_SIZE = STAMP.size
_unpack_stamp = STAMP.unpack_from
_KINDS = frozenset({FRAME, TRIM, FORGET})
_ZEROS = bytes(_WINDOW)
"""A window of unwritten bytes: comparing is ten times faster than searching."""


class Damage(NamedTuple):
    """Bytes of a segment that are no record; `tail` if no record follows them in this segment."""

    position: int
    length: int
    tail: bool


class Scanner:
    """One segment file, read from the front. `size` is what the file held when the scan began."""

    def __init__(self, io: DiskIo, fd: int, number: int, size: int) -> None:
        self._io = io
        self._fd = fd
        self._number = number
        self._seed = seed(number, 0)
        self.size = size
        self._start = 0
        self._data = b""
        self._view = memoryview(b"")
        self._names: dict[bytes, str] = {}

    def records(self, position: int = 0) -> Iterator[Record | Damage]:
        """All records of the file, in order. Zeros up to its end are not damage: they are its unwritten part."""
        while position < self.size:
            record = self.record_at(position)
            if record is not None:
                yield record
                position += record.length
                continue
            following = self._next_record(position + 8)
            if following is None:
                end = self.content_end(position)
                if end > position:
                    yield Damage(position, end - position, tail=True)
                return
            yield Damage(position, following - position, tail=False)
            position = following

    def record_at(self, position: int) -> Record | None:
        """The record that begins here, if one does; its frame verified or marked as not intact."""
        at = position - self._start
        if (at < 0 or at + _STAMP_SIZE > len(self._data)) and (at := self._at(position, _STAMP_SIZE)) < 0:
            return None
        data, view = self._data, self._view
        (
            magic,
            checksum,
            length,
            frame_length,
            name_length,
            kind,
            source_length,
            unit_index,
            unit_size,
            base,
            at_us,
            count,
            synced,
            source,
        ) = _unpack_stamp(data, at)
        if magic != MAGIC:
            return None
        head_length = _STAMP_SIZE + name_length
        frame_at = head_length + (-name_length & 7)
        if length != frame_at + ((frame_length + 7) & ~7):
            return None
        if at + length <= len(data):
            if crc32c(view[at + 8 : at + head_length], (self._seed + position) & 0xFFFFFFFF) != checksum:
                return None
        elif (at := self._load(position, head_length, length, checksum)) < 0:
            return None
        else:
            data, view = self._data, self._view
        if kind not in _KINDS:
            # The stamp is whole. To take it for damage would cut it off, or skip it.
            raise not_understood(f"segment {self._number}: the record at byte {position}", f"kind {kind}")
        raw = data[at + _STAMP_SIZE : at + head_length]
        frame = view[at + frame_at : at + frame_at + frame_length]
        return Record(
            position,
            length,
            kind,
            self._names.get(raw) or self._name(raw),
            base,
            count,
            at_us,
            source[:source_length],
            unit_index,
            unit_size,
            synced,
            frame,
            kind != FRAME or frame_intact(frame),
        )

    def _load(self, position: int, head_length: int, length: int, checksum: int) -> int:
        """Bring the whole record into the window, whose length is trusted only if the stamp's checksum matches."""
        at = self._at(position, head_length)
        if at < 0 or crc32c(self._view[at + 8 : at + head_length], (self._seed + position) & 0xFFFFFFFF) != checksum:
            return -1
        return self._at(position, length)

    def content_end(self, position: int) -> int:
        """The end of the last byte behind `position` that is not zero; `position` if all are zero."""
        end = position
        while (data := self._jump(position)) is not None:
            position = self._start + len(self._data)
            if self._data != _ZEROS:
                content = len(self._data[data - self._start :].rstrip(b"\0"))
                end = data + content if content else end
        return end

    def _next_record(self, position: int) -> int | None:
        """The next place from `position` on, aligned to 8, where a record with a matching stamp begins."""
        while (data := self._jump(position)) is not None:
            window_end = self._start + len(self._data)
            if self._data == _ZEROS:
                position = window_end
                continue
            found = self._data.find(MAGIC, data - self._start)
            if found < 0:
                # The magic may straddle the end of the window, but a record is aligned: step back to the last slot.
                position = window_end if window_end >= self.size else (window_end - 4) & ~7
                position = max(position, data + 8)
                continue
            position = self._start + found
            if position % 8 == 0 and self.record_at(position) is not None:
                return position
            position = (position & ~7) + 8
        return None

    def _jump(self, position: int) -> int | None:
        """Move the window to the next written bytes from `position` on; None at the end."""
        if position >= self.size:
            return None
        if not self._start <= position < self._start + len(self._data):
            data = self._io.next_data(self._fd, position)
            if data is None or data >= self.size:
                return None
            position = max(position, data & ~7)
            self._fill(position, _WINDOW)
        return position if self._data else None

    def _at(self, position: int, length: int) -> int:
        """The offset of `length` bytes from `position` on in the window, which is moved if need be; -1 if the file has
        fewer."""
        at = position - self._start
        if at >= 0 and at + length <= len(self._data):
            return at
        if position + length > self.size:
            return -1
        self._fill(position, max(length, _WINDOW))
        return 0 if len(self._data) >= length else -1

    def _fill(self, position: int, length: int) -> None:
        self._data = self._io.pread(self._fd, min(length, self.size - position), position)
        self._view = memoryview(self._data)
        self._start = position

    def _name(self, raw: bytes) -> str:
        name = self._names[raw] = raw.decode("utf-8", "replace")
        return name
