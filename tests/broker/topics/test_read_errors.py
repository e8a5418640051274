"""A store that cannot be read for a moment: nobody loses a message by it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.broker.conftest import ACK, DEAD, Bench, World
from tests.eventually import eventually_done
from tests.inside.broker import Member, exposition
from tests.inside.cli import CRITICAL, _look
from tests.inside.delivery import State
from tests.inside.ground import ManualClock
from tests.inside.protocol import Attach, Measure, Pull
from tests.store.log.small_logs import unreadable as unreadable_files
from towline.errors import Unavailable, Unreadable


@contextmanager
def unreadable(bench: Bench, error: Exception) -> Iterator[list[object]]:
    """Every read fails; gives a list that grows with them."""
    read, failed = bench.store.read, list[object]()

    async def fail(*asked: object) -> Any:
        failed.append(asked)
        raise error

    bench.store.read = fail  # type: ignore[assignment, method-assign]
    try:
        yield failed
    finally:
        bench.store.read = read  # type: ignore[method-assign]


@pytest.mark.parametrize("wait_ms", [0, 60_000])
def test_a_pull_that_cannot_be_read_holds_nothing_back(world: World, wait_ms: int) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        with unreadable(bench, Unavailable("not now")):
            pull = asyncio.create_task(bench.pull(member, wait_ms=wait_ms)) if wait_ms else None
            await asyncio.sleep(0)
            await bench.send("orders", bytes(5_000), bytes(5_000))
            with pytest.raises(Unavailable, match="not now"):
                await (pull or bench.pull(member))
        assert bench.broker.group_state("orders", "billing").in_flight == 0
        got = await bench.pull(member, wait_ms=60_000)
        assert (len(got.bodies), got.attempts) == (2, [1, 1])
        assert (await bench.act(member, ACK, got)).refused == []

    world.run(scenario)


@pytest.mark.parametrize("error", [Unavailable("not now"), OSError(errno.EMFILE, "too many open files")])
async def test_delayed_messages_are_delivered_once_they_can_be_read_again(
    disk: World, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.inside.broker.timer_loop.BACKOFF_MIN_S", 0.01)

    clock = ManualClock()
    async with disk.open(clock) as bench:
        await bench.send("orders", b"later", deliver_at_us=[-10_000_000])
        with unreadable(bench, error) as failed:
            clock.advance(9)
            bench.broker.scheduler.wake()
            await eventually_done(lambda: failed)
        clock.advance(2)
        bench.broker.scheduler.wake()
        got = await bench.pull(await bench.attach(), wait_ms=60_000)
        assert got.bodies == [b"later"]


# --- the disk does not read -------------------------------------------------------------------------------------------


async def stored(bench: Bench, count: int = 20) -> Member:
    """Messages that are too large to be kept at hand, and a consumer who got none of them yet."""
    member = await bench.attach()
    for number in range(count):
        await bench.send("orders", b"%d" % number + bytes(5_000))
    return member


def skips(bench: Bench) -> int:
    return bench.broker.groups.named("orders", "billing").group.counters[State.GONE]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.inside.broker.dispatcher.PROBE_MIN_S", 0.02)
    monkeypatch.setattr("tests.inside.store.store._PAUSES_S", (0.001,))


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM])
@pytest.mark.usefixtures("quick")
def test_a_group_waits_for_a_disk_that_does_not_read_and_goes_on_by_itself(
    disk: World, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench: Bench) -> None:
        member = await stored(bench)
        with unreadable_files("*.log", code) as asked:
            pull = asyncio.create_task(bench.pull(member, wait_ms=60_000))
            await eventually_done(lambda: len(asked) > 20)
            assert not pull.done()
            state = bench.broker.group_state("orders", "billing")
            assert "0001.log cannot be read now" in state.unreadable
            assert (state.lag, skips(bench)) == (20, 0)
            figures = (await bench.broker.measure(Measure())).groups[0]
            assert figures.unreadable == state.unreadable
            [finding] = _look(figures, 0, {}, need_consumers=False)
            assert (finding.level, finding.text) == (CRITICAL, f"orders/billing waits: {state.unreadable}")
            assert b'towline_group_unreadable{topic="orders",group="billing"} 1\n' in await exposition(bench.broker)
        got = await pull
        assert ([int(body.rstrip(b"\0")) for body in got.bodies], set(got.attempts)) == (list(range(20)), {1})
        state = bench.broker.group_state("orders", "billing")
        assert (state.unreadable, skips(bench)) == ("", 0)
        assert (await bench.act(member, ACK, got)).refused == []

    disk.run(scenario)
    waits = [one.getMessage() for one in caplog.records if "waits, and skips nothing" in one.getMessage()]
    assert len(waits) == 1, "it is said once"
    assert "group billing on topic orders" in waits[0]
    assert "0001.log" in waits[0]
    assert "goes on" in caplog.text


@pytest.mark.usefixtures("quick")
def test_a_pull_that_does_not_wait_is_told_that_the_disk_does_not_read(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await stored(bench)
        with unreadable_files("*.log"):
            for _ in range(3):
                with pytest.raises(Unreadable, match=r"group billing on topic orders waits: .*0001\.log"):
                    await bench.pull(member)
            assert (await bench.pull(member, wait_ms=1)).bodies == [], "it has waited as long as it was to"
        got = await bench.pull(member, wait_ms=60_000)
        assert (len(got.bodies), skips(bench)) == (20, 0)

    disk.run(scenario)


@pytest.mark.usefixtures("quick")
def test_other_topics_of_a_prefix_do_not_wait_for_one_that_cannot_be_read(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        await stored(bench)
        fan = await bench.broker.consumers.fan(Attach("*", "billing", "c2"), address="test", may=lambda _: True)
        fan.broker = bench.broker
        with unreadable_files("*.log"):
            pull = asyncio.create_task(bench.broker.consumers.pull(fan, Pull(0, 100, 1 << 20, 60_000)))
            await eventually_done(lambda: bench.broker.group_state("orders", "billing").unreadable)
            await bench.send("stock", b"there")
            assert (await pull)[0].topic == "stock"
        pulled, _ = await bench.broker.consumers.pull(fan, Pull(0, 100, 1 << 20, 60_000))
        assert (pulled.topic, sum(part.count for part in pulled.parts)) == ("orders", 20)

    disk.run(scenario)


@pytest.mark.usefixtures("quick")
def test_what_was_read_before_a_bad_place_is_delivered(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await stored(bench, 5)
        read = bench.store.read

        async def only_two(stream: str, first: int, count: int, max_bytes: int) -> Any:
            if first >= 2:
                raise Unreadable("a bad place")
            return await read(stream, first, min(count, 2 - first), max_bytes)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bench.store, "read", only_two)
            got = await bench.pull(member)
            assert len(got.bodies) == 2
            with pytest.raises(Unreadable, match="a bad place"):
                await bench.pull(member)
        assert (await bench.act(member, ACK, got)).refused == []
        assert len((await bench.pull(member, wait_ms=60_000)).bodies) == 3
        assert skips(bench) == 0

    disk.run(scenario)


@pytest.mark.usefixtures("quick")
def test_what_dies_while_the_disk_does_not_read_is_buried_later(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await stored(bench)
        got = await bench.pull(member)
        with unreadable_files("*.log") as asked:
            assert (await bench.act(member, DEAD, got)).refused == []
            await eventually_done(lambda: asked and not bench.broker.groups.burying)
            state = bench.broker.group_state("orders", "billing")
            assert (state.dying, state.dead, skips(bench)) == (20, 0, 0)
        bench.broker.groups.bury_rest()
        await bench.broker.groups.buried("orders", "billing")
        assert bench.broker.group_state("orders", "billing").dead == 20

    disk.run(scenario)


async def test_a_broker_does_not_start_on_a_pull_log_that_cannot_be_read(disk: World) -> None:
    async with disk.open() as bench:
        member = await stored(bench)
        assert (await bench.act(member, ACK, await bench.pull(member))).refused == []
    with unreadable_files("*.log"), pytest.raises(Unreadable, match=r"0001\.log cannot be read now"):
        async with disk.open():
            pass
    async with disk.open() as bench:
        assert bench.broker.group_state("orders", "billing").lag == 0
