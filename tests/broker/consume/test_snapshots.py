"""How far groups are, on file: what has happened is written, and not all there is."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import ACK, DEAD, GIVE_BACK, NACK, Bench, World
from tests.broker.produce.test_producers_file import counted
from tests.broker.test_recovery import crash
from tests.inside.broker import RENEW_S, exposition, snapshots
from tests.inside.cli import _look_at_snapshots
from tests.inside.delivery import EXCERPT, Group, GroupSnapshot, snapshot
from tests.inside.ground import ManualClock
from tests.inside.protocol import Resend

FRAGMENTS = 6_000
SHOWN = "consumerOffset.json"


def config(world: World, name: str) -> Path:
    return world.folder / "data" / "config" / name


async def fragmented(bench: Bench, group: str = "billing") -> int:
    """A group that has every second message to do: some held, some given back, some failed. The pull that holds."""
    member = await bench.attach(group=group, delays_s=(3600.0,), max_in_flight=10 * FRAGMENTS)
    await bench.send("orders", *(b"%d" % number for number in range(2 * FRAGMENTS)))
    got = await bench.pull(member, 2 * FRAGMENTS)
    await bench.act(member, ACK, got, *[(1, seq, 1) for seq in range(0, 2 * FRAGMENTS, 2)])
    await bench.act(member, GIVE_BACK, got, *[(1, seq, 1) for seq in range(1, FRAGMENTS, 2)])
    await bench.act(member, NACK, got, *[(1, seq, 1) for seq in range(FRAGMENTS + 1, FRAGMENTS + FRAGMENTS // 2, 2)])
    return got.pull


def state(bench: Bench, group: str = "billing") -> GroupSnapshot:
    found: Group = bench.broker.groups.named("orders", group).group
    whole = snapshot(found, 0)
    # Leases that outlive a start are extended.
    leases = [{"pull": one.pull, "open": one.open, "settled": one.settled} for one in whole.leases]
    return (whole.offsets, leases, sorted(whole.retries), whole.counters, whole.dying)  # type: ignore[return-value]


def test_only_groups_in_which_something_happened_are_noted_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []

    def noting(group: Group, *arguments: Any) -> GroupSnapshot:
        noted.append(group.config.name)
        return snapshot(group, *arguments)

    monkeypatch.setattr(snapshots, "snapshot", noting)

    async def scenario(bench: Bench) -> None:
        await bench.send("orders", *(b"%d" % number for number in range(10)))
        members = {f"g{number}": await bench.attach(group=f"g{number}") for number in range(40)}
        await bench.broker.maintain()
        assert sorted(noted) == sorted(members)
        noted.clear()
        await bench.act(members["g7"], ACK, await bench.pull(members["g7"], 3))
        await bench.broker.maintain()
        assert noted == ["g7"]
        kept = await bench.store.load(SHOWN)
        assert kept is not None
        groups = {one["group"]: one for one in json.loads(kept)["groups"]}
        assert {name: one["offsets"]["middle"] for name, one in groups.items()} == dict.fromkeys(members, 0) | {"g7": 3}
        assert b'\n   "group": "g7",\n' in kept

    world.run(scenario)


def test_a_group_with_very_much_open_has_a_document_of_its_own(world: World, tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await fragmented(bench)
        await bench.broker.maintain()
        kept = await bench.store.load(SHOWN)
        assert kept is not None
        assert len(kept) < 300_000
        (one,) = json.loads(kept)["groups"]
        assert one["rest"].startswith("consumerOffset-")
        assert sum(len(lease["open"]) for lease in one["leases"]) + len(one["retries"]) == 1_000, "some are shown"
        other = await bench.attach(consumer="c2")
        with counted(bench.store) as sizes:
            await bench.act(other, ACK, await bench.pull(other, 1))
            await bench.broker.maintain()
        assert not {SHOWN, one["rest"].split()[0]} & sizes.keys(), "two events are replayed in no time"
        assert sum(sizes.values()) < 300_000

    world.run(scenario)


async def test_it_is_written_again_when_much_has_happened_or_after_a_while(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock, heartbeat_s=3600.0) as bench:
        await fragmented(bench)
        await bench.broker.maintain()
        other = await bench.attach(consumer="c2", max_in_flight=10 * FRAGMENTS)
        await bench.act(other, ACK, await bench.pull(other, 1))
        with counted(bench.store) as sizes:
            await bench.broker.maintain()
            assert SHOWN not in sizes
            clock.advance(RENEW_S)
            await bench.broker.maintain()
        assert SHOWN in sizes
        got = await bench.pull(other, 1_000)
        for seq in range(3, 2_000, 4):
            await bench.act(other, ACK, got, (1, seq, 1))
        with counted(bench.store) as sizes:
            await bench.broker.maintain()
        assert SHOWN in sizes
        documents = sorted(path.name for path in config(disk, "").glob("consumerOffset-*.bin"))
        assert len(documents) <= 3


def test_dead_letters_that_were_sent_again_are_not_written_again_each_time(world: World) -> None:
    """Those that were sent again one by one are as many ranges: they count as what is open."""

    async def scenario(bench: Bench) -> None:
        many = 4 * EXCERPT
        member = await bench.attach(max_in_flight=2 * many)
        await bench.send("orders", *(b"%d" % number for number in range(many)))
        await bench.act(member, DEAD, await bench.pull(member, many))
        await bench.broker.groups.buried("orders", "billing")
        await bench.broker.dead_letters.resend(Resend("orders", "billing", list(range(0, many, 2))))
        group = bench.broker.groups.named("orders", "billing").group
        assert len(group.resent) == many // 2
        await bench.act(member, ACK, await bench.pull(member, many))
        await bench.broker.maintain()
        for number in range(3):
            await bench.send("orders", b"more")
            await bench.act(member, ACK, await bench.pull(member, 1))
            with counted(bench.store) as sizes:
                await bench.broker.maintain()
            written = sizes.keys() - {SHOWN + ".bak"}
            assert not [name for name in written if name.startswith("consumerOffset")], number

    world.run(scenario)


@pytest.mark.parametrize("how", ["closed", "killed", "killed at every document"])
async def test_what_is_open_comes_back(disk: World, tmp_path: Path, how: str) -> None:
    copies: list[tuple[World, Any]] = []
    async with disk.open(heartbeat_s=3600.0) as bench:
        await fragmented(bench)
        await bench.broker.maintain()
        other = await bench.attach(consumer="c2")
        await bench.act(other, ACK, await bench.pull(other, 1))
        before = state(bench)
        await bench.flush()
        if how == "killed":
            copies.append((crash(disk, tmp_path / "crashed"), before))
        elif how == "killed at every document":
            save = bench.store.save

            async def and_crash(name: str, document: bytes) -> None:
                await save(name, document)
                copies.append((crash(disk, tmp_path / f"crashed-{len(copies)}"), before))

            bench.store.save = and_crash  # type: ignore[method-assign]
            await bench.broker._save_snapshots(everything=True)
            await bench.act(other, ACK, await bench.pull(other, 1))
            await bench.flush()
            before = state(bench)
            await bench.broker._save_snapshots(everything=True)
            assert len(copies) >= 5
            del bench.store.save
    if how == "closed":
        copies.append((disk, before))
    for world, expected in copies:
        async with world.open(heartbeat_s=3600.0) as bench:
            assert state(bench) == expected


@pytest.mark.parametrize("how", ["the last one", "all"])
@pytest.mark.parametrize("lost", ["missing", "damaged"])
def test_if_its_document_is_lost_the_one_before_is_used_or_the_pull_log_is_replayed(
    disk: World, how: str, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with disk.open(heartbeat_s=3600.0) as bench:
            await fragmented(bench)
            await bench.broker.maintain()
            other = await bench.attach(consumer="c2")
            await bench.act(other, ACK, await bench.pull(other, 1))
            before = state(bench)
        (one,) = json.loads(config(disk, SHOWN).read_text())["groups"]
        names = [one["rest"].split()[0]]
        if how == "all":
            (one,) = json.loads(config(disk, f"{SHOWN}.bak").read_text())["groups"]
            names.append(one["rest"].split()[0])
            assert len(set(names)) == 2
        for name in names:
            if lost == "missing":
                config(disk, name).unlink()
            else:
                document = bytearray(config(disk, name).read_bytes())
                document[100] ^= 1
                config(disk, name).write_bytes(document)
        async with disk.open(heartbeat_s=3600.0) as bench:
            assert state(bench) == before

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert "is missing or damaged. consumerOffset.json.bak is used instead" in said[0]
    assert len(said) == (1 if how == "the last one" else 2)


async def test_a_large_file_is_written_more_seldom(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LARGE_BYTES", 100)
    monkeypatch.setattr(snapshots, "BYTES_PER_S", 100)

    clock = ManualClock()
    async with disk.open(clock) as bench:
        await bench.send("orders", *(b"%d" % number for number in range(10)))
        member = await bench.attach()
        await bench.act(member, ACK, await bench.pull(member, 1))
        with counted(bench.store) as sizes:
            await bench.broker.maintain()
        seconds = sizes[SHOWN] / 100
        await bench.act(member, ACK, await bench.pull(member, 1))
        with counted(bench.store) as sizes:
            await bench.broker.maintain()
            assert SHOWN not in sizes
            clock.advance(seconds)
            await bench.broker.maintain()
        assert SHOWN in sizes


async def test_how_long_snapshots_take_and_how_old_they_are_is_seen_also_while_they_hang(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with disk.open(clock, maintenance_s=10.0) as bench:
        broker, save, go_on = bench.broker, bench.store.save, asyncio.Event()

        async def hang(name: str, document: bytes) -> None:
            await go_on.wait()
            await save(name, document)

        await bench.send("orders", b"x")
        await bench.attach()
        await broker.maintain()
        assert broker.figures()["snapshot_age_s"] == 0
        monkeypatch.setattr(bench.store, "save", hang)
        await bench.attach(group="other")
        hanging = asyncio.create_task(broker.maintain())
        await asyncio.sleep(0)
        clock.advance(299)
        before = broker.figures()
        clock.advance(401)
        meanwhile, shown = broker.figures(), await exposition(broker)
        go_on.set()
        await hanging
        assert _look_at_snapshots(before) == []
        assert (meanwhile["snapshot_s"], meanwhile["snapshot_age_s"]) == (0, 700)
        (finding,) = _look_at_snapshots(meanwhile)
        assert "were complete 700s ago, and they are due every 10 s" in finding.text
        assert b"\ntowline_snapshot_age_seconds 700\n" in shown
        figures = broker.figures()
        assert (figures["snapshot_s"], figures["snapshot_age_s"]) == (700, 0)
        assert b"\ntowline_snapshot_seconds 700\n" in await exposition(broker)
