"""The share that keeps lower priorities from starving."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.delivery.driver import ANN, HIGH, LOW, MIDDLE, OWN_LOW, Driver
from towline.delivery.group import selection
from towline.errors import BadRequest
from towline.model import GroupConfig, Span


def pulled(mq: Driver, pulls: int, size: int) -> Counter[int]:
    """How many messages of each lane came in so many pulls, while all lanes are always full."""
    counted: Counter[int] = Counter()
    for _ in range(pulls):
        for lane in (HIGH, MIDDLE, LOW):
            mq.append(lane, size)
        for part in mq.pull(ANN, size):
            counted[part.lane] += part.count
        mq.ack()
    return counted


@pytest.mark.parametrize("size", [1, 7, 100])
def test_without_a_share_the_high_lane_takes_all(size: int) -> None:
    assert pulled(Driver(share=()), 50, size) == {HIGH: 50 * size}


@pytest.mark.parametrize("size", [1, 7, 100])
def test_with_a_share_each_lane_comes_to_its_part_whatever_the_size_of_pulls(size: int) -> None:
    counted = pulled(Driver(share=(16, 4, 1)), 210, size)
    parts = {lane: 21 * count / (210 * size) for lane, count in counted.items()}
    # In a batch of one, middle and low cannot both have their turn: now and then middle loses its own.
    assert parts == pytest.approx({HIGH: 16, MIDDLE: 4, LOW: 1}, abs=1.0 if size == 1 else 0.1)


def test_low_lanes_make_progress_under_a_constant_high_load_by_default() -> None:
    counted = pulled(Driver(), 100, 10)
    assert 0 < counted[LOW] <= counted[MIDDLE] < counted[HIGH]
    assert counted[HIGH] >= 0.9 * 1000


def test_the_high_ones_still_come_first_in_a_batch() -> None:
    mq = Driver(share=(1, 1, 1))
    for lane in (LOW, MIDDLE, HIGH):
        mq.append(lane, 100)
    assert [part.lane for part in mq.pull(ANN, 30)] == [HIGH, MIDDLE, LOW]


def test_what_others_have_no_use_for_is_not_held_back() -> None:
    mq = Driver(share=(1, 1, 1))
    mq.append(HIGH, 100)
    mq.append(LOW, 1)
    assert [(part.lane, part.count) for part in mq.pull(ANN, 30)] == [(HIGH, 29), (LOW, 1)]
    assert [(part.lane, part.count) for part in mq.pull(ANN, 30)] == [(HIGH, 30)]


def test_a_batch_that_takes_everything_is_not_shared() -> None:
    mq = Driver(share=(1, 1, 1))
    mq.append(HIGH, 20)
    mq.append(LOW, 10)
    assert [(part.lane, part.count) for part in mq.pull(ANN, 30)] == [(HIGH, 20), (LOW, 10)]


def test_retries_and_own_lanes_have_a_part_in_the_share_of_their_priority() -> None:
    mq = Driver(share=(1, 0, 1))
    mq.append(LOW, 5)
    mq.pull(ANN)
    mq.give_back()
    mq.append(HIGH, 100)
    mq.append(OWN_LOW, 5)
    assert [(part.lane, part.count) for part in mq.pull(ANN, 20)] == [(HIGH, 10), (LOW, 5), (OWN_LOW, 5)]


def test_batches_limited_by_bytes_are_shared_as_well() -> None:
    mq = Driver(share=(1, 1, 0))
    mq.append(HIGH, 1000, size=100)
    mq.append(MIDDLE, 1000, size=100)
    assert [(part.lane, part.count) for part in mq.pull(ANN, 1000, max_bytes=2000)] == [(HIGH, 10), (MIDDLE, 10)]


@pytest.mark.parametrize("from_snapshot", [None, 0])
def test_the_turn_survives_a_restart(from_snapshot: int | None) -> None:
    mq = Driver(share=(2, 1, 0))
    mq.append(HIGH, 10)
    mq.append(MIDDLE, 10)
    lanes = [mq.pull(ANN, 1)[0].lane for _ in range(2)]
    mq.restart(from_snapshot=from_snapshot)
    lanes += [mq.pull(ANN, 1)[0].lane for _ in range(4)]
    assert lanes == [HIGH, HIGH, MIDDLE, HIGH, HIGH, MIDDLE]


@pytest.mark.parametrize("share", [(1,), (1, 2, 3, 4), (0, 0, 0), (-1, 1, 1), (1, 1, 10_001)])
def test_a_share_that_makes_no_sense_is_refused(share: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest, match="share"):
        GroupConfig("orders", "billing", share=share)


# What is new beside what is due again


@pytest.mark.parametrize("share", [(), (1, 1, 1), (90, 9, 1)])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_messages_that_fail_again_and_again_leave_half_to_what_is_new(share: tuple[int, ...], size: int) -> None:
    mq = Driver(share=share, max_attempts=10_000)
    mq.append(MIDDLE, 64 * size)
    mq.pull(ANN, 2 * size)
    mq.give_back()
    new = 0
    for _ in range(64):
        parts = mq.pull(ANN, size)
        assert sum(part.count for part in parts) == size
        new += sum(part.count for part in parts if part.first >= 2 * size)
        for part in parts:
            # What is due again fails once more, and what is new succeeds.
            span = Span(part.lane, part.first, part.count)
            (mq.ack if part.first >= 2 * size else mq.give_back)(span)
    assert new == pytest.approx(64 * size / 2, abs=size)


def test_one_by_one_what_is_new_and_what_is_due_again_of_a_low_priority_both_have_their_turn() -> None:
    mq = Driver(share=(90, 9, 1), max_attempts=10_000)
    mq.append(LOW, 100)
    mq.pull(ANN, 10)
    mq.give_back()
    counted: Counter[bool] = Counter()
    for _ in range(5_000):
        mq.append(HIGH, 1)
        part = mq.pull(ANN, 1)[0]
        if part.lane == LOW:
            counted[part.first >= 10] += 1
            mq.give_back() if part.first < 10 else mq.ack()
        else:
            mq.ack()
    assert sum(counted.values()) == 50
    assert min(counted.values()) > 15


def test_what_is_due_again_comes_first_in_a_batch_and_takes_what_nobody_else_needs() -> None:
    mq = Driver()
    mq.append(MIDDLE, 100)
    mq.pull(ANN, 100)
    mq.give_back()
    mq.append(MIDDLE, 3)
    assert [(part.first, part.count) for part in mq.pull(ANN, 20)] == [(0, 17), (100, 3)]
    assert [(part.first, part.count) for part in mq.pull(ANN, 20)] == [(17, 20)]


def test_new_messages_come_beside_a_queue_that_is_all_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "PARTS_MAX", 10)
    mq = Driver()
    mq.append(MIDDLE, 100)
    mq.pull(ANN, 100)
    mq.ack(*[Span(MIDDLE, number, 1) for number in range(0, 100, 2)])
    mq.give_back()
    mq.append(MIDDLE, 100)
    parts = mq.pull(ANN, 60)
    assert [part.first for part in parts] == [*range(1, 21, 2), 100]
    assert parts[-1].count == 50


def test_what_is_new_has_its_share_of_batches_limited_by_bytes() -> None:
    mq = Driver()
    mq.append(MIDDLE, 100, size=100)
    mq.pull(ANN, 50)
    mq.give_back()
    assert [(part.first, part.count) for part in mq.pull(ANN, 1000, max_bytes=2000)] == [(0, 10), (50, 10)]
