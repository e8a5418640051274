"""Sealing: a full segment is synced, cut to its length, and gets its index; by one thread, oldest first."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from towline.store.log.format.index import Known, Run, write_index
from towline.store.log.format.segment import Segment, index_path
from towline.store.log.write.disk import DiskIo
from towline.store.spi import kind_of

__all__ = ["Sealer", "absorb"]

_log = logging.getLogger("towline.store")


def absorb(known: dict[str, Known], segment: Segment) -> None:
    """Bring the numbering of all streams from the beginning of a segment to its end."""
    for state in known.values():
        state.begin = state.end
    for name, end in segment.forgotten.items():
        known.pop(name, None)
        floor = known.setdefault(kind_of(name), Known())
        floor.first = floor.end = max(floor.end, end)
    for name, entries in segment.runs.items():
        state = known.get(name) or known.setdefault(name, Known())
        if not state.end and kind_of(name) in known:
            state.first = entries[0]  # it began at a floor
        state.end = max(state.end, entries[-4] + (entries[-2] & 0xFFFFFFFF))
    for name, end in segment.raised.items():
        state = known.setdefault(name, Known())
        state.end = max(state.end, end)
    for name, first in segment.trims.items():
        state = known.setdefault(name, Known())
        state.first = max(state.first, first)


class Sealer:
    """`known` is the numbering of all streams as of the last segment sealed; it belongs to the thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        folder: Path,
        io: DiskIo,
        known: dict[str, Known],
        on_sealed: Callable[[Segment, list[Run]], None],
        on_failed: Callable[[OSError, str], object],
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._io = io
        self._known = known
        self._on_sealed = on_sealed
        self._on_failed = on_failed
        self._executor = ThreadPoolExecutor(1, "towline-seal")
        self._jobs: deque[Segment] = deque()

    def sync(self, segment: Segment) -> Future[None]:
        """Sync a segment that gets no more writes. Later writes are acknowledged as durable only after this."""
        return self._executor.submit(self._sync, segment)

    def seal(self, segment: Segment) -> None:
        """All of the segment is written: give it its index, some time soon."""
        self._jobs.append(segment)
        self._executor.submit(self._work)

    async def drain(self) -> None:
        """Wait until all that can be sealed is; one that failed before is tried again."""
        await asyncio.wrap_future(self._executor.submit(self._work))

    def close(self) -> None:
        self._executor.shutdown(wait=True)

    def _sync(self, segment: Segment) -> None:
        # Only this thread syncs a full segment: an fsync error is reported to one caller only, so there must be only
        # one.
        if not segment.synced:
            try:
                self._io.fdatasync(segment.fd)
            except OSError as error:
                self._on_failed(error, str(segment.path))
                raise
            segment.synced = True

    def _work(self) -> None:
        while self._jobs:
            segment = self._jobs[0]
            try:
                self._sync(segment)
            except OSError:
                return
            try:
                runs = self._write(segment)
            except OSError as error:
                # The index is a cache: without it the entries stay in memory, and a restart reads the segment again.
                _log.warning("cannot write the index of %s yet: %s", segment.path, error)
                return
            self._jobs.popleft()
            self._loop.call_soon_threadsafe(self._on_sealed, segment, runs)

    def _write(self, segment: Segment) -> list[Run]:
        self._io.ftruncate(segment.fd, segment.used)
        self._io.fsync(segment.fd)
        known = {name: Known(state.first, state.begin, state.end) for name, state in self._known.items()}
        absorb(known, segment)
        runs = write_index(self._io, index_path(self._folder, segment.number), segment, known)
        self._known = known
        return runs
