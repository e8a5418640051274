"""Transactions, prepared transactions and dedup ids, on both clients and every broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import towline
from tests.client.conftest import Served
from tests.client.either import do, entered
from tests.client.peer import Peer
from tests.eventually import eventually_done
from tests.inside.client import Call, DirectTransaction, Phase, Senders, ShardMap
from tests.inside.client import transaction_buffer as drafts
from tests.inside.ground import ManualClock
from tests.inside.protocol import Failed, Send, Sent
from towline.errors import BadName, BadRequest, Closed, Conflict, QueueFull, TooLarge, Unavailable


async def bodies(mq: Any, topic: str, priority: str = "middle") -> list[bytes]:
    try:
        return [message.body for message in await do(mq.browse(topic, priority, max_messages=100_000))]
    except towline.NotFound:
        return []


class Oops(Exception):
    pass


# Transactions


async def test_a_transaction_is_seen_when_it_is_committed_and_not_before(connect: Any, url: str, topic: str) -> None:
    other = f"{topic}-stock"
    async with entered(connect(url)) as mq:
        async with entered(mq.transaction()) as tx:
            assert await do(tx.send(topic, b"a", key="k", headers={"h": "1"})) == 0
            assert await do(tx.send(other, b"b", priority="high")) == 1
            await do(mq.send(topic, b"somebody else"))
            assert await do(tx.send(topic, b"c")) == 2
            assert await do(tx.send_many(topic, [b"d", b"e"])) == range(3, 5)
            assert await bodies(mq, topic) == [b"somebody else"]
            assert (len(tx), tx.state, tx.receipts) == (5, "open", [])
        assert await bodies(mq, topic) == [b"somebody else", b"a", b"c", b"d", b"e"], "in order, nothing between"
        assert await bodies(mq, other, "high") == [b"b"]
        assert [receipt.id for receipt in tx.receipts] == [
            f"{topic}/middle/1",
            f"{other}/high/0",
            *(f"{topic}/middle/{seq}" for seq in (2, 3, 4)),
        ]
        assert tx.state == "committed"
        (message,) = await do(mq.browse(topic, first=1, max_messages=1))
        assert (message.key, message.headers) == ("k", {"h": "1"})


async def test_an_exception_aborts(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        tx = mq.transaction()

        async def fail() -> None:
            async with entered(tx):
                await do(tx.send(topic, b"a"))
                raise Oops

        with pytest.raises(Oops):
            await fail()
        assert tx.state == "aborted"
        await do(mq.send(topic, b"after"))
        assert await bodies(mq, topic) == [b"after"]


async def test_begin_commit_and_abort_step_by_step(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        one, two = mq.transaction(), mq.transaction()
        with pytest.raises(Conflict, match="has not begun"):
            await do(one.send(topic, b"too early"))
        one.begin()
        two.begin()
        await do(one.send(topic, b"one"))
        await do(two.send(topic, b"two"))
        assert [receipt.seq for receipt in await do(two.commit())] == [0]
        assert [receipt.seq for receipt in await do(one.commit())] == [1]
        three = mq.transaction().begin()
        await do(three.send(topic, b"three"))
        three.abort()
        assert await do(mq.transaction().begin().commit()) == [], "an empty one is fine"
        for ended in (one, three):
            for use in (partial(ended.send, topic, b"x"), ended.commit, ended.abort, ended.begin):
                with pytest.raises(Closed, match=f"was {ended.state} already"):
                    await do(use())
        assert await bodies(mq, topic) == [b"two", b"one"]


async def test_transactions_do_not_nest(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        async with entered(mq.transaction()) as tx:
            with pytest.raises(Conflict, match="do not nest"):
                async with entered(mq.transaction()):
                    pass
            with pytest.raises(Conflict, match="do not nest"):
                async with entered(tx):
                    pass
            await do(tx.send(topic, b"a"))
        async with entered(mq.transaction()) as tx:
            await do(tx.send(topic, b"b"))
        assert await bodies(mq, topic) == [b"a", b"b"]


async def test_a_transaction_belongs_to_one_thread(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, entered(mq.transaction()) as tx:
        found: list[BaseException] = []

        def elsewhere() -> None:
            try:
                asyncio.run(do(tx.send(topic, b"x")))
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert isinstance(found[0], Conflict)
        assert "thread" in str(found[0])


async def test_what_is_too_large_is_refused_and_leaves_nothing(
    connect: Any, url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "MESSAGES_MAX", 10)
    monkeypatch.setattr(drafts, "FRAMES_MAX", 2)
    async with entered(connect(url)) as mq:
        tx = mq.transaction().begin()
        await do(tx.send_many(topic, [b"x"] * 9))
        with pytest.raises(TooLarge, match="at most 10 messages"):
            await do(tx.send_many(topic, [b"x"] * 2))
        await do(tx.send(topic, b"y", priority="low"))
        tx.abort()
        tx = mq.transaction().begin()
        await do(tx.send(topic, b"x", priority="low"))
        await do(tx.send(topic, b"x", priority="high"))
        with pytest.raises(TooLarge, match="at most 2 lanes"):
            await do(tx.send(topic, b"x"))
        with pytest.raises(TooLarge, match="16,777,216 bytes"):
            await do(tx.send(topic, bytes(17 << 20), priority="high"))
        for bad in ({"priority": "urgent"}, {"headers": {"a": 1}}, {"dedup_id": ""}, {"dedup_id": "x" * 201}):
            with pytest.raises(BadRequest):
                await do(tx.send(topic, b"x", **bad))
        with pytest.raises(BadName):
            await do(tx.send("No!", b"x"))
        assert len(await do(tx.commit())) == 2, "none of this has harmed it"
        # Each alone is small enough; only the frames show that they are too large together.
        tx = mq.transaction().begin()
        await do(tx.send(topic, bytes(8 << 20)))
        await do(tx.send(topic, bytes((8 << 20) - 10), priority="low"))
        with pytest.raises(TooLarge, match="16,777,216 bytes"):
            await do(tx.commit())
        tx.abort()
        assert await bodies(mq, topic) == []


def test_one_that_is_older_than_its_timeout_is_aborted() -> None:
    clock = ManualClock()
    core = DirectTransaction(
        Senders(""), shards=ShardMap(), max_request_bytes=1 << 20, durability=-1, timeout_s=5.0, clock=clock
    )
    core.begin()
    core.add("orders", b"x", key=None, priority="middle", headers=None, dedup_id=None)
    clock.advance(5.1)
    with pytest.raises(Conflict, match=r"began 5\.1 seconds ago, and its timeout is 5: it was aborted"):
        next(core.commit())
    assert core.phase is Phase.ABORTED
    with pytest.raises(BadRequest, match="timeout"):
        DirectTransaction(Senders(""), shards=ShardMap(), max_request_bytes=1 << 20, durability=-1, timeout_s=0)


async def test_a_full_broker_refuses_it_whole_and_it_can_be_committed_later(connect: Any, topic: str) -> None:
    async with entered(connect("memory:?capacity_messages=10")) as mq:
        await do(mq.send_many(topic, [b"x"] * 8))
        tx = mq.transaction().begin()
        await do(tx.send_many(topic, [b"y"] * 2))
        await do(tx.send_many(f"{topic}-2", [b"z"]))
        with pytest.raises(QueueFull):
            await do(tx.commit())
        assert tx.state == "open"
        assert len(await bodies(mq, topic)) == 8
        async with entered(mq.consumer(topic, group="g")) as consumer:
            await do((await do(consumer.pull(100))).ack())
        await do(tx.commit())
        assert await bodies(mq, f"{topic}-2") == [b"z"]


def test_a_commit_whose_answer_got_lost_can_be_committed_again() -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        first = peer.accept()
        first.meet()
        first.expect(Send)
        seen.append(first.attached)
        # No answer at all: the client gives up, and asks again later.
        second = peer.accept()
        second.greet()
        second.expect(Send)
        seen.append(second.attached)
        second.answer(Sent([5, 7], 99, True))

    with Peer(script) as peer, towline.connect(peer.url, timeout=3) as mq:
        tx = mq.transaction().begin()
        tx.send("orders", b"a")
        tx.send("stock", b"b")
        with pytest.raises(Unavailable):
            tx.commit()
        assert tx.state == "being committed"
        with pytest.raises(Conflict, match=r"commit\(\) again tells"):
            tx.abort()
        assert [receipt.seq for receipt in tx.commit()] == [5, 7]
        assert seen[0] == seen[1], "the broker knows the same frames again"


def test_a_transaction_over_very_many_lanes_is_known_again(url: str, topic: str) -> None:
    """One that is sent twice, because its answer was lost, is stored once however many lanes it has."""
    with towline.connect(url) as mq:
        answers = []
        for _ in range(2):
            tx = mq.transaction().begin()
            for n in range(66):
                for priority in towline.model.LANES:
                    tx.send(f"{topic}-{n}", b"x", priority=priority)
            call = next(tx._core.commit())
            assert isinstance(call, Call)
            answers += [mq._link.ask(Call(call.request, call.buffers)) for _ in range(2)]
            tx.commit()
        assert [answer.duplicate for answer in answers] == [False, True, False, True]
        assert [answer.firsts for answer in answers] == [[0] * 198, [0] * 198, [1] * 198, [1] * 198]
        assert len(mq._senders._idle) == 1, "one number after another is used again"


# Dedup ids


async def test_a_dedup_id_is_stored_once(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        first = await do(mq.send(topic, b"a", dedup_id="order-1", priority="high"))
        assert await do(mq.send(topic, b"again", dedup_id="order-1")) == first
        many = await do(mq.send_many(topic, [b"b", b"c", b"d"], dedup_ids=["order-1", "order-2", None]))
        assert many[0] == first
        assert [receipt.id for receipt in many] == [f"{topic}/high/0", f"{topic}/middle/0", f"{topic}/middle/1"]
        async with entered(mq.transaction()) as tx:
            await do(tx.send(topic, b"e", dedup_id="order-2"))
            await do(tx.send(topic, b"f"))
            await do(tx.send(topic, b"g", dedup_id="order-3"))
            await do(tx.send(topic, b"h", dedup_id="order-3"))
        assert [receipt.seq for receipt in tx.receipts] == [0, 2, 3, 3]
        assert await bodies(mq, topic) == [b"c", b"d", b"f", b"g"]
        with pytest.raises(TypeError, match="a dedup id is a str"):
            await do(mq.send(topic, b"x", dedup_id=5))
        with pytest.raises(BadRequest, match="2 dedup_ids for 1 bodies"):
            await do(mq.send_many(topic, [b"x"], dedup_ids=["a", "b"]))


async def test_a_producer_in_the_background_takes_dedup_ids(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        first = await do(mq.send(topic, b"a", dedup_id="order-1"))
        async with entered(mq.producer()) as producer:
            pending = [await do(producer.send(topic, b"plain"))]
            pending += [await do(producer.send(topic, b"%d" % n, dedup_id=f"order-{n}")) for n in (1, 2, 2, 3)]
            await do(producer.flush())
            receipts = [one.result() for one in pending]
        assert receipts[1] == first
        assert [receipt.seq for receipt in receipts] == [1, 0, 2, 2, 3]
        assert await bodies(mq, topic) == [b"a", b"plain", b"2", b"3"]


# Prepared transactions


async def test_a_prepared_transaction_is_seen_when_it_is_committed(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url, token="shop-1")) as mq:
        async with entered(mq.prepare("shop", name="order-1")) as tx:
            await do(tx.send(topic, b"a", key="k"))
            await do(tx.send(topic, b"b", priority="low", dedup_id="x"))
            assert await do(tx.store()) == tx.id
            assert await bodies(mq, topic) == []
            found = await do(mq.find_transaction(tx.id))
            assert (found.state, found.name, found.producer_group) == ("prepared", "order-1", "shop")
            with pytest.raises(Conflict, match="is stored"):
                await do(tx.send(topic, b"too late"))
        assert [receipt.id for receipt in tx.receipts] == [f"{topic}/middle/0", f"{topic}/low/0"]
        assert await bodies(mq, topic) == [b"a"]
        assert await do(tx.commit()) == tx.receipts, "again, and nothing changes"
        with pytest.raises(Conflict, match="committed already"):
            await do(tx.rollback())
        (message,) = await do(mq.browse(topic))
        assert (message.key, message.token) == ("k", "shop-1")


async def test_a_prepared_transaction_can_be_rolled_back(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        async with entered(mq.prepare("shop")) as tx:
            await do(tx.send(topic, b"a"))
            await do(tx.store())
            await do(tx.rollback())
            await do(tx.rollback())
        assert (await do(mq.find_transaction(tx.id))).state == "rolled back"
        with pytest.raises(Conflict, match="rolled back already"):
            await do(tx.commit())
        never = mq.prepare("shop")
        await do(never.send(topic, b"b"))
        await do(never.rollback())
        with pytest.raises(Closed, match="aborted already"):
            await do(never.commit())
        assert await bodies(mq, topic) == []


async def test_it_must_be_stored_before_it_is_committed(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        tx = mq.prepare("shop")
        with pytest.raises(BadRequest, match="no message"):
            await do(tx.store())
        await do(tx.send(topic, b"a"))
        with pytest.raises(Conflict, match=r"store\(\) it before"):
            await do(tx.commit())
        with pytest.raises(BadName, match="producer group"):
            mq.prepare("no such!")
        with pytest.raises(BadRequest, match="check_after"):
            mq.prepare("shop", check_after=0)


async def test_an_error_after_store_leaves_it_to_the_check(connect: Any, url: str, topic: str) -> None:
    """The user's own commit may have happened although it raised: only a look into the database tells."""
    async with entered(connect(url, token=topic)) as mq:
        tx = mq.prepare("shop", name="order-7", check_after=0.05)

        async def fail() -> None:
            async with entered(tx):
                await do(tx.send(topic, b"a"))
                await do(tx.store())
                raise Oops

        with pytest.raises(Oops):
            await fail()
        assert tx.state == "stored"
        asked: list[towline.Check] = []
        said = iter([None, "maybe", Oops(), "commit"])

        def what_became(check: towline.Check) -> Any:
            asked.append(check)
            word = next(said)
            if isinstance(word, Exception):
                raise word
            return word

        async with entered(mq.on_check("shop", what_became)):
            await eventually_done(
                lambda: do(mq.find_transaction(tx.id)), holds=lambda found: found.state == "committed"
            )
        assert [(check.name, check.attempt) for check in asked] == [("order-7", n) for n in (1, 2, 3, 4)]
        assert await bodies(mq, topic) == [b"a"]


async def test_a_check_may_be_answered_by_a_coroutine(topic: str) -> None:
    async with towline.aio.connect("memory:") as mq:

        async def what_became(check: towline.Check) -> Any:
            await asyncio.sleep(0)
            return "rollback"

        tx = mq.prepare("shop", check_after=0.05)
        await tx.send(topic, b"a")
        await tx.store()
        mq.on_check("shop", what_became)
        await eventually_done(lambda: mq.find_transaction(tx.id), holds=lambda found: found.state == "rolled back")


async def test_another_client_of_the_group_is_asked_and_strangers_are_not(connect: Any, url: str, topic: str) -> None:
    strangers: list[towline.Check] = []
    async with (
        entered(connect(url, token=f"{topic}-shop")) as mq,
        entered(connect(url, token=f"{topic}-shop")) as friend,
        entered(connect(url, token=f"{topic}-thief")) as thief,
    ):
        thief.on_check("shop", strangers.append)
        mq.on_check("other-group", strangers.append)
        tx = mq.prepare("shop", check_after=0.05)
        await do(tx.send(topic, b"a"))
        await do(tx.store())
        friend.on_check("shop", lambda check: "commit")
        await eventually_done(lambda: do(mq.find_transaction(tx.id)), holds=lambda found: found.state == "committed")
        assert strangers == []
        assert await bodies(mq, topic) == [b"a"]


async def test_a_transaction_can_be_resolved_by_hand(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        tx = mq.prepare("shop")
        await do(tx.send(topic, b"a"))
        await do(tx.store())
        assert tx.id in [one.transaction for one in await do(mq.transactions())]
        assert tx.id not in [one.transaction for one in await do(mq.transactions(parked=True))]
        with pytest.raises(BadRequest, match="'commit' or 'rollback'"):
            await do(mq.resolve_transaction(tx.id, "maybe"))
        await do(mq.resolve_transaction(tx.id, "rollback", reason="the shop is gone"))
        with pytest.raises(Conflict, match="the shop is gone"):
            await do(tx.commit())


async def test_a_commit_is_told_again_to_a_broker_that_was_restarted(
    connect: Any, serve: Callable[..., Served], topic: str, tmp_path: Any
) -> None:
    flags = ("--store", f"file:{tmp_path / 'data'}", "--durability", "os", "--tx-check-after-s", "0.2")
    broker = serve(*flags)
    async with entered(connect(f"towline://{broker.address}")) as mq:
        one, two = mq.prepare("shop", "one"), mq.prepare("shop", "two")
        for tx in (one, two):
            await do(tx.send(topic, tx.name.encode()))
            await do(tx.store())
        asked: list[str] = []
        mq.on_check("shop", lambda check: asked.append(check.name))
        await asyncio.to_thread(broker.stop, kill=True)
        await asyncio.to_thread(serve, *flags, port=broker.port)
        await do(one.commit())
        await do(one.commit())
        assert await bodies(mq, topic) == [b"one"]
        await eventually_done(lambda: "two" in asked)
        await do(two.rollback())
        assert await bodies(mq, topic) == [b"one"]


def test_a_refused_commit_stays_open() -> None:
    def script(peer: Peer) -> None:
        visitor = peer.accept()
        visitor.meet()
        visitor.expect(Send)
        visitor.answer(Failed("refused", "you may not send orders"))

    with Peer(script) as peer, towline.connect(peer.url, timeout=60) as mq:
        tx = mq.transaction().begin()
        tx.send("orders", b"a")
        with pytest.raises(towline.Refused):
            tx.commit()
        tx.abort()
