"""The rules of a group: what a pull gets, what is lost, the limits and figures, and how a group comes back."""

from __future__ import annotations

import pytest

from tests.unit.delivery.driver import (
    ANN,
    BOB,
    HIGH,
    LOW,
    MIDDLE,
    NOON,
    OWN_HIGH,
    OWN_LOW,
    OWN_MIDDLE,
    SECOND,
    Driver,
)
from towline.delivery import Bury, Group, Part, Resend, Skip, Start, decode_event, snapshot
from towline.delivery.group import lease, retry, selection
from towline.delivery.group.events import Buried, Event, Overrun, Resent, Skipped
from towline.errors import Conflict, LeaseLost
from towline.model import Span


def only(events: list[Event]) -> Event:
    assert len(events) == 1, events
    return events[0]


# Pulling


def test_a_new_group_begins_where_it_is_told() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    mq.do(Start((0, 7, 0, 0, 0, 0)))
    assert mq.pull() == [Part(MIDDLE, 7, 3, 1)]


def test_an_empty_group_delivers_nothing() -> None:
    mq = Driver()
    assert mq.pull() == []
    assert mq.log == []


def test_a_pull_fills_from_high_to_low() -> None:
    mq = Driver()
    for lane in (LOW, MIDDLE, HIGH):
        mq.append(lane, 3)
    assert mq.pull(count=7) == [Part(HIGH, 0, 3, 1), Part(MIDDLE, 0, 3, 1), Part(LOW, 0, 1, 1)]
    assert mq.pull(count=7) == [Part(LOW, 1, 2, 1)]


def test_a_message_of_high_priority_overtakes_those_that_wait() -> None:
    mq = Driver()
    mq.append(LOW, 10)
    assert mq.pull(count=2) == [Part(LOW, 0, 2, 1)]
    mq.append(HIGH, 1)
    assert mq.pull(count=2) == [Part(HIGH, 0, 1, 1), Part(LOW, 2, 1, 1)]


def test_the_groups_own_lane_comes_before_the_topics_lane_of_the_same_priority() -> None:
    mq = Driver()
    for lane in (HIGH, MIDDLE, LOW, OWN_HIGH, OWN_MIDDLE, OWN_LOW):
        mq.append(lane, 1)
    assert [part.lane for part in mq.pull()] == [OWN_HIGH, HIGH, OWN_MIDDLE, MIDDLE, OWN_LOW, LOW]


def test_what_is_due_again_comes_before_what_is_new_but_after_a_higher_priority() -> None:
    # Given a failed message of middle priority that is due
    mq = Driver()
    mq.append(MIDDLE, 2)
    mq.pull(count=1)
    mq.nack(delay_s=5)
    mq.append(HIGH, 1)
    mq.append(LOW, 1)
    # When it is due
    mq.pass_time(6)
    # Then it comes after the high lane, before its own lane, and well before the low one
    assert mq.pull() == [Part(HIGH, 0, 1, 1), Part(MIDDLE, 0, 1, 2), Part(MIDDLE, 1, 1, 1), Part(LOW, 0, 1, 1)]


def test_consumers_share_by_taking_the_next_range() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    assert mq.pull(ANN, 4) == [Part(MIDDLE, 0, 4, 1)]
    assert mq.pull(BOB, 4) == [Part(MIDDLE, 4, 4, 1)]
    assert mq.pull(ANN, 4) == [Part(MIDDLE, 8, 2, 1)]
    assert mq.pull(BOB, 4) == []


def test_a_consumer_holds_no_more_than_its_limit_and_does_not_hinder_others() -> None:
    mq = Driver(max_in_flight=5)
    mq.append(MIDDLE, 20)
    assert mq.pull(ANN, 4) == [Part(MIDDLE, 0, 4, 1)]
    assert mq.pull(ANN, 4) == [Part(MIDDLE, 4, 1, 1)]
    assert mq.pull(ANN, 4) == []
    assert mq.pull(BOB, 4) == [Part(MIDDLE, 5, 4, 1)]
    mq.ack(Span(MIDDLE, 0, 3), pull=1)
    assert mq.pull(ANN, 4) == [Part(MIDDLE, 9, 3, 1)]


def test_a_limit_that_was_lowered_below_what_a_consumer_holds_gives_it_nothing() -> None:
    mq = Driver()
    mq.append(MIDDLE, 20)
    mq.pull(count=10)
    lowered = Driver(max_in_flight=5)
    mq.config = lowered.config
    mq.restart()
    assert mq.pull() == []


@pytest.mark.parametrize(("max_bytes", "count"), [(1_000, 10), (999, 9), (100, 1), (99, 1), (0, 1), (-5, 1)])
def test_bytes_are_limited_by_the_mean_size_but_one_message_always_fits(max_bytes: int, count: int) -> None:
    mq = Driver()
    mq.append(MIDDLE, 50, size=100)
    assert mq.pull(max_bytes=max_bytes) == [Part(MIDDLE, 0, count, 1)]


def test_bytes_are_shared_by_lanes_of_different_sizes() -> None:
    mq = Driver()
    mq.append(HIGH, 2, size=1_000)
    mq.append(MIDDLE, 50, size=10)
    assert mq.pull(max_bytes=2_100) == [Part(HIGH, 0, 2, 1), Part(MIDDLE, 0, 10, 1)]


def test_what_does_not_fit_is_not_overtaken_by_a_smaller_message_of_lower_priority() -> None:
    mq = Driver()
    mq.append(HIGH, 3, size=1_000)
    mq.append(MIDDLE, 50, size=10)
    assert mq.pull(max_bytes=2_500) == [Part(HIGH, 0, 2, 1)]


@pytest.mark.parametrize("count", [0, -1])
def test_a_pull_of_no_messages_gets_none(count: int) -> None:
    mq = Driver()
    mq.append(MIDDLE, 5)
    assert mq.pull(count=count) == []


def test_a_pull_waits_for_its_least_number() -> None:
    mq = Driver()
    mq.append(MIDDLE, 9)
    assert mq.pull(min_messages=10) == []
    assert mq.group.leased() == 0
    mq.append(LOW, 1)
    assert mq.pull(min_messages=10) == [Part(MIDDLE, 0, 9, 1), Part(LOW, 0, 1, 1)]


def test_a_pull_that_is_full_does_not_wait_for_its_least_number() -> None:
    mq = Driver(max_in_flight=8)
    mq.append(MIDDLE, 50, size=100)
    assert mq.pull(count=5, min_messages=10) == [Part(MIDDLE, 0, 5, 1)]
    assert mq.pull(max_bytes=200, min_messages=10) == [Part(MIDDLE, 5, 2, 1)]
    assert mq.pull(min_messages=10) == [Part(MIDDLE, 7, 1, 1)]


def test_a_queue_of_fragments_is_delivered_in_several_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "PARTS_MAX", 2)
    mq = Driver()
    mq.append(MIDDLE, 5)
    mq.pull()
    mq.nack(Span(MIDDLE, 0, 1), Span(MIDDLE, 2, 1), Span(MIDDLE, 4, 1), delay_s=0)
    assert mq.pull(min_messages=3) == [Part(MIDDLE, 0, 1, 2), Part(MIDDLE, 2, 1, 2)]
    assert mq.pull() == [Part(MIDDLE, 4, 1, 2)]


def test_a_pull_number_is_never_used_twice() -> None:
    mq = Driver()
    mq.append(MIDDLE, 5)
    mq.pull(count=1)
    mq.pulls -= 1
    with pytest.raises(AssertionError):
        mq.pull(count=1)


# Losing


def test_unreadable_messages_of_a_pull_are_skipped_and_do_not_stop_an_ack() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    mq.pull()
    spans = (Span(MIDDLE, 2, 3), Span(MIDDLE, 3, 1), Span(MIDDLE, 50, 1))
    assert only(mq.do(Skip(1, spans, "damaged"))) == Skipped(NOON, 1, (Part(MIDDLE, 2, 3, 1),), "damaged")
    mq.ack(Span(MIDDLE, 0, 6))
    mq.nack(Span(MIDDLE, 4, 1), Span(MIDDLE, 6, 4))
    assert (mq.done(), snapshot(mq.group, 0).counters["GONE"], mq.group.leased()) == (3, 3, 0)


def test_a_pull_of_nothing_but_unreadable_messages_may_be_acked() -> None:
    mq = Driver()
    mq.append(MIDDLE, 2)
    mq.pull()
    mq.do(Skip(1, (Span(MIDDLE, 0, 2),), "damaged"))
    assert mq.ack() == mq.ack(Span(MIDDLE, 0, 1)) == mq.nack() == []
    assert mq.do(Skip(1, (Span(MIDDLE, 0, 2),), "damaged")) == []
    assert mq.do(Skip(99, (Span(MIDDLE, 0, 2),), "damaged")) == []


def test_dying_messages_that_cannot_be_copied_are_skipped_whatever_they_died_of() -> None:
    mq = Driver()
    mq.append(MIDDLE, 3)
    mq.pull()
    for number, reason in enumerate("abc"):
        mq.nack(Span(MIDDLE, number, 1), dead=True, reason=reason)
    mq.do(Skip(0, (Span(MIDDLE, 0, 2),), "damaged"))
    assert mq.group.dying == {Part(MIDDLE, 2, 1, 1): "c"}


def test_what_retention_dropped_is_said_once_and_passed_over() -> None:
    mq = Driver()
    mq.append(HIGH, 5)
    mq.append(MIDDLE, 10)
    mq.pull(count=7)
    mq.trim(MIDDLE, 6)
    assert mq.group.backlog() == 4
    mq.pulls += 1
    assert mq.pull(count=1) == [Part(MIDDLE, 6, 1, 1)]
    assert decode_event(mq.log[-2]) == Overrun(NOON, (Part(MIDDLE, 2, 4, 1),))
    assert mq.pull(count=1) == [Part(MIDDLE, 7, 1, 1)]
    assert snapshot(mq.group, 0).counters["GONE"] == 4


def test_a_lane_that_was_dropped_whole_is_passed_over_too() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    mq.trim(MIDDLE, 10)
    assert mq.group.lag() == 0
    assert mq.pull() == []
    assert mq.group.next[MIDDLE] == 10


# Limits and figures


def test_a_group_that_fails_too_much_gets_nothing_new_until_it_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given as many failed messages as a group may have, in no order that would let them fall together
    monkeypatch.setattr(retry, "ENTRIES_MAX", 3)
    mq = Driver()
    mq.append(MIDDLE, 100)
    mq.pull(count=6)
    mq.nack(Span(MIDDLE, 0, 1), Span(MIDDLE, 2, 1), Span(MIDDLE, 4, 1), delay_s=5)
    # Then nothing new is delivered
    assert mq.pull() == []
    # When they are due they are, and as soon as there is room so is what is new
    mq.pass_time(5)
    assert mq.pull(count=1) == [Part(MIDDLE, 0, 1, 2)]
    assert mq.pull(count=3) == [Part(MIDDLE, 2, 1, 2), Part(MIDDLE, 4, 1, 2), Part(MIDDLE, 6, 1, 1)]


def test_lag_counts_everything_that_is_not_settled() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    mq.pull(count=6)
    mq.ack(Span(MIDDLE, 0, 1))
    mq.nack(Span(MIDDLE, 1, 2))
    mq.nack(Span(MIDDLE, 3, 1), dead=True)
    assert (mq.group.backlog(), mq.group.leased(), mq.group.retries.messages, mq.group.lag()) == (4, 2, 2, 9)


def test_pins_are_the_oldest_messages_that_are_still_needed_by_lane() -> None:
    mq = Driver()
    for lane in (HIGH, MIDDLE, LOW):
        mq.append(lane, 10)
    assert mq.group.pins() == {}
    mq.pull(count=30)
    mq.ack(Span(HIGH, 0, 10), Span(MIDDLE, 0, 3), Span(LOW, 0, 1))
    mq.nack(Span(MIDDLE, 4, 1))
    mq.nack(Span(LOW, 1, 1), dead=True)
    assert mq.group.pins() == {MIDDLE: 3, LOW: 1}
    mq.ack()
    assert mq.group.pins() == {MIDDLE: 4, LOW: 1}


def test_the_next_wake_is_the_earlier_of_a_retry_and_a_deadline() -> None:
    mq = Driver(timeout_s=20)
    mq.append(MIDDLE, 3)
    mq.pull(count=1)
    mq.pull(count=1)
    assert mq.group.next_wake_us() == NOON + 20 * SECOND
    mq.nack(pull=1, delay_s=5)
    assert mq.group.next_wake_us() == NOON + 5 * SECOND
    mq.pass_time(5)
    assert mq.group.deliverable(mq.now_us)
    assert mq.group.next_wake_us() == NOON + 20 * SECOND
    mq.ack(pull=2)
    assert mq.group.next_wake_us() is None


def test_deadlines_of_settled_pulls_are_not_kept() -> None:
    mq = Driver(timeout_s=3600)
    mq.append(MIDDLE, 5_000)
    for _ in range(5_000):
        mq.pull(count=1)
        mq.ack()
    assert len(mq.group._deadlines) < 100


def test_whether_anything_is_deliverable() -> None:
    mq = Driver()
    assert not mq.group.deliverable(NOON)
    mq.append(MIDDLE, 1)
    assert mq.group.deliverable(NOON)
    mq.pull()
    assert not mq.group.deliverable(NOON)
    mq.nack(delay_s=0.5)
    assert not mq.group.deliverable(NOON)
    assert mq.group.deliverable(NOON + SECOND // 2)


# Coming back


def test_a_clock_that_is_set_back_delays_no_message_that_is_due_at_once() -> None:
    mq = Driver()
    mq.append(MIDDLE, 3)
    mq.pull(ANN, 1)
    mq.pull(BOB, 1)
    mq.vanish(ANN)
    mq.leave(BOB)
    mq.pass_time(-3600)
    assert mq.pull() == [Part(MIDDLE, 0, 1, 2), Part(MIDDLE, 1, 1, 1), Part(MIDDLE, 2, 1, 1)]


def test_a_log_is_replayed_though_the_clock_was_set_back_between_a_nack_and_a_pull() -> None:
    # Given a retry that was found to be due, and a clock that is then set back
    mq = Driver()
    mq.append(MIDDLE, 3)
    mq.pull()
    mq.nack(delay_s=5)
    mq.pass_time(5)
    assert mq.pull(count=0) == []
    mq.pass_time(-3600)
    assert mq.pull(count=2) == [Part(MIDDLE, 0, 2, 2)]
    # When the log is replayed
    before = snapshot(mq.group, 0)
    mq.restart()
    # Then the pull is there, though by its own time the retry was not due
    assert snapshot(mq.group, 0) == before


def test_a_replay_follows_although_retries_fell_together_otherwise_than_before() -> None:
    # Given a retry that became ready, a clock set back, and neighbours that are due at the same time
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull()
    mq.nack(Span(MIDDLE, 0, 1), delay_s=0.5)
    mq.pass_time(0.5)
    mq.pull(count=0)
    mq.pass_time(-0.5)
    mq.nack(Span(MIDDLE, 2, 1), pull=1, delay_s=0.5)
    assert mq.pull(count=1) == [Part(MIDDLE, 0, 1, 2)]
    mq.nack(Span(MIDDLE, 3, 1), pull=1, delay_s=0.5)
    mq.pass_time(0.5)
    assert mq.pull() == [Part(MIDDLE, 2, 2, 2)]
    before = snapshot(mq.group, 0)
    mq.restart()
    assert snapshot(mq.group, 0) == before


@pytest.mark.parametrize("from_snapshot", [None, 7])
def test_a_group_comes_back_as_it_was(from_snapshot: int | None) -> None:
    # Given a group with something in every state
    mq = Driver(timeout_s=60)
    mq.append(HIGH, 5)
    mq.append(MIDDLE, 10)
    mq.pull(ANN, 8)
    mq.pull(BOB, 4)
    mq.ack(Span(HIGH, 1, 2), pull=1)
    mq.nack(Span(HIGH, 0, 1), pull=1, delay_s=100)
    mq.nack(Span(HIGH, 4, 1), pull=1, dead=True)
    mq.nack(Span(MIDDLE, 0, 1), pull=1, dead=True)
    mq.do(Bury((Part(MIDDLE, 0, 1, 1),), 0))
    mq.do(Resend((0,)))
    mq.vanish(BOB)
    mq.pull(BOB, 1)
    mq.ack(consumer=BOB)
    before, wake_us = snapshot(mq.group, 7), mq.group.next_wake_us()
    # When the broker restarts
    mq.restart(from_snapshot=from_snapshot)
    # Then nothing has changed
    assert snapshot(mq.group, 7) == before
    assert mq.group.in_flight == {ANN: 3}
    assert mq.group.next_wake_us() in (wake_us, 0)
    # And acts that are sent again get the same answer as before
    assert mq.ack(Span(HIGH, 1, 2), pull=1) == []
    assert mq.ack(pull=3, consumer=BOB) == []
    with pytest.raises(LeaseLost):
        mq.ack(pull=2, consumer=BOB)
    with pytest.raises(Conflict):
        mq.ack(Span(HIGH, 0, 1), pull=1)


def test_a_burial_and_a_resend_that_are_not_stored_are_taken_back() -> None:
    # Given messages that are dying, and a dead letter
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull(ANN, 4)
    mq.nack(Span(MIDDLE, 0, 1), pull=1, dead=True)
    mq.do(Bury((Part(MIDDLE, 0, 1, 1),), 0))
    mq.nack(Span(MIDDLE, 1, 3), pull=1, dead=True)
    before = snapshot(mq.group, 7)
    # When copies of them turn out to be refused
    for command, reasons in ((Bury((Part(MIDDLE, 2, 1, 1),), 1), [""]), (Resend((0,)), [])):
        [event] = mq.group.decide(command, 0)
        mq.group.apply(event)
        assert isinstance(event, (Buried, Resent))
        mq.group.take_back(event, reasons)
    # Then the same messages are dying and dead as before
    after = snapshot(mq.group, 7)
    assert sum(part.count for part in mq.group.dying) == 3
    assert all(mq.group.dying.holds(Part(MIDDLE, seq, 1, 1)) for seq in (1, 2, 3))
    assert not mq.group.dying.holds(Part(MIDDLE, 1, 2, 1)), "they are in parts now"
    assert (after.resent, after.counters) == (before.resent, before.counters)
    # And one of them may be a part of its own
    mq.group.set_apart(Part(MIDDLE, 2, 1, 1))
    assert sorted(mq.group.dying) == [Part(MIDDLE, seq, 1, 1) for seq in (1, 2, 3)]


def test_settled_pulls_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SETTLED_MAX", 3)
    mq = Driver()
    mq.append(MIDDLE, 5)
    for _ in range(5):
        mq.pull(count=1)
        mq.ack()
    assert [mq.ack(pull=pull) for pull in (3, 4, 5)] == [[], [], []]
    for pull in (1, 2):
        with pytest.raises(LeaseLost):
            mq.ack(pull=pull)


def test_pulls_settled_message_by_message_are_remembered_up_to_a_limit_of_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "SETTLED_PARTS_MAX", 25)
    mq = Driver()
    mq.append(MIDDLE, 30)
    for _ in range(3):
        [part] = mq.pull(count=10)
        mq.ack(*(Span(MIDDLE, part.first + number, 1) for number in range(0, 10, 2)))
        mq.nack()
    assert list(mq.group.settled) == [2, 3]


def test_a_group_alone_knows_nothing_of_its_lanes_until_it_is_told() -> None:
    mq = Driver()
    mq.append(MIDDLE, 5)
    mq.pull(count=2)
    mq.group = Group(mq.config)
    for record in mq.log:
        mq.group.apply(decode_event(record))
    assert (mq.group.backlog(), mq.group.leased()) == (0, 2)
