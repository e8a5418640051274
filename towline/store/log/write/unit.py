"""A unit being written: the bytes of its records, and their index entries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from towline.model import Durability
from towline.store.log.format.record import FORGET, FRAME, TRIM, pad, seal_stamp, stamp_tail
from towline.store.log.format.segment import Segment
from towline.store.log.read.streams import Stream
from towline.store.spi import Append

__all__ = ["Unit"]

Entry = tuple[Stream, int, int, int, int]
"""A stream, and the four numbers of its new entry in the consume log."""


class Unit:
    """The frames of one append. A unit without records is a barrier."""

    __slots__ = (
        "buffers",
        "done",
        "durability",
        "entries",
        "forget",
        "length",
        "position",
        "published",
        "segment",
        "trim",
    )

    def __init__(
        self, segment: Segment, position: int, length: int, durability: Durability, done: asyncio.Future[None]
    ) -> None:
        self.segment = segment
        self.position = position
        self.length = length
        self.durability = durability
        self.done = done
        self.buffers: list[bytes | memoryview] = []
        self.entries: list[Entry] = []
        self.trim: tuple[Stream, int] | None = None
        self.forget = False
        self.published = False

    def add_frames(self, items: Sequence[tuple[Stream, int, Append]], at_us: int, synced: int) -> tuple[int, ...]:
        """Number the frames, which come with the lengths of their records, and put the broker's stamp before each;
        returns their first numbers."""
        number, position, size = self.segment.number, self.position, len(items)
        buffers, entries, firsts = self.buffers, self.entries, []
        received = self.durability is Durability.RECEIVED
        for index, (stream, length, (_, frame, count, source, *_)) in enumerate(items):
            assert count > 0, "a frame holds at least one record"
            assert len(source) <= 16, "a source is an IP address"
            base, frame_length, name = stream.next, len(frame), stream.encoded
            tail = stamp_tail(
                length, frame_length, len(name), FRAME, len(source), index, size, base, at_us, count, synced, source
            )
            buffers.append(seal_stamp(number, position, tail, name))
            if received and not isinstance(frame, bytes):
                frame = bytes(frame)  # noqa: PLW2901 - it counts as done already, so its buffer may be used again
            buffers.append(frame)
            if frame_length & 7:
                buffers.append(pad(frame_length))
            entries.append((stream, base, position << 32 | length, frame_length << 32 | count, at_us))
            firsts.append(base)
            stream.next = base + count
            position += length
        return tuple(firsts)

    def add_trim(self, stream: Stream, before: int, at_us: int, synced: int, *, forget: bool) -> None:
        """Make this the record of a trim: nothing before this number of the stream is readable any more; or of a stream
        that is forgotten, which ends there."""
        name, kind = stream.encoded, FORGET if forget else TRIM
        tail = stamp_tail(self.length, 0, len(name), kind, 0, 0, 1, before, at_us, 0, synced, b"")
        self.buffers.append(seal_stamp(self.segment.number, self.position, tail, name))
        self.trim, self.forget = (stream, before), forget
