"""Leases with an epoch: one owner at a time, taken over when it is silent, and a deposed one changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from asyncmy.errors import MySQLError

from tests.inside.sql import (
    Connection,
    Database,
    Lease,
    Ownership,
    Roster,
    SqlSettings,
    SqlStore,
    fence,
    open_sql,
    prepare_database,
)
from tests.store.contract.stores import all_bodies, frame_of, put
from tests.store.sql.server import mariadb
from towline.errors import OwnershipLost, StoreLocked


@asynccontextmanager
async def prepared(settings: SqlSettings, **changes: float) -> AsyncIterator[Database]:
    database = await prepare_database(msgspec.structs.replace(settings, **changes))
    yield database
    await database.close()


def freeze(store: SqlStore) -> None:
    """What SIGSTOP does to its broker: the lease is not renewed any more, but all memory stays."""
    store._writer._task.cancel()


async def test_a_realm_has_one_owner_at_a_time(settings: SqlSettings) -> None:
    async with prepared(settings, lease_s=30) as database:
        one, two = Ownership(database, "one", "host1:7400"), Ownership(database, "two")
        lease = await one.acquire("main")
        assert lease is not None
        assert lease.epoch == 1
        assert await two.acquire("main") is None
        assert await one.acquire("main") is None, "another process may have the same name"
        assert await two.acquire("other") is not None
        holders = {holder.realm: holder for holder in await two.holders()}
        assert holders["main"].owner == "one"
        assert holders["main"].address == "host1:7400"
        assert 20 < holders["main"].left_s <= 30
        with pytest.raises(StoreLocked, match=r"one at host1:7400.*Stop that one"):
            await two.wait_for("main", 0.2)


async def test_the_realm_of_an_owner_that_is_known_to_be_dead_is_taken_at_once(settings: SqlSettings) -> None:
    async with prepared(settings, lease_s=30) as database:
        one, two, three = (Ownership(database, name) for name in ("one", "two", "three"))
        assert await one.acquire("main") is not None
        assert await two.acquire("main", dead_owner="three") is None, "it is not three's"
        taken = await two.acquire("main", dead_owner="one")
        assert taken is not None
        assert taken.epoch == 2
        assert await three.acquire("main", dead_owner="one") is None, "two was faster"


async def test_a_released_realm_is_free_at_once_and_an_heir_comes_first(settings: SqlSettings) -> None:
    async with prepared(settings, lease_s=30) as database:
        one, two, three = (Ownership(database, name) for name in ("one", "two", "three"))
        lease = await one.acquire("main")
        assert lease is not None
        await one.release(lease, heir="two")
        assert await three.acquire("main") is None
        inherited = await two.acquire("main")
        assert inherited is not None
        assert inherited.epoch == 2
        await one.release(lease)
        assert await three.acquire("main") is None, "the lease that one let go of is not one's any more"
        await two.release(inherited)
        assert await three.acquire("main") is not None


class Slow:
    """A connection on which a broker hangs between looking at a realm and taking it."""

    def __init__(self, connection: Connection, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._connection = connection
        self._meanwhile = meanwhile

    async def rows(self, statement: Any, **values: Any) -> Any:
        return await self._connection.rows(statement, **values)

    async def run(self, statement: Any, **values: Any) -> int:
        await self._meanwhile()
        return await self._connection.run(statement, **values)


@pytest.mark.parametrize("way", ["expired", "inherited", "deposed"])
async def test_a_takeover_that_is_late_does_not_meet_a_realm_that_changed_hands_and_looks_the_same(
    settings: SqlSettings, way: str
) -> None:
    """Else two brokers would have the same epoch, and neither would be fenced."""
    async with prepared(settings, lease_s=30) as database:
        one, two, late = (Ownership(database, name) for name in ("one", "two", "late"))
        first = await one.acquire("main")
        assert first is not None
        if way != "deposed":
            await one.release(first, heir="late" if way == "inherited" else "")
        taken: list[Lease] = []

        async def meanwhile() -> None:
            """Another broker has had the realm, which is then as it was but for its epoch."""
            if way == "inherited":
                mariadb().sql("UPDATE mq_realm SET expires_at = NOW(6) - INTERVAL 1 SECOND", settings.database)
            lease = await two.acquire("main", dead_owner="one" if way == "deposed" else "")
            assert lease is not None
            taken.append(lease)
            if way == "deposed":
                again = await one.acquire("main", dead_owner="two")
                assert again is not None
                taken.append(again)
            else:
                await two.release(lease, heir="late" if way == "inherited" else "")

        dead_owner = "one" if way == "deposed" else ""
        got = await database.reading(
            lambda connection: late._acquire(Slow(connection, meanwhile), "main", dead_owner)  # type: ignore[arg-type]
        )
        assert got is None
        holder = (await one.holders())[0]
        assert holder.epoch == taken[-1].epoch
        assert holder.owner != "late"


async def test_an_open_store_keeps_its_realm_and_a_silent_one_loses_it_within_three_seconds(
    settings: SqlSettings,
) -> None:
    async with prepared(settings) as database:
        one, two = Ownership(database, "one"), Ownership(database, "two")
        lease = await one.acquire("main")
        assert lease is not None
        store = await SqlStore.open(database, lease)
        deadline = time.monotonic() + 1.5 * lease.lease_s
        while time.monotonic() < deadline:
            assert await two.acquire("main") is None
            await asyncio.sleep(0.1)
        freeze(store)
        begin = time.monotonic()
        taken = await two.wait_for("main", 10)
        assert time.monotonic() - begin <= 3
        assert taken.epoch == lease.epoch + 1
        await store.close()


async def test_a_deposed_owner_changes_nothing(settings: SqlSettings) -> None:
    async with prepared(settings, lease_s=0.3) as database:
        one, two = Ownership(database, "one"), Ownership(database, "two")
        lease = await one.acquire("main")
        assert lease is not None
        zombie = await SqlStore.open(database, lease)
        await put(zombie, "lane/a/low", frame_of(2, mark="before")).done
        await zombie.save("x", b"before")
        freeze(zombie)
        await asyncio.sleep(0)
        taken = await two.wait_for("main", 10)
        owner = await SqlStore.open(database, msgspec.structs.replace(taken, lease_s=30))
        await put(owner, "lane/a/low", frame_of(2, mark="owner")).done
        await owner.save("x", b"owner")

        # It wakes up, and goes on where it was.
        zombie._writer._task = asyncio.get_running_loop().create_task(zombie._writer._run())
        late = put(zombie, "lane/a/low", frame_of(2, mark="zombie"))
        with pytest.raises(OwnershipLost, match="belongs to another broker by now: two"):
            await late.done
        with pytest.raises(OwnershipLost):
            await zombie.save("x", b"zombie")
        with pytest.raises(OwnershipLost):
            await zombie.trim("lane/a/low", 2)
        with pytest.raises(OwnershipLost):
            put(zombie, "lane/a/low", frame_of(1))
        assert zombie.lost.done()
        await zombie.close()

        assert [body[:6] for body in await all_bodies(owner, "lane/a/low")] == [b"before"] * 2 + [b"owner:"] * 2
        assert await owner.load("x") == b"owner"
        await owner.close()
        assert await two.acquire("main") is not None, (
            "closing the zombie took nothing from the owner, closing it freed it"
        )


@pytest.mark.parametrize("amid", [False, True], ids=["between statements", "amid a statement"])
async def test_a_broker_that_hangs_within_a_transaction_does_not_keep_its_realm(
    settings: SqlSettings, amid: bool
) -> None:
    """It has locked the row of its realm, and neither goes on nor ends its connection: the server does that."""
    async with prepared(settings, lease_s=1) as database:
        lease = await Ownership(database, "one").acquire("main")
        assert lease is not None
        hanging = await database.connect_to_write(lease.lease_s)
        assert await hanging.exchange([fence(hanging, lease, 1, 0)]) == [1]
        if amid:
            hanging._raw._write_bytes(b"\x40\x00\x00\x00\x03COMM")
        taken = await Ownership(database, "two").wait_for("main", 20)
        assert taken.epoch == lease.epoch + 1
        with pytest.raises((MySQLError, OSError)):
            await hanging.commit()
        hanging.drop()


async def test_a_killed_brokers_successor_waits_for_its_lease(settings: SqlSettings) -> None:
    store = await open_sql(settings, owner="one")
    await put(store, "lane/a/low", frame_of(3, mark="1")).done
    freeze(store)
    successor = await open_sql(settings, owner="two")
    assert len(await all_bodies(successor, "lane/a/low")) == 3
    assert put(successor, "lane/a/low", frame_of(1)).firsts == (3,)
    await successor.close()
    await store.close()


async def test_realms_of_one_database_do_not_mix(settings: SqlSettings) -> None:
    async with prepared(settings) as database:
        ownership = Ownership(database, "one")
        stores = []
        for realm in ("a", "b"):
            lease = await ownership.acquire(realm)
            assert lease is not None
            stores.append(await SqlStore.open(database, lease))
        for store in stores:
            realm = store.lease.realm
            await put(store, f"lane/{realm}/low", frame_of(2, mark=realm)).done
            await put(store, "delay/marks", frame_of(1, mark=realm)).done
            await store.save("x", realm.encode())
        for store in stores:
            realm = store.lease.realm
            assert store.streams() == ["delay/marks", f"lane/{realm}/low"]
            assert (await all_bodies(store, "delay/marks"))[0].startswith(realm.encode())
            assert await store.load("x") == realm.encode()
            await store.close()


async def test_brokers_are_on_the_roster_while_they_are_there(settings: SqlSettings) -> None:
    async with prepared(settings) as database:
        roster = Roster(database)
        store = await open_sql(settings, owner="one", address="host1:7400")
        async with asyncio.timeout(60):
            while not (present := await roster.present("broker", within_s=30)):
                await asyncio.sleep(0.02)
        assert [(one.name, one.address, one.data["realm"]) for one in present] == [("one", "host1:7400", "main")]
        await roster.beat("broker", "two", "host2:7400", {})
        assert [one.name for one in await roster.present("broker", within_s=30)] == ["one", "two"]
        assert await roster.present("broker", within_s=-1) == []
        await store.close()
        assert [one.name for one in await roster.present("broker", within_s=30)] == ["two"]


async def test_the_server_of_a_test_runs_without_root() -> None:
    owner = next(mariadb().data.iterdir()).owner()
    assert owner != "root"
