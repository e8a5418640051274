"""Segments: the files of the message log, their names, creation, and open descriptors."""

from __future__ import annotations

import errno
import os
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from towline.files import open_private
from towline.store.log.write.disk import DiskIo

__all__ = [
    "NO_ROOM",
    "OpenFile",
    "Sealed",
    "Segment",
    "SegmentFiles",
    "create_segment",
    "index_path",
    "list_folder",
    "log_path",
    "opened",
]

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})

_FILE = re.compile(r"(\d{20})\.(log|idx|key)")


class Segment:
    """A segment that is written to, or was until its index is on the disk."""

    __slots__ = (
        "capacity",
        "fd",
        "first_at_us",
        "forgotten",
        "last_at_us",
        "number",
        "path",
        "raised",
        "runs",
        "synced",
        "trims",
        "used",
    )

    def __init__(self, number: int, path: Path, fd: int, capacity: int) -> None:
        self.number = number
        self.path = path
        self.fd = fd
        self.capacity = capacity
        self.used = 0
        self.runs: dict[str, array[int]] = {}
        """The consume logs of this segment: entries of each stream, see `index`."""
        self.trims: dict[str, int] = {}
        self.raised: dict[str, int] = {}
        """The next numbers of streams whose last records may have been swallowed by damage."""
        self.forgotten: dict[str, int] = {}
        """The streams that are forgotten, and their ends; later records under such a name are of another stream."""
        self.first_at_us = 0
        self.last_at_us = 0
        self.synced = False
        """Whether all of it is on the disk; only a segment that gets no more writes is ever marked so."""

    def forget(self, stream: str, end: int) -> None:
        self.forgotten[stream] = end
        self.runs.pop(stream, None)
        self.trims.pop(stream, None)
        self.raised.pop(stream, None)


class Sealed(NamedTuple):
    """A segment that will not change any more, and has its index on the disk."""

    number: int
    size_bytes: int
    first_at_us: int
    last_at_us: int


def log_path(folder: Path, number: int) -> Path:
    return folder / f"{number:020}.log"


def index_path(folder: Path, number: int) -> Path:
    return folder / f"{number:020}.idx"


def list_folder(folder: Path) -> tuple[list[int], list[int], list[str]]:
    """The numbers of the segments and of the indexes, ascending, and the names of files that are neither."""
    logs: list[int] = []
    indexes: list[int] = []
    foreign: list[str] = []
    for name in sorted(os.listdir(folder)):
        match = _FILE.fullmatch(name)
        if match is None:
            foreign.append(name)
        elif match[2] != "key":
            (logs if match[2] == "log" else indexes).append(int(match[1]))
    return logs, indexes, foreign


@contextmanager
def opened(path: Path) -> Iterator[tuple[int, int]]:
    """Descriptor and size of a file that is only read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd, os.fstat(fd).st_size
    finally:
        os.close(fd)


def create_segment(folder: Path, number: int, capacity: int, io: DiskIo) -> Segment:
    """A new file with all its blocks allocated, so that writing to it can neither fail for want of room nor change its
    length, which makes fdatasync cheaper. If that fails, nothing of it stays behind."""
    path = log_path(folder, number)
    fd = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        io.fallocate(fd, capacity)
        io.fsync(fd)
        io.sync_folder(folder)
    except BaseException:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return Segment(number, path, fd, capacity)


class OpenFile:
    """A descriptor that stays open while anyone uses it, even when its file was deleted."""

    __slots__ = ("fd", "number", "users")

    def __init__(self, number: int, fd: int) -> None:
        self.number = number
        self.fd = fd
        self.users = 0


class SegmentFiles:
    """Open segments, at most `limit` of them beyond those in use. Used from the event loop only."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._written: dict[int, OpenFile] = {}

    def path(self, number: int) -> Path:
        return log_path(self._folder, number)

    def adopt(self, segment: Segment) -> OpenFile:
        """Read from the writer's descriptor; the writer is its first user."""
        file = OpenFile(segment.number, segment.fd)
        file.users = 1
        self._open[segment.number] = self._written[segment.number] = file
        return file

    def acquire(self, number: int) -> OpenFile:
        file = self._open.get(number)
        if file is None:
            fd = os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)
            file = self._open[number] = OpenFile(number, fd)
        else:
            self._open.move_to_end(number)
        file.users += 1
        return file

    def release(self, file: OpenFile) -> None:
        file.users -= 1
        if file.users == 0 and self._open.get(file.number) is not file:
            os.close(file.fd)
        elif len(self._open) > self._limit:
            self._evict()

    def release_all(self, files: Iterable[OpenFile]) -> None:
        for file in files:
            self.release(file)

    def disown(self, number: int) -> None:
        """The writer needs its descriptor no more."""
        file = self._written.pop(number, None)
        if file is not None:
            self.release(file)

    def forget(self, number: int) -> None:
        """The segment is gone: close it as soon as nobody reads it any more."""
        file = self._open.pop(number, None)
        if file is not None and file.users == 0:
            os.close(file.fd)

    def close(self) -> None:
        for number in list(self._written):
            self.disown(number)
        for number in list(self._open):
            self.forget(number)

    def _evict(self) -> None:
        for number, file in list(self._open.items()):
            if len(self._open) <= self._limit:
                return
            if file.users == 0:
                self.forget(number)
