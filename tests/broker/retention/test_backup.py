"""Backups of a running broker, and starts on folders whose documents are newer than their log."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from tests.broker.conftest import ACK, Bench, World
from tests.broker.consume.test_snapshots import fragmented
from tests.broker.produce.test_producers_file import send_ids
from tests.broker.produce.test_transactions import decide, prepare, states
from tests.broker.test_recovery import crash
from tests.eventually import eventually_done
from tests.inside.broker import LEASE_S, Holdings, holdings_of
from tests.inside.frame import encode
from tests.inside.ground import ManualClock
from tests.inside.protocol import CancelDelayed, HoldBackup, ListTransactions
from tests.inside.store import LogStore, backup
from towline.errors import BadRequest, Conflict, NotFound, StoreDamaged, StoreFailed

SECOND_US = 1_000_000


async def copied(bench: Bench, target: Path, between: Callable[[], Awaitable[None]] | None = None) -> None:
    """A backup as `towline backup` makes it; something happens `between` the documents and the end of the log."""
    begun = await bench.broker.begin_backup()
    with backup.new_backup(target) as partial:
        await asyncio.to_thread(backup.copy_documents, Path(begun.folder), partial)
        if between is not None:
            await between()
        held = await bench.broker.backups.hold(HoldBackup(begun.ticket))
        end = held.segment, held.position
        linked = await asyncio.to_thread(backup.copy_log, Path(begun.folder), partial, end, lambda done: None)
        await bench.broker.backups.hold(HoldBackup(begun.ticket, done=True))
    files = backup.digests(target / "store", lambda done: None)
    holdings = msgspec.structs.asdict(await holdings_of(target / "store"))
    about = {"at_us": held.at_us, "segment": held.segment, "position": held.position, "linked": linked}
    size = sum(file.size for file in files)
    backup.write_manifest(target, backup.Manifest(**about, bytes=size, holdings=holdings, files=files))


def restored(target: Path, to: Path) -> World:
    backup.restore(target, backup.read_manifest(target), to / "data", {}, lambda done: None)
    return World("log", to)


class Load:
    """Producers and a consumer at work, and what they were told."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.kept: set[bytes] = set()
        """Sent, delayed, prepared or committed: acknowledged."""
        self.acked: set[bytes] = set()
        self.committed = 0
        self._tasks = [asyncio.create_task(one()) for one in (self._send, self._delay, self._transact, self._consume)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self) -> None:
        for number in range(1_000_000):
            body = b"plain %d" % number
            await self.bench.send("orders", body)
            self.kept.add(body)
            await asyncio.sleep(0.001)

    async def _delay(self) -> None:
        for number in range(1_000_000):
            body = b"later %d" % number
            delay_us = 5_000 + number * 7_919 % 400_000 if number % 20 else 3600 * SECOND_US
            await self.bench.send("orders", body, deliver_at_us=[-delay_us])
            self.kept.add(body)
            await asyncio.sleep(0.001)

    async def _transact(self) -> None:
        for number in range(1_000_000):
            body, name = b"unit %d" % number, f"t{number}"
            await prepare(self.bench.broker, name, [("orders", 1, [body])])
            self.kept.add(body)
            await asyncio.sleep(0.004)
            if number % 10:
                await decide(self.bench.broker, True, name)
                self.committed += 1

    async def _consume(self) -> None:
        member = await self.bench.attach()
        while True:
            got = await self.bench.pull(member, 50, wait_ms=50)
            if got.bodies:
                await self.bench.act(member, ACK, got)
                self.acked |= set(got.bodies)


async def all_messages(bench: Bench) -> list[bytes]:
    """Of the topic, once all prepared transactions are committed and the hour is over."""
    for one in bench.broker.transactions.states(ListTransactions(limit=10_000)).transactions:
        await decide(bench.broker, True, one.transaction)
    clock = bench.broker.clock
    assert isinstance(clock, ManualClock)
    clock.advance(7200)
    await bench.broker.scheduler.catch_up()
    await bench.broker.scheduler.settle()
    member = await bench.attach(group="all", consumer="reader", start="earliest")
    found: list[bytes] = []
    while got := (await bench.pull(member, 10_000)).bodies:
        found += got
    return found


async def test_a_backup_under_load_has_everything_that_was_acknowledged_before_its_end(
    disk: World, tmp_path: Path
) -> None:
    async with disk.open(segment_bytes=64 << 10, maintenance_s=0.02) as bench:
        load = Load(bench)
        acked = set[bytes]()
        kept = set[bytes]()

        async def meanwhile() -> None:
            """Messages come due, transactions are committed, and maintenance has been at work."""
            delivered, committed = bench.broker.scheduler.delivered, load.committed
            await eventually_done(
                lambda: bench.broker.scheduler.delivered > delivered + 60 and load.committed > committed + 20
            )
            for _ in range(3):
                await bench.broker.maintain()
            kept.update(load.kept)
            acked.update(load.acked)

        try:
            await eventually_done(lambda: load.committed > 20 and len(load.acked) > 100)
            await copied(bench, tmp_path / "backup", meanwhile)
        finally:
            await load.stop()
        now_us = bench.broker.clock.now_us()
    manifest = backup.read_manifest(tmp_path / "backup")
    assert manifest.linked
    assert manifest.holdings["problems"] == []
    after = restored(tmp_path / "backup", tmp_path / "restored")
    async with after.open(ManualClock(now_us)) as bench:
        member = await bench.attach(consumer="c2")
        again = (await bench.pull(member, 100_000, max_bytes=1 << 30)).bodies
        assert acked.isdisjoint(again)
        found = await all_messages(bench)
        assert len(found) == len(set(found))
        assert kept - set(found) == set()


# What the broker promises meanwhile


async def test_documents_that_are_saved_anew_while_they_are_copied_fit_each_other(
    disk: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with disk.open(heartbeat_s=3600.0) as bench:
        loop, copy = asyncio.get_running_loop(), backup._copy
        await fragmented(bench)
        await send_ids(bench, 0, 3_000, "ids")
        other = await bench.attach(consumer="c2")
        left = {"consumerOffset", "producers"}

        async def go_on() -> None:
            await bench.act(other, ACK, await bench.pull(other, 1))
            await send_ids(bench, 3_000 * (2 - len(left)), 3_000, "ids")
            await bench.broker._save_snapshots(everything=True)

        def copying(source: Path, target: Path, **given: object) -> None:
            copy(source, target, **given)  # type: ignore[arg-type]
            kind = source.name.partition(".")[0].partition("-")[0]
            if kind in left:
                left.remove(kind)
                asyncio.run_coroutine_threadsafe(go_on(), loop).result()

        monkeypatch.setattr(backup, "_copy", copying)
        await copied(bench, tmp_path / "backup")
    assert not left
    assert backup.read_manifest(tmp_path / "backup").holdings["problems"] == []


async def test_a_broker_trims_nothing_for_a_backup_until_it_is_done_or_not_heard_of(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock) as bench:

        async def trimmed() -> bool:
            """Whether maintenance lets go of the marks of what was delivered since."""
            before = bench.store.bounds("delay/marks").first
            for _ in range(4):
                await bench.send("orders", b"x", deliver_at_us=[-SECOND_US])
                clock.advance(2)
                await bench.broker.scheduler.catch_up()
                await bench.broker.maintain()
            return bench.store.bounds("delay/marks").first > before

        assert await trimmed()
        first, second = await bench.broker.begin_backup(), await bench.broker.begin_backup()
        assert not await trimmed()
        await bench.broker.backups.hold(HoldBackup(first.ticket, done=True))
        clock.advance(LEASE_S - 10)
        await bench.broker.backups.hold(HoldBackup(second.ticket))
        clock.advance(LEASE_S - 10)
        assert not await trimmed()
        clock.advance(LEASE_S)
        assert await trimmed()
        for begun in (first, second):
            with pytest.raises(Conflict, match="make it anew"):
                await bench.broker.backups.hold(HoldBackup(begun.ticket))


async def test_a_disk_that_is_nearly_full_is_not_held_for_a_backup(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with disk.open() as bench:
        begun = await bench.broker.begin_backup()
        monkeypatch.setattr(LogStore, "free_bytes", lambda store: 4096)
        await bench.broker.maintain()
        with pytest.raises(Conflict, match="make it anew"):
            await bench.broker.backups.hold(HoldBackup(begun.ticket))


@pytest.mark.parametrize(("kind", "says"), [("memory", "nothing to back up"), ("sql", "database: back that up")])
async def test_other_stores_say_what_to_do_instead(tmp_path: Path, kind: str, says: str) -> None:
    async with World(kind, tmp_path).open() as bench:
        with pytest.raises(BadRequest, match=says):
            await bench.broker.begin_backup()


# What a backup is


def test_a_backup_that_failed_leaves_nothing_and_one_that_was_killed_is_refused(disk: World, tmp_path: Path) -> None:
    async def main() -> None:
        async with disk.open() as bench:
            await bench.send("orders", b"x")

            async def fail() -> None:
                raise RuntimeError("in between")

            with pytest.raises(RuntimeError):
                await copied(bench, tmp_path / "failed", fail)
            await copied(bench, tmp_path / "whole")

    asyncio.run(main())
    assert not (tmp_path / "failed").exists()
    (tmp_path / "whole" / "manifest.json").unlink()
    with pytest.raises(NotFound, match="was not finished"):
        backup.read_manifest(tmp_path / "whole")


def test_a_backup_is_told_from_a_damaged_one(disk: World, tmp_path: Path) -> None:
    async def main() -> None:
        async with disk.open() as bench:
            await bench.send("orders", b"x")
            await copied(bench, tmp_path / "backup")

    asyncio.run(main())
    manifest = backup.read_manifest(tmp_path / "backup")
    backup.verify(tmp_path / "backup", manifest, lambda done: None)
    assert asyncio.run(holdings_of(tmp_path / "backup" / "store")) == Holdings(topics=1, messages=1)
    log = tmp_path / "backup" / "store" / "log" / f"{1:020}.log"
    data = bytearray(log.read_bytes())
    data[20] ^= 1
    for content in (bytes(data), bytes(data[:-1]), None):
        log.unlink()
        if content is not None:
            log.write_bytes(content)
        with pytest.raises(StoreDamaged, match=log.name):
            backup.verify(tmp_path / "backup", manifest, lambda done: None)
        to = tmp_path / f"to-{len(content or b'')}"
        with pytest.raises(StoreDamaged, match=log.name):
            backup.restore(tmp_path / "backup", manifest, to, {}, lambda done: None)
        # No broker takes what was restored in part for a store.
        with pytest.raises(StoreFailed, match="unfinished-restore"):
            asyncio.run(LogStore.open(to))


def test_a_manifest_names_files_of_a_store_only(disk: World, tmp_path: Path) -> None:
    entry = backup.BackupFile("../../outside", 0, "")
    manifest = backup.Manifest(at_us=0, segment=1, position=0, bytes=0, linked=0, holdings={}, files=[entry])
    backup.write_manifest(tmp_path, manifest)
    with pytest.raises(StoreDamaged, match="no file of a store"):
        backup.read_manifest(tmp_path)


# Documents that are newer than the log


async def mixed(bench: Bench, world: World, to: Path, between: Callable[[], Awaitable[object]]) -> World:
    """The log is copied, then something happens, then the documents are copied."""
    await bench.broker.maintain()
    await bench.flush()
    after = crash(world, to)
    await between()
    await bench.broker.maintain()
    shutil.rmtree(to / "data" / "config")
    shutil.copytree(world.folder / "data" / "config", to / "data" / "config")
    return after


def test_a_delayed_message_that_came_due_between_copies_of_log_and_config_is_delivered(
    disk: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with disk.open(clock) as bench:
            await bench.send("orders", b"soon", deliver_at_us=[-10 * SECOND_US])
            await bench.send("orders", b"later", deliver_at_us=[-3600 * SECOND_US])
            [doomed] = (await bench.send("orders", b"never", deliver_at_us=[-1800 * SECOND_US])).firsts
            assert (await cancel(bench, doomed)) == 1

            async def come_due() -> None:
                for _ in range(3):
                    clock.advance(20)
                    await bench.broker.scheduler.catch_up()
                    await bench.broker.maintain()

            after = await mixed(bench, disk, tmp_path / "mixed", come_due)
        async with after.open(clock) as bench:
            assert await all_messages(bench) == [b"soon", b"later"]
        async with after.open(clock) as bench:
            assert await all_messages(bench) == [b"soon", b"later"]

    asyncio.run(main())
    errors = [one.message.split()[0] for one in caplog.records if one.levelno == logging.ERROR]
    assert errors == ["delayOffset.json", "producers.bin"]


async def cancel(bench: Bench, message: int) -> int:
    return (await bench.broker.delayed.cancel(CancelDelayed("orders", [message]))).count


def test_a_group_whose_position_is_ahead_of_the_log_passes_over_no_message(
    disk: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with disk.open() as bench:
            member = await bench.attach()
            await bench.send("orders", b"0", b"1")
            await bench.act(member, ACK, await bench.pull(member))

            async def consume() -> None:
                for body in (b"a", b"b", b"c"):
                    await bench.send("orders", body)
                    await bench.act(member, ACK, await bench.pull(member))
                    await bench.broker.maintain()

            after = await mixed(bench, disk, tmp_path / "mixed", consume)
        async with after.open() as bench:
            # They get the numbers of those that were consumed.
            await bench.send("orders", b"2", b"3", b"4")
            member = await bench.attach()
            got = await bench.pull(member)
            assert got.bodies == [b"2", b"3", b"4"]
            await bench.act(member, ACK, got)
        async with after.open() as bench:
            assert (await bench.pull(await bench.attach())).bodies == []

    asyncio.run(main())
    assert "group billing of topic orders" in caplog.text


async def test_a_frame_that_only_a_document_remembers_is_stored_when_it_is_sent_again(
    disk: World, tmp_path: Path
) -> None:
    frame = encode([b"x"], dedup_ids=["id"], producer_id=7, producer_seq=1)
    async with disk.open() as bench:
        await bench.send("orders", b"first", producer_id=7, producer_seq=0)
        after = await mixed(bench, disk, tmp_path / "mixed", lambda: bench.broker.send([("orders", 1, frame)]))
    async with after.open() as bench:
        sent = await bench.broker.send([("orders", 1, frame)])
        assert (sent.firsts, sent.duplicate) == ([1], False)
        assert (await bench.broker.send([("orders", 1, frame)])).duplicate


@pytest.mark.parametrize("older", [False, True])
async def test_a_transaction_whose_commit_the_log_lost_waits_again_or_the_broker_does_not_start(
    disk: World, tmp_path: Path, older: bool
) -> None:
    """It cannot tell them apart from those that were committed before, once their marks are trimmed."""

    async with disk.open() as bench:
        if older:
            await prepare(bench.broker, "t0")
            await decide(bench.broker, True, "t0")
            await bench.broker.maintain()
        await prepare(bench.broker, "t1", [("orders", 1, [b"x"])])
        after = await mixed(bench, disk, tmp_path / "mixed", lambda: decide(bench.broker, True, "t1"))
    if older:
        with pytest.raises(StoreDamaged, match=r"transactions\.bin .* newer than log/.* remove transactions\.bin"):
            async with after.open():
                pass
        (tmp_path / "mixed" / "data" / "config" / "transactions.bin").unlink()
    async with after.open() as bench:
        assert ("t1", "prepared") in states(bench.broker)
        await decide(bench.broker, True, "t1")
        assert b"x" in (await bench.pull(await bench.attach(start="earliest"))).bodies
