"""Staged frames and the sinks that publish them: how many messages are written exactly once.

The frames of a request are stored together in the stream `stage/frames`: a head, then the frames as they came. What
becomes of them is a mark in the stream `stage/marks`. An epoch is decided by one mark; from then on it is published,
record by record, each in one unit with the mark that says so, by whoever comes: the sink that asks again, or the broker
after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from towline.broker.refused_writes import Refusals
from towline.broker.table_snapshot import packed_struct
from towline.broker.topics.shards import refuse_mixed
from towline.clock import SECOND_US, Clock, TimeSlice
from towline.delivery.dedup import Repeat, dedup_ids_of
from towline.delivery.publications import (
    Advanced,
    Publications,
    PublicationsSnapshot,
    PublishMark,
    StagedHead,
    decode_publish_mark,
    decode_staged,
    encode_publish_mark,
    encode_staged,
)
from towline.errors import BadRequest, NotFound, QueueFull, StoreDamaged, TooLarge, TowlineError, Unavailable
from towline.format import decode_document, not_understood
from towline.frame import FRAME_MAX, Frame, encode_events
from towline.frame.layout import DEDUP, DELIVER_AT
from towline.model import Durability
from towline.protocol import publications as wire
from towline.store import Append, Chunk, Store
from towline.store.document import fits_log

if TYPE_CHECKING:
    from towline.broker.produce.append import Appender, Outgoing
    from towline.protocol.messages import Sent

T = TypeVar("T")

__all__ = ["MARKS", "STAGED", "Staging"]

log = logging.getLogger("towline.broker")

STAGED: Final = "stage/frames"
MARKS: Final = "stage/marks"
DOCUMENT: Final = "staging.bin"
READ_COUNT: Final = 100_000
READ_BYTES: Final = 8 << 20
KEPT_US: Final = 86_400 * SECOND_US
"""Staged records that nobody publishes are dropped after this long."""
AHEAD: Final = 4
"""Records that are on their way into their lanes at a time."""


class Staging:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        sender: Appender,
        durability: Durability,
        make_room: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._sender = sender
        self._durability = durability
        self._make_room = make_room
        self._state = Publications()
        self._next_record = store.bounds(STAGED).end
        self._next_mark = store.bounds(MARKS).end
        self._coming: dict[int, tuple[str, asyncio.Future[None]]] = {}
        """By number, marks that do not count yet: their sinks, and when they are durable."""
        self._refusals = Refusals[str](clock)
        """Sinks of which something is held."""
        self._saved: tuple[int, int] | None = None
        self._saved_mended = 0
        self._saving = asyncio.Lock()
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        self.closing = False

    @classmethod
    async def open(
        cls,
        store: Store,
        clock: Clock,
        sender: Appender,
        durability: Durability,
        make_room: Callable[[], Awaitable[None]],
    ) -> Staging:
        staging = cls(store, clock, sender, durability, make_room)
        await staging._recover()
        return staging

    # Staging

    async def stage(
        self, request: wire.Stage, data: Sequence[bytes | memoryview], *, source: bytes = b"", token: bytes = b""
    ) -> wire.Staged:
        frames = self._sender.check_all(data, token)
        for head, frame in zip(request.frames, frames, strict=True):
            topic = self._sender.find_topic(head.topic)
            topic.lane(head.lane)
            if topic.config.shards:
                refuse_mixed(head.topic, frame)
            if frame.flags & DEDUP:
                dedup_ids_of(head.topic, frame)
            if frame.flags & DELIVER_AT:
                self._sender.scheduler.check(frame)
            frame.let_go()
        self._check_open()
        self._state.admit()
        counts = [(head.topic, head.lane, frame.count) for head, frame in zip(request.frames, frames, strict=True)]
        head_ = StagedHead(self._clock.now_us(), token, source, counts)
        record = encode_events([encode_staged(head_), *(bytes(frame.data) for frame in frames)])
        unit = [Append(STAGED, record, 1 + len(frames), source)]
        return await self._with_room(lambda: self._append_staged(unit, head_, self._wanted(request.durability)))

    async def _append_staged(self, unit: list[Append], head: StagedHead, durability: Durability) -> wire.Staged:
        appended = self._store.append(unit, durability)
        first = appended.firsts[0]
        self._next_record = first + 1 + len(head.frames)
        waiting = self._state.staged_at(first, head)
        try:
            await appended.done
        except TowlineError:
            # A database does not take it: its number is free again, and may be another's by now.
            if self._state.staged.get(first) is waiting:
                del self._state.staged[first]
                self._next_record = min(self._next_record, first)
            raise
        return wire.Staged(first)

    async def _with_room(self, act: Callable[[], Awaitable[T]]) -> T:
        """A memory store that is full may have room once it has let go of what was consumed."""
        try:
            return await act()
        except QueueFull:
            await self._make_room()
        return await act()

    async def unstage(self, request: wire.Unstage, *, token: bytes = b"") -> None:
        mark = self._state.drop(request.records, token, self._clock.now_us())
        if mark is not None:
            await self._record(mark, Durability.OS)

    def sink(self, request: wire.AskSink) -> wire.SinkState:
        found = self._state.last_epoch(request.sink)
        return wire.SinkState(found.epoch, found.at_us, found.members)

    def owner(self, sink: str) -> bytes:
        """The token whose sink it is; empty if that is not known, or there is no such sink."""
        return self._state.last_epoch(sink).token

    # Publishing

    async def publish(self, request: wire.Publish, *, token: bytes = b"") -> wire.Published:
        wanted = self._wanted(request.durability)
        async with self._alone(request.sink):
            if request.sink in self._state.running:
                await self._with_room(lambda: self._roll_forward(request.sink, wanted))
            now_us = self._clock.now_us()
            mark = self._state.decide(
                request.sink, request.epoch, request.records, token, now_us, request.digest, request.members
            )
            if mark is None:
                dropped = self._state.drop(request.records, token, now_us)
                await self._record(dropped, wanted) if dropped is not None else await self._barrier(wanted)
                return wire.Published(0, duplicate=True)
            self._check_open()
            messages = sum(self._state.staged[record].messages for record in request.records)
            await self._record(mark, wanted)
            lost = await self._with_room(lambda: self._roll_forward(request.sink, wanted))
            if lost:
                raise StoreDamaged(
                    f"epoch {request.epoch} of sink {request.sink} is published, but {lost} of {len(request.records)} "
                    "staged records could not be read any more: the log of the broker names them"
                )
            return wire.Published(messages)

    async def _roll_forward(self, sink: str, durability: Durability) -> int:
        """Publish what is left of the epoch that was decided, but for records that are damaged: how many they are. What
        is too large is told of in the end."""
        while coming := [done for one, done in self._coming.values() if one == sink]:
            # Somebody began with it, and did not wait.
            await asyncio.wait(coming)
        running = self._state.running.get(sink)
        if running is None:
            return 0
        under_way: list[asyncio.Future[Any]] = []
        refused: TooLarge | None = None
        lost = 0
        for number in running.left:
            self._check_open()
            try:
                chunk = await self._read(running.records[number])
                under_way.append(self._append(chunk, sink, running.epoch, number + 1, durability))
            except StoreDamaged as error:
                # It would keep its sink, and all of the store behind it, waiting for ever.
                log.error("epoch %d of sink %s goes on without what cannot be read: %s", running.epoch, sink, error)
                lost += 1
                under_way.append(self._record_when(self._advanced(sink, running.epoch, number + 1), durability))
            except TooLarge as error:
                refused = error
                under_way.append(self._hold(sink, running.epoch, number + 1, durability))
            if len(under_way) >= AHEAD:
                refused = await _refusal(under_way.pop(0)) or refused
        for future in under_way:
            refused = await _refusal(future) or refused
        if refused is not None:
            raise TooLarge(
                f"{len(running.held)} of {len(running.records)} records of epoch {running.epoch} of sink {sink} wait, "
                f"and are not published: {refused}"
            )
        await self._trim()
        return lost

    def _append(self, chunk: Chunk, sink: str, epoch: int, done: int, durability: Durability) -> asyncio.Future[Any]:
        bodies = Frame(chunk.frame).bodies()
        head = decode_staged(bodies[0])
        outgoing: list[Outgoing] = [
            (topic, lane, body)
            for (topic, lane, _), body in zip(head.frames, bodies[1:], strict=True)
            if self._has_lane(topic, lane)
        ]
        mark = self._advanced(sink, epoch, done)
        if not outgoing:
            return self._record_when(mark, durability)
        frames = [Frame(body).verify() for _, _, body in outgoing]
        return self._sender.append(outgoing, frames, durability, head.source, _AdvanceMark(self, mark))

    def _advanced(self, sink: str, epoch: int, done: int) -> Advanced:
        return Advanced(self._clock.now_us(), sink, epoch, done)

    def _hold(self, sink: str, epoch: int, done: int, durability: Durability) -> asyncio.Future[None]:
        return self._record_when(Advanced(self._clock.now_us(), sink, epoch, done, held=True), durability)

    def _record_when(self, mark: Advanced, durability: Durability) -> asyncio.Future[None]:
        """Record that a record is done with, behind those that are on their way."""
        appended = self._store.append([_marked(mark)], durability)
        self.apply_when(appended.done, mark, mark)
        return appended.done

    def _has_lane(self, topic: str, lane: int) -> bool:
        """Were the topic deleted meanwhile, the rest would never be published: what was for it is dropped with it."""
        try:
            self._sender.find_topic(topic).lane(lane)
        except (NotFound, BadRequest) as error:
            log.error("staged messages for topic %s are dropped: %s", topic, error)
            return False
        return True

    async def _read(self, record: int) -> Chunk:
        waiting = self._state.staged.get(record)
        if waiting is None:
            raise StoreDamaged(f"staged record {record} cannot be read: its head is lost")
        size = waiting.size
        read = await self._store.read(STAGED, record, size, FRAME_MAX)
        chunk = read.chunks[0] if read.chunks else None
        if chunk is None or (chunk.first, chunk.count, chunk.start) != (record, size, 0):
            reason = read.lost[0].reason if read.lost else "it is not there"
            raise StoreDamaged(f"staged record {record} cannot be read: {reason}")
        return chunk

    async def _record(self, mark: PublishMark, durability: Durability) -> None:
        appended = self._store.append([_marked(mark)], durability)
        self.apply(mark)
        await appended.done

    def apply(self, mark: PublishMark) -> None:
        """The mark has its place."""
        self._next_mark += 1
        self._state.apply(mark)

    def apply_when(self, done: asyncio.Future[None], mark: Advanced, instead: Advanced) -> None:
        """The mark has its place, and counts once it is known whether the messages that it speaks of are stored."""
        number, self._next_mark = self._next_mark, self._next_mark + 1
        self._coming[number] = mark.sink, done

        def finish(done: asyncio.Future[None]) -> None:
            del self._coming[number]
            error = None if done.cancelled() else done.exception()
            if isinstance(error, TooLarge):
                self._state.apply(instead)
            elif error is None and not done.cancelled():
                self._state.apply(mark)

        if done.done():
            finish(done)
        else:
            done.add_done_callback(finish)

    # Looking after itself

    async def _recover(self) -> None:
        document = await self._store.load(DOCUMENT)
        staged = marks = 0
        if document is not None:
            try:
                snapshot = decode_document(DOCUMENT, document, PublicationsSnapshot)
            except msgspec.MsgspecError as error:
                log.error("%s cannot be read (%s): it is replayed as far as it is kept", DOCUMENT, error)
            else:
                if fits_log(self._store, DOCUMENT, {STAGED: snapshot.staged_end, MARKS: snapshot.marks_end}):
                    self._state.restore(snapshot)
                    self._saved = (staged, marks) = (snapshot.staged_end, snapshot.marks_end)
        async for chunk in self._chunks(STAGED, staged):
            if not chunk.start:
                try:
                    self._state.staged_at(chunk.first, decode_staged(Frame(chunk.frame).bodies(0, 1)[0]))
                except msgspec.MsgspecError as error:
                    raise not_understood(f"{STAGED}: record {chunk.first}", error) from None
        async for chunk in self._chunks(MARKS, marks):
            records = Frame(chunk.frame).bodies(chunk.start, chunk.start + chunk.count)
            for number, record in enumerate(records, chunk.first):
                try:
                    self._state.apply(decode_publish_mark(record))
                except msgspec.MsgspecError as error:
                    raise not_understood(f"{MARKS}: mark {number}", error) from None

    async def _chunks(self, stream: str, at: int) -> AsyncIterator[Chunk]:
        end, part = self._store.bounds(stream).end, TimeSlice()
        while at < end:
            read = await self._store.read(stream, at, READ_COUNT, READ_BYTES)
            for lost in read.lost:
                log.error("%s: %d records from %d on are lost: %s", stream, lost.count, lost.first, lost.reason)
            for chunk in read.chunks:
                await part.rest()
                yield chunk
            at = max(read.next, at + 1)

    async def go_on(self) -> None:
        """Publish what was decided: before a start, or when it could not be read then."""
        self._refusals.keep(self._state.running)
        for sink in list(self._state.running):
            if not self._refusals.may_try(sink):
                continue
            try:
                async with self._alone(sink):
                    if sink not in self._state.running:
                        continue  # by now it is
                    await self._roll_forward(sink, self._durability)
                log.info("%s: what was decided before is published", sink)
            except TooLarge as error:
                self._refusals.note(sink, f"what sink {sink} staged, and is too large for its lane,", error)
            except TowlineError as error:
                log.error("%s: what was decided is not published yet: %s", sink, error)

    async def save(self) -> None:
        """Write what a start begins with, if something happened."""
        async with self._saving:
            await self._save()

    async def _save(self) -> None:
        position, mended = (self._next_record, min(self._coming, default=self._next_mark)), self._state.mended
        if (*position, mended) == (*(self._saved or (0, 0)), self._saved_mended):
            return
        snapshot = self._state.snapshot(*position)
        await self._store.append([], Durability.FSYNC).done
        await self._store.save(DOCUMENT, await packed_struct(snapshot))
        self._saved, self._saved_mended = position, mended

    def pins(self) -> dict[str, int]:
        """What retention must leave alone, by stream."""
        records, marks = self._saved or (0, 0)
        return {STAGED: min(self._state.first_needed(records), records), MARKS: marks}

    async def tidy(self) -> None:
        await self.go_on()
        now_us = self._clock.now_us()
        mark = self._state.expire(now_us - KEPT_US, now_us)
        if mark is not None:
            log.warning("%d staged record(s) were never published and are dropped", len(mark.records))
            await self._record(mark, Durability.OS)
        await self.save()
        await self._trim()
        if self._saved is not None and self._saved[1] > self._store.bounds(MARKS).first:
            await self._store.trim(MARKS, self._saved[1])

    async def _trim(self) -> None:
        """Let go of what was published. Its marks tell a start that nobody misses it."""
        until = self._state.first_needed(self._next_record)
        if until > self._store.bounds(STAGED).first:
            await self._store.trim(STAGED, until)

    def _check_open(self) -> None:
        if self.closing:
            raise Unavailable("the broker is shutting down")

    def _wanted(self, durability: int) -> Durability:
        return max(self._durability if durability < 0 else Durability(durability), Durability.OS)

    async def _barrier(self, durability: Durability) -> None:
        await self._store.append([], durability).done

    @asynccontextmanager
    async def _alone(self, sink: str) -> AsyncIterator[None]:
        """One at a time for each sink."""
        lock, users = self._locks.setdefault(sink, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[sink]


async def _refusal(future: asyncio.Future[Any]) -> TooLarge | None:
    """Wait for a record; the error if it is too large."""
    try:
        await asyncio.shield(future)
    except TooLarge as error:
        return error
    return None


class _AdvanceMark:
    """The mark that goes into one unit with the frames of a record."""

    def __init__(self, staging: Staging, mark: Advanced) -> None:
        self._staging = staging
        self._mark = mark
        self._held = msgspec.structs.replace(mark, held=True)

    def append(self, firsts: Sequence[int], repeats: Sequence[Repeat], delayed: Sequence[int]) -> Append:
        del firsts, repeats, delayed
        return _marked(self._mark, self._held)

    def appended(self, sent: Sent, done: asyncio.Future[None]) -> None:
        del sent
        self._staging.apply_when(done, self._mark, self._held)


def _marked(mark: PublishMark, instead: PublishMark | None = None) -> Append:
    return Append(MARKS, _encode(mark), 1, control=True, instead=None if instead is None else _encode(instead))


def _encode(mark: PublishMark) -> bytes:
    return encode_events([encode_publish_mark(mark)], produced_at_us=mark.at_us)
