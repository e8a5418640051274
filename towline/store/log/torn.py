"""Cutting a torn tail: the bytes behind the last whole unit, because a write was cut short."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

from towline.store.log.format.segment import Segment
from towline.store.log.write.disk import DiskIo, reading

__all__ = ["cut_tail"]

_log = logging.getLogger("towline.store")

_COPY_MAX = 64 << 20
_KEPT = 10
"""Copies of torn tails; the oldest go."""
_COPY = re.compile(r"\d{20}-\d+-(\d+)\.bin")


def cut_tail(root: Path, segment: Segment, content_end: int, io: DiskIo) -> None:
    """Copy the bytes from the segment's used length on to `torn/`, then cut them off, so that zeros stand there."""
    begin, length = segment.used, content_end - segment.used
    copy = root / "torn" / f"{segment.path.stem}-{begin}-{time.time_ns()}.bin"
    with reading(segment.path):
        tail = io.pread(segment.fd, min(length, _COPY_MAX), begin)
    try:
        io.replace(copy, [tail])
        kept = f"a copy is in {copy}"
        _drop_oldest(copy)
    except OSError as error:
        # Most likely the disk is full. Nothing acknowledged is in these bytes: starting matters more than the copy.
        kept = f"no copy could be kept: {error.strerror}"
    io.ftruncate(segment.fd, begin)
    io.fsync(segment.fd)
    segment.capacity = begin
    _log.warning("%s: a torn tail of %d bytes at %d was cut; %s", segment.path, length, begin, kept)


def _drop_oldest(new: Path) -> None:
    found = [(match, path) for path in new.parent.iterdir() if (match := _COPY.fullmatch(path.name)) and path != new]
    older = sorted((int(match[1]), path) for match, path in found)
    for _, path in older[: max(len(older) - _KEPT + 1, 0)]:
        path.unlink()
