"""Prepared transactions: kept out of sight until their sender decides, and asked after when it does not.

The frames of a transaction are stored together in the stream `tx/prepared`: a head, then the frames as they came. What
becomes of it is a mark in the stream `tx/marks`. A commit is one unit: the frames on their lanes, and the mark. So a
crash leaves it whole or absent, and never both committed and waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from towline.broker.consume.snapshots import BYTES_PER_S, LARGE_BYTES
from towline.broker.produce.transaction_checks import TransactionChecks
from towline.broker.table_snapshot import packed_struct
from towline.broker.topics.shards import refuse_mixed
from towline.clock import SECOND_US, SET_US, Clock, SteadyClock, TimeSlice
from towline.delivery.dedup import Repeat, dedup_ids_of
from towline.delivery.transactions import (
    Committed,
    Finished,
    Mark,
    Open,
    Prepared,
    RolledBack,
    Transactions,
    TransactionsSnapshot,
    decode_mark,
    decode_prepared,
    encode_mark,
    encode_prepared,
)
from towline.errors import (
    Conflict,
    NotFound,
    QueueFull,
    Refused,
    StoreDamaged,
    TooLarge,
    Unavailable,
    Unreadable,
    WrongShard,
)
from towline.format import decode_document, not_understood
from towline.frame import FRAME_MAX, Frame, encode_events
from towline.frame.layout import DEDUP, DELIVER_AT
from towline.model import Durability, check_producer_group
from towline.protocol import transactions as wire
from towline.store import Append, Chunk, Store
from towline.store.document import fits_log

if TYPE_CHECKING:
    from towline.broker.access.rules import May
    from towline.broker.produce.append import Appender, Outgoing
    from towline.protocol.messages import Sent
    from towline.settings import BrokerSettings

__all__ = ["MARKS", "PREPARED", "PreparedTransactions"]

log = logging.getLogger("towline.broker")

T = TypeVar("T")

PREPARED: Final = "tx/prepared"
MARKS: Final = "tx/marks"
DOCUMENT: Final = "transactions.bin"
READ_COUNT: Final = 100_000
READ_BYTES: Final = 8 << 20
CARRY_AFTER_US: Final = 3600 * SECOND_US
CARRY_MAX: Final = 100
"""Records carried forward in one round of maintenance."""


class PreparedTransactions:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        sender: Appender,
        settings: BrokerSettings,
        make_room: Callable[[], Awaitable[bool]],
        *,
        time: SteadyClock,
        expect_shards: Callable[[str, int], None],
    ) -> None:
        self._store = store
        self._expect_shards = expect_shards
        self._clock = clock
        self._time = time
        self._sender = sender
        self._settings = settings
        self._make_room = make_room
        self._durability = Durability.parse(settings.durability)
        self._state = Transactions(settings.tx_max_checks)
        self._next_prepared = store.bounds(PREPARED).end
        self._next_mark = store.bounds(MARKS).end
        self._saved: tuple[int, int] | None = None
        self._saved_set_us = 0
        self._saving = asyncio.Lock()
        self._next_s = 0.0
        """Until then a large snapshot is not written again."""
        self._refusals = 0
        """What a database did not take."""
        self._damaged: set[str] = set()
        """Transactions whose messages cannot be read any more: they can only be rolled back."""
        self._turns: dict[str, _Turns] = {}
        self._closing = False
        self.asking = TransactionChecks(self._state, clock, time, lambda marks: self._record(marks, Durability.OS))

    def __len__(self) -> int:
        """Transactions that wait to be decided."""
        return len(self._state.open)

    def topics_of(self, transaction: str, token: bytes) -> list[str]:
        """Where the messages of a token's transaction that waits to be decided go."""
        waiting = self._state.open.get(transaction)
        known = waiting is not None and waiting.head.token == token
        return sorted({topic for topic, _, _ in waiting.head.frames}) if waiting is not None and known else []

    # Preparing

    async def prepare(
        self, request: wire.Prepare, data: Sequence[bytes | memoryview], *, source: bytes = b"", token: bytes = b""
    ) -> wire.Prepared:
        """Keep frames, one for each of the request's heads, out of sight. They are durable when this returns."""
        check_producer_group(request.producer_group)
        frames = self._sender.check_all(data, token)
        for head, frame in zip(request.frames, frames, strict=True):
            self._expect_shards(head.topic, head.shards)
            topic = self._sender.find_topic(head.topic)
            topic.lane(head.lane)
            if topic.config.shards:
                refuse_mixed(head.topic, frame)
            if frame.flags & DEDUP:
                dedup_ids_of(head.topic, frame)
            if frame.flags & DELIVER_AT:
                self._sender.scheduler.check(frame)
            frame.let_go()
        async with self._alone(request.transaction):
            if not self._state.admit(request.transaction):
                self._check_token(request.transaction, token)
                await self._barrier(request.durability)
                return wire.Prepared(self._clock.now_us(), duplicate=True)
            head_ = Prepared(
                self._clock.now_us(),
                request.transaction,
                request.producer_group,
                request.name,
                token,
                source,
                round((request.check_after_s or self._settings.tx_check_after_s) * SECOND_US),
                [(head.topic, head.lane, frame.count) for head, frame in zip(request.frames, frames, strict=True)],
                sum(frame.length for frame in frames),
                {head.topic: head.shards for head in request.frames if head.shards},
            )
            record = encode_events([encode_prepared(head_), *(bytes(frame.data) for frame in frames)])
            done = await self._with_room(lambda: self._append_prepared(head_, record, request.durability))
            self.asking.arm()
            await asyncio.shield(done)
            return wire.Prepared(head_.at_us)

    def _append_prepared(self, head: Prepared, record: bytes | memoryview, durability: int) -> asyncio.Future[None]:
        count = 1 + len(head.frames)
        appended = self._store.append([Append(PREPARED, record, count, head.source)], self._wanted(durability))
        first, known = appended.firsts[0], self._state.open.get(head.id)
        before = None if known is None else (known.first, known.written_at_us)
        self._next_prepared = first + count
        self._state.prepared(head, first, appended.at_us, self._time.now_us())

        def finish(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is not None:
                self._refusals += 1
                gone = self._state.refused(head, first, before)
                if gone is not None:
                    self.asking.drop(gone)

        appended.done.add_done_callback(finish)
        return appended.done

    # Deciding

    async def decide(self, request: wire.Decide, *, token: bytes = b"") -> wire.Decided:
        return await self._decide(request.transaction, token, request.durability, commit=request.commit)

    async def resolve(self, request: wire.Resolve) -> None:
        """Decide in place of the producers: by hand."""
        reason = request.reason or "by hand"
        log.warning("transaction %s is %s by hand", request.transaction, "committed" if request.commit else "undone")
        await self._decide(request.transaction, None, -1, commit=request.commit, reason=reason)

    async def _decide(
        self, transaction: str, token: bytes | None, durability: int, *, commit: bool, reason: str = ""
    ) -> wire.Decided:
        async with self._alone(transaction):
            if token is not None:
                self._check_token(transaction, token)
            found = self._state.settle(transaction, commit=commit)
            if isinstance(found, Finished):
                await self._barrier(durability)
                return wire.Decided(found.firsts, found.at_us, True, list(found.repeats), found.delayed)
            if commit:
                return await self._commit(found, durability, reason)
            mark = RolledBack(self._clock.now_us(), transaction, reason)
            done = self._record([mark], self._wanted(durability))
            await done
            return wire.Decided([], mark.at_us, False, [])

    async def _commit(self, waiting: Open, durability: int, reason: str) -> wire.Decided:
        head = waiting.head
        self._check_shards(head)
        chunk = await self._read(waiting)
        bodies = Frame(chunk.frame).bodies(1)
        outgoing: list[Outgoing] = [
            (topic, lane, body) for (topic, lane, _), body in zip(head.frames, bodies, strict=True)
        ]
        frames = [Frame(body).verify() for body in bodies]
        wanted = self._wanted(durability)
        future = await self._with_room(
            lambda: self._sender.append(
                outgoing,
                frames,
                wanted,
                head.source,
                _CommitMark(self, Committed(self._clock.now_us(), head.id, [], [], reason)),
            )
        )
        sent = await asyncio.shield(future)
        return wire.Decided(sent.firsts, sent.appended_at_us, False, sent.repeats, sent.delayed)

    def committed(self, undone: RolledBack, at_us: int, done: asyncio.Future[None]) -> None:
        """A commit is durable; or its messages were refused, and the mark that stands says that it is undone."""
        error = None if done.cancelled() else done.exception()
        if isinstance(error, TooLarge):
            log.error("transaction %s is undone, for its messages were refused: %s", undone.id, error)
            self._refusals += 1
            self._state.apply(undone, at_us)

    def _check_shards(self, head: Prepared) -> None:
        """The frames are for certain shards: of another topic by that name they would be the wrong ones."""
        for topic, shards in head.shards.items():
            try:
                self._expect_shards(topic, shards)
            except WrongShard:
                raise Conflict(
                    f"transaction {head.id} was prepared when topic {topic} had {shards} shards; the topic was deleted "
                    "since: roll the transaction back"
                ) from None

    async def _read(self, waiting: Open) -> Chunk:
        count = 1 + len(waiting.head.frames)
        read = await self._store.read(PREPARED, waiting.first, count, FRAME_MAX)
        chunk = read.chunks[0] if read.chunks else None
        if chunk is None or (chunk.first, chunk.count, chunk.start) != (waiting.first, count, 0):
            reason = read.lost[0].reason if read.lost else "it is not there"
            raise StoreDamaged(f"transaction {waiting.head.id} cannot be read: {reason}. Roll it back")
        return chunk

    def _record(self, marks: Sequence[Mark], durability: Durability) -> asyncio.Future[None]:
        appended = self._store.append([_marks(marks)], durability)
        self.apply(marks, appended.at_us)
        return appended.done

    def apply(self, marks: Sequence[Mark], at_us: int) -> None:
        """The marks have their place."""
        self._next_mark += len(marks)
        for mark in marks:
            waiting = self._state.open.get(mark.id)
            if waiting is not None and isinstance(mark, Committed | RolledBack):
                self.asking.drop(waiting)
            self._state.apply(mark, at_us, self._time.now_us())

    def _check_token(self, transaction: str, token: bytes) -> None:
        waiting, finished = self._state.open.get(transaction), self._state.finished.get(transaction)
        owner = waiting.head.token if waiting is not None else None if finished is None else finished.token
        if owner is not None and owner != token:
            raise Refused(f"transaction {transaction} was prepared under another token: only that one may decide it")

    def release_waiters(self) -> None:
        """Answer those who wait to be asked, and let nobody wait any more: the broker is about to stop."""
        self._closing = True
        self.asking.close()

    # Looking

    async def told(self, request: wire.ListTransactions, may: May | None = None) -> wire.Transactions:
        """What is said to be committed is durable, and can be seen."""
        states = self.states(request, may)
        await self._barrier(-1)
        return states

    def states(self, request: wire.ListTransactions, may: May | None = None) -> wire.Transactions:
        """Those of topics that `may` says that one may describe; without it, all."""
        seen: Mapping[str, Open] = self._state.open
        if may is not None:
            seen = {
                key: one for key, one in seen.items() if all(may("describe", "topic", name) for name in one.head.topics)
            }
        total = len(seen)
        if request.transaction:
            waiting = seen.get(request.transaction)
            if waiting is not None:
                return wire.Transactions([self._open_state(waiting)], total)
            finished = self._state.finished.get(request.transaction)
            if finished is None:
                raise NotFound(f"there is no transaction {request.transaction} on this broker")
            return wire.Transactions([_finished_state(request.transaction, finished)], total)
        shown = [one for one in seen.values() if one.parked or not request.parked]
        return wire.Transactions([self._open_state(one) for one in shown[: request.limit]], total)

    def _open_state(self, waiting: Open) -> wire.TransactionState:
        head = waiting.head
        return wire.TransactionState(
            head.id,
            "parked" if waiting.parked else "prepared",
            head.producer_group,
            head.name,
            head.token.decode("utf-8", "replace"),
            head.at_us,
            head.messages,
            head.size_bytes,
            head.topics,
            waiting.checks,
            self._time.on_clock(waiting.next_check_us),
        )

    # Looking after itself

    async def recover(self) -> None:
        document = await self._store.load(DOCUMENT)
        prepared = marks = 0
        if document is not None:
            try:
                snapshot = decode_document(DOCUMENT, document, TransactionsSnapshot)
            except msgspec.MsgspecError as error:
                log.error("%s cannot be read (%s): transactions are replayed as far as they are kept", DOCUMENT, error)
            else:
                if fits_log(self._store, DOCUMENT, {PREPARED: snapshot.prepared, MARKS: snapshot.marks}):
                    self._state.restore(snapshot)
                    self._saved = (prepared, marks) = (snapshot.prepared, snapshot.marks)
        async for chunk in self._chunks(PREPARED, prepared):
            if not chunk.start:
                with _understood(PREPARED, chunk.first):
                    head = decode_prepared(Frame(chunk.frame).bodies(0, 1)[0])
                    self._state.prepared(head, chunk.first, chunk.appended_at_us)
        async for chunk in self._chunks(MARKS, marks):
            records = Frame(chunk.frame).bodies(chunk.start, chunk.start + chunk.count)
            for number, record in enumerate(records, chunk.first):
                with _understood(MARKS, number):
                    self._state.apply(decode_mark(record), chunk.appended_at_us)
        ahead_us = self._state.cap_waits(self._time.now_us())
        if ahead_us > SET_US:
            log.warning(
                "pauses between checks of prepared transactions have begun by a clock that was %.0f s ahead of what it "
                "is now: they begin anew",
                ahead_us / SECOND_US,
            )
        self.asking.arm()

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

    def lanes(self) -> set[tuple[str, int]]:
        """The topics and lanes that prepared transactions have messages for."""
        return {(topic, lane) for waiting in self._state.open.values() for topic, lane, _ in waiting.head.frames}

    async def save(self, *, everything: bool = False) -> None:
        """Write what a start begins with, if something happened. It never speaks of anything that is not durable. A
        large one is not written each time, unless `everything` is to be: the marks behind it are kept, and replayed."""
        async with self._saving:
            if everything or self._clock.steady_s() >= self._next_s:
                await self._save()

    async def _save(self) -> None:
        refusals = -1
        while refusals != self._refusals:
            position, refusals = (self._next_prepared, self._next_mark), self._refusals
            set_us = self._time.set_us
            if position == (self._saved or (0, 0)) and set_us == self._saved_set_us:
                return
            snapshot = self._state.snapshot(*position, set_us)
            await self._store.append([], Durability.FSYNC).done
        document = await packed_struct(snapshot)
        await self._store.save(DOCUMENT, document)
        self._saved, self._saved_set_us = position, set_us
        if len(document) > LARGE_BYTES:
            self._next_s = self._clock.steady_s() + len(document) / BYTES_PER_S

    def pins(self) -> dict[str, int]:
        """What retention must leave alone, by stream."""
        prepared, marks = self._saved or (0, 0)
        return {PREPARED: min(self._state.first_needed(prepared, self._damaged), prepared), MARKS: marks}

    async def tidy(self) -> None:
        """Carry old records forward, lest one transaction hold a whole store back; then let go of what was decided."""
        now_us = self._clock.now_us()  # a stamp far ahead is one of a clock that was wrong
        self._damaged &= self._state.open.keys()
        old = [
            name
            for name, waiting in self._state.open.items()
            if abs(now_us - waiting.written_at_us) > CARRY_AFTER_US and name not in self._damaged
        ]
        for name in old[:CARRY_MAX]:
            async with self._alone(name):
                waiting = self._state.open.get(name)
                if waiting is not None:
                    await self._carry(waiting)
        await self.save()
        for stream, at in self.pins().items():
            if at > self._store.bounds(stream).first:
                await self._store.trim(stream, at)

    async def _carry(self, waiting: Open) -> None:
        try:
            chunk = await self._read(waiting)
            await self._append_prepared(waiting.head, chunk.frame, int(Durability.FSYNC))
        except StoreDamaged as error:
            # To hold on to it would hold on to all that comes behind it in the log.
            self._damaged.add(waiting.head.id)
            log.error("%s", error)
        except (QueueFull, TooLarge, Unreadable) as error:
            log.warning("transaction %s stays where it is: %s", waiting.head.id, error)

    def _wanted(self, durability: int) -> Durability:
        return max(self._durability if durability < 0 else Durability(durability), Durability.OS)

    async def _barrier(self, durability: int) -> None:
        await self._store.append([], self._wanted(durability)).done

    async def _with_room(self, act: Callable[[], T]) -> T:
        if self._closing:
            raise Unavailable("the broker is shutting down")
        try:
            return act()
        except QueueFull:
            if not self._settings.store.startswith("memory:"):
                raise
        await self.tidy_memory()
        return act()

    async def tidy_memory(self) -> None:
        await self.save(everything=True)
        await self._make_room()
        for stream, at in self.pins().items():
            await self._store.trim(stream, at)

    @asynccontextmanager
    async def _alone(self, transaction: str) -> AsyncIterator[None]:
        """One at a time for each transaction; different ones do not wait for each other."""
        turns = self._turns.setdefault(transaction, _Turns())
        turns.users += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[transaction]


class _Turns:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class _CommitMark:
    """The mark that makes a commit."""

    def __init__(self, escrow: PreparedTransactions, mark: Committed) -> None:
        self._escrow = escrow
        self._mark = mark
        self._undone = RolledBack(mark.at_us, mark.id, "its messages were refused as too large")
        """What it is if they are."""

    def append(self, firsts: Sequence[int], repeats: Sequence[Repeat], delayed: Sequence[int]) -> Append:
        self._mark = msgspec.structs.replace(
            self._mark, firsts=list(firsts), repeats=list(repeats), delayed=list(delayed)
        )
        return _marks([self._mark], [self._undone])

    def appended(self, sent: Sent, done: asyncio.Future[None]) -> None:
        self._escrow.apply([self._mark], sent.appended_at_us)
        done.add_done_callback(lambda done: self._escrow.committed(self._undone, sent.appended_at_us, done))


@contextmanager
def _understood(stream: str, number: int) -> Iterator[None]:
    try:
        yield
    except msgspec.MsgspecError as error:
        raise not_understood(f"{stream}: record {number}", error) from None


def _marks(marks: Sequence[Mark], instead: Sequence[Mark] | None = None) -> Append:
    other = None if instead is None else _encode(instead)
    return Append(MARKS, _encode(marks), len(marks), control=True, instead=other)


def _encode(marks: Sequence[Mark]) -> bytes:
    return encode_events([encode_mark(mark) for mark in marks], produced_at_us=marks[0].at_us)


def _finished_state(transaction: str, finished: Finished) -> wire.TransactionState:
    return wire.TransactionState(
        transaction,
        "committed" if finished.committed else "rolled back",
        finished.producer_group,
        finished.name,
        (finished.token or b"").decode("utf-8", "replace"),
        0,
        0,
        0,
        [],
        decided_at_us=finished.at_us,
        reason=finished.reason,
    )
