"""Ordered topics together with everything else that a message may do: delays, dedup ids, transactions."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import pytest

from tests.client.either import do, entered
from tests.eventually import eventually_done
from tests.inside.client import shard_of
from towline.errors import BadRequest, NotFound
from towline.model import GroupConfig, RetryPolicy

SHARDS = 8


def lane_of(topic: str, key: str) -> str:
    return str(shard_of(topic, SHARDS, key, None, "middle"))


async def pull_all(consumer: Any, count: int) -> dict[str, list[bytes]]:
    """Pull and ack so many messages: by key, in the order in which they came."""
    seen: dict[str, list[bytes]] = defaultdict(list)
    while sum(map(len, seen.values())) < count:
        batch = await do(consumer.pull(wait=60))
        for message in batch:
            seen[message.key].append(message.body)
        await do(batch.ack())
    return seen


async def test_a_delayed_message_enters_its_shard_when_it_is_due(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=SHARDS))
        begin_us = time.time_ns() // 1000
        bodies, delays = [b"late", b"soon", b"at once", b"between"], [0.4, 0.2, None, 0.3]
        many = await do(mq.send_many(topic, bodies, keys=["k"] * 4, delays=delays))
        assert [one.lane for one in many] == ["delay", "delay", lane_of(topic, "k"), "delay"]
        async with entered(mq.producer()) as producer:
            sent = [
                await do(producer.send(topic, b"p1", key="k")),
                await do(producer.send(topic, b"p late", key="k", delay=0.5)),
                await do(producer.send(topic, b"p2", key="k")),
            ]
        assert [(await do(one.result())).lane for one in sent] == [lane_of(topic, "k"), "delay", lane_of(topic, "k")]
        async with entered(mq.consumer(topic, group="g")) as consumer:
            seen = (await pull_all(consumer, 7))["k"]
        # Where these come between those is a matter of time.
        assert [body for body in seen if body in {b"at once", b"p1", b"p2"}] == [b"at once", b"p1", b"p2"]
        assert [body for body in seen if body in {b"soon", b"between", b"late"}] == [b"soon", b"between", b"late"]
        page = await do(mq.browse(topic, int(lane_of(topic, "k"))))
        assert [message.body for message in page] == seen
        assert {message.shard_key for message in page} == {"k"}
        arrived_us = {message.body: message.appended_at_us - begin_us for message in page}
        assert arrived_us[b"soon"] >= 200_000
        assert arrived_us[b"late"] >= 400_000
        assert arrived_us[b"p late"] >= 500_000


async def test_delayed_messages_are_cancelled_and_moved(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=SHARDS))
        one = await do(mq.send(topic, b"one", key="a", delay=3600))
        assert one.lane == "delay"
        await do(mq.send_many(topic, [b"two", b"three"], keys=["a", "b"], delay=3600))
        waiting = await do(mq.delayed(topic))
        assert sorted((entry.key, entry.lane, entry.priority) for entry in waiting) == [
            (key, lane_of(topic, key), "middle") for key in ("a", "a", "b")
        ]
        assert await do(mq.cancel(topic, one)) == 1
        assert await do(mq.reschedule(topic, key="b", delay=0.001)) == 1
        async with entered(mq.consumer(topic, group="g")) as consumer:
            assert await pull_all(consumer, 1) == {"b": [b"three"]}
        assert (await do(mq.topic(topic))).delayed == 1


async def test_what_is_due_at_the_same_time_keeps_the_order_of_its_sends(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, entered(connect(url)) as other:
        await do(mq.create_topic(topic, shards=2))
        at = time.time() + 3600
        for number in range(24):
            # By two connections: what they send lies in parcels of their own.
            sender = other if number % 3 else mq
            await do(sender.send(topic, b"%d" % number, key=f"k{number % 4}", deliver_at=at))
        for number in range(4):
            assert await do(mq.reschedule(topic, key=f"k{number}", delay=0.001)) == 6
        async with entered(mq.consumer(topic, group="g")) as consumer:
            seen = await pull_all(consumer, 24)
        assert seen == {f"k{n}": [b"%d" % number for number in range(n, 24, 4)] for n in range(4)}


async def test_dedup_ids_are_known_whatever_the_shard(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=SHARDS))
        first = await do(mq.send(topic, b"a", key="k1", dedup_id="1"))
        assert first.lane == lane_of(topic, "k1")
        assert await do(mq.send(topic, b"a", key="k1", dedup_id="1")) == first
        assert await do(mq.send(topic, b"a", key="other", dedup_id="1")) == first
        many = await do(
            mq.send_many(
                topic,
                [b"a", b"b", b"c", b"b", b"d"],
                keys=["k1", "k2", "k3", "k2", "k1"],
                dedup_ids=["1", "2", None, "2", "4"],
            )
        )
        assert many[0] == first
        assert many[1] == many[3]
        assert [one.lane for one in many] == [lane_of(topic, key) for key in ("k1", "k2", "k3", "k2", "k1")]
        async with entered(mq.producer()) as producer:
            again = [await do(producer.send(topic, b"x", key="k1", dedup_id=name)) for name in ("1", "2", "5")]
        receipts = [await do(one.result()) for one in again]
        assert receipts[:2] == [first, many[1]]
        late = await do(mq.send(topic, b"late", key="k4", dedup_id="6", delay=0.2))
        assert late.lane == "delay"
        assert await do(mq.send(topic, b"late", key="k4", dedup_id="6")) == late
        async with entered(mq.consumer(topic, group="g")) as consumer:
            seen = await pull_all(consumer, 6)
        assert seen == {"k1": [b"a", b"d", b"x"], "k2": [b"b"], "k3": [b"c"], "k4": [b"late"]}
        assert await do(mq.send(topic, b"late", key="k4", dedup_id="6")) == late


async def test_a_transaction_lies_contiguous_in_its_shards(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, entered(connect(url)) as other:
        await do(mq.create_topic(topic, shards=SHARDS))
        await do(mq.send(topic, b"before", key="k0"))
        async with entered(mq.transaction()) as tx:
            for number in range(30):
                await do(tx.send(topic, b"%d" % number, key=f"k{number % 5}"))
                await do(other.send(topic, b"between", key=f"k{number % 5}"))
            await do(tx.send(f"{topic}-shared", b"shared", priority="high"))
            await do(tx.send_many(topic, [b"30", b"31"], shard_keys=["k0", "k1"]))
            await do(tx.send(topic, b"late", key="k2", delay=0.2))
            assert (await do(mq.browse(topic, int(lane_of(topic, "k3"))))).end < 30
        receipts = tx.receipts
        assert [one.lane for one in receipts[:30]] == [lane_of(topic, f"k{number % 5}") for number in range(30)]
        assert [(one.topic, one.lane) for one in receipts[30:]] == [
            (f"{topic}-shared", "high"),
            (topic, lane_of(topic, "k0")),
            (topic, lane_of(topic, "k1")),
            (topic, "delay"),
        ]
        by_lane: dict[str, list[int]] = defaultdict(list)
        for one in receipts[:30] + receipts[31:33]:
            by_lane[one.lane].append(one.seq)
        assert all(numbers == list(range(numbers[0], numbers[0] + len(numbers))) for numbers in by_lane.values())
        for receipt, number in zip(receipts[:30], range(30), strict=True):
            assert (await do(mq.message(receipt.id))).body == b"%d" % number
        async with entered(mq.consumer(topic, group="g")) as consumer:
            seen = await pull_all(consumer, 64)
        assert [body for body in seen["k3"] if body != b"between"] == [b"%d" % number for number in range(3, 30, 5)]
        assert seen["k2"][-1] == b"late"


async def test_a_transaction_without_keys_for_an_ordered_topic_is_refused(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=SHARDS))
        for key, more, words in [(None, {}, "give a shard_key"), ("k", {"priority": "high"}, "no priority")]:
            tx = mq.transaction().begin()
            await do(tx.send(f"{topic}-shared", b"x"))
            await do(tx.send(topic, b"x", key=key, **more))
            with pytest.raises(BadRequest, match=words):
                await do(tx.commit())
            tx.abort()
        with pytest.raises(BadRequest, match="not an ordered one"):
            async with entered(mq.transaction()) as tx:
                await do(tx.send(f"{topic}-shared", b"x", shard_key="k"))
        async with entered(mq.transaction()) as tx:
            await do(tx.send(topic, b"aborted", key="k"))
            tx.abort()
        assert not any(lane.end for lane in (await do(mq.topic(topic))).lanes)
        with pytest.raises(NotFound):
            await do(mq.topic(f"{topic}-shared"))


async def test_prepared_transactions_reach_their_shards(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=SHARDS))
        tx = mq.prepare(f"{topic}-shop", "order-1")
        for number in range(12):
            await do(tx.send(topic, b"%d" % number, key=f"k{number % 3}", dedup_id=f"d{number}"))
        await do(tx.send(topic, b"late", shard_key="k0", key="x", delay=0.2))
        await do(tx.store())
        assert not any(lane.end for lane in (await do(mq.topic(topic))).lanes)
        await do(mq.send(topic, b"first", key="k1", dedup_id="d4"))
        await do(tx.commit())
        lanes = [one.lane for one in tx.receipts]
        assert lanes == [*(lane_of(topic, f"k{number % 3}") for number in range(12)), "delay"]
        undone = mq.prepare(f"{topic}-shop", "order-2")
        await do(undone.send(topic, b"undone", key="k0"))
        await do(undone.store())
        await do(undone.rollback())
        async with entered(mq.consumer(topic, group="g")) as consumer:
            seen = await pull_all(consumer, 13)
        assert seen == {
            "k0": [b"0", b"3", b"6", b"9"],
            "k1": [b"first", b"1", b"7", b"10"],
            "k2": [b"2", b"5", b"8", b"11"],
            "x": [b"late"],
        }


async def test_a_broker_asks_back_for_a_transaction_over_shards(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=SHARDS))
        tx = mq.prepare(f"{topic}-shop", "order-1", check_after=0.05)
        await do(tx.send_many(topic, [b"%d" % number for number in range(20)], keys=[f"k{n % 4}" for n in range(20)]))
        await do(tx.store())
        checker = mq.on_check(f"{topic}-shop", lambda check: "commit" if check.name == "order-1" else None)
        try:
            async with entered(mq.consumer(topic, group="g")) as consumer:
                seen = await pull_all(consumer, 20)
        finally:
            await do(checker.close())
        assert seen == {f"k{n}": [b"%d" % number for number in range(n, 20, 4)] for n in range(4)}


async def test_a_topic_that_was_made_anew_gets_nothing_of_an_old_transaction(
    connect: Any, url: str, topic: str
) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=SHARDS))
        tx = mq.prepare(f"{topic}-shop")
        await do(tx.send(topic, b"x", key="k"))
        await do(tx.store())
        await do(mq.delete_topic(topic))
        await do(mq.create_topic(topic, shards=SHARDS - 1))
        with pytest.raises(BadRequest, match="roll the transaction back"):
            await do(tx.commit())
        await do(tx.rollback())


async def test_messages_of_shards_are_found_traced_and_browsed(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=SHARDS))
        await do(mq.put_group(GroupConfig(topic, "g", retry=RetryPolicy(2, (0.01,)))))
        await do(mq.send(topic, b"good", key="k1"))
        bad = await do(mq.send(topic, b"bad", key="k2"))
        await do(mq.send(topic, b"behind", key="k2", shard_key="k2"))
        assert [message.body for message in await do(mq.find(topic, key="k2"))] == [b"bad", b"behind"]
        assert {message.lane for message in await do(mq.find(topic, key="k2"))} == {lane_of(topic, "k2")}
        assert [message.body for message in await do(mq.find(topic))] == [b"good", b"bad", b"behind"]
        with pytest.raises(BadRequest, match="no priority"):
            await do(mq.find(topic, priority="high"))
        async with entered(mq.consumer(topic, group="g", name="anna")) as consumer:
            done = 0
            while done < 2:
                for message in await do(consumer.pull(wait=60)):
                    if message.lost:
                        continue
                    if message.body == b"bad":
                        message.nack("no such customer")
                    else:
                        message.ack()
                        done += 1
                    await do(consumer.flush())
            await eventually_done(lambda: do(mq.group(topic, "g")), holds=lambda group: group.dead >= 1)
            (life,) = (await do(mq.trace(bad.id))).groups
            assert (life.status, [step.what for step in life.steps]) == (
                "DEAD",
                ["pulled", "failed", "pulled", "gaveup", "buried"],
            )
            assert {step.consumer for step in life.steps[:4]} == {"anna"}
            (letter,) = await do(mq.dead_letters(topic, "g"))
            assert (letter.body, letter.shard_key, letter.origin) == (b"bad", "k2", bad.id)
            assert await do(mq.resend(topic, "g")) == 1
            (again,) = await do(consumer.pull(wait=60))
            assert (again.body, again.lane, again.shard_key) == (b"bad", "own-middle", "k2")
            again.ack()
            await do(consumer.flush())
        trace = await do(mq.trace(bad.id))
        assert trace.message.body == b"bad"
        (life,) = trace.groups
        assert life.status == "SUCCESS"
        assert [(step.what, step.copy) for step in life.steps[5:]] == [
            ("resent", False),
            ("pulled", True),
            ("acked", True),
        ]


async def test_a_group_is_moved_within_its_shards(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.create_topic(topic, shards=2))
        receipts = await do(mq.send_many(topic, [b"%d" % n for n in range(10)], keys=[f"k{n % 5}" for n in range(10)]))
        async with entered(mq.consumer(topic, group="g")) as consumer:
            first = await pull_all(consumer, 10)
            assert (await do(mq.seek(topic, "g", "earliest", dry_run=True))).again == 10
            await do(mq.seek(topic, "g", "earliest"))
            assert await pull_all(consumer, 10) == first
            lane = int(receipts[0].lane)
            await do(mq.seek(topic, "g", {lane: receipts[5].seq if receipts[5].lane == str(lane) else 0}))
            assert (await do(mq.purge(topic, dry_run=True))).messages == 10
            await do(mq.purge(topic))
            await do(mq.send(topic, b"after", key="k0"))
            assert await pull_all(consumer, 1) == {"k0": [b"after"]}
