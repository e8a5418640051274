"""The table of dedup ids: how much memory it takes, and that what is forgotten leaves nothing in it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from towline.delivery.dedup import SPARE, Dedup, Key, Seen

WINDOW_US = 600_000_000
START_US = 1_700_000_000_000_000
BATCH = 500


def batch(first: int, length: int = 16, topic: str = "orders", count: int = BATCH) -> dict[Key, Seen]:
    numbers = range(first, first + count)
    return {(topic, b"%0*d" % (length, number)): Seen(1, 10**6 + number, START_US + number) for number in numbers}


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("length", [16, 200])
@pytest.mark.parametrize(("ids", "usual", "at_most"), [(2_000_000 // 64, 210, 250), (2**16 * 2 // 3 + 50, 240, 310)])
def test_an_id_takes_no_more_memory_than_is_said(ids: int, length: int, usual: int, at_most: int) -> None:
    """The first number of ids fills as much of its table as the default does; the second is the worst one."""
    dedup, topic = Dedup(WINDOW_US, ids), "t" * 50
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    for first in range(0, 3 * ids, BATCH):
        dedup.remember(batch(first, length, topic), START_US + first)
        dedup.take_fresh(START_US + first)
    now, peak = tracemalloc.get_traced_memory()
    assert len(dedup) == ids
    assert (now - before) / ids - len(topic) - length < usual
    assert (peak - before) / ids - len(topic) - length < at_most


def test_ids_that_are_refused_leave_nothing() -> None:
    """A full database refuses all of them, and the oldest one that was not refused is remembered for long."""
    dedup = Dedup(WINDOW_US, 1_000)
    dedup.remember(batch(0, count=1), START_US)
    for first in range(BATCH, 100 * BATCH, BATCH):
        dedup.remember(new := batch(first), START_US + first)
        dedup.forget(new)
        assert (len(dedup), len(dedup._keys), len(dedup._values)) == (1, 1, 1)
    assert dedup.find("orders", b"%016d" % 0, START_US + 1) is not None


def test_ids_that_are_refused_between_others_are_bounded_as_those_are() -> None:
    dedup, last = Dedup(WINDOW_US, 1_000), 0
    for first in range(0, 200 * BATCH, BATCH):
        dedup.remember(refused := batch(first), START_US + first)
        dedup.remember(batch(last := first, topic="kept", count=1), START_US + first)
        dedup.forget(refused)
        assert len(dedup._keys) == len(dedup._values) <= 2 * 1_000 + SPARE + BATCH
    assert len(dedup) == 200
    assert dedup.early == 0
    assert dedup.oldest_us == START_US
    now_us = START_US + last
    kept = [dedup.find("kept", b"%016d" % number, now_us) for number in range(0, 200 * BATCH, BATCH)]
    assert None not in kept
    assert dedup.tidy(START_US + WINDOW_US + last, 10_000) is False
    assert (len(dedup), len(dedup._keys)) == (0, 0)


def test_ids_that_come_anew_after_a_purge_are_bounded_as_well() -> None:
    dedup = Dedup(WINDOW_US, 1_000)
    dedup.remember(batch(0, topic="kept", count=1), START_US)
    for rounds in range(1, 100):
        dedup.remember(batch(0), START_US + rounds)
        dedup.forget_topic("orders", START_US + rounds)
        assert len(dedup._keys) <= 2 * 1_000 + SPARE + BATCH
    assert dedup.find("kept", b"%016d" % 0, START_US + 100) is not None


def test_an_id_counts_to_the_end_of_its_window_and_no_longer() -> None:
    dedup = Dedup(WINDOW_US, 1_000)
    dedup.remember(batch(0, count=1), START_US)
    assert dedup.find("orders", b"%016d" % 0, START_US + WINDOW_US - 1) is not None
    assert dedup.find("orders", b"%016d" % 0, START_US + WINDOW_US) is None
