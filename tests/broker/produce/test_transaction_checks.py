"""The broker asks producers what became of their prepared transactions."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.broker.conftest import Bench, World
from tests.broker.produce.test_transactions import checks, decide, prepare, states
from tests.eventually import eventually_done
from tests.inside.broker import Broker
from tests.inside.ground import ManualClock
from tests.inside.protocol import Resolve
from tests.inside.store import MemoryStore


async def _manual(**given: float) -> tuple[Broker, ManualClock]:
    clock = ManualClock()
    settings = World("memory", Path()).settings(**given)
    return await Broker.open(MemoryStore(clock=clock), settings, clock=clock), clock


async def test_a_silent_transaction_is_asked_after_again_and_again_and_then_parked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, clock = await _manual(tx_check_after_s=60.0, tx_max_checks=3)
    await prepare(broker)
    clock.advance(59)
    assert await checks(broker) == []
    for attempt, pause_s in ((1, 1), (2, 120), (3, 240)):
        clock.advance(pause_s - 0.5 if attempt > 1 else 0.5)
        assert await checks(broker) == []
        clock.advance(0.5)
        (check,) = await checks(broker)
        assert (check.transaction, check.name, check.attempt) == ("t1", "business t1", attempt)
        assert (check.messages, check.topics) == (4, ["orders", "stock"])
        assert await checks(broker) == []
    clock.advance(480)
    with caplog.at_level(logging.ERROR):
        assert await checks(broker) == []
    assert "towline tx resolve t1" in caplog.text
    assert states(broker) == [("t1", "parked")]
    clock.advance(10_000)
    assert await checks(broker) == [], "parked: nobody is asked any more"
    await broker.transactions.resolve(Resolve("t1", True))
    assert states(broker, "t1") == [("t1", "committed")]
    assert broker.topic_state("stock").lanes[0].end == 1
    await broker.close()


async def test_while_nobody_is_there_it_is_not_counted_as_asked() -> None:
    broker, clock = await _manual(tx_check_after_s=60.0, tx_max_checks=2)
    await prepare(broker)
    clock.advance(1_000_000)
    broker.transactions.asking.look_round()
    clock.advance(1_000_000)
    (check,) = await checks(broker)
    assert check.attempt == 1
    await broker.close()


def test_a_waiting_producer_is_asked_as_soon_as_a_transaction_is_due_and_each_round_asks_another(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        one = asyncio.create_task(checks(bench.broker, 20_000))
        await asyncio.sleep(0)
        two = asyncio.create_task(checks(bench.broker, 20_000))
        await asyncio.sleep(0)
        await prepare(bench.broker, check_after_s=0.05)
        (first,) = await one
        assert first.attempt == 1
        assert not two.done()
        (second,) = await two
        assert second.attempt == 2

    world.run(scenario)


def test_a_decided_transaction_is_not_asked_after(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await prepare(bench.broker, check_after_s=0.001)
        asking = bench.broker.transactions.asking

        def is_ready() -> bool:
            asking.look_round()
            return bool(asking._ready)

        await eventually_done(is_ready)
        await decide(bench.broker, True)
        assert not asking._ready, "nothing is left of it"
        assert await checks(bench.broker, 1) == []

    world.run(scenario)


async def test_many_are_asked_after_in_several_rounds() -> None:
    broker, clock = await _manual(tx_check_after_s=60.0)
    for n in range(130):
        await prepare(broker, f"t{n}", [("orders", 1, [b"x"])])
    clock.advance(61)
    first, second = await checks(broker), await checks(broker)
    assert (len(first), len(second)) == (100, 30)
    assert len({one.transaction for one in first + second}) == 130
    await broker.close()


def test_a_stopping_broker_lets_go_of_those_who_wait(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        waiting = asyncio.create_task(checks(bench.broker, 20_000))
        await asyncio.sleep(0)
        bench.broker.release_waiters()
        assert await waiting == []
        assert await checks(bench.broker, 20_000) == []

    world.run(scenario)
