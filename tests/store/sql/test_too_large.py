"""A message that the database does not take is refused to its sender; the broker serves everybody else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import pytest

from tests.inside.broker import Broker, open_store
from tests.inside.frame import encode
from tests.inside.ground import SYSTEM, BrokerSettings, Clock
from tests.inside.protocol import Attach, Decide, FrameHead, ListTransactions, Prepare, Prepared, Pull, Sent
from tests.inside.sql import SqlSettings, prepare_database
from tests.store.sql.server import mariadb
from towline.errors import Conflict, Refused, TooLarge, Unavailable
from towline.model import GroupConfig

LARGE = 200_000
HOUR_US = 3600 * 1_000_000


@asynccontextmanager
async def opened(url: str, clock: Clock = SYSTEM) -> AsyncIterator[Broker]:
    settings = BrokerSettings(
        store=url,
        durability="os",
        min_free_bytes=0,
        maintenance_s=3600.0,
        store_password_file=os.environ.get("TOWLINE_STORE_PASSWORD_FILE", ""),
    )
    broker = await Broker.open(await open_store(settings), settings, clock=clock)
    try:
        yield broker
        assert broker.store.failure is None
    finally:
        await broker.close()


def send(broker: Broker, topic: str, *bodies: bytes) -> asyncio.Future[Sent]:
    return broker.send([(topic, 1, encode(list(bodies)))])


def answer_with(number: int, url: str, text: str = "so it is", table: str = "msg_p_orders_middle") -> None:
    """From now on the server answers so to an INSERT of a large body."""
    column = "body" if table.startswith("msg_") else "frame"
    mariadb().sql(
        f"DELIMITER //\nCREATE TRIGGER large BEFORE INSERT ON {table} FOR EACH ROW "
        f"IF LENGTH(NEW.{column}) >= {LARGE} THEN "
        f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = '{text}'; END IF//\nDELIMITER ;\n",
        url.rpartition("/")[2],
    )


async def consumed(broker: Broker, topic: str, count: int) -> int:
    """How many messages come, when so many are waited for."""
    member = await broker.consumers.attach(
        Attach(topic, "billing", "c", GroupConfig(topic, "billing", start="earliest"))
    )
    got = 0
    while got < count:
        pulled, _ = await broker.consumers.pull(member, Pull(0, 100, 1 << 20, 30_000))
        assert pulled.parts
        got += sum(part.count for part in pulled.parts)
    return got


@pytest.mark.parametrize("number", [8025, 8004, 1153, 1118, 1406])
async def test_a_message_that_is_too_large_for_the_database_is_refused_to_its_sender_alone(
    url: str, number: int
) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        await send(broker, "others", b"first")
        answer_with(number, url)
        before, large = send(broker, "orders", b"before"), send(broker, "orders", b"x", b"y" * LARGE)
        behind, other = send(broker, "orders", b"behind"), send(broker, "others", b"other")
        assert (await before).firsts == [1]
        with pytest.raises(TooLarge, match=r"does not take it.*so it is"):
            await large
        assert (await behind).firsts == [4], "the numbers of what was refused stay taken"
        assert (await other).firsts == [1]
        assert await consumed(broker, "orders", 3) == 3
        rows = mariadb().sql("SELECT id, body FROM msg_p_orders_middle ORDER BY id", url.rpartition("/")[2])
        assert rows == [["0", "first"], ["1", "before"], ["4", "behind"]]
    async with opened(url) as broker:
        found = await broker.store.read("lane/orders/middle", 0, 100, 1 << 20)
        assert [chunk.first for chunk in found.chunks] == [0, 1, 4], "from the database"
        assert [(lost.first, lost.count) for lost in found.lost] == [(2, 2)]


def prepare(broker: Broker, transaction: str, frame: bytes) -> Coroutine[None, None, Prepared]:
    request = Prepare(transaction, "shop", "", [FrameHead("orders", 1, len(frame))])
    return broker.transactions.prepare(request, [frame])


@pytest.mark.parametrize("ids", [["a"], ["a", "new"]], ids=["alone", "beside a new one"])
async def test_a_repeat_of_a_message_that_is_refused_fails_as_well_and_is_stored_the_next_time(
    url: str, ids: list[str]
) -> None:
    async with opened(url) as broker:
        await broker.send([("orders", lane, encode([b"first"])) for lane in (0, 1)])
        answer_with(8025, url)
        large = broker.send([("orders", 1, encode([b"y" * LARGE], dedup_ids=["a"]))])
        again = [("orders", 0, encode([b"a", b"new"][: len(ids)], dedup_ids=ids, producer_id=7, producer_seq=1))]
        repeat = broker.send(again)
        with pytest.raises(TooLarge):
            await large
        with pytest.raises(Unavailable, match="send it again"):
            await repeat
        await broker.send(again)
        assert await consumed(broker, "orders", 2 + len(ids)) == 2 + len(ids)


async def test_a_frame_that_is_too_large_is_refused_although_one_of_its_messages_is_a_repeat(url: str) -> None:
    async with opened(url) as broker:
        await broker.send([("orders", 1, encode([b"a"], dedup_ids=["a"]))])
        answer_with(8025, url)
        for _ in range(2):
            with pytest.raises(TooLarge):
                await broker.send([("orders", 1, encode([b"a", b"y" * LARGE], dedup_ids=["a", "large"]))])


async def test_a_prepared_message_that_is_too_large_is_not_known_afterwards(url: str) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        answer_with(8025, url, table="mq_frame")
        large, behind, saved = await asyncio.gather(
            prepare(broker, "t1", encode([os.urandom(LARGE)])),
            prepare(broker, "t2", encode([b"behind"])),
            broker.transactions.save(),
            return_exceptions=True,
        )
        assert isinstance(large, TooLarge)
        assert isinstance(behind, Prepared), "what came behind it does not hang on it"
        assert saved is None
        assert len(broker.transactions) == 1
    async with opened(url) as broker:
        assert len(broker.transactions) == 1, "the document does not speak of it either"
        assert not (await prepare(broker, "t1", encode([b"smaller"]))).duplicate
        for transaction in ("t1", "t2"):
            await broker.transactions.decide(Decide(transaction, commit=True))
        assert await consumed(broker, "orders", 3) == 3


async def test_a_commit_that_the_database_does_not_take_undoes_its_transaction(url: str) -> None:
    """Compressed, it was small enough to be prepared; each message has a row of its own on its lane."""
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        answer_with(8025, url)
        await prepare(broker, "t1", encode([b"y" * LARGE], compress=True))
        commit = asyncio.ensure_future(broker.transactions.decide(Decide("t1", commit=True)))
        while len(broker.transactions):
            await asyncio.sleep(0)
        await send(broker, "orders", b"behind")
        with pytest.raises(TooLarge):
            await commit
        with pytest.raises(Conflict, match=r"rolled back already \(its messages were refused"):
            await broker.transactions.decide(Decide("t1", commit=True))
        await broker.store.close()  # as by a crash: nothing more is saved
    async with opened(url) as broker:
        [state] = broker.transactions.states(ListTransactions("t1")).transactions
        assert (state.state, state.producer_group) == ("rolled back", "shop")
        assert await consumed(broker, "orders", 2) == 2


async def test_a_commit_behind_a_message_that_is_too_large_takes_place(url: str) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        await prepare(broker, "t1", encode([b"prepared"]))
        answer_with(8025, url)
        large = send(broker, "orders", b"y" * LARGE)
        decided = await broker.transactions.decide(Decide("t1", commit=True))
        with pytest.raises(TooLarge):
            await large
        assert decided.firsts == [2]
        assert await consumed(broker, "orders", 2) == 2


async def test_a_delayed_message_that_is_too_large_does_not_wait(url: str) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        answer_with(8025, url, table="mq_schedule")
        large = broker.send([("orders", 1, encode([os.urandom(LARGE)], deliver_at_us=[-HOUR_US]))])
        behind = broker.send([("orders", 1, encode([b"behind"], deliver_at_us=[-HOUR_US]))])
        assert (await asyncio.gather(large, broker._save_snapshots(), return_exceptions=True))[1] is None
        assert isinstance(large.exception(), TooLarge)
        assert (await behind).delayed == [0]
        assert broker.scheduler.figures()["delayed"] == 1
    async with opened(url) as broker:
        assert broker.scheduler.figures()["delayed"] == 1


async def test_who_sends_again_what_was_refused_is_not_told_that_it_is_there(url: str) -> None:
    """Also not by a broker that remembers what producers sent by a document that was saved meanwhile."""
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        answer_with(8025, url)
        frame = encode([b"y" * LARGE], dedup_ids=["a"], producer_id=7, producer_seq=1)
        large = broker.send([("orders", 1, frame)])
        assert (await asyncio.gather(large, broker._save_snapshots(), return_exceptions=True))[1] is None
        assert isinstance(large.exception(), TooLarge)
        await broker.store.close()  # as by a crash: nothing more is saved
    mariadb().sql("DROP TRIGGER large", url.rpartition("/")[2])
    async with opened(url) as broker:
        sent = await broker.send([("orders", 1, frame)])
        assert not sent.duplicate
        assert not sent.repeats
        assert await consumed(broker, "orders", 2) == 2


async def test_a_message_over_the_servers_packet_is_refused_although_the_limit_was_lowered_meanwhile(url: str) -> None:
    """The server answers nothing to a packet that is too long: it breaks the connection while it is being sent."""
    server = mariadb()
    [[before]] = server.sql("SELECT @@GLOBAL.max_allowed_packet")
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        server.sql("SET GLOBAL max_allowed_packet = 2097152")
        try:
            database = url.rpartition("/")[2]
            kills = server.sql(
                f"SELECT CONCAT('KILL ', id) FROM information_schema.processlist WHERE db = '{database}'"
            )
            server.sql(";".join(kill for [kill] in kills))
            with pytest.raises(TooLarge, match="max_allowed_packet"):
                await send(broker, "orders", os.urandom(3 << 20))
            assert (await send(broker, "orders", b"second")).firsts == [2]
        finally:
            server.sql(f"SET GLOBAL max_allowed_packet = {before}")


async def test_a_right_that_is_missing_on_tidb_is_named(url: str, settings: SqlSettings) -> None:
    async with opened(url) as broker:
        await send(broker, "orders", b"first")
        answer_with(8121, url, "privilege check for ''Insert'' fail")
        database = await prepare_database(settings)
        insert = f"INSERT INTO msg_p_orders_middle (id, body) VALUES (7, REPEAT('x', {LARGE}))"
        with pytest.raises(Refused, match="lacks the right INSERT in the database"):
            await database.reading(lambda connection: connection.send(insert))
        await database.close()
