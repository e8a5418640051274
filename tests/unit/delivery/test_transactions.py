"""Prepared transactions as rules: what is due when, what is remembered, and that replay gives the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.delivery.dedup import Repeat
from towline.delivery.transactions import (
    CHECK_MAX_US,
    Checked,
    Committed,
    Mark,
    Open,
    Parked,
    Prepared,
    RolledBack,
    Transactions,
    TransactionsSnapshot,
    decode_mark,
    decode_prepared,
    encode_mark,
    encode_prepared,
)
from towline.errors import Conflict, NotFound

SECOND = 1_000_000


def head(name: str = "t", at_us: int = 0, check_after_us: int = 60 * SECOND) -> Prepared:
    return Prepared(
        at_us, name, "shop", "order", b"token", b"\x7f", check_after_us, [("orders", 1, 2), ("stock", 0, 1)], 99
    )


def test_records_come_back_as_they_went() -> None:
    marks: list[Mark] = [
        Committed(1, "t", [3, 4], [Repeat(0, 1, 2, 3, 0)], "why"),
        RolledBack(2, "t", "why"),
        Checked(3, "t"),
        Parked(4, "t"),
    ]
    assert [decode_mark(encode_mark(mark)) for mark in marks] == marks
    assert decode_prepared(encode_prepared(head())) == head()
    assert (head().messages, head().topics) == (3, ["orders", "stock"])


def test_the_pause_between_checks_doubles_up_to_an_hour() -> None:
    state = Transactions(max_checks=9)
    state.prepared(head(), 0, 0)
    now_us, pauses = 0, []
    for _ in range(9):
        due_us = state.next_due_us()
        assert due_us is not None
        pauses.append((due_us - now_us) // SECOND)
        assert list(state.due(due_us - 1)) == []
        (waiting,) = state.due(due_us)
        assert list(state.due(due_us)) == [], "given once"
        now_us = due_us
        mark = state.check("t", now_us)
        assert isinstance(mark, Checked)
        state.apply(mark, now_us)
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert isinstance(state.check("t", now_us), Parked)
    state.apply(Parked(now_us, "t"), now_us)
    assert state.next_due_us() is None
    assert waiting.parked
    assert CHECK_MAX_US == 3600 * SECOND


def test_what_could_not_be_seen_to_is_given_again() -> None:
    state = Transactions(3)
    state.prepared(head(), 0, 0)
    (waiting,) = state.due(61 * SECOND)
    state.due_later(waiting)
    assert list(state.due(61 * SECOND)) == [waiting]


def test_a_mark_whose_transaction_was_lost_is_remembered_all_the_same() -> None:
    state = Transactions(3)
    state.apply(Committed(5, "t", [1], []), 6)
    state.apply(Checked(5, "other"), 6)
    state.prepared(head(), 0, 0)
    assert not state.open, "it is not brought back"
    finished = state.settle("t", commit=True)
    assert not isinstance(finished, Open)
    assert finished.at_us == 6
    with pytest.raises(Conflict):
        state.settle("t", commit=False)
    with pytest.raises(NotFound):
        state.settle("other", commit=False)


Steps = st.lists(
    st.tuples(st.sampled_from(["prepare", "commit", "rollback", "check", "carry"]), st.integers(0, 4)), max_size=40
)


@given(steps=Steps, cut=st.integers(0, 40))
def test_a_snapshot_and_what_followed_it_are_the_same_as_everything(steps: list[tuple[str, int]], cut: int) -> None:
    """Records and marks are kept apart: all records are replayed first, then all marks."""
    live = Transactions(2)
    records: list[Prepared] = []
    marks: list[Mark] = []
    document, taken_at = b"", (0, 0)
    for number, (what, which) in enumerate(steps):
        if number == cut:
            document, taken_at = (
                msgspec.msgpack.encode(live.snapshot(len(records), len(marks))),
                (len(records), len(marks)),
            )
        name, now_us = f"t{which}", (number + 1) * 100 * SECOND
        if what == "prepare" and live.admit(name):
            records.append(head(name, now_us))
            live.prepared(records[-1], len(records) - 1, now_us)
        elif what == "carry" and name in live.open:
            records.append(live.open[name].head)
            live.prepared(records[-1], len(records) - 1, now_us)
        elif name in live.open and what in ("commit", "rollback", "check"):
            mark: Mark = Committed(now_us, name, [1], [Repeat(0, 0, 1, 2, 0)]) if what == "commit" else (
                RolledBack(now_us, name) if what == "rollback" else live.check(name, now_us)
            )  # fmt: skip
            marks.append(mark)
            live.apply(mark, mark.at_us)
    back = Transactions(2)
    if document:
        back.restore(msgspec.msgpack.decode(document, type=TransactionsSnapshot))
    for at in range(taken_at[0], len(records)):
        written_us = live.open[records[at].id].written_at_us if records[at].id in live.open else 0
        back.prepared(records[at], at, written_us)
    for mark in marks[taken_at[1] :]:
        back.apply(mark, mark.at_us)
    assert dict(back.open) == dict(live.open)
    assert dict(back.finished) == dict(live.finished)
    assert back.next_due_us() == live.next_due_us()
    assert back.first_needed(99) == live.first_needed(99)
