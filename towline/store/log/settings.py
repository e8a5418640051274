"""Settings of a log store."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["LogSettings"]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit of a log store. The defaults suit a broker; tests make the segments small."""

    segment_bytes: int = 128 * MIB
    """The size of a file of the message log; a unit larger than this gets a file of its own size."""
    min_free_bytes: int | None = None
    """No new segment is made if it would leave less than this free on the disk; None is an eighth of a segment."""
    queue_bytes: Annotated[int, msgspec.Meta(ge=64 * KIB)] = 256 * MIB
    """The bytes that may wait to be written before `append` refuses with `QueueFull`."""
    inline_bytes: Annotated[int, msgspec.Meta(ge=0)] = 512 * KIB
    """A group up to this size that needs no fsync is written by the event loop itself: a thread costs more."""
    group_bytes: Annotated[int, msgspec.Meta(ge=64 * KIB)] = 16 * MIB
    """The writer thread takes no more than about this much at once, so that one fsync stays short."""
    open_segments: Annotated[int, msgspec.Meta(ge=4)] = 64
    """Sealed segments that are kept open for reading."""
    index_bytes: Annotated[int, msgspec.Meta(ge=0)] = 64 * MIB
    """The bytes of the sealed segments' indexes that are kept mapped."""
    read_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 3
    """Threads for reads that are not in the page cache."""

    def __post_init__(self) -> None:
        if not 64 * KIB <= self.segment_bytes <= 2 * GIB:
            raise ValueError(f"segment_bytes is {self.segment_bytes}: give 65536 (64 KiB) to 2147483648 (2 GiB)")
        if self.min_free_bytes is not None and self.min_free_bytes < 0:
            raise ValueError(f"min_free_bytes is {self.min_free_bytes}: give 0 or more")

    @property
    def reserve_bytes(self) -> int:
        """The bytes that are kept for control records when no further segment can be made."""
        return min(self.segment_bytes // 4, 16 * MIB)

    @property
    def free_floor_bytes(self) -> int:
        return self.segment_bytes // 8 if self.min_free_bytes is None else self.min_free_bytes
