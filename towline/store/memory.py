"""The store of an embedded queue: streams in memory, bounded, gone with the process.

It is full at a number of messages or of bytes, whichever comes first; trimming and `retain` make room. Delivery events
have a reserve on top, so that consumers drain a full store. What is counted are frames; Python's objects around them
come on top, about 300 bytes a frame.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter

import msgspec

from towline.clock import SYSTEM, Clock
from towline.errors import Closed, QueueFull, TooLarge
from towline.frame import Frame
from towline.frame.search import find_key
from towline.model import Durability
from towline.store.eras import Eras, Times
from towline.store.spi import Append, Appended, Bounds, Chunk, Read, Trimmed, kind_of

__all__ = ["MemoryStore"]

_RESERVE = 8
"""The reserve for control frames is one part in so many of the capacity, on top of it."""


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """A stored frame; `read` returns it whole."""

    chunk: Chunk
    """Serial numbers count all frames of the store: the oldest has the lowest."""
    messages: int
    """Its size for the capacity: its records, or none if they are control records."""


class _Stream:
    __slots__ = ("end", "first", "kept", "size_bytes")

    def __init__(self, floor: int) -> None:
        self.first = floor
        self.end = floor
        self.size_bytes = 0
        self.kept: list[_Kept] = []


class MemoryStore:
    """See `towline.store.spi.Store`. Every durability is the same here: done at once, and survives nothing."""

    def __init__(
        self, capacity_messages: int = 1_000_000, capacity_bytes: int = 256 << 20, clock: Clock = SYSTEM
    ) -> None:
        assert capacity_messages > 0, capacity_messages
        assert capacity_bytes > 0, capacity_bytes
        self._capacity_messages = capacity_messages
        self._capacity_bytes = capacity_bytes
        self._reserve_bytes = capacity_bytes // _RESERVE
        self._clock = clock
        self._streams: dict[str, _Stream] = {}
        self._floors: dict[str, int] = {}
        """By kind: the first number of streams that do not exist."""
        self._documents: dict[str, bytes] = {}
        self._messages = 0
        self._bytes = 0
        self._serial = 0
        self._eras = Eras()
        self._closed = False

    @property
    def failure(self) -> None:
        """Memory does not fail."""

    @property
    def times(self) -> Times:
        return self._eras.times(self._clock.now_us())

    def append(self, unit: Sequence[Append], durability: Durability) -> Appended:
        self._check_open()
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        self._check_room(unit)
        now_us = self._clock.now_us()
        if self._eras.breaks(now_us):
            self._begin_era(now_us)
        at_us = self._eras.stamp(now_us)
        return Appended(tuple([self._keep(append, at_us) for append in unit]), at_us, done)

    def _begin_era(self, now_us: int) -> None:
        self._eras.begin(self._serial + 1, now_us, "the memory store")

    def _check_room(self, unit: Sequence[Append]) -> None:
        messages = message_bytes = control_bytes = 0
        for append in unit:
            if append.control:
                control_bytes += len(append.frame)
            else:
                messages += append.count
                message_bytes += len(append.frame)
        total_bytes = message_bytes + control_bytes
        if (
            messages > self._capacity_messages
            or message_bytes > self._capacity_bytes
            or total_bytes > self._capacity_bytes + self._reserve_bytes
        ):
            raise TooLarge(
                f"{messages} messages in {total_bytes} bytes never fit into {self._capacity}: send fewer at a time"
            )
        # Control frames take from the capacity while there is some, and only then from the reserve.
        messages_fit = messages == 0 or (
            self._messages + messages <= self._capacity_messages and self._bytes + message_bytes <= self._capacity_bytes
        )
        if not messages_fit or self._bytes + total_bytes > self._capacity_bytes + self._reserve_bytes:
            raise QueueFull(
                f"no room for stream {unit[0].stream!r}: {self._messages} messages in {self._bytes} bytes fill "
                f"{self._capacity}. Consume, shorten the retention or raise the capacity, then send again"
            )

    @property
    def _capacity(self) -> str:
        return f"the memory store's capacity of {self._capacity_messages} messages and {self._capacity_bytes} bytes"

    def _keep(self, append: Append, at_us: int) -> int:
        name, frame, count, source, control, _ = append
        assert count > 0, append
        assert len(source) <= 16, append
        # A view may be of a buffer that is soon filled anew, or far larger than the view.
        if not isinstance(frame, bytes):
            frame = bytes(frame)
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = _Stream(self._floor(name))
        first = stream.end
        messages = 0 if control else count
        self._serial += 1
        stream.kept.append(_Kept(Chunk(first, count, 0, frame, at_us, source, self._serial), messages))
        stream.end += count
        stream.size_bytes += len(frame)
        self._bytes += len(frame)
        self._messages += messages
        return first

    async def read(self, stream: str, first: int, max_count: int, max_bytes: int) -> Read:
        self._check_open()
        assert max_count > 0, max_count
        found = self._streams.get(stream)
        if found is None:
            return Read((), (), max(first, self._floor(stream)))
        if first >= found.end:
            return Read((), (), first)
        first = max(first, found.first)
        chunks: list[Chunk] = []
        for index in range(_at(found, first), len(found.kept)):
            chunk = found.kept[index].chunk
            max_bytes -= len(chunk.frame)
            if max_count == 0 or (max_bytes < 0 and chunks):
                break
            start = first - chunk.first
            count = min(chunk.count - start, max_count)
            if count < chunk.count:
                chunk = Chunk(first, count, start, chunk.frame, chunk.appended_at_us, chunk.source, chunk.serial)
            chunks.append(chunk)
            first += count
            max_count -= count
        return Read(chunks, (), first)

    def bounds(self, stream: str) -> Bounds:
        self._check_open()
        found = self._streams.get(stream)
        if found is None:
            return Bounds(floor := self._floor(stream), floor, 0)
        return Bounds(found.first, found.end, found.size_bytes)

    def _floor(self, stream: str) -> int:
        return self._floors.get(kind_of(stream), 0)

    async def locate(self, stream: str, time_us: int, first: int = 0, key: bytes = b"") -> int:
        self._check_open()
        found = self._streams.get(stream)
        if found is None:
            return self._floor(stream)
        times = self.times
        index = bisect_left(found.kept, time_us, key=partial(_time_of, times))
        at = max(found.kept[index].chunk.first, found.first) if index < len(found.kept) else found.end
        at = min(max(at, first), found.end)
        if not key or at == found.end:
            return at
        kept = found.kept[_at(found, at) :]
        keyed = await asyncio.to_thread(_find_key, kept, at, key)
        return found.end if keyed is None else max(keyed, found.first)

    def streams(self, prefix: str = "") -> list[str]:
        self._check_open()
        return sorted(name for name in self._streams if name.startswith(prefix))

    async def trim(self, stream: str, before: int, *, forget: bool = False) -> None:
        self._check_open()
        found = self._streams.get(stream)
        if found is None:
            return
        if before > found.first:
            found.first = min(before, found.end)
            self._drop(found, _at(found, found.first))
        kind = kind_of(stream)
        if forget and kind and found.first == found.end:
            self._floors[kind] = max(found.end, self._floor(stream))
            del self._streams[stream]

    async def retain(self, max_age_us: int, max_bytes: int, pinned: Mapping[str, int]) -> Trimmed:
        self._check_open()
        if self._eras.is_ahead(self._clock.now_us()):
            # An old frame is to go though nothing follows it.
            self._begin_era(self._clock.now_us())
        times = self.times
        oldest_us = times.now_us - max_age_us if max_age_us else 0
        surplus_bytes = self._bytes - max_bytes if max_bytes else 0
        before = self._bytes
        held_back, held_too_old, holders = "", False, list[str]()
        drops: dict[str, int] = {}
        # The oldest frame of every stream; all frames in the order of their age come out of it one by one.
        heads = [(stream.kept[0].chunk.serial, name) for name, stream in self._streams.items() if stream.kept]
        heapq.heapify(heads)
        while heads:
            name = heads[0][1]
            kept, index = self._streams[name].kept, drops.get(name, 0)
            chunk = kept[index].chunk
            too_old = _time_of(times, kept[index]) < oldest_us
            if not too_old and surplus_bytes <= 0:
                break
            if name in pinned and pinned[name] < chunk.first + chunk.count:
                held_back = held_back or f"record {pinned[name]} of stream {name} is still needed"
                held_too_old = held_too_old or too_old
                holders.append(name)
                heapq.heappop(heads)
                continue
            surplus_bytes -= len(chunk.frame)
            drops[name] = index = index + 1
            if index < len(kept):
                heapq.heapreplace(heads, (kept[index].chunk.serial, name))
            else:
                heapq.heappop(heads)
        for name, count in drops.items():
            self._drop(self._streams[name], count)
        freed = before - self._bytes
        if not held_too_old and surplus_bytes <= 0:
            return Trimmed(freed, "")
        return Trimmed(freed, held_back, tuple(holders), max(surplus_bytes, 0))

    async def load(self, name: str) -> bytes | None:
        self._check_open()
        return self._documents.get(name)

    async def save(self, name: str, document: bytes) -> None:
        self._check_open()
        self._documents[name] = bytes(document)

    async def close(self) -> None:
        self._closed = True
        self._streams.clear()
        self._documents.clear()

    def _drop(self, stream: _Stream, count: int) -> None:
        """Drop the oldest `count` frames of a stream."""
        for kept in stream.kept[:count]:
            length = len(kept.chunk.frame)
            stream.size_bytes -= length
            self._bytes -= length
            self._messages -= kept.messages
        del stream.kept[:count]
        stream.first = max(stream.first, stream.kept[0].chunk.first if stream.kept else stream.end)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the memory store was closed")


def _time_of(times: Times, kept: _Kept) -> int:
    return times.time_of(kept.chunk.serial, kept.chunk.appended_at_us)


def _at(stream: _Stream, seq: int) -> int:
    """The index of the frame that holds record `seq`, which is not before the first; beyond the last for the end."""
    if seq >= stream.end:
        return len(stream.kept)
    return bisect_right(stream.kept, seq, key=attrgetter("chunk.first")) - 1


def _find_key(kept: Sequence[_Kept], first: int, key: bytes) -> int | None:
    """In a thread: the first record from `first` on that has this key."""
    for one in kept:
        chunk = one.chunk
        index = find_key(Frame(chunk.frame), key, max(first - chunk.first + chunk.start, chunk.start))
        if index is not None:
            return chunk.first + index - chunk.start
    return None
