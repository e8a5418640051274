"""Timeouts of messages that are out when the broker stops."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import ACK, NACK, Bench, Got, World
from tests.broker.test_recovery import crash
from tests.eventually import eventually_done
from tests.inside.broker import GRACE_US, Consumers, Server, message_limits
from tests.inside.frame import limit_of
from tests.inside.ground import SECOND_US, ManualClock
from tests.inside.store import Store
from towline.model import TopicConfig

GRACE_S = GRACE_US / SECOND_US


async def held(bench: Bench) -> int:
    """One message with a timeout, and one without, in a pull of one consumer."""
    await bench.send("orders", b"timed", b"any", lane=1, limits=[5 * SECOND_US, 0])
    member = await bench.attach(consumer="c1")
    got = await bench.pull(member)
    assert got.bodies == [b"timed", b"any"]
    return got.pull


@pytest.mark.parametrize("how", ["closed", "killed"])
@pytest.mark.parametrize("shards", [0, 3])
@pytest.mark.parametrize(("heartbeat_s", "due_s"), [(4, 5 + GRACE_S), (30, 30)])
async def test_what_is_out_keeps_its_timeout_through_a_restart(
    disk: World,
    tmp_path: Path,
    how: str,
    shards: int,
    heartbeat_s: float,
    due_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not over before its consumer had the time of a heartbeat to come back."""

    async def nobody(_: Consumers) -> None:
        """Nobody is taken for silent when the clock is set forward."""

    monkeypatch.setattr(Consumers, "sweep", nobody)

    clock = ManualClock()
    async with disk.open(clock) as bench:
        if shards:
            await bench.broker.topics.create(TopicConfig("orders", shards=shards))
        pull = await held(bench)
        await bench.flush()
        left = crash(disk, tmp_path / "crash") if how == "killed" else disk
    # Longer than the timeout; but who was at work then may have been done in time.
    clock.advance(60)
    async with left.open(clock, heartbeat_s=heartbeat_s) as bench:
        dispatcher = bench.broker.groups.named("orders", "billing")
        await eventually_done(lambda: bool(dispatcher._limits))
        assert dispatcher._limits.next_us() == clock.now_us() + round(due_s * SECOND_US)
        await bench.attach(consumer="c1", holding=(pull,))
        two = await bench.attach(consumer="c2")
        clock.advance(due_s - 0.001)
        dispatcher._on_time()
        assert (await bench.pull(two)).bodies == []
        clock.advance(0.001)
        dispatcher._on_time()
        got = await bench.pull(two)
        # In a shard nothing overtakes what is tried again: what is behind it comes along.
        assert (got.bodies, got.attempts) == (([b"timed", b"any"], [2, 1]) if shards else ([b"timed"], [2]))


@pytest.mark.parametrize("how", ["closed", "killed"])
async def test_what_is_out_is_tried_as_often_as_it_says_through_a_restart(
    disk: World, tmp_path: Path, how: str
) -> None:
    """Though its consumer nacks it before the broker has read its messages again."""

    async with disk.open() as bench:
        limits = [limit_of(0, 1), 0, limit_of(0, 3)]
        await bench.send("orders", b"once", b"any", b"three", lane=1, limits=limits)
        member = await bench.attach(consumer="c1", max_attempts=1, delays_s=(0.0,))
        got = await bench.pull(member)
        await bench.flush()
        left = crash(disk, tmp_path / "crash") if how == "killed" else disk
    async with left.open() as bench:
        member = await bench.attach(consumer="c1", holding=(got.pull,))
        await bench.act(member, NACK, got, (1, 0, 3), reason="no")
        again = await bench.pull(member)
        assert (again.bodies, again.attempts) == ([b"three"], [2])
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 2)


@pytest.mark.parametrize("how", ["its time is over", "it does not come back", "it is silent", "it breaks"])
async def test_nothing_is_judged_before_it_is_known_how_often_it_is_tried(
    disk: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    clock = ManualClock()
    async with disk.open(clock, heartbeat_s=30.0) as bench:
        await bench.send("orders", b"once", lane=1, limits=[limit_of(0, 1)])
        got = await bench.pull(await bench.attach(max_attempts=3, delays_s=(0.0,), timeout_s=5.0))
    read, go_on = disk_read(monkeypatch)
    async with disk.open(clock, heartbeat_s=30.0) as bench:
        dispatcher, consumers = bench.broker.groups.named("orders", "billing"), bench.broker.consumers
        await eventually_done(read.is_set)
        member = await bench.attach(holding=(got.pull,)) if how != "it does not come back" else None
        clock.advance(60)
        if how == "its time is over":
            dispatcher._on_time()
            assert dispatcher._timer is None, "it is set when they are known"
        elif how == "it breaks":
            assert member is not None
            await consumers._vanish([member])
        else:
            await consumers.sweep()
        assert got.pull in dispatcher.group.leases
        go_on.set()
        await eventually_done(lambda: not dispatcher._limits.recalling)
        if how == "its time is over":
            dispatcher._on_time()
        else:
            await consumers.sweep()
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 1)


def disk_read(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Limits of stored messages are read only when told to: set when they are asked for, and to be set."""
    within, asked, go_on = message_limits._limits_within, asyncio.Event(), asyncio.Event()

    async def late(*given: Any) -> Any:
        asked.set()
        await go_on.wait()
        return await within(*given)

    monkeypatch.setattr(message_limits, "_limits_within", late)
    return asked, go_on


COUNT = 400


async def fragments(bench: Bench, **columns: Any) -> dict[str, Got]:
    """Every second message is out: two consumers hold them by turns, ten at a time."""
    for first in range(0, COUNT, 100):
        bodies = [b"%03d" % number for number in range(first, first + 100)]
        await bench.send("orders", *bodies, **columns)
    held = {}
    for first in range(0, COUNT, 10):
        name = f"c{first // 10 % 2}-{first}"
        member = await bench.attach(consumer=name, max_attempts=1, delays_s=(0.0,))
        held[name] = await bench.pull(member, 10)
        await bench.act(member, ACK, held[name], *[(1, number, 1) for number in range(first, first + 10, 2)])
    await bench.flush()
    return held


@pytest.mark.parametrize("kind", ["log", "sql"])
async def test_neighbouring_fragments_that_are_out_are_read_together_after_a_restart(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And others have their turn between two reads: a broker listens before it knows all of it."""
    durable = World(kind, tmp_path)

    reads, turns, reading = list[int](), 0, message_limits._limits_within

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def counted(store: Store, *given: Any) -> Any:
        async def read(*asked: Any) -> Any:
            reads.append(turns)
            return await found(*asked)

        found = store.read
        monkeypatch.setattr(store, "read", read)
        result = await reading(store, *given)
        monkeypatch.setattr(store, "read", found)
        return result

    async with durable.open() as bench:
        held = await fragments(bench, limits=[limit_of(0, 1 + number % 3) for number in range(100)])
    monkeypatch.setattr(message_limits, "_limits_within", counted)
    monkeypatch.setattr(message_limits, "READ_BYTES", 1000)
    work = asyncio.create_task(others())
    async with durable.open() as bench:
        dispatcher = bench.broker.groups.named("orders", "billing")
        await eventually_done(lambda: not dispatcher._limits.recalling)
        work.cancel()
        assert 4 <= len(reads) <= 8
        assert len(set(reads)) >= len(reads) - 1
        # Each is tried as often as its sender said.
        for name, got in held.items():
            member = await bench.attach(consumer=name, holding=(got.pull,))
            await bench.act(member, NACK, got, reason="no")
        expected = [number for number in range(1, COUNT, 2) if number % 100 % 3]
        again = await bench.pull(await bench.attach(consumer="next"), COUNT)
        assert sorted(int(body) for body in again.bodies) == expected


@pytest.mark.service
async def test_consumers_have_the_time_of_a_heartbeat_from_when_the_broker_listens(disk: World) -> None:
    """However long a start takes, nobody is gone who could not come back yet."""

    clock = ManualClock()
    async with disk.open(clock) as bench:
        await bench.send("orders", b"held", lane=1)
        got = await bench.pull(await bench.attach(timeout_s=5.0))
    async with disk.open(clock, heartbeat_s=30.0) as bench:
        dispatcher, consumers = bench.broker.groups.named("orders", "billing"), bench.broker.consumers
        await eventually_done(lambda: not dispatcher._limits.recalling)
        clock.advance(60)
        server = await Server.start(bench.broker, "127.0.0.1", 0)
        clock.advance(29)
        await consumers.sweep()
        dispatcher._on_time()
        assert got.pull in dispatcher.group.leases
        clock.advance(2)
        await consumers.sweep()
        assert got.pull not in dispatcher.group.leases
        await server.drain_and_close()
