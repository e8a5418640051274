"""Replay of a pull log of which events are lost: nothing is lost with them but the knowledge that it was done."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.delivery.driver import ANN, BOB, HIGH, MIDDLE, Driver
from towline.delivery import Bury, Group, Part, Resend, Skip, decode_event, mend, snapshot
from towline.errors import TowlineError
from towline.model import Span

Name = tuple[int, int]


def history(seed: int, steps: int = 25) -> Driver:
    """A group that has seen much."""
    chance = random.Random(seed)
    mq = Driver(max_attempts=3, delays_s=(0.0, 2.0))
    for _ in range(steps):
        mq.append(chance.choice((HIGH, MIDDLE, MIDDLE)), chance.randint(0, 5))
        mq.pass_time(chance.choice((0, 1, 3)))
        try:
            _step(mq, chance)
        except TowlineError:
            pass
    return mq


def _step(mq: Driver, chance: random.Random) -> None:
    consumer = chance.choice((ANN, BOB))
    pull = chance.choice(list(mq.group.leases) or [1])
    spans = tuple(Span(*part[:3]) for part in mq.group.leases[pull].open) if pull in mq.group.leases else ()
    some = chance.sample(spans, chance.randint(0, len(spans)))
    match chance.randint(0, 9):
        case 0 | 1 | 2:
            mq.pull(consumer, chance.randint(1, 8))
        case 3 | 4:
            mq.ack(*some, pull=pull, consumer=consumer, up_to=chance.random() < 0.3)
        case 5 | 6:
            mq.nack(*some, pull=pull, consumer=consumer, dead=chance.random() < 0.3)
        case 7:
            chance.choice((mq.leave, mq.vanish))(consumer)
        case 8:
            mq.do(Skip(pull, tuple(some), "damaged"))
        case _:
            mq.do(Bury(tuple(mq.group.dying), 0))
            mq.trim(MIDDLE, min([*mq.group.pins().values(), mq.group.ends[MIDDLE]]))


def needed(group: Group, ends: list[int]) -> set[Name]:
    """The messages of lanes with these ends that are still to be consumed."""
    parts = [part for part, _ in group.retries] + list(group.dying)
    parts += [part for lease in group.leases.values() for part in lease.open]
    parts += [Part(lane, at, end - at, 1) for lane, (at, end) in enumerate(zip(group.next, ends, strict=True))]
    return {(part.lane, number) for part in parts for number in range(part.first, part.end)}


def mended(mq: Driver, lost: set[int]) -> Group:
    group = Group(mq.config)
    for number, record in enumerate(mq.log):
        if number not in lost:
            mend(group, decode_event(record))
    return group


@given(st.integers(0, 1 << 32))
@settings(max_examples=40)
def test_an_undamaged_log_is_replayed_as_ever(seed: int) -> None:
    mq = history(seed)
    group = Group(mq.config)
    assert not any(mend(group, decode_event(record)) for record in mq.log)
    assert snapshot(group, 0) == snapshot(mq.group, 0)


@given(st.integers(0, 1 << 32), st.sets(st.integers(0, 40), max_size=6))
@settings(max_examples=200)
def test_whatever_events_are_lost_no_message_is(seed: int, lost: set[int]) -> None:
    # Given a log with holes
    mq = history(seed)
    # When it is replayed
    group = mended(mq, lost)
    # Then all that was still to be consumed still is
    assert needed(mq.group, mq.group.ends) <= needed(group, mq.group.ends)
    # And no message is in two places
    for lane, end in enumerate(mq.group.ends):
        group.observe(lane, 0, end, 100)
    assert group.lag() == len(needed(group, group.ends))
    assert sum(group.in_flight.values()) == sum(lease.open.messages for lease in group.leases.values())
    if not any(number in lost for number in range(len(mq.log))):
        assert snapshot(group, 0) == snapshot(mq.group, 0)


def test_a_lost_pull_is_delivered_again() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    mq.pull(ANN, 4)
    mq.pull(BOB, 4)
    group = mended(mq, {0})
    assert [part for part, _ in group.retries] == [Part(MIDDLE, 0, 4, 1)]
    assert group.next[MIDDLE] == 8


def test_what_is_known_to_be_done_is_not_delivered_again_though_its_pull_is_lost() -> None:
    mq = Driver()
    mq.append(MIDDLE, 10)
    mq.pull(ANN, 4)
    mq.ack(Span(MIDDLE, 1, 3))
    group = mended(mq, {0})
    assert [part for part, _ in group.retries] == [Part(MIDDLE, 0, 1, 1)]
    assert snapshot(group, 0).counters["DONE"] == 3


def test_a_lost_ack_leaves_the_lease_open_and_a_lost_nack_hands_it_over() -> None:
    mq = Driver()
    mq.append(MIDDLE, 4)
    mq.pull(ANN, 2)
    mq.ack(pull=1)
    assert mended(mq, {1}).in_flight == {ANN: 2}
    mq.pull(ANN, 2)
    mq.nack(pull=2, delay_s=0)
    mq.pull(BOB, 2)
    group = mended(mq, {3})
    assert group.in_flight == {BOB: 2}
    assert list(group.leases[3].open) == [Part(MIDDLE, 2, 2, 2)]


def test_a_lost_burial_buries_again_and_a_lost_death_does_not() -> None:
    mq = Driver()
    mq.append(MIDDLE, 2)
    mq.pull()
    mq.nack(dead=True)
    mq.do(Bury((Part(MIDDLE, 0, 2, 1),), 0))
    mq.do(Resend((0, 1)))
    assert list(mended(mq, {2}).dying) == [Part(MIDDLE, 0, 2, 1)]
    group = mended(mq, {1})
    assert (group.dying, group.leases, group.lag()) == ({}, {}, 0)
