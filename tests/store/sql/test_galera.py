"""Three nodes of a Galera cluster, one of them killed and returned under load: nothing is lost, work goes on."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from tests.inside.frame import Frame
from tests.inside.sql import Ownership, SqlStore, open_sql, parse_url, prepare_database
from tests.store.contract.stores import all_bodies, frame_of, put
from tests.store.sql.galera import Galera
from towline.errors import OwnershipLost
from towline.model import Durability

pytestmark = pytest.mark.slow


async def test_a_node_is_killed_and_returns_and_owners_on_two_nodes_exclude_each_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Galera() as cluster:
        cluster.nodes[0].sql("CREATE DATABASE queue")
        await _killed_and_returned(cluster)
        await _two_owners(cluster)
    assert any("wsrep_sync_wait" in record.message for record in caplog.records if record.levelno == logging.WARNING)


async def _killed_and_returned(cluster: Galera) -> None:
    settings = msgspec.structs.replace(parse_url(cluster.url("queue")), lease_s=30, answer_s=5, wait_s=60)
    store = await open_sql(settings, owner="test")
    assert store.database.galera
    sent: list[bytes] = []
    sending = True

    async def produce() -> None:
        while sending:
            frame = frame_of(5, 300, f"{len(sent)}")
            sent.extend(Frame(frame).bodies())
            await put(store, "lane/orders/low", frame).done

    async def until_more(count: int) -> None:
        """Work goes on: so many more messages are stored."""
        target = store.bounds("lane/orders/low").end + count
        async with asyncio.timeout(60):
            while store.bounds("lane/orders/low").end < target:
                await asyncio.sleep(0.02)

    producing = asyncio.create_task(produce())
    await until_more(300)
    first = cluster.nodes[0]
    await asyncio.to_thread(first.kill)  # the one in use
    await until_more(300)
    first.begin()
    await asyncio.to_thread(cluster.wait_synced, first)
    await until_more(300)
    sending = False
    async with asyncio.timeout(60):
        await producing
        await store.append([], Durability.FSYNC).done
    assert await all_bodies(store, "lane/orders/low") == sent
    await store.close()
    for node in cluster.nodes:
        node.sql("SET GLOBAL wsrep_sync_wait = 1")
        counted = node.sql("SELECT COUNT(*), MAX(id) + 1 FROM msg_p_orders_low", "queue")
        assert counted == [[str(len(sent)), str(len(sent))]]


async def _two_owners(cluster: Galera) -> None:
    """A deposed owner on one node, its successor on another."""
    urls = [f"mysql://root@127.0.0.1:{node.port}/queue" for node in cluster.nodes[:2]]
    databases = [await prepare_database(msgspec.structs.replace(parse_url(url), lease_s=1.0)) for url in urls]
    lease = await Ownership(databases[0], "one").wait_for("fenced", 5)
    zombie = await SqlStore.open(databases[0], lease)
    await put(zombie, "lane/fenced/low", frame_of(1, mark="one")).done
    zombie._writer._task.cancel()  # as SIGSTOP would
    successor = await SqlStore.open(databases[1], await Ownership(databases[1], "two").wait_for("fenced", 10))
    await put(successor, "lane/fenced/low", frame_of(1, mark="two")).done
    zombie._writer._task = asyncio.get_running_loop().create_task(zombie._writer._run())
    with pytest.raises(OwnershipLost):
        await put(zombie, "lane/fenced/low", frame_of(1, mark="zombie")).done
    assert [body[:3] for body in await all_bodies(successor, "lane/fenced/low")] == [b"one", b"two"]
    await zombie.close()
    await successor.close()
    for database in databases:
        await database.close()
