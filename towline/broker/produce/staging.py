"""Staged frames and the sinks that publish them: how many messages are written exactly once.

The frames of a request are stored together in the stream `stage/frames`: a head, then the frames as they came. What
becomes of them is a mark in the stream `stage/marks`. An epoch is decided by one mark; from then on it is published,
record by record, each in one unit with the mark that says so, by whoever comes: the sink that asks again, or the broker
after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from towline.broker.journal import Turns, trim
from towline.broker.produce.frame_journal import FrameJournal, Moment, with_room
from towline.broker.refused_writes import Refusals
from towline.clock import SECOND_US, Clock
from towline.delivery.dedup import Repeat
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
from towline.errors import BadRequest, NotFound, StoreDamaged, TooLarge, TowlineError, Unavailable
from towline.frame import Frame
from towline.model import Durability
from towline.protocol import publications as wire
from towline.store import Append, Chunk, Store

if TYPE_CHECKING:
    from towline.broker.produce.append import Appender, Outgoing
    from towline.protocol.messages import Sent

__all__ = ["MARKS", "STAGED", "Staging"]

log = logging.getLogger("towline.broker")

STAGED: Final = "stage/frames"
MARKS: Final = "stage/marks"
DOCUMENT: Final = "staging.bin"
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
        make_room: Callable[[], Awaitable[bool]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._sender = sender
        self._durability = durability
        self._make_room = make_room
        self._state = Publications()
        self.journal = FrameJournal(
            store,
            clock,
            durability,
            records=STAGED,
            marks=MARKS,
            document=DOCUMENT,
            kind=PublicationsSnapshot,
            encode=encode_publish_mark,
            decode=decode_publish_mark,
            decode_head=decode_staged,
            apply=lambda mark, _: self._state.apply(mark),
        )
        self._coming: dict[int, tuple[str, asyncio.Future[None]]] = {}
        """By number, marks that do not count yet: their sinks, and when they are durable."""
        self._refusals = Refusals[str](clock)
        """Sinks of which something is held."""
        self._turns = Turns()
        """One at a time for each sink."""
        self.closing = False

    async def recover(self) -> None:
        await self.journal.recover(self._state.restore, lambda head, record, _: self._state.staged_at(record, head))

    # Staging

    async def stage(
        self, request: wire.Stage, data: Sequence[bytes | memoryview], *, source: bytes = b"", token: bytes = b""
    ) -> wire.Staged:
        frames = self._sender.check_later(request.frames, data, token)
        self._check_open()
        self._state.admit()
        counts = [(head.topic, head.lane, frame.count) for head, frame in zip(request.frames, frames, strict=True)]
        head_ = StagedHead(self._clock.now_us(), token, source, counts)
        wanted = self.journal.wanted(request.durability)
        return await with_room(lambda: self._stage(head_, frames, wanted), self._make_room)

    async def _stage(self, head: StagedHead, frames: Sequence[Frame], durability: Durability) -> wire.Staged:
        journal = self.journal
        appended = journal.keep(encode_staged(head), frames, head.source, durability)
        first = appended.firsts[0]
        waiting = self._state.staged_at(first, head)

        def take_back() -> None:
            # A database does not take it: its number is free again, and may be another's by now.
            if self._state.staged.get(first) is waiting:
                del self._state.staged[first]
                journal.next_record = min(journal.next_record, first)

        journal.when_refused(appended.done, take_back, TowlineError)
        await appended.done
        return wire.Staged(first)

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
        wanted = self.journal.wanted(request.durability)
        async with self._turns.of(request.sink):
            if request.sink in self._state.running:
                await with_room(lambda: self._roll_forward(request.sink, wanted), self._make_room)
            now_us = self._clock.now_us()
            mark = self._state.decide(
                request.sink, request.epoch, request.records, token, now_us, request.digest, request.members
            )
            if mark is None:
                dropped = self._state.drop(request.records, token, now_us)
                await self._record(dropped, wanted) if dropped is not None else await self.journal.barrier(wanted)
                return wire.Published(0, duplicate=True)
            self._check_open()
            messages = sum(self._state.staged[record].messages for record in request.records)
            await self._record(mark, wanted)
            lost = await with_room(lambda: self._roll_forward(request.sink, wanted), self._make_room)
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
        appended = self._store.append([self.entry(mark)], durability)
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
        return await self.journal.read(record, waiting.size, f"staged record {record}")

    async def _record(self, mark: PublishMark, durability: Durability) -> None:
        await self.journal.append([mark], durability).done

    def entry(self, mark: Advanced, instead: Advanced | None = None) -> Append:
        return self.journal.entry([mark], None if instead is None else [instead])

    def apply_when(self, done: asyncio.Future[None], mark: Advanced, instead: Advanced) -> None:
        """The mark has its place, and counts once it is known whether the messages that it speaks of are stored."""
        number = self.journal.next
        self.journal.next += 1
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

    async def go_on(self) -> None:
        """Publish what was decided: before a start, or when it could not be read then."""
        self._refusals.keep(self._state.running)
        for sink in list(self._state.running):
            if not self._refusals.may_try(sink):
                continue
            try:
                async with self._turns.of(sink):
                    if sink not in self._state.running:
                        continue  # by now it is
                    await self._roll_forward(sink, self._durability)
                log.info("%s: what was decided before is published", sink)
            except TooLarge as error:
                self._refusals.note(sink, f"what sink {sink} staged, and is too large for its lane,", error)
            except TowlineError as error:
                log.error("%s: what was decided is not published yet: %s", sink, error)

    async def save(self, *, everything: bool = False) -> None:
        await self.journal.save(self._moment, lambda now: self._state.snapshot(*now[:2]), everything=everything)

    def _moment(self) -> Moment:
        journal = self.journal
        return journal.next_record, min(self._coming, default=journal.next), self._state.mended

    def pins(self) -> dict[str, int]:
        return self.journal.pins(self._state.first_needed)

    async def tidy(self) -> None:
        await self.go_on()
        now_us = self._clock.now_us()
        mark = self._state.expire(now_us - KEPT_US, now_us)
        if mark is not None:
            log.warning("%d staged record(s) were never published and are dropped", len(mark.records))
            await self._record(mark, Durability.OS)
        await self.save()
        await self._trim()
        await trim(self._store, self.pins())

    async def _trim(self) -> None:
        """Let go of what was published. Its marks tell a start that nobody misses it."""
        await trim(self._store, {STAGED: self._state.first_needed(self.journal.next_record)})

    def _check_open(self) -> None:
        if self.closing:
            raise Unavailable("the broker is shutting down")


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
        return self._staging.entry(self._mark, self._held)

    def appended(self, sent: Sent, done: asyncio.Future[None]) -> None:
        del sent
        self._staging.apply_when(done, self._mark, self._held)
