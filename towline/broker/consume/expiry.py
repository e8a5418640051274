"""Messages whose lifetime is over. Only frames that say that they have such messages are opened."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

import msgspec

from towline.frame import Frame
from towline.frame.layout import EXPIRES_AT, PREFIX
from towline.store import Chunk

__all__ = ["FLAGS_AT", "split"]

FLAGS_AT: Final = PREFIX.size
"""Where the flags of a frame begin; the low byte has those of the columns."""


def split(frame: Frame, chunk: Chunk, count: int, now_us: int) -> Iterator[tuple[Chunk, bool]]:
    """The first `count` messages of a chunk of this frame, cut into those that live and those that are expired."""
    if not frame.flags & EXPIRES_AT or now_us < frame.earliest_expiry_us:
        yield msgspec.structs.replace(chunk, count=count), False
        return
    if 0 < frame.latest_expiry_us <= now_us:
        yield msgspec.structs.replace(chunk, count=count), True
        return
    times = frame.expires_at_us(chunk.start, chunk.start + count) or [0] * count
    at = 0
    for expired, run in groupby(0 < time_us <= now_us for time_us in times):
        length = sum(1 for _ in run)
        yield msgspec.structs.replace(chunk, first=chunk.first + at, start=chunk.start + at, count=length), expired
        at += length
