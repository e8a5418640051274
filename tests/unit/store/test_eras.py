"""Eras: stamps of a clock that was set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from towline.clock import SECOND_US, STEP_US
from towline.store.eras import ERAS_MAX, GAP_US, Era, Eras, decode_eras, encode_eras

NOW = 1_700_000_000 * SECOND_US
YEARS = 20 * 365 * GAP_US


def appended(*times_us: int) -> tuple[Eras, list[int]]:
    """Frames that are appended at these times by the clock, and their stamps."""
    eras, stamps = Eras(), list[int]()
    for serial, now_us in enumerate(times_us):
        if eras.breaks(now_us):
            eras.begin(serial, now_us, "a store")
        stamps.append(eras.stamp(now_us))
    return eras, stamps


def test_a_clock_that_is_set_back_a_little_makes_no_new_era() -> None:
    eras, stamps = appended(NOW, NOW + 5, NOW + 5 - STEP_US, NOW + 6)
    assert stamps == [NOW, NOW + 5, NOW + 5, NOW + 6]
    assert eras.all == [Era(0, NOW, NOW + 6)]


def test_what_was_stamped_ahead_counts_as_the_next_that_was_not() -> None:
    eras, stamps = appended(NOW, NOW + YEARS, NOW + 10, NOW + 20)
    assert stamps == [NOW, NOW + YEARS, NOW + 10, NOW + 20]
    times = eras.times(NOW + 30)
    assert [times.time_of(*one) for one in enumerate(stamps)] == [NOW, NOW + 10, NOW + 10, NOW + 20]


def test_what_was_stamped_ahead_counts_as_now_as_long_as_nothing_follows() -> None:
    eras, stamps = appended(NOW, NOW + YEARS)
    assert eras.times(NOW + 30).time_of(1, stamps[1]) == NOW + 30


def test_what_was_stamped_behind_is_not_taken_for_old() -> None:
    eras, stamps = appended(NOW, NOW - YEARS, NOW - YEARS + 1, NOW + 10, NOW + 20)
    times = eras.times(NOW + 30)
    assert [times.time_of(*one) for one in enumerate(stamps)] == [NOW, NOW + 10, NOW + 10, NOW + 10, NOW + 20]


def test_eras_are_found_again_from_the_stamps_of_segments() -> None:
    eras = Eras(
        [Era(1, NOW, NOW + 5), Era(2, NOW + 5, NOW + YEARS), Era(3, NOW + 9, NOW + 9), Era(4, NOW + 9, NOW + 12)]
    )
    assert eras.all == [Era(1, NOW, NOW + YEARS), Era(3, NOW + 9, NOW + 12)]
    assert eras.last_us == NOW + 12


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * GAP_US), st.sampled_from([0, 0, 0, YEARS, -YEARS, GAP_US // 4, -GAP_US // 4]))
    )
)
def test_times_run_forward_are_never_too_early_and_come_true(steps: list[tuple[int, int]]) -> None:
    true, clock, now_us = [NOW], [NOW], NOW
    for passed_us, wrong_us in steps:
        now_us += passed_us
        true.append(now_us)
        clock.append(now_us + wrong_us)
    eras, stamps = appended(*clock, now_us)
    eras = Eras(decode_eras(encode_eras(eras), eras.last_us))
    assert len(eras.all) <= ERAS_MAX
    times = eras.times(now_us)
    found = [times.time_of(*one) for one in enumerate(stamps)]
    assert found == sorted(found)
    assert all(one <= now_us for one in found)
    if all(wrong_us in {0, YEARS, -YEARS} for _, wrong_us in steps) and len(eras.all) < ERAS_MAX:
        assert all(one >= real for one, real in zip(found, true, strict=False))
