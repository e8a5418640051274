"""State on a stream: events are appended, then applied; a start takes a snapshot and applies the events behind it.

    decide ──► append ──► apply ──► snapshot, now and then, of what is durable ──► trim what is before it
               restore a snapshot ──► replay the events behind it, through the same apply

Damage is reported and passed over. What is whole and not understood refuses the start: state without it would be wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

import msgspec

from towline.clock import TimeSlice
from towline.errors import TooLarge
from towline.format import not_understood
from towline.frame import Frame, encode_events
from towline.frame.decode import understood
from towline.model import Durability
from towline.store import Append, Appended, Chunk, Lost, Store

__all__ = ["Journal", "Turns", "chunks", "decoded", "events_in", "replayed", "trim", "unsaid"]

log = logging.getLogger("towline.broker")

READ_COUNT: Final = 2_000
READ_BYTES: Final = 8 << 20

E = TypeVar("E")
S = TypeVar("S")


class Journal(Generic[E]):
    """The events of one state machine. Only its owner appends to the stream, so that events may be applied at once."""

    __slots__ = ("_apply", "_decode", "_encode", "_store", "next", "refusals", "stream")

    def __init__(
        self,
        store: Store,
        stream: str,
        encode: Callable[[E], bytes],
        decode: Callable[[bytes], E],
        apply: Callable[[E, int], object],
    ) -> None:
        self.stream = stream
        self.next = store.bounds(stream).end
        """The number of the next event."""
        self.refusals = 0
        """Appends that were taken back, because they were refused late."""
        self._store = store
        self._encode = encode
        self._decode = decode
        self._apply = apply
        """Given an event, and when it was appended."""

    # Recording

    def entry(self, events: Sequence[E], instead: Sequence[E] | None = None) -> Append:
        """Events for a unit; if messages of it are refused late, others stand `instead`."""
        other = None if instead is None else self._frame(instead)
        return Append(self.stream, self._frame(events), len(events), control=True, instead=other)

    def _frame(self, events: Sequence[E]) -> bytes:
        return encode_events([self._encode(event) for event in events], produced_at_us=getattr(events[0], "at_us", 0))

    def append(self, events: Sequence[E], durability: Durability) -> Appended:
        """Append events, and apply them. If it is refused, nothing has happened."""
        appended = self._store.append([self.entry(events)], durability)
        self.note(events, appended.at_us)
        return appended

    def note(self, events: Sequence[E], at_us: int) -> None:
        """The entry has its place: apply what it says."""
        self.next += len(events)
        for event in events:
            self._apply(event, at_us)

    def when_refused(
        self, done: asyncio.Future[None], take_back: Callable[[], object], kind: type[Exception] = TooLarge
    ) -> None:
        """Do this if a unit fails late in this way. No snapshot speaks of the unit before that is known."""

        def finish(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and isinstance(done.exception(), kind):
                self.refusals += 1
                take_back()

        finish(done) if done.done() else done.add_done_callback(finish)

    async def barrier(self, durability: Durability) -> None:
        """All that was appended so far is as durable."""
        await self._store.append([], durability).done

    # Keeping

    async def settled(self, snapshot: Callable[[], S]) -> S:
        """A snapshot, once all that it speaks of is durable; taken anew if something was refused meanwhile."""
        while True:
            refusals, taken = self.refusals, snapshot()
            await self.barrier(Durability.FSYNC)
            if refusals == self.refusals:
                return taken

    # Coming back

    async def replay(self, first: int, part: TimeSlice, apply: Callable[[E, int], object] | None = None) -> None:
        """Apply the events from this one on."""
        apply = apply or self._apply
        async for _, event, at_us in replayed(self._store, self.stream, first, self._decode, part):
            apply(event, at_us)


async def chunks(
    store: Store,
    stream: str,
    first: int,
    part: TimeSlice,
    *,
    end: int | None = None,
    lost: Callable[[Lost], None] | None = None,
    count: int = READ_COUNT,
    size: int = READ_BYTES,
) -> AsyncIterator[Chunk]:
    """All that can be read of a stream from a record on; what cannot is told to `lost`, or to the log. Others have
    their turn in between."""
    bounds = store.bounds(stream)
    at, end = max(first, bounds.first), bounds.end if end is None else end
    while at < end:
        read = await store.read(stream, at, min(count, end - at), size)
        for one in read.lost:
            if lost is not None:
                lost(one)
            else:
                log.error("%s: %d records from %d on are lost: %s", stream, one.count, one.first, one.reason)
        for chunk in read.chunks:
            if part.over:
                await part.rest()
            yield chunk
        at = max(read.next, at + 1)


async def replayed(
    store: Store,
    stream: str,
    first: int,
    decode: Callable[[bytes], E],
    part: TimeSlice,
    *,
    lost: Callable[[Lost], None] | None = None,
    count: int = READ_COUNT,
) -> AsyncIterator[tuple[int, E, int]]:
    """The events of a stream from a number on: number, event, and when it was appended."""
    async for chunk in chunks(store, stream, first, part, lost=lost, count=count):
        for number, event in events_in(chunk, stream, decode):
            yield number, event, chunk.appended_at_us
            if part.over:
                await part.rest()


def unsaid(lost: Lost) -> None:
    """For readers of what others have told of already."""


def events_in(chunk: Chunk, stream: str, decode: Callable[[bytes], E]) -> Iterator[tuple[int, E]]:
    frame = understood(Frame(chunk.frame), stream, chunk.first)
    for number, record in enumerate(frame.bodies(chunk.start, chunk.start + chunk.count), chunk.first):
        yield number, decoded(record, stream, number, decode)


def decoded(record: bytes, stream: str, number: int, decode: Callable[[bytes], E]) -> E:
    try:
        return decode(record)
    except msgspec.MsgspecError as error:
        # Its frame is whole: it is no damage.
        raise not_understood(f"{stream}: event {number}", error) from None


async def trim(store: Store, pins: Mapping[str, int]) -> None:
    """Let go of what is before these records, by stream."""
    going = [(stream, before) for stream, before in pins.items() if store.bounds(stream).first < before]
    await asyncio.gather(*(store.trim(stream, before) for stream, before in going))


class Turns:
    """One at a time for each key, and once; different ones do not wait for each other."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        """And a list as long as there are users of it."""

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]
