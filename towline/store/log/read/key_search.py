"""Search by key: in the hashes of sealed segments, and in the segments that have none (yet)."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from towline.errors import BadFrame, TooLarge, Unreadable
from towline.frame import Frame
from towline.frame.layout import KEY, ZSTD
from towline.frame.search import find_key
from towline.store.log.format.index import ENTRY, load_directory, map_entries
from towline.store.log.format.keys import (
    KeyRun,
    build_keys,
    extents,
    frame_in,
    hash_of,
    key_path,
    load_head,
    read_hashes,
    search_hashes,
)
from towline.store.log.format.segment import SegmentFiles, index_path, log_path
from towline.store.log.read.streams import EntriesOf, Stream, first_ending_after
from towline.store.log.write.disk import DiskIo, not_now

__all__ = ["KeyBuilder", "KeySearch"]

_log = logging.getLogger("towline.store")

_U32 = 0xFFFFFFFF
_WAITING_MAX = 10_000


class _Stopped(Exception):
    """The store is being closed."""


class KeyBuilder:
    """Makes the `.key` files of sealed segments, one after the other, slowly, in a thread of its own."""

    def __init__(self, folder: Path, io: DiskIo) -> None:
        self.folder = folder
        self._io = io
        self._stop = threading.Event()
        self._executor = ThreadPoolExecutor(1, "towline-keys")
        self._waiting: set[int] = set()

    def build_soon(self, number: int) -> None:
        if number not in self._waiting and len(self._waiting) < _WAITING_MAX and not self._stop.is_set():
            self._waiting.add(number)
            self._executor.submit(self._build, number)

    async def drain(self) -> None:
        """Wait until all requested files are built."""
        await asyncio.wrap_future(self._executor.submit(lambda: None))

    def close(self) -> None:
        self._stop.set()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Stopped

    def _build(self, number: int) -> None:
        try:
            directory = load_directory(index_path(self.folder, number))
            mapped = map_entries(index_path(self.folder, number))
            if directory is None or mapped is None:
                return
            runs = {
                run.stream: mapped[run.start * ENTRY : (run.start + run.entries) * ENTRY]
                for run in directory.run_rows()
                if run.entries
            }
            fd = os.open(log_path(self.folder, number), os.O_RDONLY | os.O_CLOEXEC)
            try:
                path = key_path(self.folder, number)
                build_keys(self._io, fd, path, number=number, runs=runs, pause=self._pause)
            finally:
                os.close(fd)
        except (OSError, Unreadable, _Stopped) as error:
            _log.debug("the keys of segment %d are not indexed: %s", number, error)
        except Exception:
            _log.exception("the keys of segment %d are not indexed", number)
        finally:
            self._waiting.discard(number)


class _Place(NamedTuple):
    """A stream in a segment, and the segment's file."""

    stream: str
    segment: int
    fd: int
    entries: Sequence[int]


class KeySearch:
    """Searches segment by segment in a thread; belongs to the event loop."""

    def __init__(
        self,
        files: SegmentFiles,
        entries_of: EntriesOf,
        io: DiskIo,
        *,
        executor: Executor,
        builder: KeyBuilder,
    ) -> None:
        self._files = files
        self._entries_of = entries_of
        self._io = io
        self._executor = executor
        self._builder = builder

    async def find(self, stream: Stream, first: int, key: bytes) -> int | None:
        """The first record from `first` on that has this key."""
        sealed, hot = stream.places_from(first)
        for segment, place, end in sealed:
            if end <= stream.first:
                continue  # deleted by now
            entries = self._entries_of(segment, stream.name, place >> 32, place & _U32)
            found = await self._find_in(stream.name, segment, entries, first, key, sealed=True)
            if found is not None:
                return found
        for run in hot:
            # The entries of a segment that is being written grow while the thread looks at them.
            found = await self._find_in(stream.name, run.segment, run.entries[:], first, key, sealed=False)
            if found is not None:
                return found
        return None

    async def _find_in(
        self, name: str, segment: int, entries: Sequence[int], first: int, key: bytes, *, sealed: bool
    ) -> int | None:
        try:
            file = self._files.acquire(segment)
        except OSError as error:
            raise not_now(error, self._files.path(segment)) from error
        place = _Place(name, segment, file.fd, entries)
        search = self._search_sealed if sealed else self._scan
        work = asyncio.get_running_loop().run_in_executor(self._executor, search, place, first, key)
        # A caller that gives up must not close a file under the thread that reads it.
        work.add_done_callback(lambda _: self._files.release(file))
        try:
            return await asyncio.shield(work)
        except OSError as error:
            raise not_now(error, self._files.path(segment)) from error

    # In a thread

    def _search_sealed(self, place: _Place, first: int, key: bytes) -> int | None:
        wanted = hash_of(key)
        indexed = self._hashes(place.segment, place.stream) if wanted else None
        if indexed is None:
            self._builder.build_soon(place.segment)
            return self._scan(place, first, key)
        run, hashes = indexed
        index = search_hashes(hashes, wanted, max(first - run.base, 0))
        while index >= 0:
            if self._has_key(place.fd, place.entries, run.base + index, key):
                return run.base + index
            index = search_hashes(hashes, wanted, index + 1)
        return None

    def _hashes(self, segment: int, name: str) -> tuple[KeyRun, bytes] | None:
        """The hashes of a stream in a sealed segment; None if they cannot be had: then the segment itself is
        searched."""
        try:
            fd = os.open(key_path(self._builder.folder, segment), os.O_RDONLY | os.O_CLOEXEC)
            try:
                head = load_head(self._io, fd, segment)
                run = head[0].get(name) if head is not None else None
                hashes = read_hashes(self._io, fd, run, head[1]) if head is not None and run is not None else None
            finally:
                os.close(fd)
        except OSError:
            return None
        return (run, hashes) if run is not None and hashes is not None else None

    def _has_key(self, fd: int, entries: Sequence[int], seq: int, key: bytes) -> bool:
        at = ENTRY * first_ending_after(entries, seq)
        if at >= len(entries) or entries[at] > seq:
            return False
        base, place, size, _ = entries[at : at + ENTRY]
        data = memoryview(self._io.pread(fd, place & _U32, place >> 32))
        return _find(frame_in(data, place >> 32, place, size), key, seq - base, seq - base + 1) is not None

    def _scan(self, place: _Place, first: int, key: bytes) -> int | None:
        """Look for the bytes of the key in whole stretches of the segment, and only where they are into frames."""
        entries = place.entries
        for begin, length, at, stop in extents(entries, ENTRY * first_ending_after(entries, first), len(entries)):
            raw = self._io.pread(place.fd, length, begin)
            if raw.find(key) < 0 and not self._any_compressed(raw, begin, entries, at, stop):
                continue
            data = memoryview(raw)
            for index in range(at, stop, ENTRY):
                base, where, size, _ = entries[index : index + ENTRY]
                found = _find(frame_in(data, begin, where, size), key, max(first - base, 0), size & _U32)
                if found is not None:
                    return base + found
        return None

    def _any_compressed(self, raw: bytes, begin: int, entries: Sequence[int], at: int, stop: int) -> bool:
        for index in range(at, stop, ENTRY):
            place, size = entries[index + 1], entries[index + 2]
            flags = (place >> 32) + (place & _U32) - begin - ((size >> 32) + 7 & ~7) + 12
            if raw[flags + 1 : flags + 2] != b"\0" and raw[flags + 1] & ZSTD >> 8:
                return True
        return False


def _find(content: memoryview, key: bytes, start: int, stop: int) -> int | None:
    try:
        frame = Frame(content)
        if not frame.flags & KEY:
            return None
        return find_key(frame.verify(), key, start, stop)
    except (BadFrame, TooLarge):
        return None  # damaged: it cannot be read either
