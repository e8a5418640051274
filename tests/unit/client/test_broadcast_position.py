"""What an unnamed consumer notes of its place, and how it tells a broker that has forgotten it."""

from __future__ import annotations

import logging
from collections import deque

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.client.consume.broadcast_position import BroadcastPosition, _Lane
from towline.client.consume.lease import Lease
from towline.frame import encode
from towline.protocol.base import LISTS_MAX_BYTES, MANY
from towline.protocol.consume import ACK, NACK
from towline.protocol.messages import Act, Part, Place, Places

DEAD = 2
STORE = 5


def begun(*places: Place) -> BroadcastPosition:
    progress = BroadcastPosition()
    assert progress.places((), LISTS_MAX_BYTES) is None
    assert progress.attached(Places(STORE, list(places))) == set()
    return progress


def give(
    progress: BroadcastPosition, first: int, count: int, *, attempt: int = 1, lane: int = 1, topic: str = "orders"
) -> Lease:
    frame = encode([b"x"] * count)
    part = Part(lane, first, count, 0, len(frame), attempt, 0, b"")
    lease = Lease(first + 1, [(part, memoryview(frame))], deque(), deque())
    lease.topic = topic
    lease.open()
    progress.given(lease, [part], once=False)
    return lease


def told(progress: BroadcastPosition, *leases: Lease) -> list[Place]:
    places = progress.places(leases, LISTS_MAX_BYTES)
    assert places is not None
    assert places.store == STORE
    return places.topics


def test_it_tells_the_next_message_of_each_lane_and_what_is_not_acked() -> None:
    progress = begun(Place("orders", 0, [(0, 7), (1, 10)]))
    lease = give(progress, 10, 5)
    for message in lease.messages()[1:3]:
        message.ack()
    assert told(progress, lease) == [Place("orders", 0, [(0, 7), (1, 15)], [(1, 10, 1, 1), (1, 13, 2, 1)])]
    lease.settle_all(ACK)
    assert told(progress, lease) == [Place("orders", 0, [(0, 7), (1, 15)])]


def test_what_was_lost_comes_again_and_what_a_broker_took_an_ack_for_does_not() -> None:
    progress = begun()
    first, second = give(progress, 0, 2), give(progress, 2, 3)
    progress.answered(first, Act(ACK, 1, [(1, 0, 1)]), 16)
    second.settle_all(ACK)
    progress.answered(second, Act(ACK, 3), 16)
    assert told(progress) == [Place("orders", 0, [(1, 5)], [(1, 1, 1, 1)])]


def test_what_failed_comes_again_in_its_next_attempt_until_it_was_the_last() -> None:
    progress = begun()
    lease = give(progress, 0, 4)
    progress.answered(lease, Act(NACK, 1, [(1, 0, 1)]), 2)
    progress.answered(lease, Act(DEAD, 1, [(1, 1, 1)]), 2)
    assert told(progress) == [Place("orders", 0, [(1, 4)], [(1, 0, 1, 2), (1, 2, 2, 1)])]
    lease = give(progress, 0, 1, attempt=2)
    progress.answered(lease, Act(NACK, 1, [(1, 0, 1)]), 2)
    assert told(progress) == [Place("orders", 0, [(1, 4)], [(1, 2, 2, 1)])]


def test_a_group_that_was_moved_back_goes_on_from_there() -> None:
    progress = begun()
    lease = give(progress, 0, 100)
    lease.settle_all(ACK)
    progress.answered(lease, Act(ACK, 1), 16)
    give(progress, 20, 5)
    assert told(progress) == [Place("orders", 0, [(1, 25)], [(1, 20, 5, 1)])]


def test_more_fragments_than_may_be_told_come_again_from_there_on(caplog: pytest.LogCaptureFixture) -> None:
    progress = begun()
    for lane in (0, 1):
        lease = give(progress, 0, MANY + 2_000, lane=lane)
        progress.answered(lease, Act(ACK, 1, [(lane, seq, 1) for seq in range(0, MANY + 2_000, 2)]), 16)
    [place] = told(progress)
    assert place.lanes == [(0, MANY + 1), (1, MANY + 1)]
    assert place.open == [(lane, seq, 1, 1) for lane in (0, 1) for seq in range(1, MANY, 2)]
    progress.attached(Places(STORE, [Place("orders", 0, place.lanes)]))
    assert told(progress) == [place]
    assert not caplog.records


def test_of_more_topics_than_may_be_told_the_smallest_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    names = [f"orders.{number:05}.{'x' * 30}" for number in range(20_000)]
    progress = begun(*(Place(name, 0, [(1, 1_000_000 + number)]) for number, name in enumerate(names)))
    found = told(progress)
    assert 700_000 < len(msgspec.msgpack.encode(found)) < LISTS_MAX_BYTES - (100 << 10)
    assert {place.topic for place in found} == set(names[-len(found) :])
    [record] = caplog.records
    assert record.getMessage().endswith(f"{20_000 - len(found)} of them begin again with the first message")
    few = progress.places((), 66 << 10)
    assert few is not None
    assert len(msgspec.msgpack.encode(few)) < 20 << 10


def test_a_broker_that_has_less_than_we_were_given_says_where_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    progress = begun()
    give(progress, 0, 10)
    told(progress)
    assert progress.attached(Places(STORE, [Place("orders", 0, [(1, 4)])])) == {"orders"}
    [record] = caplog.records
    assert record.getMessage() == "topic orders: the broker has lost 6 messages that we were given"
    assert told(progress) == [Place("orders", 0, [(1, 4)], [(1, 0, 4, 1)])]


def test_what_was_noted_of_another_store_or_another_topic_of_the_name_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    progress = begun()
    give(progress, 0, 10)
    told(progress)
    assert progress.attached(Places(STORE, [Place("orders", 4, [(3, 2)])])) == {"orders"}
    assert told(progress) == [Place("orders", 4, [(3, 2)])]
    assert progress.attached(Places(6, [Place("orders", 0, [(1, 3)])])) == set()
    assert progress.places((), LISTS_MAX_BYTES) == Places(6, [Place("orders", 0, [(1, 3)])])
    assert not caplog.records


RANGES = st.tuples(st.integers(0, 30), st.integers(1, 8))


@given(st.lists(st.tuples(st.sampled_from(["fresh", "again", "settle"]), RANGES), max_size=40))
def test_a_lane_is_the_set_of_what_is_open(steps: list[tuple[str, tuple[int, int]]]) -> None:
    lane, model, end = _Lane(), dict[int, int](), 0
    for number, (what, (first, count)) in enumerate(steps, start=1):
        chosen = range(first, first + count)
        if what == "fresh":
            lane.give(end, end + count, number)
            model |= dict.fromkeys(range(end, end + count), number)
            end += count
        elif what == "again" and any(seq in model for seq in chosen):
            # New ones may come with them, right behind them.
            lane.give(first, first + count, number)
            model |= dict.fromkeys(chosen, number)
            end = max(end, chosen.stop)
        elif what == "settle":
            lane.take(first, first + count)
            model = {seq: attempt for seq, attempt in model.items() if seq not in chosen}
        pieces = lane.pieces()
        assert {seq: attempt for low, high, attempt in pieces for seq in range(low, high)} == model
        assert all(low < high for low, high, _ in pieces)
        assert lane.open == sorted(lane.open)
        assert lane.next == end
