"""The broker sees how long its event loop was held, and says by what."""

from __future__ import annotations

import asyncio
import logging
import time
from time import thread_time

import pytest

from tests.broker.conftest import DEAD, Bench, World
from tests.eventually import eventually_done
from tests.inside.broker import LAG_S, STALL_S, LoopLag, Realms, exposition
from tests.inside.cli import _look_at_lag
from tests.inside.ground import BrokerSettings, TimeSlice
from tests.store.sql.server import new_database


def burn(seconds: float) -> None:
    begin_s = thread_time()
    while thread_time() - begin_s < seconds:
        pass


def test_a_step_that_takes_long_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> str:
        for _ in range(3):
            await asyncio.sleep(0)
            burn(2 * STALL_S)
        return "done"

    lag = LoopLag()
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(lag.timed("tidying up", work())) == "done"
    assert lag.stalls == 3
    assert lag.longest()["tidying up"] >= 2 * STALL_S
    (record,) = caplog.records
    assert record.getMessage().startswith("tidying up held the event loop for ")


def test_what_lies_within_is_to_blame_and_not_what_is_around_it(caplog: pytest.LogCaptureFixture) -> None:
    async def inner() -> None:
        burn(2 * STALL_S)

    lag = LoopLag()

    async def outer() -> None:
        await lag.timed("snapshots", inner())

    with caplog.at_level(logging.WARNING):
        asyncio.run(lag.timed("maintenance", outer()))
    assert lag.stalls == 1
    assert "snapshots held the event loop" in caplog.text


def test_errors_and_cancellation_go_through() -> None:
    lag = LoopLag()
    seen = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def waits() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        with pytest.raises(ValueError, match="no"):
            await lag.timed("a", fails())
        task = asyncio.create_task(lag.timed("b", waits()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]


def test_a_loop_that_stands_still_is_seen_and_the_log_names_who_did_it(
    disk: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench: Bench) -> None:
        lag = bench.broker.lag
        await eventually_done(lambda: lag.lags.count > 0)

        async def greedy() -> None:
            burn(2 * LAG_S)

        with caplog.at_level(logging.WARNING):
            bench.broker._start(greedy(), "counting stars")
            await eventually_done(lambda: "the event loop was held for" in caplog.text)
        assert "counting stars" in caplog.text
        figures = bench.broker.figures()
        assert figures["loop_lag_s"] >= LAG_S
        assert figures["loop_stalls"] >= 1
        (finding,) = _look_at_lag(figures | {"loop_lag_s": 1.2})
        assert "nobody was answered for 1.20 s of late" in finding.text

    disk.run(scenario)


def test_what_timers_and_tasks_do_is_timed_under_names_for_people(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        names = bench.broker.lag.longest
        await bench.send("orders", b"slow", b"bad")
        member = await bench.attach(timeout_s=0.05)
        await bench.act(member, DEAD, await bench.pull(member, 1))
        await bench.pull(member)
        await eventually_done(lambda: "retries and timeouts that are due" in names())
        await eventually_done(lambda: "moving messages to the dead letters" in names())
        await bench.pull(member)
        bench.broker.consumers.disconnected(member)
        await eventually_done(lambda: "consumers that vanished" in names())
        assert [name for name in names() if "_" in name or "." in name] == []

    disk.run(scenario, reconnect_grace_s=0.01)


async def test_realms_of_one_broker_have_one_watch_and_it_knows_the_work_of_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def greedy() -> None:
        burn(2 * LAG_S)

    realms = await Realms.open(BrokerSettings(store=new_database(), realms=2, maintenance_s=0.1))
    front = realms.front
    try:
        realms.start("127.0.0.1:1")
        await eventually_done(lambda: len(realms.owned) == 2)
        await eventually_done(lambda: "maintenance" in front.lag.longest())
        assert [one.get_name() for one in asyncio.all_tasks()].count("the watch over the event loop") == 1
        one = next(iter(realms.owned.values()))

        async def is_blamed() -> bool:
            """Once at least: a busy machine may stand still for longer."""
            front.lag._lag = front.lag._lag_before = (0.0, "")
            one._start(greedy(), "counting stars")
            ticks = front.lag.lags.count
            await eventually_done(lambda: front.lag.lags.count >= ticks + 2)
            return bool(front.figures()["loop_lag_by"] == "counting stars")

        with caplog.at_level(logging.WARNING):
            await eventually_done(is_blamed)
        assert "by requests of clients" not in caplog.text
        assert front.figures()["loop_stalls"] >= 1
        (finding,) = _look_at_lag(await front.stat() | {"loop_lag_s": 1.2})
        assert finding.text.endswith("because of counting stars")
        shown = (await exposition(front)).decode()
        assert 'towline_background_step_seconds{work="counting stars"} ' in shown
        assert 'towline_background_step_seconds{work="maintenance"} ' in shown
    finally:
        await front.close()


async def test_work_that_takes_long_gives_others_their_turn() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    part = TimeSlice()
    end_s = time.monotonic() + 0.2
    while time.monotonic() < end_s:
        await part.rest()
    task.cancel()
    assert turns > 3
