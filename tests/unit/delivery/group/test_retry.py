"""The retry queue, against a dictionary of single messages."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from towline.delivery import Part
from towline.delivery.group import ranges, retry
from towline.delivery.group.events import Failed
from towline.delivery.group.ranges import BLOCK
from towline.delivery.group.retry import AT_ONCE, RIPE_AT_ONCE, RetryQueue, due_after, wait_of
from towline.model import RetryPolicy

Name = tuple[int, int]

lanes = st.integers(0, 1)
dues = st.sampled_from([AT_ONCE, 10, 20, 20, 30])


def test_neighbours_due_at_the_same_time_are_one_entry() -> None:
    queue = RetryQueue()
    for number in range(100):
        queue.add(Part(0, number, 1, 2), 10)
    assert (queue.size, queue.messages, list(queue)) == (1, 100, [(Part(0, 0, 100, 2), 10)])


@pytest.mark.parametrize(("other", "due_us"), [(Part(1, 5, 1, 2), 10), (Part(0, 5, 1, 3), 10), (Part(0, 5, 1, 2), 11)])
def test_neighbours_of_another_lane_attempt_or_time_are_not(other: Part, due_us: int) -> None:
    queue = RetryQueue()
    queue.add(Part(0, 0, 5, 2), 10)
    queue.add(other, due_us)
    assert queue.size == 2


def test_nothing_is_ready_before_it_is_due() -> None:
    queue = RetryQueue()
    queue.add(Part(0, 0, 5, 2), 10)
    queue.ripen(9)
    assert (list(queue.ready(0)), queue.has_ready(), queue.next_due_us()) == ([], False, 10)
    queue.ripen(10)
    assert (list(queue.ready(0)), queue.has_ready(), queue.next_due_us()) == ([Part(0, 0, 5, 2)], True, None)


def test_a_part_that_lies_across_entries_is_removed_from_all_of_them() -> None:
    queue = RetryQueue()
    queue.add(Part(0, 0, 5, 2), 10)
    queue.add(Part(0, 5, 5, 2), 20)
    queue.ripen(10)
    queue.remove(Part(0, 3, 4, 2))
    assert list(queue) == [(Part(0, 0, 3, 2), 10), (Part(0, 7, 3, 2), 20)]
    assert (queue.size, queue.messages) == (2, 6)


def test_a_part_that_is_not_there_cannot_be_removed() -> None:
    queue = RetryQueue()
    queue.add(Part(0, 0, 5, 2), 10)
    for part in (Part(1, 0, 1, 2), Part(0, 5, 1, 2), Part(0, 0, 1, 1)):
        with pytest.raises(AssertionError):
            queue.remove(part)


@given(st.permutations(range(30)), st.integers(0, 30))
def test_ready_parts_come_in_order_whatever_order_they_failed_in(order: list[int], ripened: int) -> None:
    queue = RetryQueue()
    for at, number in enumerate(order):
        if at == ripened:
            queue.ripen(10)
        queue.add(Part(0, number, 1, 2), 10)
    queue.ripen(10)
    assert [number for part in queue.ready(0) for number in range(part.first, part.end)] == list(range(30))
    assert list(queue) == [(Part(0, 0, 30, 2), 10)]


WANTED = st.tuples(st.integers(0, 60), st.integers(1, 4), st.integers(0, 5))


@given(
    st.lists(WANTED, max_size=30, unique_by=lambda one: one[0]),
    st.integers(0, 5),
    st.integers(0, 320),
    st.integers(1, 40),
)
@settings(deadline=None)
def test_the_first_ones_before_a_number_are_found_and_taken_whenever_they_are_due(
    wanted: list[tuple[int, int, int]], ripened: int, before: int, most: int
) -> None:
    queue, there = RetryQueue(), dict[int, int]()
    for at, count, due_us in wanted:
        queue.add(Part(0, 5 * at, count, 1 + at % 2), due_us)
        there |= dict.fromkeys(range(5 * at, 5 * at + count), 1 + at % 2)
    queue.ripen(ripened)
    while found := queue.before(0, before, most):
        assert len(found) <= most
        queue.expose(found)
        for part in found:
            queue.remove(part)
        taken = [(number, part.attempt) for part in found for number in range(part.first, part.end)]
        assert taken == [(number, there.pop(number)) for number in sorted(there)[: len(taken)]]
    assert not any(number < before for number in there)
    assert queue.messages == len(there)
    left = [(number, part.attempt) for part, _ in queue for number in range(part.first, part.end)]
    assert left == sorted(there.items())


def test_a_million_entries_take_20_bytes_each() -> None:
    queue = RetryQueue()
    tracemalloc.start()
    for number in range(20_000):
        queue.add(Part(0, 1_000_000 + 2 * number, 1, 2), 10)
    waiting, _ = tracemalloc.get_traced_memory()
    queue.ripen(10)
    ready, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert queue.size == 20_000
    assert queue.load == 20_000 / 1_000_000
    assert max(waiting, ready) / 20_000 < 24


def test_a_queue_whose_entries_are_all_due_at_another_time_is_full_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """And has room again when they are gone."""
    monkeypatch.setattr(retry, "KINDS_MAX", 100)
    monkeypatch.setattr(retry, "TIDY_AFTER", 10)
    queue = RetryQueue()
    for number in range(100):
        queue.add(Part(0, 2 * number, 1, 2), 10 + number)
    assert queue.load == 1
    while queue.ripen(1_000):
        pass
    for number in range(20):
        queue.remove(Part(0, 2 * number, 1, 2))
    assert queue.load == 0.8
    assert [due_us for _, due_us in queue] == list(range(30, 110))
    queue.drop(0, 0)
    assert (queue.size, queue.messages, list(queue)) == (0, 0, [])


@given(st.lists(st.tuples(st.integers(0, 3000), st.sampled_from([10, 20])), max_size=400, unique_by=lambda one: one[0]))
@settings(max_examples=30)
def test_what_becomes_ready_later_is_put_between_what_is_ready(wanted: list[tuple[int, int]]) -> None:
    queue = RetryQueue()
    for number, due_us in wanted:
        queue.add(Part(0, 2 * number, 1, 2), due_us)
    queue.ripen(10)
    queue.ripen(20)
    assert [part.first for part in queue.ready(0)] == sorted(2 * number for number, _ in wanted)


class Retrying(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        ranges.BLOCK = 3  # type: ignore[misc]
        retry.RIPE_AT_ONCE = 4  # type: ignore[misc]
        self.queue = RetryQueue()
        self.model: dict[Name, tuple[int, int]] = {}
        self.readers: list[tuple[Any, dict[Name, tuple[int, int]]]] = []

    @rule(
        lane=st.integers(0, 1), first=st.integers(0, 30), count=st.integers(1, 6), due_us=dues, now_us=st.none() | dues
    )
    def add(self, lane: int, first: int, count: int, due_us: int, now_us: int | None) -> None:
        names = {(lane, number) for number in range(first, first + count)}
        if not names & set(self.model):
            self.queue.add(Part(lane, first, count, 2), due_us)
            self.model |= dict.fromkeys(names, (2, due_us))
        if now_us is not None:
            while self.queue.ripen(now_us):
                pass
            ready = {(lane, n) for lane in (0, 1) for p in self.queue.ready(lane) for n in range(p.first, p.end)}
            assert {name for name, (_, due_us) in self.model.items() if due_us <= now_us} <= ready

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        lane, first = data.draw(st.sampled_from(sorted(self.model)))
        end = first + 1
        while (lane, end) in self.model and end < first + 4:
            end += 1
        part = Part(lane, first, end - first, 2)
        assert self.queue.holds(part)
        self.queue.remove(part)
        assert not self.queue.holds(part)
        for number in range(first, end):
            del self.model[lane, number]

    @rule(now_us=dues, most=st.integers(1, 9))
    def make_some_ready(self, now_us: int, most: int) -> None:
        def ready() -> int:
            return sum(len(list(self.queue.ready(lane))) for lane in (0, 1))

        lanes = [lane for lane in (0, 1) if self.queue.is_ready(lane)]
        before, due = ready(), self.queue.next_due_us()
        more = self.queue.ripen(now_us, most)
        assert more == ((self.queue.next_due_us() or now_us + 1) <= now_us if due is not None else False)
        if len(lanes) == 2:
            assert ready() - before <= 4
        assert ready() > before or due is None or due > now_us

    @rule()
    def begin_reading(self) -> None:
        self.readers = [*self.readers[-1:], (self.queue.shared(), dict(self.model))]

    @invariant()
    def who_reads_sees_what_was_there(self) -> None:
        for (kinds, blocks), expected in self.readers:
            read = RetryQueue()
            for lane, block in blocks:
                read.add_columns(kinds, lane, block.columns())
            entries = list(read)
            assert {(p.lane, n): (p.attempt, due) for p, due in entries for n in range(p.first, p.end)} == expected

    def teardown(self) -> None:
        ranges.BLOCK = BLOCK  # type: ignore[misc]
        retry.RIPE_AT_ONCE = RIPE_AT_ONCE  # type: ignore[misc]

    @rule(lane=lanes, first=st.integers(0, 36))
    def drop(self, lane: int, first: int) -> None:
        gone = [name for name in self.model if name[0] == lane and name[1] >= first]
        assert self.queue.drop(lane, first) == len(gone)
        for name in gone:
            del self.model[name]

    @rule(lane=lanes, number=st.integers(0, 36))
    def look_at_one(self, lane: int, number: int) -> None:
        assert self.queue.due_of(lane, number) == self.model.get((lane, number))

    @invariant()
    def the_queue_is_the_model(self) -> None:
        entries = list(self.queue)
        actual = {(p.lane, n): (p.attempt, due) for p, due in entries for n in range(p.first, p.end)}
        assert actual == self.model
        assert self.queue.messages == len(self.model)
        assert self.queue.size >= len(entries)
        assert bool(self.queue.size) == bool(self.model)
        assert self.queue.lowest() == {
            lane: min(n for other, n in self.model if other == lane) for lane, _ in self.model
        }


TestRetrying = Retrying.TestCase
TestRetrying.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize("each", [3, 40, 700])
def test_what_is_due_at_many_times_is_made_ready_at_once(each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among 20,000 that are ready already; each of 100 times had all of them sorted anew."""
    numbers = list(range(0, 200_000, 2))
    random.Random(7).shuffle(numbers)
    retries, moved = RetryQueue(), 0
    for number in numbers[:20_000]:
        retries.add(Part(0, number, 1, 1), 1)
    retries.ripen(1)
    ours = numbers[20_000 : 20_000 + 100 * each]
    for place, number in enumerate(ours):
        retries.add(Part(0, number, 1, 1), 2 + place % 100)
    real = ranges._merged

    def counted(blocks: list[Any]) -> Any:
        nonlocal moved
        merged = real(blocks)
        moved += len(merged.firsts)
        return merged

    monkeypatch.setattr(ranges, "_merged", counted)
    while retries.ripen(101):
        pass
    assert [part.first for part in retries.ready(0)] == sorted(numbers[:20_000] + ours)
    assert retries.size == 20_000 + len(ours)
    assert moved <= 20_000 + len(ours)


def test_kinds_are_numbered_anew_once_for_all_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """With jitter each message waits for a time of its own: what is done for each of these follows what it holds."""
    used: list[int] = []
    renumber = ranges.Ranges.renumber

    def noting(row: ranges.Ranges, kinds: Mapping[int, int]) -> None:
        used.append(id(kinds))
        renumber(row, kinds)

    monkeypatch.setattr(ranges.Ranges, "renumber", noting)
    retries = RetryQueue()
    for number in range(retry.KINDS_MAX // 2):
        retries.add(Part(1, 2 * number, 1, 1), 1 + number)
    retries._removed = retry.TIDY_AFTER
    retries._tidy()
    assert len(used) == retry.KINDS_MAX // 2
    assert len(set(used)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("first_s", [0.2, 3600])
def test_200_000_scattered_messages_that_fail_one_by_one_with_jitter_fit(first_s: float) -> None:
    """Each waited for a time of its own: after 50,000 the queue was full, and took 11 MB."""
    policy = RetryPolicy(kind="exponential", first_s=first_s, factor=2, cap_s=first_s * 8, jitter=0.5)
    queue = RetryQueue()
    tracemalloc.start()
    for number in range(200_000):
        now_us, attempt = 1_700_000_000_000_000 + 509 * number, 1 + number % 4
        wait_s = policy.delay_s(attempt, (number // 1_000, 2 * number))
        part = Part(0, 1_000_000 + 2 * number, 1, attempt)
        failed = Failed(now_us, 1, (part,), due_after(now_us, wait_s), "")
        queue.add(part, failed.due_us, wait_of(failed))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (queue.size, queue.messages) == (200_000, 200_000)
    assert queue.load < 0.8, len(queue._kinds)
    assert taken < 16_000_000


@given(st.integers(1, 1 << 53), st.floats(0, 366 * 86400))
def test_a_back_off_is_over_when_it_is_due_and_that_is_little_later_than_asked(now_us: int, wait_s: float) -> None:
    due_us, wait_us = due_after(now_us, wait_s), round(wait_s * 1_000_000)
    late_us = due_us - now_us - wait_us
    if not wait_us:
        assert -10_000 < late_us <= 0
        return
    least_us = 10_000 if wait_us < 100_000 else 50_000 if wait_us < 1_000_000 else 100_000
    assert 0 <= late_us < max(least_us, wait_us / 64)
    told_us = wait_of(Failed(now_us, 1, (), due_us, ""))
    assert 0 <= told_us - (due_us - now_us) < max(100_000, (due_us - now_us) / 8)
