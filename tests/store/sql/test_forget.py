"""A stream that is forgotten leaves no row behind, and what comes under its name is another one."""

from __future__ import annotations

import asyncio

from tests.eventually import eventually_done
from tests.inside.broker import FormatNumber, _Store
from tests.inside.ground import FORMAT, SYSTEM
from tests.inside.sql import Ownership, SqlSettings, open_sql, prepare_database
from tests.inside.store import Store
from tests.store.contract.stores import all_bodies, fill, frame_of, put
from tests.store.sql.server import mariadb

EVERYTHING = 1 << 40


def names(settings: SqlSettings) -> list[str]:
    return sorted(row[0] for row in mariadb().sql("SELECT name FROM mq_stream", settings.database))


def frames(settings: SqlSettings) -> int:
    [[events], [others]] = mariadb().sql(
        "SELECT COUNT(*) FROM mq_pull_log UNION ALL SELECT COUNT(*) FROM mq_frame", settings.database
    )
    return int(events) + int(others)


async def forget(store: Store, *streams: str) -> None:
    for stream in streams:
        await store.trim(stream, EVERYTHING, forget=True)


async def test_streams_that_come_and_go_leave_no_rows(settings: SqlSettings) -> None:
    """The row of the last one stays as long as its number could be given again."""
    for _ in range(2):
        store = await open_sql(settings, owner="test")
        for number in range(10):
            await fill(store, f"pull/a/{number}", 2)
            await fill(store, f"dead/a/{number}", 2)
            await forget(store, f"pull/a/{number}", f"dead/a/{number}")
        await fill(store, "lane/a/low", 1)
        await store.trim("lane/a/low", EVERYTHING)
        await fill(store, "pull/a/last", 1)
        await forget(store, "pull/a/last")
        await eventually_done(lambda: frames(settings) == 0)
        await eventually_done(lambda: len(names(settings)) == 4)
        assert [name for name in names(settings) if not name.startswith("gone/")] == ["dead/", "lane/a/low", "pull/"]
        await store.close()


async def test_no_number_is_given_again_though_a_higher_one_was_lost_in_a_crash(settings: SqlSettings) -> None:
    store = await open_sql(settings, owner="test")
    for name in ("pull/a/x", "pull/a/y", "pull/a/z"):
        await fill(store, name, 1)
    await forget(store, "pull/a/x")  # from now on their kind has a floor
    await fill(store, "pull/a/last", 1)
    last = store._streams.get("pull/a/last")
    assert last is not None
    lost = store._streams.make("lane/a/low")  # it is in memory only, as before its first commit
    assert lost.id > last.id
    await forget(store, "pull/a/last")
    for name in ("pull/a/y", "pull/a/z"):
        await forget(store, name)
        await eventually_done(lambda name=name: not [one for one in names(settings) if one.endswith(name)])  # type: ignore[misc]
    assert last.name in names(settings)
    await store.close()
    store = await open_sql(settings, owner="test")
    await fill(store, "lane/a/high", 1)
    new = store._streams.get("lane/a/high")
    assert new is not None
    assert new.id > last.id
    await store.close()


async def test_a_start_goes_on_with_what_a_crash_left(settings: SqlSettings) -> None:
    store = await open_sql(settings, owner="test")
    store._sweeper._task.cancel()
    for name in ("pull/a/x", "pull/a/y"):
        await fill(store, name, 20)
    await fill(store, "lane/a/low", 1)
    await forget(store, "pull/a/x", "pull/a/y")
    bodies = await fill(store, "pull/a/x", 3)
    assert [name.split("/")[0] for name in names(settings)] == ["gone", "gone", "lane", "pull", "pull"]
    await store.close()
    store = await open_sql(settings, owner="test")
    await eventually_done(lambda: names(settings) == ["lane/a/low", "pull/", "pull/a/x"])
    assert frames(settings) == 4
    assert store.bounds("pull/a/x")[:2] == (20, 23)
    assert await all_bodies(store, "pull/a/x") == bodies
    await store.close()


async def test_a_stream_goes_and_comes_again_in_one_transaction(settings: SqlSettings) -> None:
    store = await open_sql(settings, owner="test")
    await fill(store, "pull/a/x", 4)
    for end in range(4, 14, 2):
        forgetting = asyncio.create_task(forget(store, "pull/a/x"))
        await asyncio.sleep(0)
        coming = put(store, "pull/a/x", frame_of(2))
        assert coming.firsts == (end,)
        await forgetting
        await coming.done
        assert store.bounds("pull/a/x")[:2] == (end, end + 2)
    await store.close()
    store = await open_sql(settings, owner="test")
    assert store.bounds("pull/a/x")[:2] == (12, 14)
    assert len(await all_bodies(store, "pull/a/x")) == 2
    await store.close()


async def test_nothing_is_forgotten_while_brokers_of_a_version_before_may_be_there(settings: SqlSettings) -> None:
    """They know of no floor: they would count from 0, and their start would stumble over its row."""
    database = await prepare_database(settings)
    store = await _Store.open(database, await Ownership(database, "test").wait_for("main", 5))
    store.number = FormatNumber(database, FORMAT - 1, 60.0, SYSTEM)
    await fill(store, "pull/a/x", 3)
    await forget(store, "pull/a/x")
    assert (store.streams(), names(settings)) == (["pull/a/x"], ["pull/a/x"])
    assert store.bounds("pull/a/x")[:2] == (3, 3)
    store.number.number = FORMAT
    await forget(store, "pull/a/x")
    assert store.streams() == []
    assert store.bounds("pull/a/y")[:2] == (3, 3)
    await store.close()
    await database.close()
