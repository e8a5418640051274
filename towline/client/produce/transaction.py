"""Transactions, sans I/O: the two kinds, their phases, and what each phase allows.

    NEW ──begin──► OPEN ──commit──► COMMITTING ──► COMMITTED       the messages are gathered here, and sent as one unit
                    │                   └──► refused: OPEN again
                    └──abort──► ABORTED

    OPEN ──store──► STORED ──commit──► COMMITTED                   the messages are kept by the broker, out of sight
                       └──rollback──► ABORTED

A commit that was never answered stays COMMITTING: it may have been carried out. To commit again is safe, and tells.
"""

from __future__ import annotations

import enum
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from towline.client.link.connection import Buffer, Call
from towline.client.link.flow import Flow
from towline.client.produce.encode import FOREVER, Body, FrameEncoder, Lifetimes
from towline.client.produce.sharding import ShardMap
from towline.client.produce.transaction_buffer import TransactionBuffer
from towline.clock import SYSTEM, Clock
from towline.errors import (
    BadRequest,
    Closed,
    Conflict,
    NotFound,
    ProtocolError,
    QueueFull,
    Refused,
    TowlineError,
    WrongShard,
)
from towline.model import Priority, Receipt, check_producer_group
from towline.protocol.base import HEAD_ROOM
from towline.protocol.messages import Request, Send, Sent
from towline.protocol.transactions import AwaitChecks, Check, Checks, Decide, Decided, Prepare, Prepared

__all__ = [
    "DirectTransaction",
    "Phase",
    "Senders",
    "StoredTransaction",
    "TransactionCore",
    "Verdict",
    "await_checks",
    "decide",
    "verdict",
]

Verdict = Literal["commit", "rollback"] | None
"""A producer's decision about its prepared transaction; None is not known yet."""

NAME_MAX: Final = 200
WAIT_MS: Final = 20_000
"""Long-poll time of `AwaitChecks`."""


class Phase(enum.Enum):
    NEW = "not begun"
    OPEN = "open"
    STORED = "stored"
    COMMITTING = "being committed"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Senders:
    """Each commit has a producer's number to itself while it is under way, so that the broker recognises it however
    many others there are."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._idle: list[FrameEncoder] = []
        self.entered: dict[object, object] = {}
        """The transaction whose `with` block a thread or task is in: they do not nest."""

    def take(self) -> FrameEncoder:
        return self._idle.pop() if self._idle else FrameEncoder(self._token)

    def give_back(self, sender: FrameEncoder) -> None:
        self._idle.append(sender)


class TransactionCore:
    """The common part of both kinds: they gather messages, in one thread, and end once."""

    def __init__(
        self, max_request_bytes: int, durability: int, shards: ShardMap, homes: Callable[[str, int], str] | None
    ) -> None:
        self.phase = Phase.NEW
        self._receipts: list[Receipt] | None = None
        self._answer: tuple[Sequence[int], int, Sequence[tuple[int, int, int, int, int]], Sequence[int]] | None = None
        self._buffer = TransactionBuffer(max_request_bytes - HEAD_ROOM)
        self._durability = durability
        self._shards = shards
        self._homes = homes
        """Where each broker of a cluster keeps messages of its own: the home of a shard."""
        self._request: tuple[Request, list[Buffer]] | None = None
        self._thread = threading.get_ident()

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts, once it is committed; made on demand."""
        if self._receipts is None:
            if self._answer is None:
                return []
            self._receipts = self._buffer.receipts(*self._answer)
        return self._receipts

    def add(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None,
        priority: Priority,
        headers: Mapping[str, str] | None,
        dedup_id: str | None,
        deliver_at_us: int = 0,
        lives: Lifetimes = FOREVER,
        shard_key: str | None = None,
    ) -> int:
        self.check(Phase.OPEN)
        return self._buffer.add(
            topic,
            body,
            key=key,
            priority=priority,
            headers=headers,
            dedup_id=dedup_id,
            deliver_at_us=deliver_at_us,
            lives=lives,
            shard_key=shard_key,
        )

    def add_many(
        self,
        topic: str,
        bodies: Sequence[Body],
        *,
        priority: Priority,
        keys: Sequence[str | None] | None = None,
        shard_keys: Sequence[str | None] | None = None,
    ) -> range:
        self.check(Phase.OPEN)
        return self._buffer.add_many(topic, bodies, priority=priority, keys=keys, shard_keys=shard_keys)

    def uncounted(self) -> list[str]:
        """The topics whose number of shards must be known before `home` can tell."""
        return [topic for topic in self._buffer.topics() if self._shards.get(topic) is None] if self._seeks_home else []

    @property
    def _seeks_home(self) -> bool:
        return self._homes is not None and self._request is None and self.phase is Phase.OPEN

    def home(self) -> str:
        """The broker that it must go to; empty if any will do."""
        if self._homes is None or not self._seeks_home:
            return ""
        touched = self._buffer.place(self._shards.get)
        homes = {self._homes(topic, shard) for topic, shard in touched}
        if len(homes) > 1:
            shown = ", ".join(f"{topic}/{shard}" for topic, shard in touched[:5])
            raise BadRequest(
                f"the shards {shown} belong to {len(homes)} brokers, and a transaction is stored by one: give all its "
                "messages for ordered topics one shard_key, or use brokers that share a store"
            )
        return homes.pop() if homes else ""

    def _place(self) -> Flow[None]:
        """A topic is taken for a shared one until a broker refuses that; but not where a shard key is given."""
        for topic, needed in self._buffer.topics().items():
            if needed and not self._shards.get(topic):
                yield from self._shards.find(topic, needed=True)
        self._buffer.place(self._shards.get)

    def _look_again(self) -> Flow[None]:
        """A topic has another number of shards: place the messages again."""
        self._request = None
        for topic in self._buffer.topics():
            yield from self._shards.look_up(topic)

    def check(self, *phases: Phase) -> None:
        if threading.get_ident() != self._thread:
            raise Conflict("a transaction belongs to the thread that began it: give each thread its own")
        if self.phase in phases:
            return
        if self.phase is Phase.NEW:
            raise Conflict("the transaction has not begun: enter it with `with`, or call begin()")
        if self.phase in (Phase.COMMITTED, Phase.ABORTED):
            raise Closed(f"the transaction was {self.phase.value} already: begin another one")
        if self.phase is Phase.COMMITTING:
            raise Conflict("the transaction was sent, and no answer came: commit() again tells what became of it")
        raise Conflict(f"the transaction is {self.phase.value}: this cannot be done to it now")


class DirectTransaction(TransactionCore):
    """Gathered here, and sent as one unit."""

    def __init__(
        self,
        senders: Senders,
        *,
        shards: ShardMap,
        homes: Callable[[str, int], str] | None = None,
        max_request_bytes: int,
        durability: int,
        timeout_s: float | None,
        compress: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(max_request_bytes, durability, shards, homes)
        if timeout_s is not None and not 0 < timeout_s <= 86400:
            raise BadRequest(f"timeout={timeout_s}: give seconds, more than 0 and up to 86,400, or None")
        self._senders = senders
        self._timeout_s = timeout_s
        self._compress = compress
        self._clock = clock
        self._begun_s = 0.0
        self._sender: FrameEncoder | None = None

    def begin(self, within: object = None) -> None:
        """Begin; `within` is the thread or task that enters it with `with`."""
        if self.phase is Phase.OPEN:
            raise Conflict("the transaction has begun already: transactions do not nest")
        if self.phase is not Phase.NEW:
            self.check()
        if within is not None:
            if within in self._senders.entered:
                raise Conflict("transactions do not nest: use the one that is open, or end it first")
            self._senders.entered[within] = self
        self._thread = threading.get_ident()
        self.phase = Phase.OPEN
        self._begun_s = self._clock.steady_s()

    def commit(self) -> Flow[None]:
        self.check(Phase.OPEN, Phase.COMMITTING)
        if self._request is None:
            self._check_age()
            if not len(self):
                self._end(Phase.COMMITTED)
                return
        try:
            answer = yield from self._send(*(self._request or (yield from self._packed())))
        except WrongShard:
            # Nothing of it was stored.
            yield from self._look_again()
            answer = yield from self._send(*(yield from self._packed()))
        self._answer = answer.firsts, answer.appended_at_us, answer.repeats, answer.delayed
        self._end(Phase.COMMITTED)

    def _packed(self) -> Flow[tuple[Request, list[Buffer]]]:
        yield from self._place()
        self._sender = sender = self._sender or self._senders.take()
        heads, frames = self._buffer.frames(
            lambda b, k, h, d, t, **lives: sender.frame(b, k, h, self._compress, d, t, **lives)
        )
        self._request = Send(heads, self._durability), frames
        return self._request

    def _send(self, request: Request, frames: list[Buffer]) -> Flow[Sent]:
        self.phase = Phase.COMMITTING
        try:
            answer = yield Call(request, frames)
        except (BadRequest, NotFound, Refused, QueueFull):
            # Nothing of it was stored.
            self.phase = Phase.OPEN
            raise
        if not isinstance(answer, Sent):
            raise ProtocolError(f"a commit was answered by {type(answer).__name__}")
        return answer

    def _check_age(self) -> None:
        age_s = self._clock.steady_s() - self._begun_s
        if self._timeout_s is not None and age_s > self._timeout_s:
            self._end(Phase.ABORTED)
            raise Conflict(
                f"the transaction began {age_s:.1f} seconds ago, and its timeout is {self._timeout_s:g}: it was aborted"
            )

    def abort(self) -> None:
        self.check(Phase.OPEN)
        self._end(Phase.ABORTED)

    def leave(self, within: object) -> None:
        """The `with` block is left: a transaction that was refused, or not committed, is aborted."""
        if self._senders.entered.get(within) is self:
            del self._senders.entered[within]
        if self.phase is Phase.OPEN:
            self._end(Phase.ABORTED)

    def _end(self, phase: Phase) -> None:
        self.phase = phase
        self._request = None
        sender, self._sender = self._sender, None
        if sender is not None:
            self._senders.give_back(sender)


class StoredTransaction(TransactionCore):
    """Stored by the broker, hidden, until it is decided."""

    def __init__(
        self,
        sender: FrameEncoder,
        producer_group: str,
        name: str,
        check_after_s: float | None,
        *,
        shards: ShardMap,
        homes: Callable[[str, int], str] | None = None,
        max_request_bytes: int,
        durability: int,
    ) -> None:
        super().__init__(max_request_bytes, durability, shards, homes)
        if len(name) > NAME_MAX:
            raise BadRequest(f"the name of a transaction has at most {NAME_MAX} characters")
        if check_after_s is not None and not 0 < check_after_s <= 86400:
            raise BadRequest(f"check_after={check_after_s}: give seconds, more than 0 and up to 86,400")
        self.phase = Phase.OPEN
        self.id = secrets.token_hex(8)
        self.producer_group = check_producer_group(producer_group)
        self.name = name
        self._check_after_s = check_after_s or 0.0
        self._sender = sender
        self._told = False
        """The broker may know of it."""

    def store(self) -> Flow[str]:
        self.check(Phase.OPEN)
        if not len(self):
            raise BadRequest("the transaction holds no message: send() some before store()")
        request = self._request or (yield from self._packed())
        self._told = True
        try:
            answer = yield Call(*request)
        except WrongShard:
            yield from self._look_again()
            answer = yield Call(*(yield from self._packed()))
        if not isinstance(answer, Prepared):
            raise ProtocolError(f"Prepare was answered by {type(answer).__name__}")
        self._request = None
        self.phase = Phase.STORED
        return self.id

    def _packed(self) -> Flow[tuple[Request, list[Buffer]]]:
        yield from self._place()
        heads, frames = self._buffer.frames(self._sender.loose_frame)
        request = Prepare(self.id, self.producer_group, self.name, heads, self._check_after_s, self._durability)
        self._request = request, frames
        return self._request

    def commit(self) -> Flow[None]:
        answer = yield from self._decide(commit=True)
        self._answer = answer.firsts, answer.decided_at_us, answer.repeats, answer.delayed
        self.phase = Phase.COMMITTED

    def rollback(self) -> Flow[None]:
        if self._told:
            yield from self._decide(commit=False)
        else:
            self.check(Phase.OPEN, Phase.ABORTED)
        self.phase = Phase.ABORTED

    def forget(self) -> None:
        """Its block is left by an error before the broker has it for certain; if it does, it will check."""
        self.phase = Phase.ABORTED

    def _decide(self, *, commit: bool) -> Flow[Decided]:
        if not self._told:
            self.check(Phase.OPEN)
            raise Conflict(
                "the transaction is not with the broker yet: store() it before your own commit, then commit()"
            )
        # The broker answers a repeated decision alike, so nothing is refused here.
        self.check(Phase.OPEN, Phase.STORED, Phase.COMMITTED, Phase.ABORTED)
        answer = yield Call(Decide(self.id, commit, self._durability))
        if not isinstance(answer, Decided):
            raise ProtocolError(f"Decide was answered by {type(answer).__name__}")
        return answer


# Checks


def await_checks(producer_group: str) -> Flow[list[Check]]:
    call = Call(AwaitChecks(producer_group, WAIT_MS))
    call.patience_s = WAIT_MS / 1000
    answer = yield call
    if not isinstance(answer, Checks):
        raise ProtocolError(f"AwaitChecks was answered by {type(answer).__name__}")
    return answer.checks


def decide(transaction: str, *, commit: bool) -> Flow[None]:
    yield Call(Decide(transaction, commit))


def verdict(given: object, name: str) -> bool | None:
    """The result of a callback: commit, rollback, or nothing."""
    if given is None or given in ("commit", "rollback"):
        return None if given is None else given == "commit"
    raise TowlineError(f"the callback said {given!r} of transaction {name}: say 'commit', 'rollback' or None")
