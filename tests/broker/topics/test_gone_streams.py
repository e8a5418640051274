"""Streams of deleted topics and groups: their numbers are never given again, and no more than a limit are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.conftest import ACK, DEAD, Bench, World
from tests.broker.test_recovery import crash
from tests.inside.cli import _look_at_remains
from tests.inside.protocol import Resend
from towline.errors import TooMany
from towline.model import GroupConfig, TopicConfig

MOST = 12


async def come_and_go(bench: Bench, topic: str) -> None:
    await bench.send(topic, b"x")
    await bench.broker.delete_topic(topic)


async def fill(bench: Bench) -> int:
    """Make and delete topics until no more are made. How many there were."""
    for number in range(2 * MOST):
        try:
            await come_and_go(bench, f"t{number}")
        except TooMany as error:
            said = str(error)
            break
    assert f"{MOST} streams of deleted topics and groups are remembered" in said
    assert f"topic t{number} is not made. Names that were deleted may be used again" in said
    return number


async def test_topics_that_come_and_go_leave_no_more_names_than_a_limit(world: World, tmp_path: Path) -> None:
    async with world.open(max_gone_streams=MOST) as bench:
        await bench.send("stays", b"x")
        assert await fill(bench) == MOST
        assert len(bench.store.streams("lane/")) == MOST + 1
        with pytest.raises(TooMany):
            await bench.broker.topics.create(TopicConfig("new"))
        with pytest.raises(TooMany, match="group billing on topic stays is not made"):
            await bench.broker.groups.put(GroupConfig("stays", "billing"))
        passing = await bench.attach("stays", "~passing", ephemeral=True)
        assert (await bench.pull(passing)).bodies == [b"x"], "reading goes on"
        after = crash(world, tmp_path / "crashed") if world.kind == "log" else world
    if world.kind != "memory":
        async with after.open(max_gone_streams=MOST) as bench:
            with pytest.raises(TooMany):
                await bench.send("new", b"x")
        async with after.open(max_gone_streams=MOST + 1) as bench:
            await bench.send("new", b"x")


def test_a_name_that_was_deleted_may_be_used_again_and_counts_on(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await fill(bench)
        for rounds in range(1, 4):
            assert (await bench.send("t3", b"x")).firsts == [rounds]
            assert bench.broker.figures()["gone_streams"] == MOST - 1
            await bench.broker.delete_topic("t3")
            assert bench.broker.figures()["gone_streams"] == MOST
        with pytest.raises(TooMany):
            await bench.broker.topics.create(TopicConfig("t4", shards=2))  # shards are other streams

    world.run(scenario, max_gone_streams=MOST)


async def test_what_deleted_groups_leave_counts_as_well(world: World) -> None:
    async with world.open(max_gone_streams=MOST) as bench:
        await bench.send("orders", b"a", b"b", b"c")
        passing = await bench.attach(group="~passing", ephemeral=True)
        await bench.act(passing, DEAD, await bench.pull(passing, 3))
        await bench.broker.groups.buried("orders", "~passing")
        await bench.broker.consumers.detach(passing)
        for group in ("idle", "used"):
            member = await bench.attach(group=group)
            if group == "used":
                await bench.act(member, DEAD, await bench.pull(member, 3))
                await bench.broker.groups.buried("orders", group)
                await bench.broker.dead_letters.resend(Resend("orders", group))
                await bench.act(member, ACK, await bench.pull(member, 3))
            await bench.broker.groups.delete("orders", group)
        left = bench.broker.figures()["gone_streams"]
        assert set(bench.store.streams("dead/orders/u") + bench.store.streams("own/")) == bench.broker.remains._names
        assert left == 2
        await bench.attach(group="used")
        assert bench.broker.figures()["gone_streams"] == 0
        await bench.broker.groups.delete("orders", "used")
        assert bench.broker.figures()["gone_streams"] == left
    if world.kind != "memory":
        async with world.open(max_gone_streams=MOST) as bench:
            assert bench.broker.figures()["gone_streams"] == left


def test_check_warns_before_the_limit_is_reached() -> None:
    assert not _look_at_remains({})
    assert not _look_at_remains({"gone_streams": 79, "gone_streams_max": 100})
    (finding,) = _look_at_remains({"gone_streams": 80, "gone_streams_max": 100})
    assert finding.text.startswith("80 streams of deleted topics and groups are remembered, 100 at most")
