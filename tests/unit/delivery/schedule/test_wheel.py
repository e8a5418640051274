"""Where a delayed message waits, and when it moves nearer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from towline.clock import SECOND_US
from towline.delivery.schedule.record import OpenedRecord, Origin, join, split
from towline.delivery.schedule.wheel import LEVELS, is_over, place_of, ripe_at_us, span_end_us
from towline.frame import Frame, encode

NOW = 1_700_000_000 * SECOND_US
CENTURY = 36_525 * 86_400 * SECOND_US
times = st.integers(0, CENTURY).map(lambda offset: NOW + offset)
steps = st.one_of(
    st.integers(1, 200 * SECOND_US),
    st.integers(1, 3 * 3600 * SECOND_US),
    st.integers(1, 600 * 86400 * SECOND_US),
    st.integers(1, CENTURY),
)


@given(until=times, ahead=steps)
def test_a_message_waits_in_a_slot_that_does_not_begin_after_it_is_due(until: int, ahead: int) -> None:
    at_us = until + ahead
    place = place_of(at_us, until)
    assert place.begin_us <= at_us < span_end_us(place, until)
    assert place.level == len(LEVELS) - 1 or at_us < place.end_us
    assert not is_over(place, until)


@given(until=times, first=steps, second=steps)
def test_what_is_due_within_the_same_span_waits_in_the_same_slot(until: int, first: int, second: int) -> None:
    place = place_of(until + min(first, second), until)
    later = until + max(first, second)
    assert (place_of(later, until) == place) == (later < span_end_us(place, until))


@given(until=times, ahead=steps, more=steps)
def test_a_ripe_slot_takes_nothing_new_and_all_of_it_fits_into_the_finer_level(
    until: int, ahead: int, more: int
) -> None:
    at_us = until + ahead
    place = place_of(at_us, until)
    if place.level:
        ripe_us = ripe_at_us(place)
        assert ripe_us < place.begin_us, "there is time to move it before it begins"
        assert until < ripe_us, "nothing is put into a slot that should have been moved"
        for when in (ripe_us, (ripe_us + place.begin_us - 1) // 2, place.begin_us - 1):
            assert place_of(place.end_us - 1, when).level < place.level
            assert place_of(max(at_us, when + 1), when) != place


@given(until=times, ahead=steps, more=steps)
def test_slots_that_share_a_stream_are_never_in_use_at_the_same_time(until: int, ahead: int, more: int) -> None:
    first, second = place_of(until + ahead, until), place_of(until + more, until)
    assert (first == second) or (first.stream != second.stream)


@given(until=times, ahead=st.lists(steps, min_size=1, max_size=60))
def test_messages_that_lie_far_apart_wait_together_but_never_too_late(until: int, ahead: list[int]) -> None:
    due = [until + one for one in ahead]
    frame = Frame(encode([b"%d" % time for time in due], deliver_at_us=due))
    parcels = split(frame, due, until, Origin("orders", 1, b""), 1)
    seen: list[int] = []
    for place, parcel in parcels:
        found = list(OpenedRecord(parcel).times)
        assert found == sorted(found)
        assert Frame(parcel.frame).bodies() == [b"%d" % time for time in found]
        assert (parcel.first_us, parcel.last_us, parcel.count) == (found[0], found[-1], len(found))
        assert place == place_of(found[0], until), "none waits in a slot that begins after it is due"
        own = [place_of(time, until) for time in found]
        assert {one.level for one in own} == {place.level}
        assert place.level or own == [place] * len(own), "seconds hold nothing later"
        seen += found
    assert sorted(seen) == sorted(due)
    slots = [{place_of(time, until) for time in OpenedRecord(parcel).times} for _, parcel in parcels]
    assert sum(map(len, slots)) == len(set().union(*slots)), "no slot is torn apart"
    moved = [placed for _, parcel in parcels for placed in join([(OpenedRecord(parcel), 0, parcel.count)], until)]
    for place, parcel in moved:
        assert {place_of(time, until) for time in OpenedRecord(parcel).times} == {place}, (
            "moved, each is where it belongs"
        )


def test_a_day_of_delays_makes_few_parcels() -> None:
    due = [NOW + 1 + number * 86_400 * SECOND_US // 1000 for number in range(1000)]
    frame = Frame(encode([b"x"] * 1000, deliver_at_us=due))
    parcels = split(frame, due, NOW, Origin("orders", 1, b""), 1)
    assert len({place_of(time, NOW) for time in due}) > 80
    assert len(parcels) < 40
