"""Compressed frames count as what they unpack to."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.broker.conftest import Bench, World
from tests.inside.delivery import NEAR_BYTES
from tests.inside.frame import Frame, encode
from tests.inside.ground import SECOND_US, ManualClock
from tests.inside.protocol import (
    Browse,
    CancelDelayed,
    Find,
    FrameHead,
    HandBack,
    ListDelayed,
    MoveDelayed,
    Prepare,
    Scan,
    Stage,
)
from towline.errors import TooLarge

MIB = 1 << 20
MANY = 48
EACH = 4 * MIB
ROOM = 48 * MIB
"""What a few of them take, with all that is done to them."""


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No more memory is taken meanwhile than this."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= size
    finally:
        tracemalloc.stop()


async def send_later(bench: Bench, delay_s: int) -> None:
    for _ in range(MANY):
        one = encode([bytes(EACH)], keys=["k"], deliver_at_us=[-delay_s * SECOND_US], compress=True)
        await bench.broker.send([("orders", 1, one)])


def test_a_frame_that_unpacks_to_more_than_the_limit_is_refused_before_it_is_unpacked(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        bomb, half = encode([bytes(20 * MIB)], compress=True), encode([bytes(9 * MIB)], compress=True)
        with pytest.raises(TooLarge, match="unpacks to"):
            await bench.broker.send([("orders", 1, bomb)])
        with pytest.raises(TooLarge, match="unpack to"):
            await bench.broker.send([("orders", 1, half), ("orders", 1, half)])
        await bench.broker.send([("orders", 1, half)])

    world.run(scenario)


def test_pulls_pages_searches_and_scans_count_unpacked_bytes(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(8):
            await bench.broker.send([("orders", 1, encode([bytes(4 * MIB)], keys=["k"], compress=True))])
        room = 9 * MIB
        member = await bench.attach()
        assert len((await bench.pull(member, 100, max_bytes=room)).bodies) <= 2
        browsed, buffers = await bench.broker.browsing.browse(Browse("orders", 1, "", 0, 100, room))
        assert (len(buffers), browsed.next) == (2, 2)
        for key in ("k", ""):
            found, buffers = await bench.broker.browsing.find(Find("orders", 1, key, 0, 0, 0, 100, room))
            assert (len(buffers), found.next) == (2, 2)
        scanned, buffers = await bench.broker.scanning.scan(Scan("lane/orders/middle", 0, 8, room))
        assert (len(buffers), scanned.next) == (2, 2)
        assert sum(Frame(one).columns_length for one in buffers) <= room

    world.run(scenario)


async def test_delayed_messages_that_come_near_take_no_more_memory_than_the_near_index_has(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock) as bench:
        with at_most(NEAR_BYTES + ROOM):
            await send_later(bench, 1)
            clock.advance(2)
            await bench.broker.scheduler.catch_up()
        member = await bench.attach()
        got = [len((await bench.pull(member, 1, max_bytes=EACH * 2)).bodies) for _ in range(MANY)]
        assert got == [1] * MANY


async def test_delayed_messages_are_moved_nearer_and_read_again_a_few_at_a_time(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock) as bench:
        with at_most(ROOM):
            await send_later(bench, 7200)
    async with disk.open(clock) as bench:
        with at_most(NEAR_BYTES + ROOM):
            clock.advance(7199)
            await bench.broker.scheduler.catch_up()
        assert sum(bench.broker.scheduler.schedule.counts.values()) == MANY


async def test_delayed_messages_are_found_by_key_a_few_at_a_time(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock) as bench:
        await send_later(bench, 3600)
        with at_most(ROOM):
            listed = await bench.broker.delayed.list(ListDelayed("orders", max_messages=MANY, key="k"))
            assert len(listed.messages) == MANY
            at_us = clock.now_us() + 9000 * SECOND_US
            moved = await bench.broker.delayed.move(MoveDelayed("orders", [], "k", at_us))
            assert (moved.count, moved.gone) == (MANY, [])
            listed = await bench.broker.delayed.list(ListDelayed("orders", max_messages=MANY, key="k"))
            assert {one.deliver_at_us for one in listed.messages} == {at_us}
            assert (await bench.broker.delayed.cancel(CancelDelayed("orders", [], "k"))).count == MANY


def test_what_is_kept_out_of_sight_is_not_kept_unpacked(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.attach()
        one = encode([bytes(EACH)], compress=True)
        heads = [FrameHead("orders", 1, len(one))]
        with at_most(ROOM):
            await asyncio.gather(
                *(
                    bench.broker.transactions.prepare(Prepare(str(n).zfill(32), "shop", "", heads), [one])
                    for n in range(16)
                ),
                *(bench.broker.staging.stage(Stage(heads), [one]) for _ in range(16)),
                *(bench.broker.hand_back(HandBack("orders", "billing", None, 1, 1), one) for _ in range(16)),
            )

    world.run(scenario)


def test_what_is_kept_out_of_sight_unpacks_to_no_more_than_the_limit(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.attach()
        bomb = encode([bytes(20 * MIB)], compress=True)
        heads = [FrameHead("orders", 1, len(bomb))]
        with pytest.raises(TooLarge, match="unpacks to"):
            await bench.broker.transactions.prepare(Prepare("1" * 32, "shop", "", heads), [bomb])
        with pytest.raises(TooLarge, match="unpacks to"):
            await bench.broker.staging.stage(Stage(heads), [bomb])
        with pytest.raises(TooLarge, match="unpacks to"):
            await bench.broker.hand_back(HandBack("orders", "billing", None, 1, 1), bomb)

    world.run(scenario)
