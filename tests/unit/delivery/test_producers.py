"""Which frames are recognised when they are sent again, and which cannot be told."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.delivery import Producers, producers
from towline.delivery.producers import ProducersSnapshot, Remembered
from towline.errors import Conflict

SMALL = 4
DAY_US = 86_400_000_000
YEAR_US = 365 * DAY_US


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "WINDOW", SMALL)
    monkeypatch.setattr(producers, "TOTAL_MAX", 3 * SMALL)


def sent(*numbers: int, producer_id: int = 1) -> Producers:
    found = Producers()
    for number in numbers:
        found.remember(producer_id, number, 100 * number, number)
    return found


def seen(found: Producers, number: int, producer_id: int = 1) -> str:
    try:
        known = found.find(producer_id, number)
    except Conflict:
        return "refused"
    return "new" if known is None else "again"


def kept(found: Producers) -> list[int]:
    return [producer_id for producer_id, _, _ in found.snapshot().producers]


def test_a_frame_sent_again_is_recognised_by_its_first_place() -> None:
    assert sent(0, 1).find(1, 1) == Remembered(100, 1)
    assert sent(0, 1).find(1, 2) is None
    assert sent(0, 1).find(2, 1) is None


def test_a_frame_from_before_the_window_is_refused_because_it_cannot_be_told() -> None:
    found = sent(0, 1, 2, 3, 4)
    assert [seen(found, number) for number in range(7)] == ["refused", "again", "again", "again", "again", "new", "new"]
    with pytest.raises(Conflict, match="cannot be told"):
        found.find(1, 0)


def test_a_full_window_that_forgot_nothing_refuses_nothing() -> None:
    found = sent(3, 4, 5, 6)
    assert seen(found, 2) == "new"
    found.remember(1, 2, 200, 2)
    assert [seen(found, number) for number in (1, 2, 3, 6)] == ["refused", "refused", "again", "again"]


def test_frames_that_arrive_out_of_order_push_out_the_lowest_not_the_oldest() -> None:
    found = sent(1, 2, 3, 0, 4)
    assert [seen(found, number) for number in range(6)] == ["refused", "again", "again", "again", "again", "new"]


def test_a_frame_that_was_not_stored_after_all_is_new_again() -> None:
    found = sent(0, 1, 2)
    found.forget(1, 1)
    found.forget(1, 77)
    found.forget(9, 1)
    assert [seen(found, number) for number in range(4)] == ["again", "new", "again", "new"]


def test_forgetting_a_frame_does_not_make_an_old_one_look_new() -> None:
    found = sent(0, 1, 2, 3, 4)
    found.forget(1, 4)
    assert [seen(found, number) for number in (0, 1, 4)] == ["refused", "again", "new"]


def test_a_producer_of_which_nothing_was_stored_is_not_kept() -> None:
    found = sent(0)
    found.forget(1, 0)
    assert kept(found) == []


def test_remembering_a_frame_twice_counts_once() -> None:
    found = sent(0, 1, 1, 1, 1, 1, 2, 3)
    assert [seen(found, number) for number in range(4)] == ["again"] * 4


def test_the_producers_that_were_silent_longest_are_forgotten_first() -> None:
    found = Producers()
    for producer_id in (1, 2, 3):
        for number in range(SMALL):
            found.remember(producer_id, number, 0, 0)
    found.remember(1, SMALL, 0, 0)
    assert kept(found) == [2, 3, 1]
    found.remember(4, 0, 0, 0)
    assert kept(found) == [3, 1, 4]
    assert seen(found, 0, producer_id=2) == "new"


@pytest.mark.parametrize("numbers", [(0, 1, 2, 3, 4, 5), (5, 3, 4, 1, 2, 0), (7, 8)])
def test_a_snapshot_keeps_all_that_is_known_and_what_cannot_be_told(numbers: tuple[int, ...]) -> None:
    found, back = sent(*numbers), Producers()
    document = msgspec.msgpack.encode(found.snapshot())
    back.restore(msgspec.msgpack.decode(document, type=ProducersSnapshot))
    assert back.snapshot() == found.snapshot()
    assert [seen(back, number) for number in range(10)] == [seen(found, number) for number in range(10)]


def test_frames_that_are_remembered_again_in_recovery_change_nothing() -> None:
    found = sent(0, 1, 2, 3, 4, 5)
    before = found.snapshot()
    for number in range(6):
        found.remember(1, number, 100 * number, number)
    assert found.snapshot() == before


units = st.lists(st.integers(0, 14), min_size=1, max_size=7) | st.builds(
    lambda first, count: list(range(first, first + count)), st.integers(0, 30), st.integers(1, 7)
)


@given(st.lists(st.tuples(st.sampled_from(["unit", "unit", "forget"]), st.integers(1, 3), units), max_size=15))
def test_the_frames_of_a_unit_are_remembered_as_if_they_came_one_by_one(
    steps: list[tuple[str, int, list[int]]],
) -> None:
    at_once, each = Producers(), Producers()
    for at, (step, producer_id, numbers) in enumerate(steps):
        if at_once.all_new(producer_id, min(numbers)):
            assert [seen(each, number, producer_id) for number in numbers] == ["new"] * len(numbers)
        if step == "unit":
            at_once.remember_all(producer_id, numbers, [10 * number for number in numbers], at)
            for number in numbers:
                each.remember(producer_id, number, 10 * number, at)
        else:
            for found in (at_once, each):
                found.forget(producer_id, numbers[0])
        assert at_once.snapshot() == each.snapshot()
        assert at_once._total == each._total


def test_what_goes_on_from_the_highest_number_is_new_without_a_look_at_each() -> None:
    found = sent(0, 1, 2, 3, 4)
    assert found.all_new(2, 0)
    assert [found.all_new(1, number) for number in (0, 4, 5)] == [False, False, True]
    for number in range(1, 5):
        found.forget(1, number)
    assert [found.all_new(1, number) for number in (0, 1)] == [False, True]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "send", "send", "forget", "restart"]), st.integers(1, 2), st.integers(0, 12)
        ),
        max_size=40,
    )
)
def test_no_frame_is_stored_twice_whatever_the_order(steps: list[tuple[str, int, int]]) -> None:
    found = Producers()
    stored: dict[tuple[int, int], Remembered] = {}
    for at, (step, producer_id, number) in enumerate(steps):
        if step == "restart":
            document, found = found.snapshot(), Producers()
            found.restore(document)
        elif step == "forget":
            if seen(found, number, producer_id) == "again":
                found.forget(producer_id, number)
                del stored[producer_id, number]
        else:
            answer = seen(found, number, producer_id)
            if answer == "new":
                assert (producer_id, number) not in stored, "stored twice"
                stored[producer_id, number] = Remembered(at, at)
                found.remember(producer_id, number, at, at)
            elif answer == "again":
                assert found.find(producer_id, number) == stored[producer_id, number]
        assert all(seen(found, n, one) != "new" for one, n in stored), "what is stored looks new"
        assert found._total == sum(len(frames) for _, _, frames in found.snapshot().producers) <= 3 * SMALL


def test_who_was_heard_by_a_clock_that_was_ahead_counts_as_heard_when_it_is_seen_and_keeps_nobody() -> None:
    found, ahead_us = Producers(), 20 * YEAR_US
    for producer_id, at_us in ((1, DAY_US), (2, ahead_us), (3, DAY_US), (4, ahead_us), (5, 5 * DAY_US)):
        found.remember(producer_id, 7, 100, at_us)

    def tidied(day: int) -> list[int]:
        while found.forget_silent(7 * DAY_US, day * DAY_US, 2):
            pass
        return sorted(kept(found))

    found.take_fresh()
    assert tidied(2) == [1, 2, 3, 4, 5]
    assert tidied(9) == [2, 4, 5]
    assert found.take_fresh() == [2, 4], "what is known of them now is written"
    assert found.find(2, 7) == Remembered(100, ahead_us)
    snapshot, found = found.snapshot(), Producers()
    found.restore(snapshot)
    assert tidied(13) == [2, 4]
    found.remember(4, 8, 200, 2 * ahead_us)
    assert tidied(15) == [2, 4]
    assert tidied(17) == [4]
    assert tidied(23) == [4]
    assert tidied(25) == []
