"""The log store: streams in a folder of files. See the package's docstring for how it is laid out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from towline.clock import SYSTEM, Clock
from towline.errors import Closed, DiskFull, QueueFull, StoreFailed, TooLarge, Unreadable
from towline.model import Durability
from towline.store.eras import Era, Eras, Times
from towline.store.log.documents import Documents
from towline.store.log.format.folder import close_to_others, prepare_folder, raise_format, sweep
from towline.store.log.format.index import ENTRY, Run, pack_entry
from towline.store.log.format.segment import NO_ROOM, Segment, create_segment
from towline.store.log.read.key_search import KeyBuilder, KeySearch
from towline.store.log.read.range_reader import StreamReader
from towline.store.log.read.sealed_segments import SealedSegments
from towline.store.log.read.streams import Stream, first_at
from towline.store.log.recovery import Recovered, recover
from towline.store.log.retention import what_may_go
from towline.store.log.settings import LogSettings
from towline.store.log.stats import LogStats
from towline.store.log.write.disk import REAL, DiskIo
from towline.store.log.write.lock import FolderLock
from towline.store.log.write.sealer import Sealer
from towline.store.log.write.tail import Tail
from towline.store.log.write.unit import Unit
from towline.store.log.write.writer import Writer
from towline.store.spi import Append, Appended, Bounds, Read, Trimmed, kind_of

__all__ = ["LogStore"]

_UNIT_FRAMES_MAX = 65_535
_SEAL_AT_CLOSE = 20_000
"""A segment with this many entries is sealed when the store is closed, so that the next start need not read it."""
_SMALLEST = 16 << 10
"""The smallest segment worth making."""


_PAUSES_S = (0.01, 0.05, 0.2)
"""How long to wait before a read that failed is tried again."""

T = TypeVar("T")


async def _insist(attempt: Callable[[], Awaitable[T]]) -> T:
    """A read that fails in this moment may succeed in the next. Nobody else waits for it."""
    for pause_s in _PAUSES_S:
        try:
            return await attempt()
        except Unreadable:
            await asyncio.sleep(pause_s)
    return await attempt()


class LogStore:
    """Keeps streams in a folder. Made by `open`; used from the event loop it was opened on."""

    def __init__(self, root: Path, settings: LogSettings, clock: Clock, io: DiskIo, lock: FolderLock) -> None:
        self.stats = LogStats()
        self._root = root
        self._folder = root / "log"
        self._settings = settings
        self._clock = clock
        self._io = io
        self._lock = lock
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._clerk = ThreadPoolExecutor(1, "towline-clerk")
        self._readers = ThreadPoolExecutor(settings.read_threads, "towline-read")
        self._documents = Documents(root / "config", io)
        self._retaining = asyncio.Lock()

    @classmethod
    async def open(
        cls, path: Path, settings: LogSettings | None = None, *, clock: Clock = SYSTEM, io: DiskIo = REAL
    ) -> LogStore:
        """Open a folder, which is made if need be. Raises `StoreLocked` if another process has it."""
        if sys.byteorder != "little":
            raise StoreFailed("the log store runs on little-endian machines only")
        path = Path(path)
        settings = settings or LogSettings()
        prepare_folder(path, io)
        lock = FolderLock(path)
        try:
            raise_format(path, io)
            sweep(path)
            close_to_others(path)
            store = cls(path, settings, clock, io, lock)
            recovered = await asyncio.to_thread(recover, path, io)
            store._begin(recovered, await asyncio.to_thread(store._open_end, recovered))
        except BaseException:
            lock.release()
            raise
        return store

    def _open_end(self, recovered: Recovered) -> Segment:
        """The segment to continue in, with its blocks allocated as far as the disk allows."""
        active = recovered.active
        try:
            if active is None:
                return self._first_segment(recovered.next_number)
            if active.capacity < self._settings.segment_bytes:
                self._io.fallocate(active.fd, self._settings.segment_bytes)
                active.capacity = self._settings.segment_bytes
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise StoreFailed(f"cannot make room in {self._folder}: {error}") from error
            if active is None:
                free = self._io.free_bytes(self._folder)
                raise DiskFull(f"no room for a segment in {self._folder}: {free} bytes are free") from error
            self._io.ftruncate(active.fd, active.capacity)
        return active

    def _first_segment(self, number: int) -> Segment:
        """On a full disk a small one will do: consumers and acks must go on."""
        for capacity in (self._settings.segment_bytes, self._settings.reserve_bytes):
            try:
                return create_segment(self._folder, number, capacity, self._io)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
        return create_segment(self._folder, number, _SMALLEST, self._io)

    def _begin(self, recovered: Recovered, active: Segment) -> None:
        self._streams = recovered.streams
        self._sealed = SealedSegments(
            self._folder,
            recovered.streams,
            recovered.sealed,
            io=self._io,
            executor=self._clerk,
            settings=self._settings,
        )
        self._sealed.files.adopt(active)
        self._reader = StreamReader(self._sealed.files, self._sealed.entries, self._io, self.stats, self._readers)
        self._keys = KeyBuilder(self._folder, REAL)
        self._search = KeySearch(
            self._sealed.files, self._sealed.entries, self._io, executor=self._readers, builder=self._keys
        )
        stamps = [Era(one.number, one.first_at_us, one.last_at_us) for one in recovered.sealed]
        stamps.append(Era(active.number, active.first_at_us, active.last_at_us))
        self._eras = Eras(era for era in stamps if era.last_us)
        self._publishing = active
        self._sealer = Sealer(
            self._loop,
            folder=self._folder,
            io=self._io,
            known=recovered.known,
            on_sealed=self._note_sealed,
            on_failed=self._note_failed,
        )
        self._tail = Tail(
            self._folder,
            active,
            settings=self._settings,
            io=self._io,
            clock=self._clock,
            executor=self._clerk,
            on_roll=self._note_roll,
        )
        self._writer = Writer(
            self._loop,
            io=self._io,
            settings=self._settings,
            stats=self.stats,
            active=active,
            sync_sealed=self._sealer.sync,
            publish=self._publish,
        )
        for stream in self._streams.values():
            first, stream.first = stream.first, 0
            stream.size_bytes = stream.bytes_until(stream.end, self._sealed.entries)
            stream.raise_first(first, self._sealed.entries)

    @property
    def failure(self) -> StoreFailed | None:
        """Why it takes no more writes."""
        return self._writer.failure

    def free_bytes(self) -> int:
        """Room on the disk."""
        return self._io.free_bytes(self._folder)

    @property
    def folder(self) -> Path:
        return self._root

    def is_short(self) -> bool:
        """Whether the disk has hardly any room for another segment."""
        return self.free_bytes() < self._settings.free_floor_bytes + self._settings.segment_bytes

    async def end(self) -> tuple[int, int]:
        """The segment and the position of the end of the log. All before it is on the disk, and the segments before it
        are sealed."""
        segment, position = self._tail.active, self._tail.position
        await self.append([], Durability.FSYNC).done
        await self._sealer.drain()
        return segment.number, position

    # --- append -------------------------------------------------------------------------------------------------------

    @property
    def times(self) -> Times:
        return self._eras.times(self._clock.now_us())

    def append(self, unit: Sequence[Append], durability: Durability) -> Appended:
        writer = self._writer
        if writer.failure is not None:
            raise writer.refusal()
        self._check_open()
        done: asyncio.Future[None] = self._loop.create_future()
        if not unit:
            writer.submit(Unit(self._tail.active, self._tail.position, 0, durability, done))
            return Appended((), self._eras.last_us, done)
        length, control, items = self._weigh(unit)
        limit = self._settings.queue_bytes
        if length > limit or len(unit) > _UNIT_FRAMES_MAX:
            raise TooLarge(
                f"a unit of {len(unit)} frames and {length} bytes: {_UNIT_FRAMES_MAX} and {limit} are the limits"
            )
        if writer.queued_bytes + length > (limit + limit // 4 if control else limit):
            raise QueueFull(f"{writer.queued_bytes} bytes wait to be written to {self._folder}; {limit} may")
        now_us = self._clock.now_us()
        if self._eras.breaks(now_us):
            self._begin_era(now_us)
        segment, position = self._tail.take(length, control)
        # From here on nothing can fail: the unit has its place and gets its numbers.
        at_us = self._eras.stamp(now_us)
        waiting = Unit(segment, position, length, durability, done)
        firsts = waiting.add_frames(items, at_us, self._synced_in(segment))
        for stream, _, _ in items:
            if stream.name not in self._streams:
                self._streams[stream.name] = stream
        if durability is Durability.RECEIVED:
            done.set_result(None)
        writer.submit(waiting, control=control)
        return Appended(firsts, at_us, done)

    def _begin_era(self, now_us: int) -> None:
        """In a segment of its own: so stamps run forward in every segment."""
        if self._tail.position:
            try:
                self._tail.roll()
            except (DiskFull, StoreFailed):
                return  # stamps stand still until there is room
        self._eras.begin(self._tail.active.number, now_us, str(self._folder))

    def _weigh(self, unit: Sequence[Append]) -> tuple[int, bool, list[tuple[Stream, int, Append]]]:
        """The bytes that a unit takes, whether all of it is control records, and its streams, with the length of each
        frame's record."""
        streams = self._streams
        if len(unit) == 1:
            known = streams.get(unit[0].stream) or streams.new(unit[0].stream)
            length = known.record_length(len(unit[0].frame))
            return length, unit[0].control, [(known, length, unit[0])]
        total, control = 0, True
        items: list[tuple[Stream, int, Append]] = []
        new: dict[str, Stream] = {}
        for item in unit:
            name, frame, _, _, is_control, _ = item
            stream = streams.get(name)
            if stream is None:
                stream = new.get(name)
                if stream is None:
                    stream = new[name] = streams.new(name)
            length = stream.head_length + (len(frame) + 7 & ~7)
            items.append((stream, length, item))
            total += length
            control = control and is_control
        return total, control, items

    def _synced_in(self, segment: Segment) -> int:
        number, position = self._writer.synced
        return position if number == segment.number else 0

    def _publish(self, units: Sequence[Unit]) -> None:
        """The units are written: from now on they are readable."""
        for unit in units:
            segment = unit.segment
            if segment is not self._publishing:
                self._sealer.seal(self._publishing)
                self._publishing = segment
            for stream, base, place, size, at_us in unit.entries:
                stream.hot_entries(segment).frombytes(pack_entry(base, place, size, at_us))
                stream.end = base + (size & 0xFFFFFFFF)
                stream.size_bytes += size >> 32
            if unit.entries:
                # All of a unit is appended at one time.
                segment.last_at_us = at_us
                segment.first_at_us = segment.first_at_us or at_us
            if unit.trim is not None:
                stream, first = unit.trim
                if unit.forget:
                    segment.forget(stream.name, first)
                else:
                    segment.trims[stream.name] = max(first, segment.trims.get(stream.name, 0))

    def _note_failed(self, error: OSError, place: str) -> None:
        self._writer.poison(error, place)

    def _note_sealed(self, segment: Segment, runs: list[Run]) -> None:
        self._sealed.add(segment, runs)
        self._keys.build_soon(segment.number)

    def _note_roll(self) -> None:
        self._sealed.files.adopt(self._tail.active)

    # --- read ---------------------------------------------------------------------------------------------------------

    async def read(self, stream: str, first: int, max_count: int, max_bytes: int) -> Read:
        try:
            return await self._read(stream, first, max_count, max_bytes)
        except Unreadable:
            return await _insist(partial(self._read, stream, first, max_count, max_bytes))

    async def _read(self, stream: str, first: int, max_count: int, max_bytes: int) -> Read:
        self._check_open()
        found = self._streams.get(stream)
        first = max(first, self._streams.floor(stream) if found is None else found.first)
        if found is None or first >= found.end or max_count <= 0:
            return Read((), (), first)
        return await self._reader.read(found, first, max_count, max_bytes)

    def bounds(self, stream: str) -> Bounds:
        found = self._streams.get(stream)
        if found is None:
            return Bounds(floor := self._streams.floor(stream), floor, 0)
        return Bounds(found.first, found.end, found.size_bytes)

    def streams(self, prefix: str = "") -> list[str]:
        return self._streams.names(prefix)

    async def locate(self, stream: str, time_us: int, first: int = 0, key: bytes = b"") -> int:
        return await _insist(partial(self._locate, stream, time_us, first, key))

    async def _locate(self, stream: str, time_us: int, first: int, key: bytes) -> int:
        self._check_open()
        found = self._streams.get(stream)
        if found is None:
            return self._streams.floor(stream)
        at = max(first, self._first_at(found, time_us))
        if key and at < found.end:
            keyed = await self._search.find(found, at, key)
            at = found.end if keyed is None else max(keyed, found.first)
        return min(at, found.end)

    def _first_at(self, found: Stream, time_us: int) -> int:
        times = self.times
        for segment, entries in found.runs_since(self._sealed.first_since(time_us, times), self._sealed.entries):
            index = first_at(segment, entries, time_us, times)
            if index < len(entries) // ENTRY:
                return max(entries[ENTRY * index], found.first)
        return found.end

    # --- trim and retain ----------------------------------------------------------------------------------------------

    async def trim(self, stream: str, before: int, *, forget: bool = False) -> None:
        self._check_open()
        if self._writer.failure is not None:
            raise self._writer.refusal()
        found = self._streams.get(stream)
        before = 0 if found is None else max(min(before, found.next), found.first)
        # A frame that is being written keeps the stream.
        forget = forget and found is not None and before == found.end == found.next and bool(kind_of(stream))
        if found is None or (before <= found.first and not forget):
            return
        now_us = self._clock.now_us()
        if self._eras.breaks(now_us):
            self._begin_era(now_us)
        segment, position = self._tail.take(found.head_length, control=True)
        unit = Unit(segment, position, found.head_length, Durability.FSYNC, self._loop.create_future())
        unit.add_trim(found, before, self._eras.stamp(now_us), self._synced_in(segment), forget=forget)
        if forget:
            # Now, not when it is durable: a later append comes behind it in the log.
            self._streams.forget(found)

        def note_done(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                found.raise_first(before, self._sealed.entries)

        unit.done.add_done_callback(note_done)
        self._writer.submit(unit)
        await asyncio.shield(unit.done)

    async def retain(self, max_age_us: int, max_bytes: int, pinned: Mapping[str, int]) -> Trimmed:
        self._check_open()
        async with self._retaining:
            return await self._retain(max_age_us, max_bytes, pinned)

    async def _retain(self, max_age_us: int, max_bytes: int, pinned: Mapping[str, int]) -> Trimmed:
        freed = 0
        await self._sealer.drain()
        await self._roll_if_aged(max_age_us)
        while True:
            verdict = await what_may_go(
                self._streams,
                list(self._sealed.sealed),
                active_bytes=self._tail.position,
                times=self.times,
                max_age_us=max_age_us,
                max_bytes=max_bytes,
                pinned=pinned,
            )
            if not verdict.segments:
                break
            freed += await self._sealed.delete(verdict.segments)
        self._tail.retry()
        return Trimmed(freed, verdict.held_back, verdict.holders, verdict.surplus_bytes)

    async def _roll_if_aged(self, max_age_us: int) -> None:
        """If even the last record of the segment being written is too old, seal it, so that it can go as well."""
        active = self._tail.active
        times = self.times
        if active.last_at_us > times.now_us and self._eras.breaks(times.now_us) and self._writer.failure is None:
            # Nothing follows a stamp ahead of the clock: it must not wait for that.
            self._begin_era(times.now_us)
            await self.append([], Durability.OS).done  # the first in the next segment has this one sealed
            await self._sealer.drain()
            return
        last_us = active.last_at_us and times.time_of(active.number, active.last_at_us)
        if not last_us or not max_age_us or last_us >= times.now_us - max_age_us or self._writer.failure is not None:
            return
        await self.append([], Durability.OS).done
        if self._tail.active is active and self._publishing is active and not self._writer.queued_bytes:
            try:
                self._tail.roll()
            except DiskFull:
                return
            self._publishing = self._tail.active
            self._sealer.seal(active)
            await self._sealer.drain()

    # --- documents ----------------------------------------------------------------------------------------------------

    async def load(self, name: str) -> bytes | None:
        self._check_open()
        return await self._loop.run_in_executor(self._clerk, self._documents.load, self._documents.path(name))

    async def save(self, name: str, document: bytes) -> None:
        self._check_open()
        await self._loop.run_in_executor(self._clerk, self._documents.save, self._documents.path(name), document)

    # --- close --------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    async def close(self) -> None:
        if self._closed:
            return
        barrier = self.append([], Durability.FSYNC).done if self._writer.failure is None else None
        self._closed = True
        try:
            if barrier is not None:
                await barrier
        finally:
            try:
                await asyncio.to_thread(self._let_go)
            finally:
                self._sealed.close()
                self._lock.release()

    def _let_go(self) -> None:
        """End all threads and leave the last segment as short as it is; in a thread, because it waits."""
        self._keys.close()
        self._writer.stop()
        self._clerk.shutdown(wait=True)
        try:
            self._tail.close()
            if self._writer.failure is None:
                self._leave_end()
        except OSError as error:
            raise StoreFailed(f"closing {self._folder} failed: {error}. The next start looks at its end") from error
        finally:
            self._sealer.close()
            self._readers.shutdown(wait=True)

    def _leave_end(self) -> None:
        active = self._tail.active
        active.used = self._tail.position
        if sum(map(len, active.runs.values())) // ENTRY >= _SEAL_AT_CLOSE:
            self._sealer.seal(active)
        else:
            self._io.ftruncate(active.fd, active.used)
            self._io.fsync(active.fd)
