"""Where delayed messages went is looked up in a stream that may be long."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.conftest import Bench, World
from towline.broker.arrivals import FIND_MAX, find_arrivals, note_arrivals
from towline.delivery.arrivals import arrival
from towline.errors import TooLarge
from towline.model import Durability
from towline.protocol.messages import Arrived

RECORDS = 2_000


async def fill(bench: Bench) -> None:
    await bench.send("orders", b"a")
    for number in range(RECORDS):
        bench.store.append(
            note_arrivals({"orders": [arrival(1, 2 * number, [9 * number, 9 * number + 5])]}), Durability.OS
        )
    await bench.store.append([], Durability.OS).done


def test_a_search_lets_others_have_their_turn(world: World) -> None:
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
