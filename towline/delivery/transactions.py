"""Prepared transactions: stored, invisible, and waiting for their sender's word. Pure.

    ──Prepared──► PREPARED ──Committed───► COMMITTED
                   │    ▲ └──RolledBack──► ROLLED BACK
                   │    └─ Checked: asked after, nothing heard yet
                   └────── Parked ──► PARKED, which is decided in the same way, but asked after no more

`Prepared` is the head of the record that holds the frames; the others are marks. Once decided, a transaction is
remembered for a while, so that whoever decides it again gets the same answer.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Set
from typing import Final

import msgspec

from towline.delivery.dedup import Repeat
from towline.errors import Conflict, NotFound, QueueFull

__all__ = [
    "FINISHED_MAX",
    "OPEN_MAX",
    "Checked",
    "Committed",
    "Finished",
    "Mark",
    "Open",
    "Parked",
    "Prepared",
    "RolledBack",
    "Transactions",
    "TransactionsSnapshot",
    "decode_mark",
    "decode_prepared",
    "encode_mark",
    "encode_prepared",
]

OPEN_MAX: Final = 50_000
"""Limit of undecided transactions."""
FINISHED_MAX: Final = 50_000
"""Decided transactions that are remembered: more than are decided within the time in which a client asks again."""
DUE_SPARE: Final = 1_000
"""Times kept of transactions that are decided before they are due, beyond the number of open ones."""
CHECK_MAX_US: Final = 3600 * 1_000_000
"""The longest pause between two checks, unless the first is longer."""


class Prepared(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The head of a record of prepared frames."""

    at_us: int
    id: str
    producer_group: str
    name: str
    token: bytes
    source: bytes
    check_after_us: int
    frames: list[tuple[str, int, int]]
    """Topic, lane number and number of messages of each frame."""
    size_bytes: int
    shards: dict[str, int] = {}
    """The shard counts of the ordered topics among them."""

    @property
    def messages(self) -> int:
        return sum(count for _, _, count in self.frames)

    @property
    def topics(self) -> list[str]:
        return sorted({topic for topic, _, _ in self.frames})


class _Mark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    at_us: int
    id: str


class Committed(_Mark, frozen=True, array_like=True, tag=1):
    firsts: list[int]
    repeats: list[Repeat]
    """Those whose first one is in this transaction carry the time 0: it is the time of the mark's record."""
    reason: str = ""
    delayed: list[int] = []
    """The indices of the frames that wait for their time: `firsts` has the ids of their first messages."""


class RolledBack(_Mark, frozen=True, array_like=True, tag=2):
    reason: str = ""


class Checked(_Mark, frozen=True, array_like=True, tag=3):
    """The producer was asked about it."""


class Parked(_Mark, frozen=True, array_like=True, tag=4):
    """It was checked often enough."""


Mark = Committed | RolledBack | Checked | Parked

_ENCODE = msgspec.msgpack.Encoder().encode
_MARK: msgspec.msgpack.Decoder[Mark] = msgspec.msgpack.Decoder(Mark)
_PREPARED = msgspec.msgpack.Decoder(Prepared)


def encode_mark(mark: Mark) -> bytes:
    return _ENCODE(mark)


def decode_mark(record: bytes) -> Mark:
    return _MARK.decode(record)


def encode_prepared(head: Prepared) -> bytes:
    return _ENCODE(head)


def decode_prepared(record: bytes) -> Prepared:
    return _PREPARED.decode(record)


class Open(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """An undecided transaction."""

    head: Prepared
    first: int
    """The position of its record; its head, then its frames."""
    written_at_us: int
    checks: int = 0
    next_check_us: int = 0
    """The time of its next check; 0 is never: it is parked."""

    @property
    def parked(self) -> bool:
        return not self.next_check_us

    @property
    def pause_us(self) -> int:
        """The pause before the next check, since the last one, or since it was prepared."""
        first_us = self.head.check_after_us
        return min(first_us << min(self.checks, 20), max(CHECK_MAX_US, first_us))


class Finished(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    committed: bool
    at_us: int
    producer_group: str
    name: str
    token: bytes | None
    """The token that may decide it; None if that was lost."""
    firsts: list[int]
    repeats: list[Repeat]
    reason: str
    delayed: list[int] = []


class TransactionsSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    prepared: int
    """The position in the stream of prepared records: those before it are included …"""
    marks: int
    """… and likewise in the stream of marks."""
    open: list[Open]
    finished: list[tuple[str, Finished]]


class Transactions:
    def __init__(self, max_checks: int) -> None:
        self._max_checks = max_checks
        self.open: OrderedDict[str, Open] = OrderedDict()
        """By id, in the order in which they were prepared."""
        self.finished: OrderedDict[str, Finished] = OrderedDict()
        self._due: list[tuple[int, str]] = []
        """A heap of (time, id). Entries of decided transactions, or with an older time, are skipped."""

    # Deciding

    def admit(self, transaction: str) -> bool:
        """Whether a transaction is new. Raises if there is no room for another."""
        if transaction in self.open or transaction in self.finished:
            return False
        if len(self.open) >= OPEN_MAX:
            raise QueueFull(
                f"{OPEN_MAX} prepared transactions wait to be decided: see which with `towline tx ls`, and resolve them"
            )
        return True

    def settle(self, transaction: str, *, commit: bool) -> Finished | Open:
        """The transaction to decide; or the earlier decision, if it was the same."""
        waiting = self.open.get(transaction)
        if waiting is not None:
            return waiting
        finished = self.finished.get(transaction)
        if finished is None:
            raise NotFound(
                f"there is no transaction {transaction} on this broker: it was prepared on another one, or it was "
                "decided long ago"
            )
        if finished.committed != commit:
            done, wanted = ("committed", "rolled back") if finished.committed else ("rolled back", "committed")
            why = f" ({finished.reason})" if finished.reason else ""
            raise Conflict(f"transaction {transaction} was {done} already{why}: it cannot be {wanted} any more")
        return finished

    def check(self, transaction: str, now_us: int) -> Checked | Parked:
        """The event for a transaction that is due: a check, or, after too many without an answer, parking."""
        if self.open[transaction].checks >= self._max_checks:
            return Parked(now_us, transaction)
        return Checked(now_us, transaction)

    def due(self, now_us: int) -> Iterator[Open]:
        """The transactions that are due, each given once until its time changes."""
        while self._due and self._due[0][0] <= now_us:
            at_us, transaction = heapq.heappop(self._due)
            waiting = self.open.get(transaction)
            if waiting is not None and waiting.next_check_us == at_us:
                yield waiting

    def due_later(self, waiting: Open) -> None:
        """It could not be checked now: give it again."""
        self._plan(waiting, waiting.next_check_us)

    def next_due_us(self) -> int | None:
        while self._due:
            at_us, transaction = self._due[0]
            waiting = self.open.get(transaction)
            if waiting is not None and waiting.next_check_us == at_us:
                return at_us
            heapq.heappop(self._due)
        return None

    # Applying

    def prepared(self, head: Prepared, first: int, written_at_us: int, now_us: int | None = None) -> None:
        """A record is there. If its transaction is known already, the record was only carried forward. `now_us` is the
        time by which it waits, if that is another than the head's."""
        known = self.open.get(head.id)
        if known is not None:
            known.first, known.written_at_us = first, written_at_us
        elif head.id not in self.finished:
            waiting = self.open[head.id] = Open(head, first, written_at_us)
            self._plan(waiting, (head.at_us if now_us is None else now_us) + waiting.pause_us)

    def refused(self, head: Prepared, first: int, before: tuple[int, int] | None) -> Open | None:
        """Undo the record from `first` on, which was refused: its transaction is where it was before, or, given back,
        unknown."""
        waiting = self.open.get(head.id)
        if waiting is None or waiting.first != first:
            return None
        if before is None:
            return self.open.pop(head.id)
        waiting.first, waiting.written_at_us = before
        return None

    def apply(self, mark: Mark, written_at_us: int, now_us: int | None = None) -> None:
        """`now_us` is the time by which it waits, if that is another than the mark's."""
        waiting = self.open.get(mark.id)
        if isinstance(mark, Committed | RolledBack):
            self._finish(mark, written_at_us)
        elif waiting is None:
            return
        elif isinstance(mark, Parked):
            waiting.next_check_us = 0
        else:
            waiting.checks += 1
            self._plan(waiting, (mark.at_us if now_us is None else now_us) + waiting.pause_us)

    def _finish(self, mark: Committed | RolledBack, written_at_us: int) -> None:
        waiting = self.open.pop(mark.id, None)
        head = waiting.head if waiting is not None else self.finished.get(mark.id)
        committed = isinstance(mark, Committed)
        self.finished[mark.id] = Finished(
            committed,
            written_at_us,
            head.producer_group if head is not None else "",
            head.name if head is not None else "",
            head.token if head is not None else None,
            mark.firsts if isinstance(mark, Committed) else [],
            [one if one.at_us else one._replace(at_us=written_at_us) for one in mark.repeats]
            if isinstance(mark, Committed)
            else [],
            mark.reason,
            mark.delayed if isinstance(mark, Committed) else [],
        )
        while len(self.finished) > FINISHED_MAX:
            self.finished.popitem(last=False)

    def _plan(self, waiting: Open, at_us: int) -> None:
        waiting.next_check_us = at_us
        heapq.heappush(self._due, (at_us, waiting.head.id))
        if len(self._due) > 2 * len(self.open) + DUE_SPARE:
            known = {(one.next_check_us, one.head.id) for one in self.open.values()}
            self._due = sorted(known.intersection(self._due))

    # Recovery

    def first_needed(self, end: int, without: Set[str] = frozenset()) -> int:
        """The first prepared record that is still needed; `end` if there is none."""
        return min((waiting.first for name, waiting in self.open.items() if name not in without), default=end)

    def snapshot(self, prepared: int, marks: int, set_us: int = 0) -> TransactionsSnapshot:
        """By a clock that is ahead by `set_us` of the one of the waits."""
        opened = [
            Open(one.head, one.first, one.written_at_us, one.checks, one.next_check_us and one.next_check_us + set_us)
            for one in self.open.values()
        ]
        return TransactionsSnapshot(prepared, marks, opened, list(self.finished.items()))

    def restore(self, snapshot: TransactionsSnapshot) -> None:
        self.open = OrderedDict((waiting.head.id, waiting) for waiting in snapshot.open)
        self.finished = OrderedDict(snapshot.finished)
        for waiting in self.open.values():
            if not waiting.parked:
                self._plan(waiting, waiting.next_check_us)

    def cap_waits(self, now_us: int) -> int:
        """After replay, maybe by a clock that is behind the one of the marks: no pause lasts longer from now on than as
        a whole. Returns by how much one ends sooner, at most."""
        sooner_us = 0
        for waiting in self.open.values():
            latest_us = now_us + waiting.pause_us
            if waiting.next_check_us > latest_us:
                sooner_us = max(waiting.next_check_us - latest_us, sooner_us)
                self._plan(waiting, latest_us)
        return sooner_us
