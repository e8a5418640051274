"""Sets of messages kept as ranges, against sets of single messages."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from towline.delivery import Part
from towline.delivery.group.parts import (
    Dying,
    PartSet,
    add_interval,
    cut,
    cut_before,
    disjoint,
    in_intervals,
    remove_interval,
)
from towline.model import Span

Single = tuple[int, int, int]
"""Lane, number, attempt."""

parts = st.builds(Part, st.integers(0, 2), st.integers(0, 40), st.integers(1, 12), st.integers(1, 2))
spans = st.builds(Span, st.integers(0, 2), st.integers(0, 45), st.integers(1, 20))
intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=12)


def singles(some: list[Part]) -> set[Single]:
    return {(part.lane, number, part.attempt) for part in some for number in range(part.first, part.end)}


def numbers(some: list[tuple[int, int]]) -> set[int]:
    return {number for first, count in some for number in range(first, first + count)}


def covered(some: list[Span]) -> set[tuple[int, int]]:
    return {(span.lane, number) for span in some for number in range(span.first, span.end)}


def built(candidates: list[Part]) -> tuple[PartSet, set[Single]]:
    """A set of those candidates that do not overlap one before, and the same as single messages."""
    found, model = PartSet(), set[Single]()
    for part in candidates:
        taken = {(lane, number) for lane, number, _ in model}
        if not {(part.lane, number) for number in range(part.first, part.end)} & taken:
            found.add(part)
            model |= singles([part])
    return found, model


def check(found: PartSet, model: set[Single]) -> None:
    """The set holds what the model holds, in order, and in as few parts as can be."""
    listed = list(found)
    assert singles(listed) == model
    assert (found.messages, len(found), bool(found)) == (len(model), len(listed), bool(model))
    assert listed == sorted(listed)
    for left, right in pairwise(listed):
        assert left.lane < right.lane or left.end < right.first or left.attempt != right.attempt
    assert found.lowest() == {lane: min(n for other, n, _ in model if other == lane) for lane, _, _ in model}
    assert found.ends() == {lane: max(n + 1 for other, n, _ in model if other == lane) for lane, _, _ in model}
    assert found.counts() == Counter(lane for lane, _, _ in model)


@given(st.lists(parts, max_size=15))
def test_parts_are_kept_in_order_and_neighbours_of_the_same_attempt_are_one(candidates: list[Part]) -> None:
    check(*built(candidates))


@given(st.lists(parts, max_size=15), st.lists(st.booleans(), min_size=15, max_size=15))
def test_two_sets_are_merged(candidates: list[Part], mine: list[bool]) -> None:
    whole, _ = built(candidates)
    there, other = PartSet(), PartSet()
    for part, one in zip(whole, [*mine, *mine, *mine], strict=False):
        (there if one else other).add(part)
    there.merge(other)
    check(there, singles(list(whole)))


@given(st.lists(parts, max_size=15), spans)
def test_what_lies_within_a_span_is_cut_to_it(candidates: list[Part], span: Span) -> None:
    found, model = built(candidates)
    inside = found.within(span)
    assert singles(inside) == {one for one in model if one[0] == span.lane and span.first <= one[1] < span.end}
    assert inside == sorted(inside)


@given(st.lists(parts, max_size=15), st.lists(spans, max_size=6))
def test_a_removed_piece_leaves_both_its_sides(candidates: list[Part], removed: list[Span]) -> None:
    found, model = built(candidates)
    for span in removed:
        for piece in found.within(span):
            found.remove(piece)
            model -= singles([piece])
        check(found, model)


@given(st.lists(parts, max_size=15), parts)
def test_what_is_not_there_whole_cannot_be_removed(candidates: list[Part], part: Part) -> None:
    found, model = built(candidates)
    if singles([part]) <= model:
        found.remove(part)
        check(found, model - singles([part]))
    else:
        with pytest.raises(AssertionError):
            found.remove(part)


@given(st.lists(parts, min_size=1, max_size=15), parts)
def test_what_is_there_already_cannot_be_added(candidates: list[Part], part: Part) -> None:
    found, model = built(candidates)
    if {(lane, number) for lane, number, _ in singles([part])} & {(lane, number) for lane, number, _ in model}:
        with pytest.raises(AssertionError):
            found.add(part)


# What is dying


class DyingModel(RuleBasedStateMachine):
    """Against a dictionary of single messages."""

    def __init__(self) -> None:
        super().__init__()
        self.dying = Dying()
        self.model: dict[Single, str] = {}

    @rule(part=parts, reason=st.sampled_from("ab"))
    def add(self, part: Part, reason: str) -> None:
        if not {one[:2] for one in singles([part])} & {one[:2] for one in self.model}:
            self.dying.add(part, reason)
            self.model |= dict.fromkeys(singles([part]), reason)

    @rule(part=parts)
    def remove(self, part: Part) -> None:
        whole = any(cut(one, part) == part for one in self.dying)
        assert self.dying.holds(part) == whole
        if whole:
            self.dying.remove(part)
            for one in singles([part]):
                del self.model[one]
        else:
            with pytest.raises(AssertionError):
                self.dying.remove(part)

    @rule(lane=st.integers(0, 2), first=st.integers(0, 50))
    def drop(self, lane: int, first: int) -> None:
        gone = [one for one in self.model if one[0] == lane and one[1] >= first]
        assert self.dying.drop(lane, first) == len(gone)
        for one in gone:
            del self.model[one]

    @rule(span=spans, most=st.none() | st.integers(0, 3))
    def look_within(self, span: Span, most: int | None) -> None:
        expected = {one for one in self.model if one[0] == span.lane and span.first <= one[1] < span.end}
        found = self.dying.within(span)
        assert singles(found) == expected
        assert found == sorted(found)
        assert self.dying.within(span, most) == found[:most]

    @rule(lane=st.integers(0, 2), number=st.integers(0, 50))
    def find(self, lane: int, number: int) -> None:
        found = self.dying.find(lane, number)
        expected = [part for part in self.dying if part.lane == lane and part.first <= number < part.end]
        assert expected == ([] if found is None else [found])

    @invariant()
    def it_is_the_model(self) -> None:
        assert {one: reason for part, reason in self.dying.items() for one in singles([part])} == self.model
        assert self.dying.messages == len(self.model)
        counted = Counter(lane for lane, _, _ in self.model)
        assert self.dying.counts() == counted
        assert self.dying.lowest() == {lane: min(n for of, n, _ in self.model if of == lane) for lane in counted}


TestDying = DyingModel.TestCase
TestDying.settings = settings(max_examples=60, stateful_step_count=30)


@given(parts, spans)
def test_a_part_is_cut_to_a_span_or_lies_outside(part: Part, span: Span) -> None:
    piece = cut(part, span)
    expected = {one for one in singles([part]) if one[0] == span.lane and span.first <= one[1] < span.end}
    assert (singles([piece]) if piece else set()) == expected


@given(st.lists(spans, max_size=10))
def test_spans_are_made_disjoint_and_cover_the_same_messages(some: list[Span]) -> None:
    merged = disjoint(some)
    assert covered(merged) == covered(some)
    assert sum(span.count for span in merged) == len(covered(some))
    assert merged == sorted(merged)


@given(intervals)
def test_intervals_are_merged_when_they_touch(some: list[tuple[int, int]]) -> None:
    merged: list[tuple[int, int]] = []
    for index, (first, count) in enumerate(some, start=1):
        add_interval(merged, first, count)
        assert numbers(merged) == numbers(some[:index])
    for (first, count), (following, _) in pairwise(merged):
        assert first + count < following
    assert [in_intervals(merged, number) for number in range(80)] == [n in numbers(some) for n in range(80)]


@given(st.sets(st.integers(0, 30)), st.data())
def test_what_was_put_into_intervals_is_taken_out_again(others: set[int], data: st.DataObject) -> None:
    first, count = data.draw(st.integers(0, 30)), data.draw(st.integers(1, 8))
    others -= set(range(first, first + count))
    some: list[tuple[int, int]] = []
    for number in others:
        add_interval(some, number, 1)
    before = list(some)
    add_interval(some, first, count)
    remove_interval(some, first, count)
    assert some == before


@given(intervals, st.integers(0, 90))
def test_intervals_are_cut(some: list[tuple[int, int]], before: int) -> None:
    merged: list[tuple[int, int]] = []
    for first, count in some:
        add_interval(merged, first, count)
    gone = {number for number in numbers(some) if number < before}
    assert cut_before(merged, before) == len(gone)
    assert numbers(merged) == numbers(some) - gone
    assert all(count > 0 for _, count in merged)
