"""A small file of records that wait for a broker. The format:

    file     magic, record*
    magic    b"towspl1\\n"
    record   u32 length of the payload, u32 CRC-32 of the payload (both little-endian), payload (MessagePack)

Records are appended and synced; a file whose records were all sent is cut back to its magic. A tail that was torn by a
crash is cut off, and a copy of it kept; a record damaged in the middle is skipped. One process has a file at a time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from towline.errors import BadRequest, QueueFull, StoreLocked
from towline.files import make_folder, narrow, open_private

__all__ = ["MAGIC", "SpoolFile", "spool_folder"]

log = logging.getLogger("towline.client")

MAGIC: Final = b"towspl1\n"
_HEAD: Final = struct.Struct("<II")
_RECORD_MAX: Final = 80 << 20


def spool_folder(folder: str | Path) -> Path:
    """The folder, made if need be; only its owner can look into it, for it holds messages."""
    path = Path(folder)
    try:
        for one in make_folder(path):
            _sync_folder(one.parent)
    except OSError as error:
        raise BadRequest(f"spool_dir {path} cannot be used: {error.strerror}") from None
    return path


class SpoolFile:
    """Any thread may use it. Offsets are of the file."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._fd = _open_locked(path)
        try:
            with suppress(FileNotFoundError, PermissionError):
                narrow(path.with_suffix(".torn"), 0o600)
            self.size = self._check()
        except BaseException:
            os.close(self._fd)
            raise

    def __repr__(self) -> str:
        return f"<SpoolFile {self.path} of {self.size} bytes>"

    @property
    def is_empty(self) -> bool:
        return self.size <= len(MAGIC)

    def append(self, payloads: Iterable[bytes]) -> None:
        """Write records; they are on the disk when this returns. All or none: `QueueFull` if there is no room."""
        data = b"".join(
            part for payload in payloads for part in (_HEAD.pack(len(payload), zlib.crc32(payload)), payload)
        )
        with self._lock:
            if self.size + len(data) > self.max_bytes:
                raise QueueFull(f"spool {self.path} is full: it may hold {self.max_bytes} bytes")
            try:
                _write(self._fd, data, self.size)
                os.fsync(self._fd)
            except OSError as error:
                # A part of a record was written, and must not stand before the next one.
                os.ftruncate(self._fd, self.size)
                raise QueueFull(f"spool {self.path} cannot be written: {error.strerror}") from None
            self.size += len(data)

    def records(self) -> Iterator[bytes]:
        offset = len(MAGIC)
        while (found := self.read(offset)) is not None:
            payload, offset = found
            if payload is not None:
                yield payload

    def read(self, offset: int) -> tuple[bytes | None, int] | None:
        """The record at an offset, and the offset of the next; None at the end. A damaged record is None itself."""
        if offset + _HEAD.size > self.size:
            return None
        length, crc = _HEAD.unpack(os.pread(self._fd, _HEAD.size, offset))
        end = offset + _HEAD.size + length
        if length > _RECORD_MAX or end > self.size:
            return None
        payload = os.pread(self._fd, length, offset + _HEAD.size)
        if zlib.crc32(payload) == crc:
            return payload, end
        log.error("spool %s: the record at byte %d is damaged and passed over", self.path, offset)
        return None, end

    def clear(self) -> None:
        with self._lock:
            if not self.is_empty:
                os.ftruncate(self._fd, len(MAGIC))
                os.fsync(self._fd)
                self.size = len(MAGIC)

    def close(self) -> None:
        """An empty file is removed."""
        with self._lock:
            if self._fd < 0:
                return
            fd, self._fd = self._fd, -1
            if self.is_empty:
                self.path.unlink(missing_ok=True)
            os.close(fd)

    def _check(self) -> int:
        """Check that it is a spool, and cut a torn tail. Returns the size of the sound part."""
        there = os.fstat(self._fd).st_size
        magic = os.pread(self._fd, len(MAGIC), 0)
        if magic != MAGIC:
            if not MAGIC.startswith(magic):
                raise BadRequest(f"{self.path} is not a spool of this version: move it away")
            _write(self._fd, MAGIC, 0)
            os.fsync(self._fd)
            # Without its name in the folder, nothing of it is found again.
            _sync_folder(self.path.parent)
            return len(MAGIC)
        self.size = there
        good, last_bad = len(MAGIC), -1
        while (found := self.read(good)) is not None:
            payload, after = found
            last_bad = good if payload is None else last_bad
            good = after
        if last_bad >= 0 and good == there and self.read(last_bad) == (None, there):
            # Damaged and last: it was being written.
            good = last_bad
        if good < there:
            torn = self.path.with_suffix(".torn")
            with os.fdopen(open_private(torn, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, secret=True), "wb") as copy:
                copy.write(os.pread(self._fd, there - good, good))
                copy.flush()
                os.fsync(copy.fileno())
            _sync_folder(torn.parent)
            log.warning(
                "spool %s: %d bytes of a torn record were cut off, and kept as %s", self.path, there - good, torn
            )
            os.ftruncate(self._fd, good)
            os.fsync(self._fd)
        return good


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as the files."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_locked(path: Path) -> int:
    while True:
        fd = open_private(path, os.O_RDWR | os.O_CREAT, secret=True)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise StoreLocked(f"spool {path} is in use by another consumer, producer or process") from None
        # The owner before may have removed it just now.
        if path.exists() and path.stat().st_ino == os.fstat(fd).st_ino:
            return fd
        os.close(fd)


def _write(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written
