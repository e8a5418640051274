"""Hidden frames that wait for a decision, and the journal of the decisions.

The frames of a request are stored together, in one record behind a head. Records and marks have a stream each, and a
document holds what both come to, beginning with how far it goes in each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from towline.broker.consume.snapshots import BYTES_PER_S, LARGE_BYTES
from towline.broker.journal import Journal, chunks, decoded
from towline.broker.table_snapshot import packed_struct
from towline.clock import Clock, TimeSlice
from towline.errors import QueueFull, StoreDamaged
from towline.format import decode_document
from towline.frame import FRAME_MAX, Frame, encode_events
from towline.frame.decode import understood
from towline.model import Durability
from towline.store import Append, Appended, Chunk, Store
from towline.store.document import fits_log

__all__ = ["FrameJournal", "with_room"]

log = logging.getLogger("towline.broker")

Mark = TypeVar("Mark")
Head = TypeVar("Head")
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

Moment = tuple[int, int, int]
"""How far it goes in records and marks, and what else changes with the state."""


class FrameJournal(Journal[Mark], Generic[Mark, Head, S]):
    def __init__(
        self,
        store: Store,
        clock: Clock,
        durability: Durability,
        *,
        records: str,
        marks: str,
        document: str,
        kind: type[S],
        encode: Callable[[Mark], bytes],
        decode: Callable[[bytes], Mark],
        decode_head: Callable[[bytes], Head],
        apply: Callable[[Mark, int], object],
    ) -> None:
        super().__init__(store, marks, encode, decode, apply)
        self.records = records
        self.next_record = store.bounds(records).end
        self._clock = clock
        self._durability = durability
        self._document = document
        self._kind = kind
        self._decode_head = decode_head
        self._saved: Moment = (0, 0, 0)
        self._saving = asyncio.Lock()
        self._next_s = 0.0
        """Until then a large document is not written again."""

    # Keeping frames

    def keep(self, head: bytes, frames: Sequence[Frame], source: bytes, durability: Durability) -> Appended:
        record = encode_events([head, *(bytes(frame.data) for frame in frames)])
        return self.keep_record(record, 1 + len(frames), source, durability)

    def keep_record(self, record: bytes | memoryview, count: int, source: bytes, durability: Durability) -> Appended:
        appended = self._store.append([Append(self.records, record, count, source)], durability)
        self.next_record = appended.firsts[0] + count
        return appended

    async def read(self, first: int, count: int, what: str, advice: str = "") -> Chunk:
        """A record as it was stored: its head, then its frames."""
        read = await self._store.read(self.records, first, count, FRAME_MAX)
        chunk = read.chunks[0] if read.chunks else None
        if chunk is None or (chunk.first, chunk.count, chunk.start) != (first, count, 0):
            reason = read.lost[0].reason if read.lost else "it is not there"
            raise StoreDamaged(f"{what} cannot be read: {reason}{advice}")
        return chunk

    def wanted(self, durability: int) -> Durability:
        """That of a request, which below 0 leaves it to the broker."""
        return max(self._durability if durability < 0 else Durability(durability), Durability.OS)

    # The document

    async def save(self, moment: Callable[[], Moment], snapshot: Callable[[Moment], S], *, everything: bool) -> None:
        """Write what a start begins with, if something happened. A large one is not written each time, unless
        `everything` is to be: the marks behind it are kept, and replayed."""
        async with self._saving:
            if moment() == self._saved or (not everything and self._clock.steady_s() < self._next_s):
                return
            saved, taken = await self.settled(lambda: (now := moment(), snapshot(now)))
            document = await packed_struct(taken)
            await self._store.save(self._document, document)
            self._saved = saved
            if len(document) > LARGE_BYTES:
                self._next_s = self._clock.steady_s() + len(document) / BYTES_PER_S

    def pins(self, first_needed: Callable[[int], int]) -> dict[str, int]:
        """The first record that retention must keep, by stream."""
        records, marks, _ = self._saved
        return {self.records: min(first_needed(records), records), self.stream: marks}

    # Coming back

    async def recover(
        self,
        restore: Callable[[S], None],
        kept: Callable[[Head, int, int], object],
        apply: Callable[[Mark, int], object] | None = None,
    ) -> None:
        """The document, then the records behind it, of which `kept` is given the head, the number and the time, then
        the marks."""
        part = TimeSlice()
        found = await self._load()
        if found is not None:
            restore(found)
            self._saved = (*_ends(found), 0)
        records, marks, _ = self._saved
        async for chunk in chunks(self._store, self.records, records, part):
            if not chunk.start:
                head = understood(Frame(chunk.frame), self.records, chunk.first).bodies(0, 1)[0]
                kept(decoded(head, self.records, chunk.first, self._decode_head), chunk.first, chunk.appended_at_us)
        await self.replay(marks, part, apply)

    async def _load(self) -> S | None:
        document = await self._store.load(self._document)
        if document is None:
            return None
        try:
            found = decode_document(self._document, document, self._kind)
        except msgspec.MsgspecError as error:
            log.error("%s cannot be read (%s): its streams are replayed as far as they are kept", self._document, error)
            return None
        records, marks = _ends(found)
        return found if fits_log(self._store, self._document, {self.records: records, self.stream: marks}) else None


def _ends(snapshot: msgspec.Struct) -> tuple[int, int]:
    records, marks, *_ = msgspec.structs.astuple(snapshot)
    return records, marks


async def with_room(act: Callable[[], Awaitable[T]], make_room: Callable[[], Awaitable[bool]]) -> T:
    """A memory store that is full may have room once it has let go of what was consumed."""
    try:
        return await act()
    except QueueFull:
        if not await make_room():
            raise
    return await act()
