"""Ordered topics: a shard has one consumer at a time, and nothing in it is overtaken."""

from __future__ import annotations

import pytest

from tests.unit.delivery.driver import ANN, BOB, Driver
from towline.delivery import Bury, Part, Resend, Skip, Start
from towline.delivery.group import group
from towline.errors import LeaseLost
from towline.model import Span

CID = "cid"


def numbers(parts: list[Part]) -> list[tuple[int, int]]:
    return [(part.lane, number) for part in parts for number in range(part.first, part.end)]


def test_a_shard_has_one_consumer_at_a_time() -> None:
    mq = Driver(shards=2)
    mq.append(0, 10)
    assert mq.pull(ANN, 3) == [Part(0, 0, 3, 1)]
    assert mq.pull(BOB) == [], "the rest of the shard waits for ann"
    mq.append(1, 2)
    assert mq.pull(BOB) == [Part(1, 0, 2, 1)]


def test_an_acked_prefix_does_not_free_a_shard() -> None:
    mq = Driver(shards=1)
    mq.append(0, 10)
    mq.pull(ANN, 4)
    mq.ack(Span(0, 0, 3))
    assert mq.pull(BOB) == []
    mq.ack(Span(0, 3, 1), pull=1)
    assert mq.pull(BOB) == [Part(0, 4, 6, 1)]


def test_a_failed_message_is_tried_again_in_its_place() -> None:
    mq = Driver(shards=1, delays_s=(10.0,))
    mq.append(0, 10)
    mq.pull(ANN, 6)
    mq.ack(Span(0, 0, 2))
    mq.nack(Span(0, 2, 1))
    assert mq.group.leased() == 0, "what ann held behind it was taken from her"
    assert mq.pull(BOB) == [], "nothing overtakes it"
    mq.pass_time(10)
    assert mq.pull(BOB) == [Part(0, 2, 1, 2), Part(0, 3, 3, 1), Part(0, 6, 4, 1)]


def test_what_was_taken_behind_a_failure_cannot_be_acked_any_more() -> None:
    mq = Driver(shards=1)
    mq.append(0, 5)
    mq.pull(ANN)
    mq.nack(Span(0, 1, 1))
    with pytest.raises(LeaseLost):
        mq.ack(Span(0, 3, 1))
    mq.ack(Span(0, 0, 1))


def test_the_shard_moves_on_behind_a_dead_letter() -> None:
    mq = Driver(shards=1, max_attempts=1)
    mq.append(0, 5)
    mq.pull(ANN, 2)
    mq.nack(Span(0, 0, 1))
    assert list(mq.group.dying) == [Part(0, 0, 1, 1)]
    assert mq.pull(BOB) == [Part(0, 1, 1, 1), Part(0, 2, 3, 1)]


def test_a_message_declared_dead_leaves_the_rest_to_its_consumer() -> None:
    mq = Driver(shards=1)
    mq.append(0, 3)
    mq.pull(ANN)
    mq.nack(Span(0, 0, 1), dead=True)
    mq.ack()
    assert mq.done() == 2


def test_what_is_given_back_takes_what_is_behind_it_along() -> None:
    mq = Driver(shards=1)
    mq.append(0, 5)
    mq.pull(ANN)
    mq.give_back(Span(0, 1, 1))
    mq.ack(Span(0, 0, 1))
    assert mq.pull(BOB) == [Part(0, 1, 4, 1)]


def test_a_vanished_consumer_leaves_its_shards_to_others_in_order() -> None:
    mq = Driver(shards=3)
    for shard in range(3):
        mq.append(shard, 4)
    mq.pull(ANN)
    mq.vanish(ANN)
    assert numbers(mq.pull(BOB)) == [(shard, number) for shard in range(3) for number in range(4)]


def test_the_shard_that_has_waited_longest_comes_first() -> None:
    mq = Driver(shards=3)
    mq.append(2, 10)
    mq.append(0, 10)
    mq.append(1, 10)
    assert mq.pull(ANN, 2)[0].lane == 2
    mq.ack()
    assert [mq.pull(ANN, 2)[0].lane for _ in range(3)] == [0, 1, 2]


def test_later_messages_do_not_cost_a_shard_its_turn() -> None:
    mq = Driver(shards=2)
    mq.append(1, 1)
    mq.append(0, 1)
    mq.append(1, 1)
    assert mq.pull(ANN, 1) == [Part(1, 0, 1, 1)]


def test_more_consumers_than_shards_wait_without_harm_and_take_over_at_once() -> None:
    mq = Driver(shards=1)
    mq.append(0, 4)
    assert mq.pull(ANN, 1)
    for _ in range(5):
        assert mq.pull(BOB) == []
        assert mq.pull(CID) == []
    mq.ack(pull=1)
    assert mq.pull(CID, 1) == [Part(0, 1, 1, 1)]


def test_the_rest_of_a_shard_waits_for_its_first_though_it_is_due_itself() -> None:
    mq = Driver(shards=1, delays_s=(10.0, 30.0))
    mq.append(0, 2)
    mq.pull(ANN, 1)
    mq.nack(delay_s=0)
    mq.pull(ANN, 2)
    mq.nack()  # The first is in its second attempt, and waits longer.
    mq.pass_time(10)
    assert not mq.group.deliverable(mq.now_us)
    assert mq.pull(ANN) == []
    assert mq.group.next_wake_us() == mq.retries()[0][1]
    mq.pass_time(20)
    assert numbers(mq.pull(ANN)) == [(0, 0), (0, 1)]


def test_own_lanes_of_an_ordered_topic_go_before_its_shards_and_beside_its_order() -> None:
    mq = Driver(shards=2, max_attempts=1)
    mq.append(0, 3)
    mq.pull(ANN, 1)
    mq.nack()
    mq.do(Bury((Part(0, 0, 1, 1),), 0))
    mq.do(Resend((0,)))
    mq.append(3, 1)
    assert mq.pull(ANN) == [Part(3, 0, 1, 1), Part(0, 1, 2, 1)]


def test_an_unreadable_message_does_not_hold_its_shard_up() -> None:
    mq = Driver(shards=1)
    mq.append(0, 3)
    mq.pull(ANN, 1)
    mq.do(Skip(1, (Span(0, 0, 1),), "damaged"))
    assert mq.pull(BOB) == [Part(0, 1, 2, 1)]


def test_retention_that_overtakes_a_shard_leaves_nothing_waiting() -> None:
    mq = Driver(shards=1)
    mq.append(0, 3)
    mq.trim(0, 3)
    assert mq.pull(ANN) == []
    assert not mq.group.deliverable(mq.now_us)
    mq.append(0, 1)
    assert mq.pull(ANN) == [Part(0, 3, 1, 1)]


@pytest.mark.parametrize("from_snapshot", [None, 3])
def test_who_has_which_shard_survives_a_restart(from_snapshot: int | None) -> None:
    mq = Driver(shards=3, delays_s=(10.0,))
    mq.do(Start((0,) * 6))
    for shard in range(3):
        mq.append(shard, 2)
    mq.pull(ANN, 2)
    mq.pull(BOB, 2)
    mq.nack(Span(1, 0, 1), consumer=BOB)
    mq.restart(from_snapshot=from_snapshot)
    assert numbers(mq.pull(CID)) == [(2, 0), (2, 1)]
    mq.pass_time(10)
    assert numbers(mq.pull(CID)) == [(1, 0), (1, 1)]


def test_messages_of_a_shard_that_are_overdue_for_different_reasons_end_once_each() -> None:
    """The second is overdue by itself, and lies behind the first: it failed, and is not given back as well."""
    mq = Driver(shards=1, delays_s=(0.0,))
    mq.append(0, 3)
    mq.pull()
    mq.lapse((mq.pulls, (Span(0, 1, 1),), "4 s"), (mq.pulls, (Span(0, 0, 1),), "1 s"))
    found = [(number, part.attempt) for part in mq.pull() for number in range(part.first, part.end)]
    assert found == [(0, 2), (1, 2), (2, 1)]


def test_what_lies_behind_very_much_that_is_overdue_goes_back_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit; who tries next gets all in order."""
    monkeypatch.setattr(group, "TAKE_MAX", 2)
    mq = Driver(shards=1)
    mq.append(0, 12)
    mq.pull(ANN)
    mq.ack(*[Span(0, number, 1) for number in range(0, 12, 2)])
    while mq.lapse((1, (Span(0, 3, 5),), "too slow")):
        assert mq.pull(BOB) == []
    assert [(part.first, part.attempt) for part, _ in mq.group.retries] == [(3, 2), (5, 2), (7, 2), (9, 1), (11, 1)]
    assert mq.group.leased() == 1, "what lies before them is not overdue"
    mq.ack(Span(0, 1, 1), pull=1)
    assert [part.first for part in mq.pull(BOB)] == [3, 5, 7, 9, 11]
