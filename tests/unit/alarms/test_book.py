"""Rule books that were changed apart: whoever hears of whom, and in which order, all come to the same."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.alarms.book import DROPPED_MAX, RuleBook
from towline.alarms.rule import RULES_MAX, AlarmRule
from towline.errors import NotFound, TooMany

NAMES = ("late", "dead", "disk")
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(("put", "drop", "silence", "hear")),
        st.sampled_from(NAMES),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    max_size=30,
)


def rule(name: str, threshold: float = 1) -> AlarmRule:
    return AlarmRule(name, "dead", threshold)


def copy_of(book: RuleBook) -> RuleBook:
    """As it travels: in parts."""
    made, after, more = RuleBook(), "", True
    while more:
        some, more = book.part(after, 1)
        after = max([*some.rules, *some.changes], default="")
        made.merge(some)
    return made


@given(STEPS, st.randoms(use_true_random=False))
def test_brokers_that_hear_of_each_other_come_to_the_same_rules(
    steps: list[tuple[int, str, str, int, int]], rnd: random.Random
) -> None:
    books = [RuleBook() for _ in range(3)]
    for at, what, name, now_us, other in steps:
        book = books[at]
        if what == "put":
            book.put(rule(name, now_us), now_us)
        elif what == "hear":
            book.merge(books[other])
        elif name in book.rules:
            book.drop(name, now_us) if what == "drop" else book.silence(name, now_us * 10, "x" * bool(now_us), now_us)
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b] * 2
    rnd.shuffle(pairs)
    for a, b in pairs + [(a, b) for a in range(3) for b in range(3)] * 2:
        books[a].merge(books[b])
    assert books[0].rules == books[1].rules == books[2].rules
    assert len({book.digest for book in books}) == 1
    assert copy_of(books[0]).digest == books[0].digest
    assert not books[0].merge(books[1]), "there is nothing new"


def test_what_was_done_last_counts_and_a_silence_by_itself() -> None:
    here, away = RuleBook(), RuleBook()
    here.put(rule("late"), 100)
    away.merge(here)
    here.silence("late", 9_000, "the warehouse moves", 200)
    away.put(rule("late", 5), 300)
    assert away.merge(here)
    assert here.merge(away)
    assert here.rules == away.rules
    assert (here.rules["late"].threshold, here.rules["late"].silence_reason) == (5, "the warehouse moves")
    away.drop("late", 400)
    assert here.merge(away)
    assert here.rules == {}
    here.put(rule("late", 6), 50)  # a clock that is behind
    away.merge(here)
    assert away.rules == {"late": rule("late", 6)}, "and the silence of the one before is not its own"


def test_a_rule_without_a_time_is_older_than_any_change() -> None:
    old = RuleBook([rule("late", 1), rule("dead")])
    new = RuleBook()
    new.put(rule("late", 2), 1)
    new.put(rule("disk"), 1)
    new.drop("disk", 2)
    old.merge(new)
    new.merge(old)
    assert old.rules == new.rules == {"late": rule("late", 2), "dead": rule("dead")}


def test_a_book_is_bounded() -> None:
    book = RuleBook()
    for n in range(RULES_MAX):
        book.put(rule(f"r{n}"), n)
    with pytest.raises(TooMany):
        book.put(rule("one-more"), 1)
    assert not book.merge(RuleBook([rule("one-more")]))
    with pytest.raises(NotFound):
        book.drop("one-more", 1)
    for n in range(DROPPED_MAX + 5):
        name = f"r{n % RULES_MAX}" if n < RULES_MAX else f"s{n}"
        if name not in book.rules:
            book.put(rule(name), n)
        book.drop(name, 10_000 + n)
    assert len(book.changes) == DROPPED_MAX
    assert "r0" not in book.changes
