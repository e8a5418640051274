"""Ordered topics, through the broker."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.conftest import ACK, DEAD, NACK, Bench, World
from tests.eventually import eventually_done
from tests.inside.frame import encode
from tests.inside.ground import SECOND_US, ManualClock
from tests.inside.protocol import Resend
from towline.errors import BadRequest, Conflict, WrongShard
from towline.model import TopicConfig


def test_a_waiting_consumer_gets_a_shard_as_soon_as_it_is_free(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        await mq.broker.topics.create(TopicConfig("orders", shards=1))
        one, two = await mq.attach(consumer="c1"), await mq.attach(consumer="c2")
        await mq.send("orders", b"a", b"b", b"c", lane=0)
        first = await mq.pull(one, 2)
        waiting = asyncio.ensure_future(mq.pull(two, wait_ms=10_000))
        await mq.act(one, ACK, first, (0, 0, 1))
        assert not waiting.done()
        await mq.act(one, ACK, first, (0, 1, 1))
        assert (await waiting).bodies == [b"c"]

    world.run(scenario)


def test_a_vanished_consumers_shard_goes_to_another(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        await mq.broker.topics.create(TopicConfig("orders", shards=2))
        one, two = await mq.attach(consumer="c1"), await mq.attach(consumer="c2")
        await mq.send("orders", b"a", b"b", lane=1)
        await mq.pull(one)
        waiting = asyncio.ensure_future(mq.pull(two, wait_ms=10_000))
        mq.broker.consumers.disconnected(one)
        got = await waiting
        assert (got.bodies, got.attempts) == ([b"a", b"b"], [2, 2])

    world.run(scenario, reconnect_grace_s=0.01)


def test_a_failed_message_is_delivered_again_before_what_follows_it(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        await mq.broker.topics.create(TopicConfig("orders", shards=1))
        one = await mq.attach()
        await mq.send("orders", b"a", b"b", b"c", lane=0)
        got = await mq.pull(one)
        await mq.act(one, NACK, got, (0, 0, 1))
        again = await mq.pull(one, wait_ms=10_000)
        assert (again.bodies, again.attempts) == ([b"a", b"b", b"c"], [2, 1, 1])

    world.run(scenario)


def test_a_dead_letter_of_a_shard_is_sent_again_on_the_groups_own_lane(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        await mq.broker.topics.create(TopicConfig("orders", shards=5))
        one = await mq.attach()
        await mq.send("orders", b"a", b"b", lane=3)
        got = await mq.pull(one)
        await mq.act(one, DEAD, got, (3, 0, 1))
        await mq.act(one, ACK, got)
        await eventually_done(lambda: mq.broker.group_state("orders", "billing").dead)
        await mq.broker.dead_letters.resend(Resend("orders", "billing"))
        again = await mq.pull(one)
        assert again.bodies == [b"a"]
        assert again.parts[0].lane == 6, "the middle of the group's own lanes"

    world.run(scenario)


def test_positions_of_shards_survive_a_restart(disk: World) -> None:
    async def before(mq: Bench) -> None:
        await mq.broker.topics.create(TopicConfig("orders", shards=4))
        one = await mq.attach()
        for shard in range(4):
            await mq.send("orders", b"%d0" % shard, b"%d1" % shard, lane=shard)
        got = await mq.pull(one, 2)
        await mq.act(one, ACK, got)

    async def after(mq: Bench) -> None:
        assert mq.broker.topic_state("orders").config.shards == 4
        two = await mq.attach(consumer="c2")
        assert sorted((await mq.pull(two)).bodies) == [b"10", b"11", b"20", b"21", b"30", b"31"]

    disk.run(before)
    disk.run(after)


def test_a_sender_with_another_number_of_shards_is_refused(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        await mq.broker.topics.create(TopicConfig("orders", shards=4))
        mq.broker.topics.expect_shards("orders", 4)
        mq.broker.topics.expect_shards("new", 0)
        with pytest.raises(WrongShard, match="orders is ordered, with 4 shards, but the sender takes it for a shared"):
            mq.broker.topics.expect_shards("orders", 0)
        with pytest.raises(WrongShard, match="gone is shared"):
            mq.broker.topics.expect_shards("gone", 8)
        with pytest.raises(BadRequest, match="has no lane 4"):
            await mq.send("orders", b"a", lane=4)
        with pytest.raises(Conflict):
            await mq.broker.topics.create(TopicConfig("orders", shards=8))
        with pytest.raises(BadRequest, match="between 0"):
            TopicConfig("many", shards=1025)

    world.run(scenario)


def test_an_ordered_topic_that_lost_its_entry_is_found_by_its_lanes(disk: World) -> None:
    async def before(mq: Bench) -> None:
        await mq.broker.topics.create(TopicConfig("orders", shards=4))
        await mq.send("orders", b"a", lane=3)

    async def after(mq: Bench) -> None:
        assert mq.broker.topic_state("orders").config.shards == 4

    disk.run(before)
    [catalogue] = list((disk.folder / "data").rglob("topics.json"))
    for file in catalogue.parent.glob("topics.json*"):
        file.unlink()
    disk.run(after)


async def test_delayed_messages_of_all_senders_come_to_a_shard_in_the_order_of_their_times(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock) as mq:
        await mq.broker.topics.create(TopicConfig("orders", shards=3))
        now_us = clock.now_us()
        for at, body in [(30, b"c"), (10, b"a"), (40, b"d"), (20, b"b"), (40, b"e"), (30, b"cc")]:
            frame = encode([body], deliver_at_us=[now_us + at * SECOND_US])
            source = b"even" if at % 20 else b"odd"
            await mq.broker.send([("orders", 2, frame)], source=source)
        # The broker was away for all that time: it is all due at once.
        clock.advance(60)
        await mq.broker.scheduler.catch_up()
        got = await mq.pull(await mq.attach())
        assert got.bodies == [b"a", b"b", b"c", b"cc", b"d", b"e"]


def test_a_frame_is_delayed_as_a_whole_or_not_at_all(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        await mq.broker.topics.create(TopicConfig("orders", shards=3))
        with pytest.raises(BadRequest, match="frames of their own"):
            await mq.send("orders", b"a", b"b", lane=0, deliver_at_us=[-3_600_000_000, 0])
        assert (await mq.send("orders", b"a", b"b", lane=0, deliver_at_us=[-3_600_000_000, 5])).delayed == [0]

    world.run(scenario)
