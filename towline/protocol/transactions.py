"""Requests and answers of prepared transactions.

A broker never speaks first: a producer waits for checks of its transactions (`AwaitChecks`), and is answered when there
is one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from towline.protocol.messages import ANSWERS, REQUESTS, Answer, FrameHead, Request

__all__ = [
    "AwaitChecks",
    "Check",
    "Checks",
    "Decide",
    "Decided",
    "ListTransactions",
    "Prepare",
    "Prepared",
    "Resolve",
    "TransactionState",
    "Transactions",
]

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=50)]
_Name = Annotated[str, msgspec.Meta(max_length=100)]
_Text = Annotated[str, msgspec.Meta(max_length=200)]
_Durability = Annotated[int, msgspec.Meta(ge=-1, le=2)]


class Prepare(Request, frozen=True, array_like=True):
    """Store frames, which follow as attachments, hidden until the transaction is decided."""

    kind = 30
    transaction: _Id
    """Chosen by the client; the same one again is the same transaction."""
    producer_group: _Name
    name: _Text
    """The sender's own reference, by which it finds the outcome of the transaction."""
    frames: Annotated[list[FrameHead], msgspec.Meta(min_length=1, max_length=1_000)]
    check_after_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 0
    """The time without a decision after which it is checked; 0 is the broker's setting."""
    durability: _Durability = -1


class Prepared(Answer, frozen=True, array_like=True):
    kind = 158
    prepared_at_us: int
    duplicate: bool = False


class Decide(Request, frozen=True, array_like=True):
    """Commit or roll back a prepared transaction. The same decision again changes nothing; the other one is a
    `conflict`."""

    kind = 31
    transaction: _Id
    commit: bool
    durability: _Durability = -1


class Decided(Answer, frozen=True, array_like=True):
    """As `Sent`, for the frames of a committed transaction in the order they were prepared in."""

    kind = 159
    firsts: list[int]
    decided_at_us: int
    duplicate: bool
    repeats: list[tuple[int, int, int, int, int]]
    delayed: list[int] = []  # noqa: RUF012 - a Struct copies it


class AwaitChecks(Request, frozen=True, array_like=True):
    """Wait until a transaction of this producer group is to be checked; one at a time on a connection."""

    kind = 32
    producer_group: _Name
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=300_000)] = 0


class Check(msgspec.Struct, frozen=True, array_like=True):
    """A check of a transaction. Answer with `Decide`, or not at all if its outcome is not known yet."""

    transaction: str
    name: str
    producer_group: str
    prepared_at_us: int
    attempt: int
    """The number of this check, from 1 on."""
    messages: int
    topics: list[str]


class Checks(Answer, frozen=True, array_like=True):
    """Empty if there was none in time."""

    kind = 160
    checks: list[Check]


class TransactionState(msgspec.Struct, frozen=True, array_like=True):
    transaction: str
    state: str
    """prepared, parked (checked in vain), committed or rolled back."""
    producer_group: str
    name: str
    token: str
    prepared_at_us: int
    messages: int
    size_bytes: int
    topics: list[str]
    checks: int = 0
    next_check_at_us: int = 0
    decided_at_us: int = 0
    reason: str = ""


class ListTransactions(Request, frozen=True, array_like=True):
    """Undecided transactions, the oldest first; or a single one, decided or not."""

    kind = 33
    transaction: Annotated[str, msgspec.Meta(max_length=50)] = ""
    parked: bool = False
    """Only those that are parked."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1_000


class Transactions(Answer, frozen=True, array_like=True):
    kind = 161
    transactions: list[TransactionState]
    total: int
    """Undecided transactions in all."""


class Resolve(Request, frozen=True, array_like=True):
    """Decide a transaction in place of its producers. Answered by `Done`."""

    kind = 34
    transaction: _Id
    commit: bool
    reason: _Text = ""


REQUESTS.update({cls.kind: cls for cls in (Prepare, Decide, AwaitChecks, ListTransactions, Resolve)})
ANSWERS.update({cls.kind: cls for cls in (Prepared, Decided, Checks, Transactions)})
