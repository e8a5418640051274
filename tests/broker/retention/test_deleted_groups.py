"""A group that is deleted is gone, with all that was under way in it, and leaves nothing behind that harms a start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import ACK, NACK, Bench, World
from tests.broker.test_recovery import crash
from tests.eventually import eventually_done
from tests.inside.delivery import GROUP_CHANGES, Acked, Part, encode_event
from tests.inside.frame import encode_events
from tests.inside.store import Append, DiskIo
from towline.errors import DiskFull, NotFound
from towline.model import Durability, pull_stream

PULLS = pull_stream("orders", "billing")


async def test_a_group_made_anew_knows_nothing_of_its_forerunner_after_a_crash(disk: World, tmp_path: Path) -> None:
    async with disk.open() as bench:
        await bench.send("orders", *(b"%d" % n for n in range(20)))
        old = await bench.attach(consumer="old")
        await bench.pull(old, 10)
        await bench.broker.maintain()  # the snapshot tells of the lease
        await bench.broker.groups.delete("orders", "billing")
        new = await bench.attach(consumer="new", delays_s=(0.0,))
        await bench.act(new, NACK, await bench.pull(new, 10))
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as bench:
        assert bench.broker.group_state("orders", "billing").in_flight == 0
        member = await bench.attach(consumer="new")
        got = await bench.pull(member, 100)
        assert got.bodies == [b"%d" % n for n in range(20)]
        assert got.attempts == [2] * 10 + [1] * 10
        assert (await bench.act(member, ACK, got)).refused == []


async def test_a_group_that_is_made_anew_while_it_is_deleted_outlives_a_crash(disk: World, tmp_path: Path) -> None:
    """As consumers do that were attached: they come back at once."""

    async with disk.open() as bench:
        await bench.send("orders", *(b"%d" % n for n in range(20)))
        await bench.attach(consumer="old")
        deletion = asyncio.create_task(bench.broker.groups.delete("orders", "billing"))
        await asyncio.sleep(0)
        new = await bench.attach(consumer="new", start="latest")
        await deletion
        await bench.send("orders", b"new")
        got = await bench.pull(new)
        await bench.flush()
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as bench:
        again = await bench.attach(consumer="new", holding=(got.pull,))
        assert (got.bodies, again.held) == ([b"new"], [got.pull])
        assert (await bench.pull(again)).bodies == []


def test_a_consumer_that_comes_while_its_topic_is_deleted_gets_what_is_sent_from_then_on(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"old")
        await bench.attach(group="billing")
        await bench.attach(group="mail")
        deletion = asyncio.create_task(bench.broker.delete_topic("orders"))
        await asyncio.sleep(0)
        new = await bench.attach(consumer="new")
        await deletion
        await bench.send("orders", b"new")
        assert (await bench.pull(new, wait_ms=60_000)).bodies == [b"new"]

    disk.run(scenario)


def test_a_group_of_its_last_consumer_stays_if_another_comes_in_that_moment(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a")
        first = await bench.attach(consumer="first", ephemeral=True)
        async with bench.broker.groups.making:
            second = asyncio.create_task(bench.attach(consumer="second", ephemeral=True))
            await asyncio.sleep(0)
            await bench.broker.consumers.detach(first)  # from now on the group is to be deleted
        member = await second
        async with bench.broker.groups.making:
            assert (await bench.pull(member, wait_ms=60_000)).bodies == [b"a"]

    world.run(scenario)


@pytest.mark.parametrize("mode", ["at-least-once", "at-most-once"])
def test_a_pull_that_reads_while_its_group_is_deleted_writes_nothing_more(disk: World, mode: str) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", bytes(3_000), bytes(9_000))
        member = await bench.attach(mode=mode)
        reading, go_on = asyncio.Event(), asyncio.Event()
        read = bench.store.read

        async def slowly(*args: Any) -> Any:
            reading.set()
            await go_on.wait()
            return await read(*args)

        bench.store.read = slowly  # type: ignore[assignment, method-assign]
        pull = asyncio.create_task(bench.pull(member, max_bytes=4_000))
        await reading.wait()
        await bench.broker.groups.delete("orders", "billing")
        go_on.set()
        assert (await pull).bodies == []

    disk.run(scenario)
    disk.run(_there_is_no_group)


def test_an_ack_on_its_way_to_the_disk_goes_with_its_group(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    synced.set()
    fdatasync = DiskIo.fdatasync

    def slowly(io: DiskIo, fd: int) -> None:
        synced.wait(60)
        fdatasync(io, fd)

    monkeypatch.setattr(DiskIo, "fdatasync", slowly)

    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a")
        member = await bench.attach()
        got = await bench.pull(member)
        await bench.flush()
        synced.clear()
        ack = asyncio.create_task(bench.act(member, ACK, got))
        deletion = asyncio.create_task(bench.broker.groups.delete("orders", "billing"))
        store: Any = bench.store
        # The ack is being synced, and what the deletion does waits behind it.
        await eventually_done(lambda: store._writer._handed_over > 1)
        synced.set()
        await asyncio.gather(ack, deletion)
        first, end, _ = bench.store.bounds(PULLS)
        assert first == end

    disk.run(scenario, durability="fsync")
    disk.run(_there_is_no_group)


def _full(bench: Bench) -> Callable[[], None]:
    """There is no room to note that this group's events go; until the answer is called."""
    trim = bench.store.trim

    async def trim_others(stream: str, before: int, *, forget: bool = False) -> None:
        if stream == PULLS:
            raise DiskFull("no room")
        await trim(stream, before, forget=forget)

    bench.store.trim = trim_others  # type: ignore[method-assign]
    return lambda: delattr(bench.store, "trim")


async def test_a_deletion_that_failed_half_way_is_done_later_and_outlives_a_crash_before(
    disk: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with disk.open() as bench:
        await bench.send("orders", b"a")
        await bench.act(member := await bench.attach(), ACK, await bench.pull(member))
        empty_again = _full(bench)
        with pytest.raises(DiskFull):
            await bench.broker.groups.delete("orders", "billing")
        for number in range(4):
            # The documents go on, and what both of them have of the catalogue is dropped.
            await bench.attach(group=f"g{number}")
            await bench.broker.maintain()
        assert "streams of deleted groups could not be dropped yet: no room" in caplog.text
        after = crash(disk, tmp_path / "crashed")
        empty_again()
        await bench.broker.maintain()
        assert PULLS not in bench.store.streams()
        await bench.attach(group="last")
        for _ in range(3):
            await bench.broker.maintain()
        assert bench.store.bounds(GROUP_CHANGES).first > 2, "it is not kept for ever"
    async with after.open() as bench:
        await _there_is_no_group(bench)
        assert len(bench.broker.topics["orders"].groups) == 4


def test_a_group_made_anew_after_its_deletion_failed_half_way_keeps_what_is_its_own(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a", b"b")
        await bench.act(member := await bench.attach(), ACK, await bench.pull(member, 1))
        empty_again = _full(bench)
        with pytest.raises(DiskFull):
            await bench.broker.groups.delete("orders", "billing")
        with pytest.raises(DiskFull):
            await bench.attach()
        empty_again()
        again = await bench.attach()
        assert (await bench.act(again, ACK, await bench.pull(again, 1))).refused == []
        await bench.broker.maintain()
        assert (await bench.pull(again)).bodies == [b"b"]

    disk.run(scenario)


async def _there_is_no_group(bench: Bench) -> None:
    with pytest.raises(NotFound):
        bench.broker.group_state("orders", "billing")


def test_a_broker_starts_although_an_event_fits_nothing_before_it(
    disk: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def damage(bench: Bench) -> None:
        await bench.send("orders", *(b"%d" % n for n in range(5)))
        await bench.act(member := await bench.attach(), ACK, await bench.pull(member, 2))
        stray = encode_events([encode_event(Acked(1, 77, (Part(1, 0, 1, 1),)))], produced_at_us=1)
        await bench.store.append([Append(PULLS, stray, 1, control=True)], Durability.OS).done

    async def scenario(bench: Bench) -> None:
        assert "does not fit those before it" in caplog.text
        member = await bench.attach()
        assert (await bench.pull(member)).bodies == [b"2", b"3", b"4"]

    disk.run(damage)
    disk.run(scenario)
