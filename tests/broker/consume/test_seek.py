"""Moving groups, letting them rest, and emptying topics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker.conftest import ACK, DEAD, NACK, Bench, World
from tests.broker.test_recovery import crash
from tests.inside.broker import Outgoing
from tests.inside.frame import encode
from tests.inside.protocol import Browse, EditTopic, Pause, Purge, Seek
from towline.errors import BadRequest
from towline.model import GroupConfig, RetryPolicy, TopicConfig


async def fill(mq: Bench, count: int = 10, lane: int = 1) -> None:
    await mq.send("orders", *(b"%d" % number for number in range(count)), lane=lane)


def test_a_group_goes_back_to_the_earliest_and_its_consumer_is_fenced(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach()
        await fill(mq)
        first = await mq.pull(one, 4)
        await mq.act(one, ACK, first)
        held = await mq.pull(one, 2)
        trial = await mq.broker.groups.seek(Seek("orders", "billing", "earliest", dry_run=True))
        assert (trial.again, trial.passed, trial.moves[1]) == (6, 0, ("middle", 6, 0))
        assert (await mq.pull(one, 1)).bodies == [b"6"], "a dry run changes nothing"
        await mq.broker.groups.seek(Seek("orders", "billing", "earliest"))
        settled = await mq.act(one, ACK, held)
        assert [code for _, code, _ in settled.refused] == ["lease-lost"]
        again = await mq.pull(one)
        assert again.bodies == [b"%d" % number for number in range(10)]
        assert set(again.attempts) == {1}

    world.run(scenario)


def test_going_to_the_latest_passes_over_what_waits_to_be_tried_again(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach(delays_s=(60.0,))
        await fill(mq)
        got = await mq.pull(one, 3)
        await mq.act(one, NACK, got, (1, 0, 1))
        sought = await mq.broker.groups.seek(Seek("orders", "billing", "latest"))
        assert (sought.again, sought.passed) == (0, 10)
        state = mq.broker.group_state("orders", "billing")
        assert (state.lag, state.retrying, state.in_flight) == (0, 0, 0)
        await mq.send("orders", b"new")
        assert (await mq.pull(one)).bodies == [b"new"]

    world.run(scenario)


def test_a_group_goes_to_a_time_or_to_numbers_by_lane(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach()
        await fill(mq, 3)
        await fill(mq, 3, lane=0)
        await asyncio.sleep(0.01)
        time_us = mq.broker.clock.now_us()
        await mq.send("orders", b"later")
        await mq.act(one, ACK, await mq.pull(one))
        await mq.broker.groups.seek(Seek("orders", "billing", f"@{time_us}"))
        got = await mq.pull(one)
        assert got.bodies == [b"later"]
        await mq.act(one, ACK, got)
        sought = await mq.broker.groups.seek(Seek("orders", "billing", positions=[(0, 2), (1, 99)]))
        assert sought.moves == [("high", 3, 2), ("middle", 4, 4)]
        assert (await mq.pull(one)).bodies == [b"2"]
        for wrong in (Seek("orders", "billing"), Seek("orders", "billing", positions=[(7, 0)])):
            with pytest.raises(BadRequest):
                await mq.broker.groups.seek(wrong)

    world.run(scenario)


def test_a_waiting_pull_is_served_when_its_group_is_moved_back(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach()
        await fill(mq, 2)
        await mq.act(one, ACK, await mq.pull(one))
        waiting = asyncio.ensure_future(mq.pull(one, wait_ms=10_000))
        await asyncio.sleep(0)
        await mq.broker.groups.seek(Seek("orders", "billing", "earliest"))
        assert (await waiting).bodies == [b"0", b"1"]

    world.run(scenario)


def test_a_move_survives_a_restart(disk: World) -> None:
    async def before(mq: Bench) -> None:
        one = await mq.attach()
        await fill(mq)
        await mq.act(one, ACK, await mq.pull(one))
        await mq.broker.groups.seek(Seek("orders", "billing", positions=[(1, 7)]))

    async def after(mq: Bench) -> None:
        assert (await mq.pull(await mq.attach())).bodies == [b"7", b"8", b"9"]

    disk.run(before)
    disk.run(after)


def test_moving_while_messages_die_leaves_no_dead_letter_behind(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach()
        await fill(mq, 3)
        await mq.act(one, DEAD, await mq.pull(one))
        await mq.broker.groups.seek(Seek("orders", "billing", "earliest"))
        state = mq.broker.group_state("orders", "billing")
        assert state.dead + state.lag in (3, 6), "dead before the move, or not at all"
        assert len((await mq.pull(one, wait_ms=20_000)).bodies) == 3

    world.run(scenario)


def test_a_paused_group_rests_until_it_is_resumed(disk: World) -> None:
    async def before(mq: Bench) -> None:
        one = await mq.attach()
        await fill(mq, 4)
        held = await mq.pull(one, 2)
        await mq.broker.groups.pause(Pause("orders", "billing", True, "deploying"))
        assert (await mq.pull(one)).bodies == []
        assert not (await mq.act(one, ACK, held)).refused
        waiting = asyncio.ensure_future(mq.pull(one, wait_ms=10_000))
        await mq.send("orders", b"x")
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await mq.broker.groups.pause(Pause("orders", "billing", False))
        got = await waiting
        assert got.bodies == [b"2", b"3", b"x"]
        await mq.broker.groups.pause(Pause("orders", "billing", True, "again"))
        await mq.broker.groups.put(GroupConfig("orders", "billing", retry=RetryPolicy(5)))

    async def after(mq: Bench) -> None:
        config = mq.broker.group_state("orders", "billing").config
        assert (config.paused, config.pause_reason, config.retry.max_attempts) == (True, "again", 5)
        assert (await mq.pull(await mq.attach())).bodies == []

    disk.run(before)
    disk.run(after)


@pytest.mark.parametrize("shards", [0, 4])
def test_a_purged_topic_is_empty_for_all_its_groups(world: World, shards: int) -> None:
    async def scenario(mq: Bench) -> None:
        await mq.broker.topics.create(TopicConfig("orders", shards=shards))
        one, two = await mq.attach(), await mq.attach(group="stock")
        await fill(mq)
        held = await mq.pull(one, 2)
        trial = await mq.broker.purge(Purge("orders", dry_run=True))
        assert (trial.messages, trial.groups) == (10, [("billing", 10), ("stock", 10)])
        assert (await mq.pull(two, 1)).bodies == [b"0"]
        await mq.broker.purge(Purge("orders"))
        assert [code for _, code, _ in (await mq.act(one, ACK, held)).refused] == ["lease-lost"]
        assert [mq.broker.group_state("orders", group).lag for group in ("billing", "stock")] == [0, 0]
        browsed, _ = await mq.broker.browsing.browse(Browse("orders", 1))
        assert (browsed.first, browsed.end) == (10, 10)
        await mq.send("orders", b"new")
        assert (await mq.pull(one)).bodies == (await mq.pull(two)).bodies == [b"new"]

    world.run(scenario)


def test_the_retention_of_a_topic_can_be_changed_and_its_shards_stay(disk: World) -> None:
    async def before(mq: Bench) -> None:
        await mq.broker.topics.create(TopicConfig("orders", shards=4))
        await mq.broker.topics.edit(EditTopic("orders", 60.0))

    async def after(mq: Bench) -> None:
        config = mq.broker.topic_state("orders").config
        assert (config.retention_s, config.shards) == (60.0, 4)

    disk.run(before)
    disk.run(after)


async def test_after_a_purge_and_a_crash_producers_are_known_and_dedup_ids_are_free(
    disk: World, tmp_path: Path
) -> None:
    """Producers are read back from the messages, which are gone; an id stood for a message that is gone."""

    def unit() -> list[Outgoing]:
        return [("orders", 1, encode([b"a"], dedup_ids=["x"], producer_id=7, producer_seq=1))]

    async with disk.open() as mq:
        await mq.broker.send(unit())
        await mq.broker.purge(Purge("orders"))
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as mq:
        assert (await mq.broker.send(unit())).duplicate
        sent = await mq.send("orders", b"b", dedup_ids=["x"])
        assert (sent.firsts, sent.repeats) == ([1], [])
