"""Where delayed messages went is looked up in a stream that may be long."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.conftest import Bench, World
from tests.inside.broker import FIND_MAX, find_arrivals, note_arrivals
from tests.inside.delivery import arrival
from tests.inside.ground import clock
from tests.inside.protocol import Arrived, Purge
from towline.errors import TooLarge
from towline.model import Durability, arrived_stream

RECORDS = 2_000


async def fill(bench: Bench) -> None:
    await bench.send("orders", b"a")
    for number in range(RECORDS):
        bench.store.append(
            note_arrivals({"orders": [arrival(1, 2 * number, [9 * number, 9 * number + 5])]}), Durability.OS
        )
    await bench.store.append([], Durability.OS).done


def test_a_search_lets_others_have_their_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "SLICE_S", 0.0)

    async def scenario(bench: Bench) -> None:
        await fill(bench)
        topic = bench.broker.topics.named("orders")
        search = asyncio.create_task(find_arrivals(bench.store, topic, [9 * RECORDS - 4]))
        turns = 0
        while not search.done():
            turns += 1
            await asyncio.sleep(0)
        [found] = await search
        assert (found.lane, found.seq) == (1, 2 * RECORDS - 1)
        assert turns > RECORDS // 500

    world.run(scenario)


def test_only_so_many_are_looked_for_at_a_time(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await fill(bench)
        topic = bench.broker.topics.named("orders")
        with pytest.raises(TooLarge, match="at most 100 at a time"):
            await find_arrivals(bench.store, topic, range(FIND_MAX + 1))
        found: list[Arrived] = await find_arrivals(bench.store, topic, [9 * number for number in range(FIND_MAX)])
        assert [(one.id, one.seq) for one in found] == [(9 * number, 2 * number) for number in range(FIND_MAX)]

    world.run(scenario)


def test_what_is_purged_leaves_nothing_of_where_it_went(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a", b"b", deliver_at_us=[-10_000, -20_000])
        member = await bench.attach()
        got = 0
        while got < 2:
            got += len((await bench.pull(member, wait_ms=60_000)).bodies)
        first, end, _ = bench.store.bounds(arrived_stream("orders"))
        assert first < end
        await bench.broker.purge(Purge("orders"))
        first, end, _ = bench.store.bounds(arrived_stream("orders"))
        assert first == end

    world.run(scenario)
