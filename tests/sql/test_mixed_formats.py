"""A realm of a database whose format waits for brokers of the version before."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.broker.conftest import ACK, Bench, World
from towline.broker.broker import Broker
from towline.broker.format_number import FormatNumber
from towline.broker.opening import sql_settings
from towline.broker.realms import _Store
from towline.clock import SYSTEM
from towline.store.sql import Database, Ownership, prepare_database

SMALL = 20_000


async def realm(world: World, database: Database) -> Bench:
    settings = world.settings(retention_bytes=SMALL)
    store = await _Store.open(database, await Ownership(database, "b").wait_for("main", 30.0))
    store.number, store.kept_back = FormatNumber(database, 1, 3600.0, SYSTEM), {}
    return Bench(await Broker.open(store, settings), store)


def test_retention_leaves_the_events_that_are_in_no_snapshot_on_the_database(tmp_path: Path) -> None:
    async def main() -> None:
        world = World("sql", tmp_path)
        database = await prepare_database(sql_settings(world.settings()))
        bench = await realm(world, database)
        member = await bench.attach()
        for number in range(20):
            await bench.send("orders", b"%d" % number)
            assert (await bench.act(member, ACK, await bench.pull(member))).refused == []
        await bench.broker.maintain()
        await bench.send("orders", b"held")
        await bench.broker.maintain()
        for _ in range(2):
            await bench.send("other", bytes(2 * SMALL))
            await bench.broker.maintain()
        assert bench.store.bounds("lane/other/middle").first, "retention was at work"
        assert await bench.store.load("consumerOffset.json") is None
        state = bench.broker.group_state("orders", "billing")
        # It ends at once: what it kept back is gone with it.
        await bench.broker._stop()
        await bench.store.close()
        bench = await realm(world, database)
        again = bench.broker.group_state("orders", "billing")
        assert (again.positions, again.lag) == (state.positions, state.lag)
        assert again.config == state.config
        await bench.broker.close()
        await database.close()

    asyncio.run(main())
