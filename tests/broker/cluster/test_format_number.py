"""A realm of a database whose format waits for brokers of the version before."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.broker.conftest import ACK, Bench, World
from tests.inside.broker import Broker, FormatNumber, _Store, sql_settings
from tests.inside.ground import FORMAT, SYSTEM
from tests.inside.sql import Database, Ownership, prepare_database

SMALL = 20_000
DOCUMENTS = ("consumerOffset-1.bin", "consumerOffset.json", "producers.bin", "unused.json")


async def realm(world: World, database: Database) -> Bench:
    settings = world.settings(retention_bytes=SMALL)
    store = await _Store.open(database, await Ownership(database, "b").wait_for("main", 30.0))
    store.number = FormatNumber(database, 1, 3600.0, SYSTEM)
    return Bench(await Broker.open(store, settings), store)


async def test_retention_leaves_the_events_that_are_in_no_snapshot_on_the_database(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("how", ["retention", "close"])
async def test_what_was_kept_back_is_written_once_the_number_is_raised_though_nobody_saves_anything(
    tmp_path: Path, how: str
) -> None:
    world = World("sql", tmp_path)
    database = await prepare_database(sql_settings(world.settings()))
    bench = await realm(world, database)
    assert isinstance(bench.store, _Store)
    await bench.send("orders", *(b"%d" % number for number in range(20)))
    member = await bench.attach()
    await bench.act(member, ACK, await bench.pull(member))
    await bench.broker.maintain()
    await bench.flush()
    pins, store = await bench.broker._pins(), bench.store
    kept = dict(store.kept_back)
    assert kept.keys() >= {"consumerOffset.json", "producers.bin"}
    await bench.broker._stop()
    store.number.number = FORMAT
    if how == "retention":
        await store.retain(0, 1, pins)
        assert {name: await store.load(name) for name in kept} == kept
    await store.close()
    again = await _Store.open(database, await Ownership(database, "b").wait_for("main", 30.0))
    assert {name: await again.load(name) for name in kept} == kept
    await again.close()
    await database.close()


async def test_of_documents_that_are_saved_in_the_moment_the_number_is_raised_each_is_there_as_it_was_last(
    tmp_path: Path,
) -> None:
    database = await prepare_database(sql_settings(World("sql", tmp_path).settings()))
    store = await _Store.open(database, await Ownership(database, "b").wait_for("main", 30.0))
    store.number = FormatNumber(database, FORMAT - 1, 3600.0, SYSTEM)
    for name in DOCUMENTS:
        await store.save(name, b"kept back")
    store.number.number = FORMAT
    await asyncio.gather(*(store.save(name, b"new") for name in reversed(DOCUMENTS[1:])), store.retain(0, 0, {}))
    assert [await store.load(name) for name in DOCUMENTS] == [b"kept back", *[b"new"] * 3]
    await store.close()
    await database.close()


def test_streams_of_deleted_groups_are_forgotten_once_the_number_is_raised_and_not_said_to_be_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World("sql", tmp_path)
        database = await prepare_database(sql_settings(world.settings()))
        bench = await realm(world, database)
        for number in range(2):
            await bench.attach(group=f"g{number}")
            await bench.broker.groups.delete("orders", f"g{number}")
        await bench.broker.close()
        bench = await realm(world, database)
        await bench.broker.groups.forget_left()
        await bench.broker.maintain()
        assert bench.store.streams("pull/") == ["pull/orders/g0", "pull/orders/g1"]
        assert "are forgotten" not in caplog.text
        assert isinstance(bench.store, _Store)
        bench.store.number.number = FORMAT
        await bench.broker.maintain()
        assert bench.store.streams("pull/") == []
        assert "2 streams of groups that are there no more are forgotten" in caplog.text
        await bench.broker.close()
        await database.close()

    with caplog.at_level(logging.INFO, "towline.broker"):
        asyncio.run(main())
