"""How messages are settled: acked, nacked, given back, taken away, given up."""

from __future__ import annotations

import math

import pytest

from tests.unit.delivery.driver import (
    ANN,
    BOB,
    HIGH,
    LOW,
    MIDDLE,
    NOON,
    SECOND,
    Driver,
)
from towline.delivery import Bury, Part, Resend, snapshot
from towline.delivery.group.events import Acked, Event, Failed, GaveUp, Released, Resent, Returned
from towline.errors import BadRequest, Conflict, LeaseLost
from towline.model import Span


def only(events: list[Event]) -> Event:
    assert len(events) == 1, events
    return events[0]


# Acking


def test_an_ack_of_a_pull_settles_all_of_it() -> None:
    mq = Driver()
    mq.append(HIGH, 2)
    mq.append(MIDDLE, 3)
    mq.pull()
    assert only(mq.ack()) == Acked(NOON, 1, (Part(HIGH, 0, 2, 1), Part(MIDDLE, 0, 3, 1)))
    assert (mq.done(), mq.group.lag(), mq.group.in_flight, mq.group.leases) == (5, 0, {}, {})


def test_single_messages_are_acked_and_the_others_stay_open() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    mq.pull()
    mq.ack(Span(MIDDLE, 2, 1), Span(MIDDLE, 5, 2))
    assert (mq.done(), mq.group.leased()) == (3, 7)
    assert only(mq.ack()) == Acked(NOON, 1, (Part(MIDDLE, 0, 2, 1), Part(MIDDLE, 3, 2, 1), Part(MIDDLE, 7, 3, 1)))


def test_spans_that_overlap_count_once() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    mq.pull()
    mq.ack(Span(MIDDLE, 2, 3), Span(MIDDLE, 2, 3), Span(MIDDLE, 4, 3), Span(MIDDLE, 3, 1))
    assert (mq.done(), mq.group.leased()) == (5, 5)


def test_an_ack_up_to_a_pull_settles_the_consumers_earlier_pulls_and_nobody_elses() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    for consumer in (ANN, BOB, ANN, ANN):
        mq.pull(consumer, 2)
    mq.ack(pull=3, up_to=True)
    assert list(mq.group.leases) == [2, 4]
    assert mq.done() == 4


def test_an_ack_up_to_a_settled_pull_still_settles_the_earlier_ones() -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull(count=2)
    mq.pull(count=2)
    mq.ack(pull=2)
    assert only(mq.ack(pull=2, up_to=True)) == Acked(NOON, 1, (Part(MIDDLE, 0, 2, 1),))


def test_an_ack_up_to_a_pull_leaves_what_was_nacked_to_be_retried() -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull(count=2)
    mq.pull(count=2)
    mq.nack(Span(MIDDLE, 1, 1), pull=1)
    mq.ack(pull=2, up_to=True)
    assert [part for part, _ in mq.retries()] == [Part(MIDDLE, 1, 1, 2)]
    assert mq.done() == 3


@pytest.mark.parametrize("spans", [(), (Span(MIDDLE, 1, 2),)])
@pytest.mark.parametrize("act", ["ack", "nack", "give_back"])
def test_an_act_that_is_sent_twice_gets_the_same_answer_twice(act: str, spans: tuple[Span, ...]) -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull()
    assert len(getattr(mq, act)(*spans)) == 1
    before = snapshot(mq.group, 0)
    assert getattr(mq, act)(*spans) == []
    assert snapshot(mq.group, 0) == before


def test_an_ack_passes_over_what_of_its_span_was_acked_before() -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull()
    mq.ack(Span(MIDDLE, 1, 1))
    assert only(mq.ack(Span(MIDDLE, 0, 3))) == Acked(NOON, 1, (Part(MIDDLE, 0, 1, 1), Part(MIDDLE, 2, 1, 1)))


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [("ack", "nack", "acked"), ("nack", "ack", "nacked"), ("ack", "give_back", "acked"), ("give_back", "ack", "given")],
)
@pytest.mark.parametrize("whole", [True, False])
def test_what_was_settled_one_way_is_not_settled_another_way(first: str, second: str, word: str, whole: bool) -> None:
    # Given a pull that is settled, wholly or in part
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull()
    getattr(mq, first)(*(() if whole else (Span(MIDDLE, 1, 2),)))
    before = snapshot(mq.group, 0)
    # When its consumer changes its mind
    with pytest.raises(Conflict, match=word):
        getattr(mq, second)(*(() if whole else (Span(MIDDLE, 2, 2),)))
    # Then nothing has changed
    assert snapshot(mq.group, 0) == before


def test_messages_that_are_not_of_the_pull_are_refused() -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull(count=2)
    for span in (Span(MIDDLE, 1, 2), Span(LOW, 0, 1), Span(-1, 0, 1), Span(99, 0, 1), Span(MIDDLE, 1 << 62, 1 << 62)):
        with pytest.raises(BadRequest, match="not part of pull"):
            mq.ack(span)
    for count in (-1, -(1 << 62)):
        with pytest.raises(BadRequest):
            mq.ack(Span(MIDDLE, 1, count))
    assert mq.ack(Span(MIDDLE, 1, 0)) == []
    assert mq.group.leased() == 2


# Fencing


def test_a_pull_is_settled_only_by_the_consumer_that_holds_it() -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull(ANN)
    for act in (mq.ack, mq.nack, mq.give_back):
        with pytest.raises(LeaseLost):
            act(consumer=BOB)
    mq.ack()
    with pytest.raises(LeaseLost):
        mq.ack(consumer=BOB)


def test_an_unknown_pull_is_fenced() -> None:
    mq = Driver()
    for act in (mq.ack, mq.nack, mq.give_back):
        with pytest.raises(LeaseLost):
            act(pull=7)


@pytest.mark.parametrize("end", ["leave", "vanish", "lapse"])
@pytest.mark.parametrize("last_attempt", [True, False])
@pytest.mark.parametrize("act", ["ack", "nack", "give_back"])
@pytest.mark.parametrize("spans", [(), (Span(MIDDLE, 0, 4),)])
def test_a_zombie_changes_nothing_and_is_told(end: str, last_attempt: bool, act: str, spans: tuple[Span, ...]) -> None:
    # Given a consumer whose messages were taken away
    mq = Driver(timeout_s=5, max_attempts=1 if last_attempt else 16)
    mq.append(MIDDLE, 4)
    mq.pull(ANN)
    mq.pass_time(5)
    getattr(mq, end)()
    before = snapshot(mq.group, 0)
    # When it comes back with what it has done
    with pytest.raises(LeaseLost):
        getattr(mq, act)(*spans)
    # Then it learns that it must drop its work
    assert snapshot(mq.group, 0) == before


def test_an_ack_sent_again_is_known_even_when_the_rest_of_its_pull_was_taken_away() -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull()
    mq.ack(Span(MIDDLE, 0, 2))
    mq.vanish()
    assert mq.ack(Span(MIDDLE, 0, 2)) == []
    with pytest.raises(LeaseLost):
        mq.ack()
    with pytest.raises(LeaseLost):
        mq.ack(Span(MIDDLE, 1, 2))


def test_after_redelivery_the_old_holder_is_fenced_and_the_new_one_is_not() -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull(ANN)
    mq.vanish(ANN)
    assert mq.pull(BOB) == [Part(MIDDLE, 0, 4, 2)]
    with pytest.raises(LeaseLost):
        mq.ack(pull=1, consumer=ANN)
    mq.ack(pull=2, consumer=BOB)
    assert mq.done() == 4


# Failing


def test_a_nacked_message_waits_for_its_back_off_and_counts_its_attempts() -> None:
    mq = Driver(delays_s=(10.0, 30.0))
    mq.append(MIDDLE, 1)
    for attempt, delay in enumerate((10, 30, 30), start=1):
        assert mq.pull() == [Part(MIDDLE, 0, 1, attempt)]
        assert only(mq.nack()) == Failed(
            mq.now_us, mq.pulls, (Part(MIDDLE, 0, 1, attempt),), mq.now_us + delay * SECOND, "no stock"
        )
        mq.pass_time(delay - 0.000001)
        assert mq.pull() == []
        mq.pass_time(0.000001)
    assert mq.pull() == [Part(MIDDLE, 0, 1, 4)]


def test_a_consumer_may_say_when_to_try_again() -> None:
    mq = Driver()
    mq.append(MIDDLE, 1)
    mq.pull()
    mq.nack(delay_s=0.25)
    assert mq.group.next_wake_us() == NOON + SECOND // 4
    mq.pass_time(0.25)
    assert mq.pull() == [Part(MIDDLE, 0, 1, 2)]
    mq.nack(delay_s=0)
    assert mq.pull() == [Part(MIDDLE, 0, 1, 3)]


@pytest.mark.parametrize("delay_s", [-0.001, -math.inf, math.inf, math.nan, 1e300, 367 * 86400.0])
def test_a_delay_that_cannot_be_is_refused(delay_s: float) -> None:
    mq = Driver()
    mq.append(MIDDLE, 1)
    mq.pull()
    with pytest.raises(BadRequest, match="delay"):
        mq.nack(delay_s=delay_s)
    assert mq.group.leased() == 1


def test_a_long_reason_is_cut() -> None:
    mq = Driver()
    mq.append(MIDDLE, 1)
    mq.pull()
    event = only(mq.nack(reason="x" * 1_000_000))
    assert isinstance(event, Failed)
    assert len(event.reason) == 1_000


def test_a_retry_is_never_early_though_back_offs_end_on_a_tenth_of_a_second() -> None:
    mq = Driver(delays_s=(10.0,))
    mq.append(MIDDLE, 1)
    mq.pull()
    mq.pass_time(0.000001)
    mq.nack()
    assert [due for _, due in mq.retries()] == [NOON + 10 * SECOND + SECOND // 10]


def test_messages_of_one_pull_with_different_attempts_wait_each_for_their_own_time() -> None:
    mq = Driver(delays_s=(10.0, 30.0))
    mq.append(MIDDLE, 1)
    mq.pull()
    mq.nack(delay_s=0)
    mq.append(MIDDLE, 1)
    assert mq.pull() == [Part(MIDDLE, 0, 1, 2), Part(MIDDLE, 1, 1, 1)]
    mq.nack()
    assert mq.retries() == [(Part(MIDDLE, 0, 1, 3), NOON + 30 * SECOND), (Part(MIDDLE, 1, 1, 2), NOON + 10 * SECOND)]


def test_neighbours_that_fail_together_cost_one_entry() -> None:
    mq = Driver()
    mq.append(MIDDLE, 1_000)
    mq.pull(count=1_000)
    for number in range(1_000):
        mq.nack(Span(MIDDLE, number, 1))
    assert mq.group.retries.size == 1
    assert mq.retries() == [(Part(MIDDLE, 0, 1_000, 2), NOON + 10 * SECOND)]


# Dying


def test_a_message_whose_attempts_run_out_dies_with_its_last_reason_and_is_buried() -> None:
    # Given a message that failed once of two times
    mq = Driver(max_attempts=2)
    mq.append(MIDDLE, 1)
    mq.pull()
    mq.nack(delay_s=0)
    mq.pull()
    # When it fails again
    assert only(mq.nack(reason="still no stock")) == GaveUp(NOON, 2, (Part(MIDDLE, 0, 1, 2),), "still no stock")
    # Then it is given up, but not gone until its copy is safe
    assert mq.group.dying == {Part(MIDDLE, 0, 1, 2): "still no stock"}
    assert (mq.group.lag(), mq.group.pins(), mq.pull()) == (1, {MIDDLE: 0}, [])
    mq.do(Bury((Part(MIDDLE, 0, 1, 2),), 0))
    assert (mq.group.dying, mq.group.lag(), mq.group.pins()) == ({}, 0, {})
    assert snapshot(mq.group, 0).counters["DEAD"] == 1


def test_a_pull_with_mixed_attempts_gives_up_only_those_that_ran_out() -> None:
    mq = Driver(max_attempts=2)
    mq.append(MIDDLE, 1)
    mq.pull()
    mq.nack(delay_s=0)
    mq.append(MIDDLE, 1)
    mq.pull()
    failed, gave_up = mq.nack()
    assert isinstance(failed, Failed)
    assert isinstance(gave_up, GaveUp)
    assert (failed.parts, gave_up.parts) == ((Part(MIDDLE, 1, 1, 1),), (Part(MIDDLE, 0, 1, 2),))


def test_a_consumer_may_say_that_a_message_is_dead() -> None:
    mq = Driver()
    mq.append(MIDDLE, 3)
    mq.pull()
    mq.nack(Span(MIDDLE, 1, 1), dead=True, reason="malformed")
    assert mq.group.dying == {Part(MIDDLE, 1, 1, 1): "malformed"}
    assert mq.group.leased() == 2


def test_a_vanished_consumer_uses_up_the_last_attempt_too() -> None:
    mq = Driver(max_attempts=1)
    mq.append(MIDDLE, 1)
    mq.pull()
    mq.vanish()
    assert mq.group.dying == {Part(MIDDLE, 0, 1, 1): "consumer ann vanished"}


def test_what_is_dying_may_be_buried_piece_by_piece() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    mq.pull()
    mq.nack(dead=True, reason="malformed")
    mq.do(Bury((Part(MIDDLE, 3, 2, 1),), 0))
    assert mq.group.dying == {Part(MIDDLE, 0, 3, 1): "malformed", Part(MIDDLE, 5, 5, 1): "malformed"}


def test_a_dead_letter_is_sent_again_once_only() -> None:
    mq = Driver()
    mq.append(MIDDLE, 5)
    mq.pull()
    mq.nack(dead=True)
    mq.do(Bury((Part(MIDDLE, 0, 5, 1),), 0))
    assert only(mq.do(Resend((3, 1, 0, 1)))) == Resent(NOON, ((0, 2), (3, 1)))
    assert snapshot(mq.group, 0).counters["DEAD"] == 2
    for numbers in ((0,), (1,), (3,), (2, 3)):
        with pytest.raises(Conflict, match="sent again already"):
            mq.do(Resend(numbers))
    mq.do(Resend((2,)))
    assert mq.group.resent == [(0, 4)]
    assert mq.do(Resend(())) == []


# Leaving


def test_a_consumer_that_leaves_in_order_gives_its_messages_back_as_they_were() -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull(ANN)
    mq.ack(Span(MIDDLE, 0, 1))
    assert only(mq.leave(ANN)) == Returned(NOON, 1, (Part(MIDDLE, 1, 3, 1),), taken=True)
    assert mq.pull(BOB) == [Part(MIDDLE, 1, 3, 1)]


def test_a_consumer_that_vanishes_counts_as_an_attempt_and_its_messages_come_at_once() -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull(ANN, 2)
    mq.pull(BOB, 2)
    assert only(mq.vanish(ANN)) == Released(NOON, 1, (Part(MIDDLE, 0, 2, 1),), "consumer ann vanished")
    assert mq.pull(BOB) == [Part(MIDDLE, 0, 2, 2)]
    assert mq.group.in_flight == {BOB: 4}


def test_a_consumer_that_holds_nothing_leaves_without_a_trace() -> None:
    mq = Driver()
    assert mq.leave() == mq.vanish() == []


def test_a_pull_that_takes_too_long_is_taken_away() -> None:
    mq = Driver(timeout_s=5)
    mq.append(MIDDLE, 4)
    mq.pull(ANN, 2)
    mq.pass_time(1)
    mq.pull(BOB, 2)
    assert mq.group.next_wake_us() == NOON + 5 * SECOND
    mq.pass_time(3.999999)
    assert mq.lapse() == []
    mq.pass_time(0.000001)
    assert only(mq.lapse()) == Released(mq.now_us, 1, (Part(MIDDLE, 0, 2, 1),), "timeout: not settled within 5 s")
    assert mq.pull(ANN) == [Part(MIDDLE, 0, 2, 2)]


def test_without_a_timeout_a_pull_lasts() -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull()
    mq.pass_time(1e9)
    assert mq.lapse() == []
    assert mq.group.next_wake_us() is None


def test_messages_given_back_come_again_in_order_and_as_they_were() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    mq.pull(ANN, 6)
    assert only(mq.give_back(Span(MIDDLE, 4, 2))) == Returned(NOON, 1, (Part(MIDDLE, 4, 2, 1),))
    assert mq.pull(BOB, 3) == [Part(MIDDLE, 4, 2, 1), Part(MIDDLE, 6, 1, 1)]
    mq.give_back(pull=2, consumer=BOB)
    assert mq.pull(ANN) == [Part(MIDDLE, 4, 3, 1), Part(MIDDLE, 7, 3, 1)]
