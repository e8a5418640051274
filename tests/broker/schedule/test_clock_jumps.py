"""What waits for a while, and not for a time, while the clock is put ahead by two hours and set right again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import ACK, NACK, Bench, Got, World
from tests.broker.produce.test_transactions import checks, prepare
from tests.broker.schedule.test_clock import AHEAD_S, TwoClocks
from tests.broker.test_recovery import crash
from tests.eventually import eventually_done
from tests.inside.broker import Broker, Consumers, Dispatcher, Member
from tests.inside.frame import encode
from tests.inside.ground import SECOND_US
from tests.inside.protocol import HandBack, ListTransactions, Pause, Settled, Trace
from towline.model import TopicConfig

WHILE_S = 600.0
"""What everything here waits for: shorter than the clock is ahead."""
AHEAD_US = round(AHEAD_S) * SECOND_US


class Times:
    """A broker whose clock is put ahead and set right. It may be started again by the wrong clock, by the right one, or
    by both; or be killed once it is right, with or without a snapshot of what was before."""

    def __init__(self, world: World, starts: str, folder: Path, **given: Any) -> None:
        self.clock = TwoClocks()
        self.bench: Bench
        self._world = world
        self._starts = starts
        self._folder = folder
        self._given = {"heartbeat_s": 4.0, "tx_check_after_s": WHILE_S, "dedup_window_s": WHILE_S} | given
        self._stack = AsyncExitStack()

    @property
    def broker(self) -> Broker:
        return self.bench.broker

    @property
    def group(self) -> Dispatcher:
        return self.broker.groups.named("orders", "billing")

    async def _start(self, world: World) -> None:
        world.store_clock = self.clock
        self.bench = await self._stack.enter_async_context(world.open(self.clock, **self._given))

    async def _set(self, by_s: float, *starts: str) -> None:
        if self._starts not in ("", "killed"):
            await self.broker.maintain()
        self.clock.set(by_s)
        if self._starts in starts:
            world = self._world
            if "killed" in self._starts:
                await self.bench.flush()
                world = crash(world, self._folder / "crash")
            await self._stack.aclose()
            await self._start(world)
        else:
            await self.broker._watch()

    async def ahead(self) -> None:
        await self._set(AHEAD_S, "ahead", "both")

    async def right(self) -> None:
        await self._set(-AHEAD_S, "right", "both", "killed", "saved and killed")

    async def pulled(self) -> list[tuple[bytes, int]]:
        """What another consumer gets now, with its attempts."""
        if self.broker.has_group("orders", "billing"):
            self.group._on_time()
        got = await self.bench.pull(await self.bench.attach(consumer="other"))
        return list(zip(got.bodies, got.attempts, strict=True))

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            async with self._stack:
                await self._start(self._world)
                await scenario()

        asyncio.run(main())


@pytest.fixture(
    params=[
        "memory",
        *("log", "log ahead", "log right", "log both", "log killed", "log saved and killed"),
        *("sql", "sql both"),
    ]
)
def times(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Times:
    async def nobody(_: Consumers) -> None:
        """Nobody is taken for silent when time is put forward."""

    monkeypatch.setattr(Consumers, "sweep", nobody)
    kind, _, starts = request.param.partition(" ")
    return Times(World(kind, tmp_path), starts, tmp_path)


@pytest.mark.parametrize("shards", [0, 3])
def test_a_back_off_is_neither_shorter_nor_longer(times: Times, shards: int) -> None:
    policy: dict[str, Any] = {"delays_s": (WHILE_S,), "max_attempts": 9}

    async def fail(what: bytes) -> None:
        member = await times.bench.attach(**policy)
        got = await times.bench.pull(member, 1)
        assert got.bodies == [what]
        await times.bench.act(member, NACK, got)

    async def scenario() -> None:
        if shards:
            await times.broker.topics.create(TopicConfig("orders", shards=shards))
        await times.bench.send("orders", b"before", lane=1)
        await fail(b"before")
        await times.ahead()
        await times.bench.send("orders", b"meanwhile", lane=2)
        await fail(b"meanwhile")
        assert await times.pulled() == []
        await times.right()
        assert await times.pulled() == []
        times.clock.advance(WHILE_S - 10)
        assert await times.pulled() == []
        times.clock.advance(20)
        assert sorted(await times.pulled()) == [(b"before", 2), (b"meanwhile", 2)]

    times.run(scenario)


@pytest.mark.parametrize("whose", ["the group's", "the message's"])
def test_a_timeout_is_neither_shorter_nor_longer(times: Times, whose: str) -> None:
    config: dict[str, Any] = {"timeout_s": WHILE_S} if whose == "the group's" else {}
    limits: dict[str, Any] = {"limits": [round(WHILE_S) * SECOND_US]} if whose == "the message's" else {}
    held: list[Got] = []

    async def one() -> Member:
        return await times.bench.attach(consumer="one", holding=tuple(got.pull for got in held), **config)

    async def scenario() -> None:
        for what, go_on in ((b"before", times.ahead), (b"meanwhile", times.right)):
            await times.bench.send("orders", what, **limits)
            got = await times.bench.pull(await one())
            assert (got.bodies, got.attempts) == ([what], [1])
            held.append(got)
            await go_on()
            await eventually_done(lambda: not times.group._limits.recalling)
            assert await times.pulled() == []
        member = await one()
        times.clock.advance(WHILE_S - 10)
        assert await times.pulled() == []
        assert await times.bench.act(member, ACK, held[0]) == Settled()
        times.clock.advance(20)
        assert await times.pulled() == [(b"meanwhile", 2)]

    times.run(scenario)


def test_a_messages_time_begins_anew_with_another_one_settled_meanwhile(times: Times) -> None:
    async def scenario() -> None:
        await times.bench.send("orders", b"first", b"second", limits=[round(WHILE_S) * SECOND_US] * 2)
        one = await times.bench.attach()
        got = await times.bench.pull(one)
        await times.ahead()
        one = await times.bench.attach(holding=(got.pull,))
        await eventually_done(lambda: not times.group._limits.recalling)
        times.clock.advance(WHILE_S - 10)
        await times.bench.act(one, ACK, got, (1, 0, 1))
        await times.right()
        await times.bench.attach(holding=(got.pull,))
        await eventually_done(lambda: not times.group._limits.recalling)
        times.clock.advance(WHILE_S - 10)
        assert await times.pulled() == []
        times.clock.advance(20)
        assert await times.pulled() == [(b"second", 2)]

    times.run(scenario)


def test_what_is_handed_over_meanwhile_waits_neither_shorter_nor_longer(times: Times) -> None:
    async def scenario() -> None:
        await times.bench.attach()
        await times.ahead()
        handed = HandBack("orders", "billing", None, 1, 1, "it failed", WHILE_S)
        await times.broker.hand_back(handed, encode([b"x"], producer_id=7, producer_seq=1))
        await times.right()
        times.clock.advance(WHILE_S - 10)
        assert await times.pulled() == []
        times.clock.advance(20)
        assert await times.pulled() == [(b"x", 2)]

    times.run(scenario)


def test_prepared_transactions_are_asked_after_neither_sooner_nor_later(times: Times) -> None:
    async def asked() -> list[tuple[str, int]]:
        return [(one.transaction, one.attempt) for one in await checks(times.broker)]

    def next_checks() -> list[int]:
        """As they are shown: in seconds from now, by the clock."""
        found = times.broker.transactions.states(ListTransactions()).transactions
        return [round((one.next_check_at_us - times.clock.now_us()) / SECOND_US) for one in found]

    async def scenario() -> None:
        await prepare(times.broker, "t1")
        await times.ahead()
        assert await asked() == []
        await prepare(times.broker, "t2")
        assert next_checks() == [600, 600]
        await times.right()
        assert next_checks() == [600, 600]
        times.clock.advance(WHILE_S - 10)
        assert await asked() == []
        times.clock.advance(20)
        assert await asked() == [("t1", 1), ("t2", 1)]

    times.run(scenario)


def test_a_prepared_transaction_that_was_asked_after_meanwhile_is_asked_after_again_in_time(times: Times) -> None:
    async def scenario() -> None:
        await prepare(times.broker)
        await times.ahead()
        times.clock.advance(WHILE_S)
        assert [one.attempt for one in await checks(times.broker)] == [1]
        await times.right()
        times.clock.advance(2 * WHILE_S - 10)
        assert await checks(times.broker) == []
        times.clock.advance(20)
        assert [one.attempt for one in await checks(times.broker)] == [2]

    times.run(scenario)


def test_a_dedup_id_is_known_for_its_window(times: Times) -> None:
    async def stored(*ids: str) -> list[str]:
        return [one for one in ids if not (await times.bench.send("orders", b"x", dedup_ids=[one])).repeats]

    async def scenario() -> None:
        assert await stored("before") == ["before"]
        await times.ahead()
        assert await stored("before", "meanwhile") == ["meanwhile"]
        await times.right()
        assert await stored("before", "meanwhile", "after") == ["after"]
        times.clock.advance(WHILE_S - 10)
        assert await stored("before", "meanwhile", "after") == []
        times.clock.advance(20)
        assert await stored("before", "meanwhile", "after") == ["before", "meanwhile", "after"]

    times.run(scenario)


def test_what_became_of_a_message_is_told_by_the_clock_as_it_is(times: Times) -> None:
    async def told(seq: int) -> list[tuple[str, int, int]]:
        """What happened to a message, when, and for when: in seconds from now, by the clock."""
        traced = await times.broker.browsing.trace(Trace("orders", "billing", 1, seq))
        now = [("now", 0, traced.due_us), *((step.what, step.at_us, step.due_us) for step in traced.steps)]
        now_us = times.clock.now_us()
        return [
            (what, round((at_us - now_us) / SECOND_US) if at_us else 0, round((due_us - now_us) / SECOND_US))
            for what, at_us, due_us in now
            if what in ("now", "failed", "paused", "resumed")
        ]

    async def scenario() -> None:
        await times.bench.send("orders", b"before", b"meanwhile")
        member = await times.bench.attach(delays_s=(WHILE_S,), max_attempts=9)
        await times.bench.act(member, NACK, await times.bench.pull(member, 1))
        assert await told(0) == [("now", 0, 600), ("failed", 0, 600)]
        await times.ahead()
        assert await told(0) == [("now", 0, 600), ("failed", -7200, -6600)]
        member = await times.bench.attach()
        await times.bench.act(member, NACK, await times.bench.pull(member, 1))
        assert await told(1) == [("now", 0, 600), ("failed", 0, 600)]
        await times.right()
        assert await told(0) == [("now", 0, 600), ("failed", 0, 600)]
        assert await told(1) == [("now", 0, 600), ("failed", 7200, 7800)]

    times.run(scenario)


def test_a_pause_is_told_by_the_clock_as_it_is(tmp_path: Path) -> None:
    times = Times(World("log", tmp_path), "", tmp_path)

    async def scenario() -> None:
        await times.bench.attach()
        await times.ahead()
        await times.bench.send("orders", b"x")
        await times.broker.groups.pause(Pause("orders", "billing", True))
        await times.right()
        await times.broker.groups.pause(Pause("orders", "billing", False))
        await times.bench.flush()
        traced = await times.broker.browsing.trace(Trace("orders", "billing", 1, 0))
        paused, resumed = traced.steps
        assert (paused.what, resumed.what) == ("paused", "resumed")
        assert (paused.at_us, resumed.at_us) == (times.clock.now_us() + AHEAD_US, times.clock.now_us())

    times.run(scenario)


@pytest.mark.parametrize("how", ["right", "killed"])
def test_a_start_tells_of_what_waited_by_a_clock_that_was_ahead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    times = Times(World("log", tmp_path), how, tmp_path, heartbeat_s=3600.0)

    async def scenario() -> None:
        await times.ahead()
        await times.bench.send("orders", b"x")
        member = await times.bench.attach(delays_s=(WHILE_S,), max_attempts=9)
        await times.bench.act(member, NACK, await times.bench.pull(member, 1))
        await prepare(times.broker)
        caplog.clear()
        await times.right()

    with caplog.at_level(logging.WARNING):
        times.run(scenario)
    told = [record.message for record in caplog.records if "ahead" in record.message]
    if how == "killed":
        assert [text.partition(" by ")[0] for text in told] == [
            "back-offs or timeouts have begun",
            "pauses between checks of prepared transactions have begun",
        ]
        assert all("was 7200 s ahead" in text for text in told)
    else:
        assert told == [], "it was closed by the right one, and knew what that means"


def test_a_lifetime_is_by_the_clock(times: Times) -> None:
    """Its sender said when it ends."""

    async def scenario() -> None:
        ends_us = [times.clock.now_us() + round(one * SECOND_US) for one in (AHEAD_S / 2, AHEAD_S * 2)]
        await times.bench.send("orders", b"short", b"long", b"ever", expires_at_us=[*ends_us, 0])
        await times.ahead()
        assert await times.pulled() == [(b"long", 1), (b"ever", 1)]

    times.run(scenario)


def test_a_group_is_not_alone_since_a_time_that_the_clock_has_not_come_to(tmp_path: Path) -> None:
    """An alarm that tells of it would wait for that."""
    times = Times(World("memory", tmp_path), "", tmp_path)

    async def scenario() -> None:
        await times.ahead()
        await times.broker.consumers.detach(await times.bench.attach())
        await times.broker.outlook.census.refresh()
        await times.right()
        await times.broker.outlook.census.refresh()
        group = times.broker.outlook.census.topics["orders"].groups["billing"]
        assert group.alone_since_us == times.clock.now_us()

    times.run(scenario)
