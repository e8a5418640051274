"""Who goes through all topics or groups gives others their turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tests.broker.conftest import Bench, World
from tests.inside.alarms import AlarmRule
from tests.inside.broker import Broker
from tests.inside.store import LogStore
from towline.model import GroupConfig, TopicConfig

TOPICS = 40

Work = Callable[[Broker], Awaitable[object]]
turns: list[int] = []


async def look_for_alarms(broker: Broker) -> None:
    await broker.outlook.census._walk()
    turns.clear()
    await broker.outlook.alarms.look()


@pytest.mark.parametrize(
    "work",
    [
        lambda broker: broker.topic_states(),
        lambda broker: broker.group_states(),
        lambda broker: broker.stat(),
        lambda broker: broker.homes.review(),
        look_for_alarms,
        lambda broker: cast("LogStore", broker.store)._sealed._raise_bounds(0),
    ],
    ids=["topics", "groups", "figures", "homes", "alarms", "segments that go"],
)
def test_others_have_their_turn_in_between(work: Work, disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.inside.broker.browse.AT_ONCE", 1)

    async def others() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def scenario(bench: Bench) -> None:
        broker = bench.broker
        await broker.outlook.alarms.put(AlarmRule("unused", "offline", 3600))
        for number in range(TOPICS):
            await broker.topics.create(TopicConfig(f"t{number}", shards=2))
            await broker.groups.put(GroupConfig(f"t{number}", "g"))
        monkeypatch.setattr("tests.inside.ground.clock.SLICE_S", 0.0)
        beside = asyncio.create_task(others())
        turns.clear()
        await work(broker)
        assert len(turns) >= TOPICS - 1
        beside.cancel()

    disk.run(scenario)
