"""What the broker does for all topics and groups gives others their turn in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from towline import clock
from towline.broker.broker import Broker
from towline.broker.dispatcher import Dispatcher
from towline.broker.opening import open_store
from towline.model import GroupConfig, TopicConfig
from towline.protocol.access import Measure
from towline.settings import BrokerSettings

TOPICS, GROUPS = 30, 10

WORK: dict[str, Callable[[Broker], Awaitable[object]]] = {
    "the census": lambda broker: broker.outlook.census._walk(),
    "metrics": lambda broker: broker.measure(Measure()),
    "maintenance": lambda broker: broker._maintain(),
}


@pytest.mark.parametrize("work", WORK)
def test_whatever_looks_at_all_groups_gives_way(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With slices of no time, no more groups than those of one topic are looked at in one turn of the loop."""
    looked: Counter[int] = Counter()
    turn = 0

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def spied(name: str) -> Callable[[Dispatcher], object]:
        real = getattr(Dispatcher, name)

        def spy(self: Dispatcher) -> object:
            looked[turn] += 1
            return real(self)

        return spy

    async def run() -> None:
        settings = BrokerSettings(store="memory:")
        broker = await Broker.recovered(await open_store(settings), settings)
        for topic in range(TOPICS):
            await broker.create_topic(TopicConfig(f"topic-{topic}"))
            for group in range(GROUPS):
                await broker.put_group(GroupConfig(f"topic-{topic}", f"group-{group}"))
        monkeypatch.setattr(clock, "SLICE_S", 0.0)
        for name in ("notice", "pins"):
            monkeypatch.setattr(Dispatcher, name, spied(name))
        turns = asyncio.create_task(count_turns())
        await WORK[work](broker)
        turns.cancel()
        monkeypatch.undo()
        await broker.close()

    asyncio.run(run())
    assert sum(looked.values()) >= TOPICS * GROUPS
    assert max(looked.values()) <= 2 * GROUPS
