"""A connection that is cut at COMMIT: before it or after it, nothing is lost and nothing is there twice."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.inside.frame import Frame
from tests.inside.sql import SqlSettings, SqlStore, open_sql
from tests.store.contract.stores import all_bodies, frame_of, put
from tests.store.sql.proxy import CuttingProxy
from tests.store.sql.server import mariadb
from towline.errors import Unavailable
from towline.model import Durability


def through(proxy: CuttingProxy, settings: SqlSettings, **changes: float) -> SqlSettings:
    return msgspec.structs.replace(settings, hosts=(("127.0.0.1", proxy.port),), **changes)


async def send_for_ever(store: SqlStore) -> None:
    while True:
        await asyncio.wait([put(store, "lane/a/low", frame_of(1, mark="more")).done], timeout=0.05)


async def settled(store: SqlStore) -> None:
    await store.append([], Durability.FSYNC).done


async def test_nothing_is_lost_or_doubled_when_connections_are_cut_at_commit(
    settings: SqlSettings, request: pytest.FixtureRequest
) -> None:
    cuts: int = request.config.getoption("--cuts")
    sent: dict[str, list[bytes]] = {}
    async with CuttingProxy(mariadb().port, 0.5, cuts, seed=5) as proxy:
        store = await open_sql(through(proxy, settings, lease_s=30, group_rows=500), owner="test")

        async def produce(name: str) -> None:
            index = 0
            while sum(proxy.cuts.values()) < cuts:
                # Some are large enough for the next transaction to begin before this one ends.
                frame = frame_of(3 if index % 2 else 450, 40, f"{name}-{index}")
                sent.setdefault(name, []).extend(Frame(frame).bodies())
                await put(store, name, frame).done
                index += 1

        async with asyncio.timeout(100 + cuts):
            await asyncio.gather(*(produce(f"lane/t{index}/low") for index in range(4)))
            await settled(store)
        assert store.failure is None
        assert store.figures()["begun_ahead"]
        for name, bodies in sent.items():
            assert await all_bodies(store, name) == bodies
        await store.close()
    assert proxy.cuts["before"] >= cuts // 4
    assert proxy.cuts["after"] >= cuts // 4
    again = await open_sql(settings, owner="test")
    for name, bodies in sent.items():
        assert await all_bodies(again, name) == bodies
    await again.close()
    for name, bodies in sent.items():
        _, topic, lane = name.split("/")
        counted = mariadb().sql(f"SELECT COUNT(*), MIN(id), MAX(id) FROM msg_p_{topic}_{lane}", settings.database)
        assert counted == [[str(len(bodies)), "0", str(len(bodies) - 1)]]


async def test_while_the_database_is_away_producers_wait_then_get_an_error_and_all_recovers(
    settings: SqlSettings,
) -> None:
    async with CuttingProxy(mariadb().port, 0, 0, seed=1) as proxy:
        store = await open_sql(through(proxy, settings, wait_s=0.5, lease_s=30), owner="test")
        await put(store, "lane/a/low", frame_of(1, mark="before")).done
        proxy.refusing = True
        proxy.cut_all()
        waiting = put(store, "lane/a/low", frame_of(1, mark="meanwhile"))
        async with asyncio.timeout(60):
            with pytest.raises(Unavailable, match="cannot be reached") as refused:
                await send_for_ever(store)
        assert refused.value.retriable
        assert not waiting.done.done()
        proxy.refusing = False
        async with asyncio.timeout(60):
            await waiting.done
            await settled(store)
            await put(store, "lane/a/low", frame_of(1, mark="after")).done
        bodies = await all_bodies(store, "lane/a/low")
        assert bodies[0].startswith(b"before")
        assert bodies[1].startswith(b"meanwhile")
        assert bodies[-1].startswith(b"after")
        await store.close()


async def test_a_transaction_that_waited_too_long_for_a_lock_is_done_again_whole(settings: SqlSettings) -> None:
    """Another session holds the row that every transaction begins with for longer than we wait for locks."""
    store = await open_sql(msgspec.structs.replace(settings, lease_s=60), owner="test")
    await put(store, "lane/a/low", frame_of(2, mark="1")).done
    other = await store.database.connect()
    if store.database.mariadb:  # ours are ended after a second
        await other.send("SET SESSION idle_write_transaction_timeout = 0")
    await other.begin()
    await other.send("UPDATE mq_realm SET address = 'x'")
    waiting = put(store, "lane/a/low", frame_of(2, mark="2"))
    async with asyncio.timeout(60):
        while not store.figures()["replays"]:  # innodb_lock_wait_timeout is 5 s: then it fails with 1205
            await asyncio.sleep(0.05)
    await other.rollback()
    await other.close()
    async with asyncio.timeout(60):
        await waiting.done
    assert len(await all_bodies(store, "lane/a/low")) == 4
    await store.close()
