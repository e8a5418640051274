"""How rows get into the database: in either encoding, and over two connections without losing their order."""

from __future__ import annotations

import asyncio
import os
from functools import partial

import msgspec
import pytest

from tests.inside.frame import Frame, encode
from tests.inside.sql import TEXT, Ownership, SqlSettings, SqlStore, open_sql, prepare_database
from tests.store.contract.stores import all_bodies, frame_of, put
from tests.store.sql.server import mariadb
from towline.errors import OwnershipLost
from towline.model import Durability

AWKWARD = [b"", b"'", b"\\", b"\\'", b"\x00\x1a\n", bytes(range(256)), b"x" * 250, b"y" * 251, b"z" * 70_000]


def rich(bodies: list[bytes]) -> bytes:
    """A frame in which most columns have some values and some none."""
    count = len(bodies)
    return encode(
        bodies,
        keys=[f"ключ-{number}'\\" if number % 2 else None for number in range(count)],
        headers=[{"k": "v" * number} if number % 3 else None for number in range(count)],
        expires_at_us=[1 << 60 if number % 2 else 0 for number in range(count)],
    )


@pytest.mark.parametrize("text", [False, True], ids=["bulk", "text"])
async def test_rows_are_what_was_sent_in_either_encoding(
    settings: SqlSettings, text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text:  # speak to it as to a server that is not MariaDB
        monkeypatch.setattr("tests.inside.sql.database.BULK", TEXT)
    # Pieces of statements are small here, so that frames are cut.
    database = await prepare_database(msgspec.structs.replace(settings, statement_bytes=4096, cache_bytes=0))
    assert (database.encoding is TEXT) == (text or not database.mariadb)
    lease = await Ownership(database, "test").wait_for("main", 5)
    store = await SqlStore.open(database, lease)
    many = [os.urandom(number % 300) for number in range(2_000)]
    frames = [rich(AWKWARD), encode(AWKWARD), encode(many), encode([b"x"], keys=["k"]), encode([b"x"], keys=[None])]
    frames.append(encode([body[:1] * 200 for body in many], compress=True))
    for frame in frames:
        await put(store, "lane/orders/high", frame).done
    expected = [body for frame in frames for body in Frame(frame).bodies()]
    assert await all_bodies(store, "lane/orders/high") == expected
    await store.close()
    await database.close()
    rows = mariadb().sql(
        "SELECT id, HEX(body), IFNULL(HEX(ref_key), '-'), IFNULL(HEX(headers), '-'), IFNULL(expires_us, 0)"
        " FROM msg_p_orders_high ORDER BY id",
        settings.database,
    )
    assert [(int(row[0]), bytes.fromhex(row[1])) for row in rows] == list(enumerate(expected))
    keys = ["-" if row[2] == "-" else bytes.fromhex(row[2]).decode() for row in rows[: len(AWKWARD)]]
    assert keys == [f"ключ-{number}'\\" if number % 2 else "-" for number in range(len(AWKWARD))]
    headers = [None if row[3] == "-" else msgspec.json.decode(bytes.fromhex(row[3])) for row in rows[: len(AWKWARD)]]
    assert headers == [{"k": "v" * number} if number % 3 else None for number in range(len(AWKWARD))]
    assert [int(row[4]) for row in rows[: len(AWKWARD)]] == [
        1 << 60 if number % 2 else 0 for number in range(len(AWKWARD))
    ]


async def test_the_next_transaction_begins_before_its_turn_and_order_is_kept(settings: SqlSettings) -> None:
    store = await open_sql(msgspec.structs.replace(settings, lease_s=30, group_rows=1_000), owner="test")
    sent: list[bytes] = []
    order: list[int] = []

    def note(index: int, _: object) -> None:
        order.append(index)

    await put(store, "lane/orders/low", frame_of(1, mark="the first makes the table")).done
    for index in range(40):
        frame = frame_of(250, mark=f"{index}")
        sent += Frame(frame).bodies()
        put(store, "lane/orders/low", frame).done.add_done_callback(partial(note, index))
    async with asyncio.timeout(60):
        await store.append([], Durability.FSYNC).done
    figures = store.figures()
    assert figures["begun_ahead"] > 0
    assert figures["replays"] == 0
    assert order == list(range(40))
    assert (await all_bodies(store, "lane/orders/low"))[1:] == sent
    await store.close()


async def test_rows_that_were_begun_ahead_are_gone_with_their_deposed_owner(settings: SqlSettings) -> None:
    """The first of two transactions waits for a lock while another broker takes over; the rows of the second one are
    in the table by then, uncommitted, under numbers that the successor gives to others."""
    settings = msgspec.structs.replace(settings, lease_s=60, group_rows=1_000)
    zombie = await open_sql(settings, owner="one")
    await put(zombie, "lane/orders/low", frame_of(1, mark="one")).done
    other = await zombie.database.connect()
    if zombie.database.mariadb:
        await other.send("SET SESSION idle_write_transaction_timeout = 0")
    await other.begin()
    await other.send("UPDATE mq_realm SET epoch = epoch + 1, expires_at = '2000-01-01'")
    late = [put(zombie, "lane/orders/low", frame_of(450, mark=f"zombie-{index}")).done for index in range(6)]
    async with asyncio.timeout(60):
        while len(zombie._writer._turns) < 2:
            await asyncio.sleep(0.01)
    await other.send("COMMIT")
    results = await asyncio.wait_for(asyncio.gather(*late, return_exceptions=True), 60)
    assert all(isinstance(result, OwnershipLost) for result in results), results
    async with asyncio.timeout(60):
        successor = await open_sql(settings, owner="two")
        await put(successor, "lane/orders/low", frame_of(500, mark="two")).done
    bodies = await all_bodies(successor, "lane/orders/low")
    assert [body[:3] for body in bodies] == [b"one", *[b"two"] * 500]
    await zombie.close()
    await successor.close()
    await other.close()


async def test_more_tables_are_written_than_statements_are_kept(
    settings: SqlSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.inside.sql.database._PREPARED_MAX", 4)
    database = await prepare_database(settings)
    lease = await Ownership(database, "test").wait_for("main", 5)
    store = await SqlStore.open(database, lease)
    names = [f"lane/topic-{number}/high" for number in range(12)]
    for _ in range(3):
        await asyncio.gather(*(put(store, name, encode([b"x"])).done for name in names))
        for name in names:
            await put(store, name, encode([b"y"])).done
    for name in names:
        assert await all_bodies(store, name) == [b"x", b"y"] * 3
    await store.close()
    await database.close()
