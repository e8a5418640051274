"""Group commit: all waiting units are written with one call, synced once, and acknowledged together.

Appends of one turn of the event loop form a group. A small group that needs no fsync is written by the loop itself if
the writer thread is idle, because handing it over would cost more than writing it; all others go to the thread, which
merges the groups that have come in while it was busy. Never do both write at once, so the groups are in the file in
their order. When a write of the loop was slow, all go to the thread for a while. A single frame that comes after a
pause is written at once: where appends come one by one, none gains from waiting for the others of its turn.

An error of a write or of an fsync is final: the state of the kernel's pages is unknown, and a second fsync would
succeed about lost data. The writer then fails all waiting units and takes nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from towline.errors import StoreFailed
from towline.model import Durability
from towline.store.log.format.segment import Segment
from towline.store.log.settings import LogSettings
from towline.store.log.stats import LogStats
from towline.store.log.write.disk import DiskIo
from towline.store.log.write.unit import Unit

__all__ = ["Writer"]

_log = logging.getLogger("towline.store")

_IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
_PAUSE_S = 50e-6
_SLOW_S = 0.005
_WARY_S = 1.0
"""After a write by the loop that took longer than `_SLOW_S`, the thread writes everything for so long: the system makes
writers wait when too much is not on the disk yet, and the loop must not be held up."""
_WRITE_MAX = 1 << 20
"""Calls with more bytes than this were three to ten times slower per byte when measured (ext4, Linux 6.18)."""


class Writer:
    """The queue in front of the log, and the thread behind it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        io: DiskIo,
        settings: LogSettings,
        stats: LogStats,
        active: Segment,
        sync_sealed: Callable[[Segment], Future[None]],
        publish: Callable[[Sequence[Unit]], None],
    ) -> None:
        self._loop = loop
        self._io = io
        self._settings = settings
        self._stats = stats
        self._sync_sealed = sync_sealed
        self._publish = publish
        self.failure: StoreFailed | None = None
        self.queued_bytes = 0
        self.synced = (active.number, 0)
        """The segment and position before which all is known to be on the disk."""
        self._waiting: list[Unit] = []
        self._scheduled = False
        self._postponed = False
        self._handed_over = 0
        self._wrote_at = 0.0
        self._wary_until = 0.0
        self._queue: SimpleQueue[list[Unit] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # The two below are used by the present writer: the thread, or the loop while nothing is handed over.
        self._segment = active
        self._syncing: list[Future[None]] = []

    def submit(self, unit: Unit, *, control: bool = False) -> None:
        """Take a unit. One of control records alone lets others that are ready in this turn of the loop go first: the
        answer to a pull does not wait for the write of its event."""
        if not control and self._may_be_prompt(unit):
            self._write_at_once(unit)
            return
        self.queued_bytes += unit.length
        self._waiting.append(unit)
        if self._scheduled:
            return
        if not control:
            self._scheduled = True
            self._loop.call_soon(self._take_turn)
        elif not self._postponed:
            self._postponed = True
            self._loop.call_soon(self._loop.call_soon, self._take_postponed)

    def poison(self, error: BaseException, place: str) -> StoreFailed:
        """Take no more writes. The first reason stays."""
        if self.failure is None:
            number = getattr(error, "errno", None)
            reason = f"{getattr(error, 'strerror', None) or error!r}" + (f" (errno {number})" if number else "")
            self.failure = StoreFailed(f"writing {place} failed: {reason}. The store takes no more writes")
            _log.critical("%s", self.failure)
        return self.refusal()

    def refusal(self) -> StoreFailed:
        """Why nothing is written any more. A new one each time: an exception that is raised again and again grows with
        every time, and a note added to it is added for all."""
        return StoreFailed(str(self.failure))

    def stop(self) -> None:
        """End the thread, once all has been written."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    # --- on the event loop --------------------------------------------------------------------------------------------

    def _take_postponed(self) -> None:
        self._postponed = False
        if self._waiting:
            self._take_turn()

    def _take_turn(self) -> None:
        self._scheduled = False
        group, self._waiting = self._waiting, []
        begin = time.perf_counter()
        if self._handed_over == 0 and begin >= self._wary_until and self._fits_inline(group):
            try:
                if self.failure is None:
                    self._write(group)
                    self._stats.inline_groups += 1
            except Exception as error:
                self.poison(error, str(self._segment.path))
            self._mind(begin, time.perf_counter())
            self._finish(group, 0, synced=False)
            self._wrote_at = time.perf_counter()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="towline-writer", daemon=True)
            self._thread.start()
        self._handed_over += 1
        self._queue.put(group)

    def _may_be_prompt(self, unit: Unit) -> bool:
        return (
            unit.durability is Durability.OS
            and not self._waiting
            and not self._handed_over
            and len(unit.entries) == 1
            and unit.length <= self._settings.inline_bytes
            and unit.segment is self._segment
            and (now := time.perf_counter()) - self._wrote_at > _PAUSE_S
            and now >= self._wary_until
        )

    def _mind(self, begin: float, end: float) -> None:
        if end - begin > _SLOW_S:
            self._wary_until = end + _WARY_S

    def _write_at_once(self, unit: Unit) -> None:
        """`submit` for a group of one."""
        begin = time.perf_counter()
        try:
            self._write_buffers(unit.buffers, unit.position)
        except Exception as error:
            fail(unit.done, self.poison(error, str(self._segment.path)))
            return
        self._stats.groups += 1
        self._stats.inline_groups += 1
        self._publish((unit,))
        unit.published = True
        unit.done.set_result(None)
        self._wrote_at = end = time.perf_counter()
        self._mind(begin, end)

    def _fits_inline(self, group: list[Unit]) -> bool:
        length = 0
        for unit in group:
            if unit.durability is Durability.FSYNC or unit.segment is not self._segment:
                return False
            length += unit.length
        return length <= self._settings.inline_bytes

    def _written(self, units: Sequence[Unit]) -> None:
        """The units are readable, and those that wait for no fsync are done; barriers wait for all before them."""
        if self.failure is None:
            self._show(units)
            for unit in units:
                if unit.durability is not Durability.FSYNC and unit.length and not unit.done.done():
                    unit.done.set_result(None)

    def _finish(self, units: Sequence[Unit], groups: int, synced: bool) -> None:
        self._handed_over -= groups
        self.queued_bytes -= sum([unit.length for unit in units])
        if self.failure is not None:
            for unit in units:
                fail(unit.done, self.refusal())
            return
        if synced:
            last = units[-1]
            self.synced = (last.segment.number, last.position + last.length)
        self._show(units)
        for unit in units:
            if not unit.done.done():
                unit.done.set_result(None)

    def _show(self, units: Sequence[Unit]) -> None:
        self._publish([unit for unit in units if not unit.published])
        for unit in units:
            unit.published = True

    # --- in the thread, or on the loop while the thread is idle -------------------------------------------------------

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed before the store: nobody is left to be told
            while (first := self._queue.get()) is not None:
                groups, last = self._merge(first)
                units = [unit for group in groups for unit in group]
                synced = any(unit.durability is Durability.FSYNC for unit in units)
                try:
                    if self.failure is None:
                        self._commit(units, synced)
                except Exception as error:
                    self.poison(error, str(self._segment.path))
                self._loop.call_soon_threadsafe(self._finish, units, len(groups), synced)
                if last:
                    return

    def _merge(self, first: list[Unit]) -> tuple[list[list[Unit]], bool]:
        """The group and all units that came in behind it, and whether the end was asked for."""
        groups, length = [first], sum([unit.length for unit in first])
        try:
            while length < self._settings.group_bytes:
                group = self._queue.get_nowait()
                if group is None:
                    return groups, True
                groups.append(group)
                length += sum([unit.length for unit in group])
        except Empty:
            pass
        return groups, False

    def _commit(self, units: list[Unit], synced: bool) -> None:
        self._write(units)
        if not synced:
            return
        if any(unit.durability is Durability.OS for unit in units):
            self._loop.call_soon_threadsafe(self._written, units)
        begin = time.perf_counter()
        while self._syncing:
            self._syncing[0].result()
            del self._syncing[0]
        self._io.fdatasync(self._segment.fd)
        self._stats.note_fsync(time.perf_counter() - begin)

    def _write(self, units: Sequence[Unit]) -> None:
        """Write units that lie back to back, segment after segment."""
        begin = 0
        for index, unit in enumerate(units):
            if unit.segment is not self._segment:
                self._write_run(units[begin:index])
                self._syncing.append(self._sync_sealed(self._segment))
                self._segment = unit.segment
                begin = index
        self._write_run(units[begin:])
        self._stats.groups += 1

    def _write_run(self, units: Sequence[Unit]) -> None:
        if len(units) == 1 and units[0].length <= _WRITE_MAX and len(units[0].buffers) <= _IOV_MAX:
            if units[0].length:
                self._write_buffers(units[0].buffers, units[0].position)
            return
        buffers = [buffer for unit in units for buffer in unit.buffers]
        position = next((unit.position for unit in units if unit.length), 0)
        begin = length = 0
        for index, buffer in enumerate(buffers):
            if index - begin == _IOV_MAX or (length and length + len(buffer) > _WRITE_MAX):
                position = self._write_buffers(buffers[begin:index], position)
                begin, length = index, 0
            length += len(buffer)
        if begin < len(buffers):
            self._write_buffers(buffers[begin:], position)

    def _write_buffers(self, buffers: list[bytes | memoryview], position: int) -> int:
        end = position + sum(map(len, buffers))
        while True:
            done = self._io.pwritev(self._segment.fd, buffers, position)
            position += done
            self._stats.bytes_written += done
            if position == end:
                return end
            while done >= len(buffers[0]):
                done -= len(buffers[0])
                buffers = buffers[1:]
            buffers = [memoryview(buffers[0])[done:], *buffers[1:]]


def fail(done: asyncio.Future[None], error: Exception) -> None:
    """Fail a future that perhaps nobody waits for, without a complaint about that."""
    if not done.done():
        done.set_exception(error)
        done.exception()
