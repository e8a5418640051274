"""Frames that wait on the local disk until a broker takes them.

One file is filled and emptied in its order, so the order of each lane is kept. Every 64 frames a mark notes how far it
was emptied: a broker remembers the last 256 frames of a producer, so frames that are sent again after a crash are
recognised.
"""

from __future__ import annotations

import logging
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from towline.client.link.spool_file import MAGIC, SpoolFile, spool_folder
from towline.errors import BadRequest, QueueFull, StoreLocked

__all__ = ["FrameSpool", "SpooledFrame"]

log = logging.getLogger("towline.client")

_MARK_EVERY: Final = 64
_MARKS_ROOM: Final = 1 << 20
_MAX_FILES: Final = 64


class SpooledFrame(msgspec.Struct, frozen=True, array_like=True, tag=0):
    topic: str
    lane: int
    durability: int
    frame: bytes
    shards: int = 0
    """The number of shards of its topic, as its sender knew it; below 0 there must be some, but nobody knew how
    many."""


class Mark(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """All before this offset of the file was sent."""

    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SpooledFrame | Mark).decode


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()


class FrameSpool:
    """The spool of one producer. The spools that earlier producers left in the folder are taken over."""

    def __init__(self, folder: str | Path, max_bytes: int) -> None:
        if not 1 << 10 <= max_bytes <= 1 << 40:
            raise BadRequest(f"spool_bytes={max_bytes}: give a number from 1,024 to {1 << 40}")
        self._folder = spool_folder(folder)
        self._max_bytes = max_bytes
        self._file = self._first_free()
        self._at = len(MAGIC)
        self._since_mark = 0
        self.lanes: Counter[tuple[str, int, int]] = Counter()
        """Waiting frames by lane: topic, number, and number of shards."""
        try:
            for frame in self._waiting_in(self._file, at_home=True):
                self.lanes[frame.topic, frame.lane, frame.shards] += 1
            self._take_over()
        except BaseException:
            self._file.close()
            raise
        if self.lanes:
            log.info("spool %s: %d frames of an earlier producer wait", self._file.path, self.lanes.total())

    def __repr__(self) -> str:
        return f"<FrameSpool {self._file.path}, {self.lanes.total()} frames>"

    def append(self, *frames: SpooledFrame) -> None:
        """Keep frames; they are on the disk when this returns. All or none: raises `QueueFull`."""
        payloads = [_encode(frame) for frame in frames]
        if self._file.size + sum(map(len, payloads)) > self._max_bytes:
            raise QueueFull(
                f"spool {self._file.path} is full: {self._max_bytes} bytes wait for a broker that cannot be reached"
            )
        self._file.append(payloads)
        self.lanes.update((frame.topic, frame.lane, frame.shards) for frame in frames)

    def goes_before(self, topic: str, lane: int, shards: int) -> bool:
        """Whether a waiting frame must be sent before messages of this lane: one of the same lane, or of a topic whose
        shards are not known yet."""
        return bool(self.lanes) and (
            (topic, lane, shards) in self.lanes
            or any(name == topic and count != shards for name, _, count in self.lanes)
        )

    def next(self) -> SpooledFrame | None:
        """The frame to send now."""
        while (found := self._file.read(self._at)) is not None:
            payload, after = found
            kept = None if payload is None else _decode(payload)
            if isinstance(kept, SpooledFrame):
                return kept
            self._at = after
        return None

    def sent(self, frame: SpooledFrame) -> None:
        """The frame that `next` returned is with the broker."""
        found = self._file.read(self._at)
        assert found is not None, "a frame that was sent is there"
        self._at = found[1]
        self.lanes[frame.topic, frame.lane, frame.shards] -= 1
        self.lanes += Counter()
        self._since_mark += 1
        if not self.lanes:
            self._file.clear()
            self._at, self._since_mark = len(MAGIC), 0
        elif self._since_mark >= _MARK_EVERY:
            self._file.append([_encode(Mark(self._at))])
            self._since_mark = 0

    def put_aside(self, frame: SpooledFrame) -> None:
        """No broker will ever take it: keep it where people can look at it."""
        aside = SpoolFile(self._file.path.with_suffix(".refused"), self._max_bytes)
        try:
            aside.append([_encode(frame)])
        except QueueFull as error:
            log.error("%s", error)
        finally:
            aside.close()

    def close(self) -> None:
        if self.lanes:
            self._file.append([_encode(Mark(self._at))])
        self._file.close()

    def _first_free(self) -> SpoolFile:
        for number in range(_MAX_FILES):
            try:
                return self._open(self._folder / f"producer-{number}.frames")
            except StoreLocked:
                continue
        raise StoreLocked(f"spool_dir {self._folder} is in use by {_MAX_FILES} producers already: use another folder")

    def _open(self, path: Path) -> SpoolFile:
        return SpoolFile(path, self._max_bytes + _MARKS_ROOM)

    def _waiting_in(self, file: SpoolFile, *, at_home: bool = False) -> list[SpooledFrame]:
        """The heads of the frames that wait (without their bytes, if they stay where they are)."""
        frames: list[tuple[int, SpooledFrame]] = []
        offset, begin = len(MAGIC), len(MAGIC)
        while (found := file.read(offset)) is not None:
            payload, after = found
            kept = None if payload is None else _decode(payload)
            if isinstance(kept, Mark):
                begin = max(begin, kept.offset)
            elif kept is not None:
                frames.append((offset, msgspec.structs.replace(kept, frame=b"") if at_home else kept))
            offset = after
        if at_home:
            self._at = begin
        return [frame for at, frame in frames if at >= begin]

    def _digests(self) -> set[bytes]:
        """Digests of the waiting frames, without holding them all in memory."""
        digests, offset = set(), self._at
        while (found := self._file.read(offset)) is not None:
            payload, offset = found
            if payload is not None:
                digests.add(_digest(payload))
        return digests

    def _take_over(self) -> None:
        for path in sorted(self._folder.glob("producer-*.frames")):
            if path == self._file.path:
                continue
            try:
                file = self._open(path)
            except StoreLocked:
                continue
            try:
                frames = self._waiting_in(file)
                # The process that took it over before us may have been killed before it cleared the file.
                here = self._digests() if frames else set()
                self.append(*(frame for frame in frames if _digest(_encode(frame)) not in here))
                file.clear()
            except QueueFull as error:
                log.warning("spool %s is not taken over yet: %s", path, error)
            finally:
                file.close()
