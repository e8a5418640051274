"""What the broker does for all topics and groups gives others their turn in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest

from tests.inside.broker import TABLE, Access, AccountStore, Broker, Dispatcher, Guard, Principal, open_store, who
from tests.inside.frame import encode
from tests.inside.ground import SYSTEM, BrokerSettings, clock
from tests.inside.protocol import Attach, Grant, ListPage, Measure, Pull, WhoAmI
from tests.inside.store import MemoryStore
from towline.model import GroupConfig, TopicConfig

TOPICS, GROUPS = 30, 10

WORK: dict[str, Callable[[Broker], Awaitable[object]]] = {
    "the census": lambda broker: broker.outlook.census._walk(),
    "metrics": lambda broker: broker.measure(Measure()),
    "maintenance": lambda broker: broker._maintain(),
}


class Turn:
    """The number of the turn that the loop is in."""

    number = 0

    async def count(self) -> None:
        while True:
            self.number += 1
            await asyncio.sleep(0)


async def furnished(settings: BrokerSettings) -> Broker:
    broker = await Broker.recovered(await open_store(settings), settings)
    for topic in range(TOPICS):
        await broker.topics.create(TopicConfig(f"topic-{topic}"))
        for group in range(GROUPS):
            await broker.groups.put(GroupConfig(f"topic-{topic}", f"group-{group}"))
    return broker


@pytest.mark.parametrize("work", WORK)
def test_whatever_looks_at_all_groups_gives_way(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With slices of no time, no more groups than those of one topic are looked at in one turn of the loop."""
    looked: Counter[int] = Counter()
    turn = Turn()

    def spied(name: str) -> Callable[[Dispatcher], object]:
        real = getattr(Dispatcher, name)

        def spy(self: Dispatcher) -> object:
            looked[turn.number] += 1
            return real(self)

        return spy

    async def run() -> None:
        settings = BrokerSettings(store="memory:")
        broker = await furnished(settings)
        monkeypatch.setattr(clock, "SLICE_S", 0.0)
        for name in ("notice", "pins"):
            monkeypatch.setattr(Dispatcher, name, spied(name))
        turns = asyncio.create_task(turn.count())
        await WORK[work](broker)
        turns.cancel()
        monkeypatch.undo()
        await broker.close()

    asyncio.run(run())
    assert sum(looked.values()) >= TOPICS * GROUPS
    assert max(looked.values()) <= 2 * GROUPS


@pytest.mark.parametrize("of", ["topics", "groups"])
def test_a_list_is_filtered_by_what_one_may_see_in_slices(
    of: Literal["topics", "groups"], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[int] = Counter()
    turn = Turn()

    def may(action: str, resource: str, name: str) -> bool:
        asked[turn.number] += 1
        return True

    async def run() -> None:
        broker = await furnished(BrokerSettings(store="memory:"))
        await broker.outlook.census.refresh()
        monkeypatch.setattr(clock, "SLICE_S", 0.0)
        turns = asyncio.create_task(turn.count())
        await broker.outlook.surveyor.survey(ListPage(of), may)
        turns.cancel()
        monkeypatch.undo()
        await broker.close()

    asyncio.run(run())
    assert sum(asked.values()) >= TOPICS * GROUPS
    assert max(asked.values()) <= 2 * GROUPS


def test_what_one_may_consume_under_a_prefix_is_decided_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is subscribed to, and when rules change."""
    asked: Counter[int] = Counter()
    turn, refused = Turn(), {"topic-3", "topic-7"}

    def may(topic: str) -> bool:
        asked[turn.number] += 1
        return topic not in refused

    async def run() -> None:
        broker = await furnished(BrokerSettings(store="memory:"))
        monkeypatch.setattr(clock, "SLICE_S", 0.0)
        turns = asyncio.create_task(turn.count())
        fan = await broker.consumers.fan(Attach("topic-*", "billing", "c1"), may=may)
        assert sum(asked.values()) == TOPICS
        assert {member.config.topic for member in fan.members} == broker.topics.keys() - refused
        refused.add("topic-5")
        await broker.send([("topic-5", 1, encode([b"x"]))])
        going = fan.retain()
        pulled, _ = await fan.pull(Pull(0, 10, 1 << 20, 0))
        assert not pulled.pull, "nothing comes before all are looked at"
        assert [member.config.topic async for member in going] == ["topic-5"]
        turns.cancel()
        monkeypatch.undo()
        await broker.close()

    asyncio.run(run())
    assert sum(asked.values()) >= 2 * TOPICS - len(refused)
    assert max(asked.values()) <= 2


def test_questions_of_one_principal_about_its_rights_take_one_slice_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of them, on however many connections."""
    asked: Counter[int] = Counter()
    turn = Turn()
    real = Guard.may

    def may(self: Guard, action: str, resource: str, name: str) -> bool:
        asked[turn.number] += 1
        return real(self, action, resource, name)

    async def run() -> None:
        access = Access(book=AccountStore(MemoryStore(), SYSTEM))
        context: Any = None
        eve = Principal("eve", "user", "eve")
        guards = [Guard(access, eve, TABLE, context, address="", holds=int, origin="here") for _ in range(3)]
        questions = WhoAmI([Grant("send", "topic", f"topic-{number}") for number in range(100)])
        monkeypatch.setattr(clock, "SLICE_S", 0.0)
        monkeypatch.setattr(Guard, "may", may)
        turns = asyncio.create_task(turn.count())
        answers = await asyncio.gather(*(who(access, guard, questions, "") for guard in guards * 5))
        turns.cancel()
        assert all(answer.allowed == [False] * 100 for answer in answers)

    asyncio.run(run())
    assert sum(asked.values()) == 15 * 100
    assert max(asked.values()) <= 2
