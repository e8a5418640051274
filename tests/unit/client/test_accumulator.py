"""Batching, without any socket, thread or clock."""

from __future__ import annotations

import random
from typing import Any

import pytest

from towline.client.produce.accumulator import Accumulator, BatchLimits, expired
from towline.client.produce.batch import ProducerBatch
from towline.errors import BadName, BadRequest, Closed, Conflict, QueueFull, Timeout
from towline.model import LANES


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    def __init__(self, **limits: Any) -> None:
        self.time = Time()
        self.accumulator: Accumulator[tuple[ProducerBatch, int]] = Accumulator(
            BatchLimits(**{"linger_s": 0.01, **limits}).checked(), lambda parcel, index: (parcel, index), self.time
        )

    def add(self, body: bytes = b"x", topic: str = "t", priority: Any = "middle", key: str | None = None) -> Any:
        return self.accumulator.add(topic, body, key, priority, None)

    def take(self) -> list[ProducerBatch]:
        return self.accumulator.take(self.time.now)

    def sent(self, parcel: ProducerBatch, first: int = 0) -> None:
        self.accumulator.sent(parcel, first, 0, self.time.now)

    def refuse(self, parcel: ProducerBatch, error: Any) -> bool:
        return self.accumulator.refused(parcel, error, self.time.now)


def test_messages_linger_to_travel_together() -> None:
    bench = Bench()
    parcel, index = bench.add(b"a")
    assert (index, bench.take()) == (0, [])
    assert bench.accumulator.next_at() == bench.time.now + 0.01
    bench.time.now += 0.005
    assert bench.add(b"b") == (parcel, 1)
    assert bench.take() == []
    bench.time.now += 0.006
    assert bench.take() == [parcel]
    assert (parcel.bodies, parcel.count, parcel.keys, parcel.headers) == ([b"a", b"b"], 2, None, None)


def test_a_full_parcel_does_not_linger() -> None:
    bench = Bench(max_batch_messages=2)
    first, _ = bench.add()
    assert bench.add() == (first, 1)
    second, index = bench.add()
    assert index == 0
    assert second is not first
    assert bench.take() == [first]

    bench = Bench(max_batch_bytes=1000)
    small, _ = bench.add(b"s")
    large, _ = bench.add(bytes(990))
    assert large is not small
    assert bench.take() == [small]


def test_a_message_larger_than_a_batch_travels_alone() -> None:
    bench = Bench(max_batch_bytes=100)
    huge, _ = bench.add(bytes(5000))
    next_one, _ = bench.add(b"x")
    assert bench.take() == [huge]
    assert next_one is not huge


def test_one_parcel_of_a_lane_is_on_its_way_and_the_next_one_fills_meanwhile() -> None:
    bench = Bench()
    first, _ = bench.add()
    bench.time.now += 1
    assert bench.take() == [first]
    second, _ = bench.add()
    for _ in range(100):
        bench.time.now += 1
        assert bench.add()[0] is second
        assert bench.take() == []
    bench.sent(first)
    assert bench.take() == [second]
    assert second.count == 101


def test_lanes_and_topics_do_not_wait_for_each_other_up_to_a_limit() -> None:
    bench = Bench(max_in_flight=3)
    parcels = [bench.add(topic=topic, priority=lane)[0] for topic in ("a", "b") for lane in LANES]
    bench.time.now += 1
    flying = bench.take()
    assert flying == parcels[:3]
    assert bench.take() == []
    bench.sent(flying[1])
    assert bench.take() == [parcels[3]]
    assert bench.accumulator.in_flight == 3


def test_a_refused_parcel_is_tried_again_before_all_that_follows() -> None:
    bench = Bench(max_batch_messages=1)
    first, second = bench.add(b"1")[0], bench.add(b"2")[0]
    assert bench.take() == [first]
    for _ in range(5):
        assert bench.refuse(first, QueueFull())
        assert bench.take() == []
        again_at = bench.accumulator.next_at()
        assert again_at is not None
        assert again_at > bench.time.now
        bench.time.now = again_at
        assert bench.take() == [first]
    bench.sent(first)
    assert bench.take() == [second]


def test_another_lane_goes_on_while_one_is_refused() -> None:
    bench = Bench(max_batch_messages=1)
    one, other = bench.add(topic="a")[0], bench.add(topic="b")[0]
    assert bench.take() == [one, other]
    bench.refuse(one, QueueFull())
    bench.sent(other)
    more = bench.add(topic="b")[0]
    assert bench.take() == [more]


def test_what_can_never_succeed_fails_and_is_told_once() -> None:
    bench = Bench(max_batch_messages=1)
    parcel, follower = bench.add()[0], bench.add()[0]
    bench.take()
    assert not bench.refuse(parcel, Conflict("no"))
    assert str(parcel.error) == "no"
    assert bench.take() == [follower]
    assert bench.accumulator.take_failed() == [parcel]
    assert bench.accumulator.take_failed() == []


def test_an_error_that_was_looked_at_is_not_told_again() -> None:
    bench = Bench(max_batch_messages=1)
    parcel, _ = bench.add()
    bench.take()
    bench.refuse(parcel, Conflict("no"))
    with pytest.raises(Conflict):
        parcel.receipt(0)
    assert bench.accumulator.take_failed() == []


def test_too_late_is_a_failure_with_the_reason() -> None:
    bench = Bench(delivery_timeout_s=5.0)
    parcel, _ = bench.add()
    bench.time.now += 1
    bench.take()
    assert bench.accumulator.expired(bench.time.now) == []
    bench.time.now += 5
    assert bench.accumulator.expired(bench.time.now) == [parcel]
    assert isinstance(expired(parcel), Timeout)
    assert not bench.refuse(parcel, QueueFull("still full"))
    assert isinstance(parcel.error, QueueFull)


def test_flushing_lets_nothing_linger() -> None:
    bench = Bench(linger_s=60.0)
    flying, _ = bench.add(topic="a")
    assert bench.accumulator.seal() == [flying]
    assert bench.take() == [flying]
    waiting, _ = bench.add(topic="a")
    other, _ = bench.add(topic="b")
    assert bench.accumulator.seal() == [flying, waiting, other]
    assert bench.take() == [other]
    bench.sent(flying)
    assert bench.take() == [waiting]


def test_the_buffer_is_counted_down_to_nothing() -> None:
    bench = Bench(max_buffer_messages=3, max_batch_messages=2)
    parcels = {bench.add(b"12345", key="k")[0] for _ in range(3)}
    assert bench.accumulator.is_full
    assert bench.accumulator.bytes == 3 * (5 + 1 + 16)
    bench.time.now += 1
    for parcel in bench.take():
        bench.sent(parcel)
    assert not bench.accumulator.is_full
    for parcel in bench.take():
        bench.sent(parcel)
    assert all(parcel.first == 0 for parcel in parcels)
    assert (bench.accumulator.messages, bench.accumulator.bytes) == (0, 0)
    assert all(lanes == {} for lanes in bench.accumulator._lanes), "idle lanes are not kept"


def test_giving_up_fails_everything() -> None:
    bench = Bench(max_batch_messages=1, max_in_flight=1)
    parcels = [bench.add()[0] for _ in range(3)]
    bench.take()
    assert bench.accumulator.fail_all(Closed()) == parcels
    assert all(isinstance(parcel.error, Closed) for parcel in parcels)
    assert bench.accumulator.is_empty


def test_names_are_checked() -> None:
    bench = Bench()
    with pytest.raises(BadName):
        bench.add(topic="No!")
    with pytest.raises(BadRequest):
        bench.add(priority="urgent")
    assert bench.accumulator.is_empty


def test_whoever_sends_is_told_when_something_begins() -> None:
    bench = Bench(max_batch_messages=3)
    bench.add()
    assert bench.accumulator.stirred
    bench.take()
    assert not bench.accumulator.stirred
    bench.add()
    assert not bench.accumulator.stirred
    bench.add()
    assert bench.accumulator.stirred, "it is full"


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_lost_doubled_or_reordered(seed: int) -> None:
    """Random sends, answers, refusals and pauses: each lane sees its messages once, in order."""
    chance = random.Random(seed)
    bench = Bench(max_batch_messages=chance.randint(1, 7), max_in_flight=chance.randint(1, 4), linger_s=chance.random())
    added: dict[tuple[str, int], list[bytes]] = {}
    stored: dict[tuple[str, int], list[bytes]] = {}
    flying: list[ProducerBatch] = []
    for number in range(2000):
        what = chance.random()
        if number < 1500 and what < 0.6:
            topic, lane = chance.choice("abc"), chance.choice(LANES)
            bench.add(b"%d" % number, topic, lane)
            added.setdefault((topic, LANES.index(lane)), []).append(b"%d" % number)
        elif flying and what < 0.85:
            parcel = flying.pop(chance.randrange(len(flying)))
            if chance.random() < 0.3:
                assert bench.refuse(parcel, QueueFull())
            else:
                stored.setdefault((parcel.topic, parcel.lane), []).extend(parcel.bodies)
                bench.sent(parcel)
        else:
            bench.time.now += chance.random() / 4
            flying += bench.take()
    while not bench.accumulator.is_empty:
        bench.time.now += 2
        for parcel in flying + bench.take():
            stored.setdefault((parcel.topic, parcel.lane), []).extend(parcel.bodies)
            bench.sent(parcel)
        flying = []
    assert stored == added


@pytest.mark.parametrize("seed", range(20))
def test_the_short_way_leads_to_the_same_parcels(seed: int) -> None:
    chance = random.Random(seed)
    sizes = {"max_batch_messages": 9, "max_batch_bytes": 600, "max_buffer_messages": 40, "max_buffer_bytes": 2_000}
    long, short = Bench(**sizes), Bench(**sizes)
    taken = 0
    for _ in range(400):
        if chance.random() < 0.1:
            long.time.now += 0.004
            short.time.now += 0.004
            for one, other in zip(long.take(), short.take(), strict=True):
                assert (one.topic, one.lane, one.size, one.count) == (other.topic, other.lane, other.size, other.count)
                assert list(one.columns()) == list(other.columns())
                long.sent(one)
                short.sent(other)
                taken += one.count
            continue
        if long.accumulator.is_full:
            assert short.accumulator.add_plain("t", b"x", None, "middle") is None
            continue
        topic, priority = chance.choice(["t", "t", "u"]), chance.choice(LANES)
        body, key = bytes(chance.choice([0, 1, 80, 700])), chance.choice([None, None, "key", "schlüssel"])
        headers = {"h": "1"} if chance.random() < 0.05 else None
        at_us = -5 if chance.random() < 0.05 else 0
        parcel, index = long.accumulator.add(topic, body, key, priority, headers, at_us)
        added = None if headers or at_us else short.accumulator.add_plain(topic, body, key, priority)
        same, place = added or short.accumulator.add(topic, body, key, priority, headers, at_us)
        assert (index, len(parcel.bodies), parcel.size) == (place, len(same.bodies), same.size)
        figures = [(bench.accumulator.messages, bench.accumulator.bytes) for bench in (long, short)]
        assert figures[0] == figures[1]
    assert taken > 100


def test_failures_that_nobody_asks_for_are_not_kept_for_ever() -> None:
    bench = Bench(linger_s=0.0)
    bench.add(b"first")
    for number in range(10_000):
        (parcel,) = bench.take()
        bench.refuse(parcel, Conflict(f"refusal {number}"))
        parcel.looked_at = bool(number % 3)
        bench.add(b"next")
    assert len(bench.accumulator.failed) <= 2_000
    failed = bench.accumulator.take_failed()
    assert [str(parcel.error) for parcel in failed[:3]] == ["refusal 0", "refusal 3", "refusal 6"]
