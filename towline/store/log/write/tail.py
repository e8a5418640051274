"""The end of the message log: the place of the next unit, the segment after this one, and a full disk.

The next segment is made ahead by a thread once the present one is half full, so that rolling over does not stall. If
the disk has no room for it, messages are refused when the present segment is down to its reserve; control records
(delivery events) may use the reserve, so that consumers and acks go on. It is tried again at most every 0.2 s, when an
append would be refused, and by retention: the store recovers by itself.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path

from towline.clock import Clock
from towline.errors import DiskFull, StoreFailed
from towline.store.log.format.segment import NO_ROOM, Segment, create_segment
from towline.store.log.settings import LogSettings
from towline.store.log.write.disk import DiskIo

__all__ = ["Tail"]

_log = logging.getLogger("towline.store")

_RETRY_S = 0.2


class Tail:
    """Hands out places. Belongs to the event loop; only the making of a segment ahead runs elsewhere."""

    def __init__(
        self,
        folder: Path,
        active: Segment,
        *,
        settings: LogSettings,
        io: DiskIo,
        clock: Clock,
        executor: Executor,
        on_roll: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._io = io
        self._clock = clock
        self._executor = executor
        self._on_roll = on_roll
        self.active = active
        self.position = active.used
        self._next: Segment | None = None
        self._making: Future[Segment] | None = None
        self._refused: OSError | None = None
        self._retry_at_s = 0.0

    def take(self, length: int, control: bool) -> tuple[Segment, int]:
        """A place for `length` bytes in one segment. Raises `DiskFull` before anything has changed."""
        if self._making is not None and self._making.done():
            self._settle_making()
        reserve = 0 if control or self._refused is None else self._settings.reserve_bytes
        if self.position + length > self.active.capacity - reserve:
            self._make_room(length, control)
        position = self.position
        self.position = position + length
        if self.position * 2 > self.active.capacity and self._next is None and self._making is None:
            self._make_ahead()
        return self.active, position

    def retry(self) -> None:
        """Space may have been freed: try again to make the next segment, at once."""
        if self._refused is not None:
            self._retry_at_s = 0.0
            self._ensure_next()

    def roll(self) -> None:
        """Continue in a new segment, whatever room this one has left."""
        if not self._ensure_next():
            raise self._full()
        self._switch()

    def close(self) -> None:
        """Remove the segment that was made ahead but holds nothing."""
        self._settle_making()
        if self._next is not None:
            os.close(self._next.fd)
            self._next.path.unlink(missing_ok=True)
            self._next = None

    def _make_room(self, length: int, control: bool) -> None:
        if self._ensure_next():
            # With a further segment at hand the reserve is not needed: the present one may be filled up.
            if self.position + length > self.active.capacity:
                self._grow_next(length)
                self._switch()
        elif not control or self.position + length > self.active.capacity:
            raise self._full()

    def _ensure_next(self) -> bool:
        self._settle_making()
        if self._next is None and (self._refused is None or self._clock.steady_s() >= self._retry_at_s):
            self._note(self._try_making())
        return self._next is not None

    def _make_ahead(self) -> None:
        if self._refused is None:
            self._making = self._executor.submit(self._make, self.active.number + 1)

    def _settle_making(self) -> None:
        """Wait for the segment being made, if one is; it comes soon, and there is nowhere else to go."""
        if self._making is not None:
            making, self._making = self._making, None
            try:
                self._note(making.result())
            except OSError as error:
                self._note(error)

    def _try_making(self) -> Segment | OSError:
        try:
            return self._make(self.active.number + 1)
        except OSError as error:
            return error

    def _make(self, number: int) -> Segment:
        settings = self._settings
        if self._io.free_bytes(self._folder) < settings.segment_bytes + settings.free_floor_bytes:
            raise OSError(errno.ENOSPC, "too little free space")
        return create_segment(self._folder, number, settings.segment_bytes, self._io)

    def _note(self, outcome: Segment | OSError) -> None:
        if isinstance(outcome, Segment):
            if self._refused is not None:
                _log.warning("%s: there is room again, messages are taken", self._folder)
            self._next, self._refused = outcome, None
            return
        if self._refused is None:
            _log.error(
                "%s: no further segment can be made (%s, %d bytes free); messages will be refused, delivery goes on",
                self._folder,
                outcome.strerror,
                self._io.free_bytes(self._folder),
            )
        self._refused = outcome
        self._retry_at_s = self._clock.steady_s() + _RETRY_S

    def _grow_next(self, length: int) -> None:
        """Make the next segment large enough for a unit that no ordinary one could hold."""
        segment = self._next
        assert segment is not None, "there is a next segment"
        if length <= segment.capacity:
            return
        try:
            if self._io.free_bytes(self._folder) < length + self._settings.free_floor_bytes:
                raise OSError(errno.ENOSPC, "too little free space")
            self._io.fallocate(segment.fd, length)
        except OSError as error:
            self._io.ftruncate(segment.fd, segment.capacity)
            raise DiskFull(
                f"no room for a unit of {length} bytes in {self._folder}: {error.strerror}, "
                f"{self._io.free_bytes(self._folder)} bytes are free"
            ) from error
        segment.capacity = length

    def _switch(self) -> None:
        assert self._next is not None, "there is a next segment"
        old = self.active
        old.used = self.position
        self.active, self._next, self.position = self._next, None, 0
        self._on_roll()

    def _full(self) -> DiskFull | StoreFailed:
        error = self._refused
        assert error is not None, "making the next segment has failed"
        if error.errno not in NO_ROOM:
            return StoreFailed(f"cannot make a segment in {self._folder}: {error.strerror} (errno {error.errno})")
        free = self._io.free_bytes(self._folder)
        return DiskFull(f"the disk under {self._folder} is full: {free} bytes are free, a segment needs more")
