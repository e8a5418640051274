"""What is answered is as durable as it has to be by then; on a store that syncs when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.broker.conftest import ACK, GIVE_BACK, NACK, Bench, Got, World
from tests.eventually import eventually_done
from tests.inside.broker import Member
from tests.inside.protocol import Act
from tests.inside.store import Appended
from towline.model import Durability


class Gate:
    """A store whose appends are durable when the gate is opened."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Durability] = []
        self._waiting: list[tuple[asyncio.Future[None], asyncio.Future[None]]] = []
        self._opened = False
        append = bench.store.append

        def late(unit: Any, durability: Any) -> Appended:
            appended = append(unit, durability)
            if self._opened:
                return appended
            done = asyncio.get_running_loop().create_future()
            self._waiting.append((appended.done, done))
            self.asked.append(durability)
            return appended._replace(done=done)

        monkeypatch.setattr(bench.store, "append", late)

    async def open(self) -> None:
        self._opened = True
        for real, done in self._waiting:
            await real
            done.set_result(None)

    async def holds_up(self, answer: Awaitable[Any]) -> Any:
        """The answer comes when the gate is opened, and not before."""
        task = asyncio.ensure_future(answer)
        try:
            await eventually_done(lambda: self._waiting)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not task.done()
        finally:
            await self.open()
        return await asyncio.wait_for(task, 60)


async def _holding(bench: Bench, **config: Any) -> tuple[Member, Got]:
    await bench.send("orders", b"a", b"b", b"c")
    member = await bench.attach(**config)
    got = await bench.pull(member, 1)
    await bench.flush()
    return member, got


@pytest.mark.parametrize("what", [ACK, NACK, GIVE_BACK])
def test_an_act_is_answered_when_it_is_synced(world: World, monkeypatch: pytest.MonkeyPatch, what: int) -> None:
    async def scenario(bench: Bench) -> None:
        member, got = await _holding(bench)
        gate = Gate(bench, monkeypatch)
        await gate.holds_up(bench.act(member, what, got))
        assert gate.asked == [Durability.FSYNC]

    world.run(scenario, durability="fsync")


@pytest.mark.parametrize("wait_ms", [0, 60_000])
@pytest.mark.parametrize("count", [1, 2])
def test_a_pull_is_answered_when_the_acts_that_it_brought_are_synced(
    world: World, monkeypatch: pytest.MonkeyPatch, wait_ms: int, count: int
) -> None:
    async def scenario(bench: Bench) -> None:
        member, got = await _holding(bench)
        pulls = [got.pull]
        if count == 2:
            pulls.append((await bench.pull(member, 1)).pull)
            await bench.flush()
        gate = Gate(bench, monkeypatch)
        acts = [Act(ACK, pull) for pull in pulls]
        answer = await gate.holds_up(bench.pull(member, 1, wait_ms, acts=acts))
        assert len(answer.bodies) == 1
        assert gate.asked[0] == Durability.FSYNC, "the acks; the pull is in the log a moment later"

    world.run(scenario, durability="fsync")


def test_what_is_delivered_at_most_once_is_synced_before_anybody_sees_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a")
        member = await bench.attach(mode="at-most-once")
        gate = Gate(bench, monkeypatch)
        assert (await gate.holds_up(bench.pull(member))).bodies == [b"a"]
        assert gate.asked == [Durability.FSYNC]

    world.run(scenario, durability="fsync")


@pytest.mark.parametrize("how", ["leaves", "is kicked out"])
def test_who_leaves_is_answered_when_what_it_gave_back_is_synced(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def scenario(bench: Bench) -> None:
        member, _ = await _holding(bench)
        gate = Gate(bench, monkeypatch)
        leaving = (
            bench.broker.consumers.detach(member)
            if how == "leaves"
            else bench.broker.consumers.kick("orders", "billing", "c1")
        )
        await gate.holds_up(leaving)
        assert gate.asked == [Durability.FSYNC]

    world.run(scenario, durability="fsync")
