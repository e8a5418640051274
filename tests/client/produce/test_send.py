"""Sending, on both clients and every broker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.either import do, entered
from tests.inside.client import FrameEncoder, Start, sharding
from tests.inside.frame import Frame
from tests.inside.protocol import Sent
from towline.errors import BadName, BadRequest, TooLarge
from towline.model import Durability


async def test_a_sent_message_can_be_found(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url, token="appid-1;sid-2")) as mq:
        receipt = await do(mq.send(topic, b"hello", key="k-1", priority="high", headers={"a": "b"}))
        assert (receipt.topic, receipt.lane, receipt.seq) == (topic, "high", 0)
        assert receipt.id == f"{topic}/high/0"

        (message,) = await do(mq.browse(topic, "high"))
        assert (message.body, message.key, message.headers) == (b"hello", "k-1", {"a": "b"})
        assert (message.id, message.priority, message.token) == (receipt.id, "high", "appid-1;sid-2")
        assert message.appended_at_us == receipt.appended_at_us
        assert 0 < message.produced_at_us <= message.appended_at_us + 1_000_000
        assert message.appended_at.tzinfo is not None


@pytest.mark.parametrize("durability", [None, "fsync", "os", "received", Durability.OS])
async def test_durability_can_be_asked_for(connect: Any, url: str, topic: str, durability: Any) -> None:
    async with entered(connect(url)) as mq:
        assert (await do(mq.send(topic, b"x", durability=durability))).seq == 0
        with pytest.raises(BadRequest, match="fsync, os, received"):
            await do(mq.send(topic, b"x", durability="paper"))


async def test_bytes_like_bodies_are_taken_and_text_is_refused(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, bytearray(b"one")))
        await do(mq.send(topic, memoryview(b"-two-")[1:4]))
        await do(mq.send_many(topic, [b"three", bytearray(b"four")]))
        assert [m.body for m in await do(mq.browse(topic))] == [b"one", b"two", b"three", b"four"]

        with pytest.raises(TypeError, match=r"body\.encode\(\)"):
            await do(mq.send(topic, "text"))
        with pytest.raises(TypeError, match=r"body\.encode\(\)"):
            await do(mq.send_many(topic, [b"fine", "text"]))
        with pytest.raises(TypeError, match="not one bytes"):
            await do(mq.send_many(topic, b"one body"))
        with pytest.raises(TypeError, match="int"):
            await do(mq.send(topic, 5))


async def test_what_cannot_be_sent_is_refused_with_the_reason(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        with pytest.raises(BadName, match="lower-case"):
            await do(mq.send("No Such Topic!", b"x"))
        with pytest.raises(BadRequest, match="high, middle, low"):
            await do(mq.send(topic, b"x", priority="urgent"))
        with pytest.raises(BadRequest, match="strings by name"):
            await do(mq.send(topic, b"x", headers={"number": 1}))
        with pytest.raises(TypeError, match="a key is a str"):
            await do(mq.send(topic, b"x", key=5))
        with pytest.raises(BadRequest, match="not valid text"):
            await do(mq.send(topic, b"x", key="\ud800"))
        with pytest.raises(BadRequest, match="2 keys for 1 bodies"):
            await do(mq.send_many(topic, [b"x"], keys=["a", "b"]))
        with pytest.raises(TooLarge, match="limit"):
            await do(mq.send(topic, bytes(17 << 20)))
        # And nothing of all this has harmed the connection.
        assert (await do(mq.send(topic, b"x"))).seq == 0


async def test_many_messages_go_in_order_whatever_their_sizes(connect: Any, url: str, topic: str) -> None:
    bodies = [
        b"%d:" % number + b"x" * (number % 7 * 40_000 if number < 100 else number % 50) for number in range(25_000)
    ]
    keys = [f"k{number}" if number % 3 else None for number in range(25_000)]
    async with entered(connect(url)) as mq:
        receipts = await do(mq.send_many(topic, bodies, keys=keys, headers={"all": "same"}, compress=True))
        assert len(receipts) == 25_000
        assert [receipt.seq for receipt in receipts] == list(range(25_000))
        assert receipts[-1].id == f"{topic}/middle/24999"
        assert [receipt.seq for receipt in receipts[10:13]] == [10, 11, 12]
        with pytest.raises(IndexError):
            receipts[25_000]

        seen: list[tuple[bytes, str | None]] = []
        first = 0
        while len(seen) < 25_000:
            page = await do(mq.browse(topic, first=first, max_messages=10_000))
            seen += [(message.body, message.key) for message in page]
            first = page.next
        assert seen == list(zip(bodies, keys, strict=True))
        (message,) = await do(mq.browse(topic, first=24_999, max_messages=1))
        assert message.headers == {"all": "same"}


async def test_sending_nothing_is_fine(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        assert len(await do(mq.send_many(topic, []))) == 0


async def test_a_transaction_may_hold_delayed_messages(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        async with entered(mq.transaction()) as tx:
            await do(tx.send(topic, b"a", dedup_id="x"))
            await do(tx.send(topic, b"later", delay=3600))
            await do(tx.send(topic, b"b"))
        assert [(one.lane, one.seq) for one in tx.receipts if one.lane != "delay"] == [("middle", 0), ("middle", 1)]
        assert tx.receipts[1].lane == "delay"
        assert [message.body for message in await do(mq.browse(topic))] == [b"a", b"b"]
        assert await do(mq.cancel(topic, tx.receipts[1])) == 1

        async with entered(mq.prepare("shop")) as prepared:
            await do(prepared.send(topic, b"later", delay=3600))
            await do(prepared.store())
        (receipt,) = prepared.receipts
        assert [one.id for one in await do(mq.delayed(topic))] == [receipt.id]


async def test_a_delayed_message_with_a_dedup_id_waits_once(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        first = await do(mq.send(topic, b"x", dedup_id="x", delay=3600))
        assert first.lane == "delay"
        assert await do(mq.send(topic, b"x again", dedup_id="x", delay=60)) == first
        assert await do(mq.send(topic, b"x now", dedup_id="x")) == first
        many = await do(mq.send_many(topic, [b"y", b"x", b"z"], dedup_ids=["y", "x", None], delays=[60, 60, 30]))
        assert [one.lane for one in many] == ["delay"] * 3
        assert many[1] == first
        async with entered(mq.transaction()) as tx:
            await do(tx.send(topic, b"y", dedup_id="y", delay=1))
            await do(tx.send(topic, b"w", dedup_id="w", delay=3600))
        assert tx.receipts[0] == many[0]
        async with entered(mq.producer()) as producer:
            pending = [
                await do(producer.send(topic, b"w", dedup_id="w", delay=1)),
                await do(producer.send(topic, b"v", dedup_id="v", delay=1800)),
            ]
        assert pending[0].result() == tx.receipts[1]
        waiting = {one.id for one in await do(mq.delayed(topic))}
        assert waiting == {first.id, many[0].id, many[2].id, tx.receipts[1].id, pending[1].result().id}
        assert not await do(mq.browse(topic))


async def test_a_purged_topic_forgets_its_dedup_ids(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"a", dedup_id="a"))
        later = await do(mq.send(topic, b"b", dedup_id="b", delay=3600))
        await do(mq.purge(topic, dry_run=True))
        assert (await do(mq.send(topic, b"a", dedup_id="a"))).seq == 0
        await do(mq.purge(topic))
        again = await do(mq.send(topic, b"a anew", dedup_id="a"))
        assert (again.lane, again.seq) == ("middle", 1)
        assert await do(mq.send(topic, b"b", dedup_id="b")) == later


def test_a_list_that_is_changed_while_it_is_sent_is_sent_as_it_was() -> None:
    bodies = [b"x" * 10] * 10_000 + [b"short", b"much longer body"]
    common = sharding.Common(FrameEncoder(), sharding.ShardMap(), "middle", 1, False, 16 << 20)
    flow = sharding.send_many(common, "orders", sharding.Content(bodies))
    first = flow.send(None)
    bodies[-2:] = reversed(bodies[-2:])
    assert isinstance(first, Start)
    assert flow.send(None) is first.call, "its answer is waited for"
    second = flow.send(Sent([0], 1))
    assert isinstance(second, Start)
    assert Frame(b"".join(second.call.buffers)).verify().bodies() == [b"short", b"much longer body"]
