"""Delayed messages in one unit with others: beside dedup ids, and in transactions."""

from __future__ import annotations

import pytest

from tests.broker.conftest import Bench, World
from tests.broker.schedule.test_model import lanes
from tests.inside.broker import Outgoing
from tests.inside.frame import encode
from tests.inside.ground import ManualClock
from tests.inside.protocol import Decide, FrameHead, Prepare
from towline.errors import BadRequest

LATER = [-60_000_000]


def unit(seq: int) -> list[Outgoing]:
    """A delayed frame between others, one of which has dedup ids."""
    return [
        ("orders", 1, encode([b"a", b"b"], dedup_ids=["x", None], producer_id=7, producer_seq=seq)),
        ("orders", 1, encode([b"later"], deliver_at_us=LATER, producer_id=7, producer_seq=seq + 1)),
        ("orders", 1, encode([b"c"], producer_id=7, producer_seq=seq + 2)),
    ]


async def deliver(bench: Bench, clock: ManualClock) -> None:
    clock.advance(61)
    await bench.broker.scheduler.catch_up()


async def test_a_unit_may_have_delayed_frames_and_frames_with_dedup_ids(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock) as bench:
        sent = await bench.broker.send(unit(1))
        assert (sent.firsts, sent.delayed, sent.repeats) == ([0, 1, 2], [1], [])
        again = await bench.broker.send(unit(1))
        assert (again.firsts, again.delayed, again.duplicate) == ([0, 1, 2], [1], True)
        other = await bench.broker.send(unit(11))
        assert (other.firsts, other.delayed, [one[:4] for one in other.repeats]) == ([3, 2, 4], [1], [(0, 0, 1, 0)])
        await deliver(bench, clock)
        # What is delivered takes its numbers where the next unit foretells its own.
        assert (await bench.broker.send(unit(21))).firsts == [7, 3, 8]
        member = await bench.attach()
        assert (await bench.pull(member)).bodies == [b"a", b"b", b"c", b"b", b"c", b"later", b"later", b"b", b"c"]


async def test_a_unit_with_a_delayed_frame_is_known_again_after_a_restart(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock) as bench:
        sent = await bench.broker.send(unit(1))
    async with disk.open(clock) as bench:
        again = await bench.broker.send(unit(1))
        assert (again.firsts, again.delayed, again.duplicate) == (sent.firsts, [1], True)
        await deliver(bench, clock)
        assert (await lanes(bench)).keys() == {b"a", b"b", b"c", b"later"}


def waiting_once(seq: int) -> list[Outgoing]:
    """Delayed messages with dedup ids, due in another order than they are sent in."""
    times, ids = [-90_000_000, -60_000_000, -30_000_000], ["slow", "known", None]
    frame = encode([b"slow", b"known", b"quick"], dedup_ids=ids, deliver_at_us=times, producer_id=7, producer_seq=seq)
    return [("orders", 1, frame)]


async def test_delayed_messages_with_dedup_ids_are_told_apart_after_a_restart(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock) as bench:
        known = await bench.send("orders", b"known", dedup_ids=["known"])
        sent = await bench.broker.send(waiting_once(1))
        assert (sent.firsts, sent.delayed) == ([1], [0])
        assert sent.repeats == [(0, 1, 1, 0, known.appended_at_us)]
        await bench.flush()
    for restart in range(3):
        async with disk.open(clock) as bench:
            again = await bench.broker.send(waiting_once(1))
            assert (again.firsts, again.delayed, again.duplicate, again.repeats) == ([1], [0], True, sent.repeats)
            other = await bench.send("orders", b"other", dedup_ids=["slow"])
            assert other.repeats == [(0, 0, 1, ~1, sent.appended_at_us)], restart
            await deliver(bench, clock)
    async with disk.open(clock) as bench:
        assert (await lanes(bench)).keys() == {b"known", b"quick", b"slow"}


async def prepare(bench: Bench, *frames: bytes) -> None:
    heads = [FrameHead("orders", 1, len(frame)) for frame in frames]
    await bench.broker.transactions.prepare(Prepare("t1", "shop", "", heads), frames)


async def test_a_prepared_transaction_may_hold_delayed_messages(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock) as bench:
        await prepare(bench, encode([b"later"], deliver_at_us=LATER), encode([b"now"], dedup_ids=["x"]))
        await deliver(bench, clock)
        assert not await lanes(bench), "its delay counts from the commit"
        done = await bench.broker.transactions.decide(Decide("t1", True))
        assert (done.firsts, done.delayed) == ([1, 0], [0])
        assert (await lanes(bench)).keys() == {b"now"}
        await deliver(bench, clock)
        assert (await lanes(bench)).keys() == {b"now", b"later"}
        again = await bench.broker.transactions.decide(Decide("t1", True))
        assert (again.firsts, again.delayed, again.duplicate) == ([1, 0], [0], True)


async def test_a_committed_delay_outlives_a_restart_and_is_delivered_once(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock) as bench:
        await prepare(bench, encode([b"later"], deliver_at_us=LATER), encode([b"now"]))
    async with disk.open(clock) as bench:
        await bench.broker.transactions.decide(Decide("t1", True))
    async with disk.open(clock) as bench:
        again = await bench.broker.transactions.decide(Decide("t1", True))
        assert (again.firsts, again.delayed, again.duplicate) == ([1, 0], [0], True)
        await deliver(bench, clock)
        assert (await lanes(bench)).keys() == {b"now", b"later"}


def test_a_delay_that_no_commit_could_book_is_refused_when_it_is_prepared(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(BadRequest, match="no delay level 900"):
            await prepare(bench, encode([b"a"], deliver_at_us=[-900]))

    world.run(scenario)
