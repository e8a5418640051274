"""Prepared transactions: kept out of sight until their sender decides, and asked after when it does not.

The frames of a transaction are stored together in the stream `tx/prepared`: a head, then the frames as they came. What
becomes of it is a mark in the stream `tx/marks`. A commit is one unit: the frames on their lanes, and the mark. So a
crash leaves it whole or absent, and never both committed and waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from towline.broker.journal import Turns, trim
from towline.broker.produce.frame_journal import FrameJournal, Moment, with_room
from towline.broker.produce.transaction_checks import TransactionChecks
from towline.clock import SECOND_US, SET_US, Clock, SteadyClock
from towline.delivery.dedup import Repeat
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
from towline.frame import Frame
from towline.model import Durability, check_producer_group
from towline.protocol import transactions as wire
from towline.store import Append, Appended, Chunk, Store

if TYPE_CHECKING:
    from towline.broker.access.rules import May
    from towline.broker.produce.append import Appender, Outgoing
    from towline.protocol.messages import Sent
    from towline.settings import BrokerSettings

__all__ = ["MARKS", "PREPARED", "PreparedTransactions"]

T = TypeVar("T")

log = logging.getLogger("towline.broker")

PREPARED: Final = "tx/prepared"
MARKS: Final = "tx/marks"
DOCUMENT: Final = "transactions.bin"
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
        self._state = Transactions(settings.tx_max_checks)
        self.journal = FrameJournal(
            store,
            clock,
            Durability.parse(settings.durability),
            records=PREPARED,
            marks=MARKS,
            document=DOCUMENT,
            kind=TransactionsSnapshot,
            encode=encode_mark,
            decode=decode_mark,
            decode_head=decode_prepared,
            apply=self._apply,
        )
        self._damaged: set[str] = set()
        """Transactions whose messages cannot be read any more: they can only be rolled back."""
        self._turns = Turns()
        """One at a time for each transaction."""
        self._closing = False
        self.asking = TransactionChecks(self._state, clock, time, self._record)

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
        for head in request.frames:
            self._expect_shards(head.topic, head.shards)
        frames = self._sender.check_later(request.frames, data, token)
        async with self._turns.of(request.transaction):
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
            journal, wanted = self.journal, self.journal.wanted(request.durability)
            await self._with_room(
                lambda: self._kept(head_, journal.keep(encode_prepared(head_), frames, source, wanted))
            )
            return wire.Prepared(head_.at_us)

    def _kept(self, head: Prepared, appended: Appended) -> asyncio.Future[None]:
        """A record has its place."""
        first, known = appended.firsts[0], self._state.open.get(head.id)
        before = None if known is None else (known.first, known.written_at_us)
        self._state.prepared(head, first, appended.at_us, self._time.now_us())
        self.asking.arm()

        def take_back() -> None:
            gone = self._state.refused(head, first, before)
            if gone is not None:
                self.asking.drop(gone)

        self.journal.when_refused(appended.done, take_back, Exception)
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
        async with self._turns.of(transaction):
            if token is not None:
                self._check_token(transaction, token)
            found = self._state.settle(transaction, commit=commit)
            if isinstance(found, Finished):
                await self._barrier(durability)
                return wire.Decided(found.firsts, found.at_us, True, list(found.repeats), found.delayed)
            if commit:
                return await self._commit(found, durability, reason)
            mark = RolledBack(self._clock.now_us(), transaction, reason)
            await self.journal.append([mark], self.journal.wanted(durability)).done
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
        wanted = self.journal.wanted(durability)
        mark = Committed(self._clock.now_us(), head.id, [], [], reason)
        sent = await self._with_room(
            lambda: self._sender.append(outgoing, frames, wanted, head.source, _CommitMark(self, mark))
        )
        return wire.Decided(sent.firsts, sent.appended_at_us, False, sent.repeats, sent.delayed)

    def undo(self, undone: RolledBack, at_us: int, error: BaseException | None) -> None:
        """The messages of a commit were refused, and the mark that stands says that it is undone."""
        log.error("transaction %s is undone, for its messages were refused: %s", undone.id, error)
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
        head = waiting.head
        return await self.journal.read(waiting.first, 1 + len(head.frames), f"transaction {head.id}", ". Roll it back")

    def _record(self, marks: Sequence[Mark]) -> None:
        self.journal.append(marks, Durability.OS)

    def _apply(self, mark: Mark, at_us: int) -> None:
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
        # Pauses begin by the times of heads and marks.
        await self.journal.recover(self._state.restore, self._state.prepared, self._state.apply)
        ahead_us = self._state.cap_waits(self._time.now_us())
        if ahead_us > SET_US:
            log.warning(
                "pauses between checks of prepared transactions have begun by a clock that was %.0f s ahead of what it "
                "is now: they begin anew",
                ahead_us / SECOND_US,
            )
        self.asking.arm()

    def lanes(self) -> set[tuple[str, int]]:
        """The topics and lanes that prepared transactions have messages for."""
        return {(topic, lane) for waiting in self._state.open.values() for topic, lane, _ in waiting.head.frames}

    async def save(self, *, everything: bool = False) -> None:
        await self.journal.save(self._moment, lambda now: self._state.snapshot(*now), everything=everything)

    def _moment(self) -> Moment:
        return self.journal.next_record, self.journal.next, self._time.set_us

    def pins(self) -> dict[str, int]:
        return self.journal.pins(lambda end: self._state.first_needed(end, self._damaged))

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
            async with self._turns.of(name):
                waiting = self._state.open.get(name)
                if waiting is not None:
                    await self._carry(waiting)
        await self.save()
        await trim(self._store, self.pins())

    async def _carry(self, waiting: Open) -> None:
        try:
            chunk = await self._read(waiting)
            head, count = waiting.head, 1 + len(waiting.head.frames)
            await self._kept(head, self.journal.keep_record(chunk.frame, count, head.source, Durability.FSYNC))
        except StoreDamaged as error:
            # To hold on to it would hold on to all that comes behind it in the log.
            self._damaged.add(waiting.head.id)
            log.error("%s", error)
        except (QueueFull, TooLarge, Unreadable) as error:
            log.warning("transaction %s stays where it is: %s", waiting.head.id, error)

    async def _barrier(self, durability: int) -> None:
        await self.journal.barrier(self.journal.wanted(durability))

    async def _with_room(self, act: Callable[[], asyncio.Future[T]]) -> T:
        if self._closing:
            raise Unavailable("the broker is shutting down")
        return await with_room(lambda: asyncio.shield(act()), self._tidy_memory)

    async def _tidy_memory(self) -> bool:
        if not await self._make_room():
            return False
        await self.save(everything=True)
        await trim(self._store, self.pins())
        return True


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
        return self._escrow.journal.entry([self._mark], [self._undone])

    def appended(self, sent: Sent, done: asyncio.Future[None]) -> None:
        journal, undone, at_us = self._escrow.journal, self._undone, sent.appended_at_us
        journal.note([self._mark], at_us)
        journal.when_refused(done, lambda: self._escrow.undo(undone, at_us, done.exception()))


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
