"""The share that keeps lower priorities from starving."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.delivery.driver import ANN, HIGH, LOW, MIDDLE, OWN_LOW, Driver
from towline.errors import BadRequest
from towline.model import GroupConfig


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
