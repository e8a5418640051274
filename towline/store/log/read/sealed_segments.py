"""The sealed segments: their files and indexes, and the deletion of the oldest."""

from __future__ import annotations

import asyncio
import logging
import os
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from towline.clock import TimeSlice
from towline.errors import StoreFailed
from towline.store.eras import Times
from towline.store.log.format.index import IndexCache, Run
from towline.store.log.format.keys import key_path
from towline.store.log.format.segment import OpenFile, Sealed, Segment, SegmentFiles, index_path, log_path
from towline.store.log.read.streams import Stream, Streams
from towline.store.log.recovery import read_segment
from towline.store.log.settings import LogSettings
from towline.store.log.write.disk import DiskIo, not_now

__all__ = ["SealedSegments"]

_log = logging.getLogger("towline.store")

_DELETE_AT_ONCE = 16


class SealedSegments:
    """Belongs to the event loop; only the deleting of files runs elsewhere."""

    def __init__(
        self,
        folder: Path,
        streams: Streams,
        sealed: list[Sealed],
        *,
        io: DiskIo,
        executor: Executor,
        settings: LogSettings,
    ) -> None:
        self._folder = folder
        self._streams = streams
        self._io = io
        self._executor = executor
        self.sealed = sealed
        self.files = SegmentFiles(folder, settings.open_segments)
        self._indexes = IndexCache(self._index_path, self._reread, settings.index_bytes)
        self.entries = self._indexes.entries

    def add(self, segment: Segment, runs: list[Run]) -> None:
        """The segment has its index: its entries need not be in memory any more."""
        for run in runs:
            stream = self._streams.get(run.stream)
            if stream is None or not stream.hot or stream.hot[0].segment > segment.number:
                continue  # it was forgotten meanwhile; if it is there again, it began later
            assert stream.hot[0].segment == segment.number, "segments are sealed in order"
            del stream.hot[0]
            stream.add_row(segment.number, run)
        self.sealed.append(Sealed(segment.number, segment.used, segment.first_at_us, segment.last_at_us))
        self.files.disown(segment.number)

    def first_since(self, time_us: int, times: Times) -> int:
        """The first segment that holds anything appended at `time_us` or later."""
        for segment in self.sealed:
            if times.time_of(segment.number, segment.last_at_us) >= time_us:
                return segment.number
        return self.sealed[-1].number + 1 if self.sealed else 0

    async def delete(self, count: int) -> int:
        """Delete some of the `count` oldest segments; returns the bytes freed. The bounds rise only once they are
        durably gone, so that they never go back; until then readers use the descriptors held here."""
        going = self.sealed[: min(count, _DELETE_AT_ONCE)]
        # A segment that could not be counted later keeps the files there now.
        await self._count_bytes(going[-1].number + 1)
        files: list[OpenFile] = []
        try:
            files.extend(self._acquire(segment.number) for segment in going)
            await self._unlink([log_path(self._folder, segment.number) for segment in going])
            await self._raise_bounds(going[-1].number + 1)
            del self.sealed[: len(going)]
            for segment in going:
                self.files.forget(segment.number)
                self._indexes.forget(segment.number)
        finally:
            self.files.release_all(files)
        await self._unlink(self._obsolete_indexes(going))
        return sum(segment.size_bytes for segment in going)

    def close(self) -> None:
        self.files.close()
        self._indexes.close()

    def _obsolete_indexes(self, gone: Sequence[Sealed]) -> list[Path]:
        """The newest index stays even without its segment: it alone knows the numbering of streams with no record."""
        if self.sealed:
            oldest = self.sealed[0].number
            names = [
                name for name in os.listdir(self._folder) if name.endswith((".idx", ".key")) and name[:-4].isdigit()
            ]
            return [self._folder / name for name in names if int(name[:-4]) < oldest]
        keys = [key_path(self._folder, segment.number) for segment in gone]
        return [*(self._index_path(segment.number) for segment in gone[:-1]), *keys]

    def _acquire(self, number: int) -> OpenFile:
        try:
            return self.files.acquire(number)
        except OSError as error:
            raise not_now(error, self.files.path(number)) from error

    async def _count_bytes(self, segment: int) -> None:
        """Read the indexes that give the bytes of the segments before this one."""
        async for stream in self._streams_with(segment):
            stream.bytes_until(stream.end_before(segment), self.entries)

    async def _raise_bounds(self, segment: int) -> None:
        """All records in segments before this one are gone."""
        async for stream in self._streams_with(segment):
            stream.raise_first(stream.end_before(segment), self.entries)
            stream.drop_rows_before(segment)

    async def _streams_with(self, segment: int) -> AsyncIterator[Stream]:
        """The streams that have records in segments before this one: of very many, in slices."""
        part = TimeSlice()
        for stream in list(self._streams.values()):
            if stream.rows and stream.rows[0] < segment:
                yield stream
            if part.over:
                await part.rest()

    async def _unlink(self, paths: list[Path]) -> None:
        if paths:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._unlink_now, paths)

    def _unlink_now(self, paths: list[Path]) -> None:
        try:
            for path in paths:
                path.unlink(missing_ok=True)
            self._io.sync_folder(self._folder)
        except OSError as error:
            raise StoreFailed(f"cannot delete files in {self._folder}: {error}") from error

    def _index_path(self, number: int) -> Path:
        return index_path(self._folder, number)

    def _reread(self, number: int) -> Mapping[str, array[int]]:
        """The index of a sealed segment has become unreadable: read the segment in its place."""
        path = log_path(self._folder, number)
        _log.warning("%s is damaged: reading %s in its place", self._index_path(number), path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                segment = Segment(number, path, fd, path.stat().st_size)
                read_segment(segment, self._io, segment.capacity)
            finally:
                os.close(fd)
        except OSError as error:
            raise not_now(error, path) from error
        return segment.runs
