"""What is remembered of producers and dedup ids on file: written as it changes, whole after any crash."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.conftest import Bench, World
from tests.broker.produce.test_dedup import everything, places
from tests.broker.test_recovery import crash
from tests.inside.broker import PRODUCERS, SILENT_US, PartName, TableSnapshot
from tests.inside.broker import producers as producers_module
from tests.inside.cli import _look_at_dedup
from tests.inside.frame import encode
from tests.inside.ground import ManualClock
from tests.inside.protocol import Purge
from tests.inside.store import Store

AT_ONCE = 1_000


async def send_ids(bench: Bench, first: int, count: int, topic: str = "orders", producer_id: int = 0) -> None:
    """Messages with the ids `id-<first>` and so on, a frame for each thousand."""
    for at in range(first, first + count, AT_ONCE):
        numbers = range(at, min(at + AT_ONCE, first + count))
        ids = [f"id-{number}" for number in numbers]
        frame = encode([b"x"] * len(ids), dedup_ids=ids, producer_id=producer_id, producer_seq=at)
        await bench.broker.send([(topic, 1, frame)])


async def knows(bench: Bench, *numbers: int) -> bool:
    """Whether messages with these ids would not be stored again."""
    return all([places(await bench.send("orders", b"?", dedup_ids=[f"id-{number}"])) for number in numbers])


@contextmanager
def counted(store: Store) -> Iterator[dict[str, int]]:
    """The bytes of the documents that are saved meanwhile, by name."""
    sizes: dict[str, int] = {}
    save = store.save

    async def counting(name: str, document: bytes) -> None:
        sizes[name] = sizes.get(name, 0) + len(document)
        await save(name, document)

    store.save = counting  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        del store.save


def config(world: World, name: str) -> Path:
    return world.folder / "data" / "config" / name


# What it costs


@pytest.mark.slow
def test_one_message_writes_a_few_kilobytes_though_100_000_ids_and_frames_are_remembered(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await send_ids(bench, 0, 100_000 if world.kind != "sql" else 20_000)
        for producer_id in range(1, 400):
            unit = [("orders", 2, encode([b"y"], producer_id=producer_id, producer_seq=seq)) for seq in range(200)]
            await bench.broker.send(unit)
        with counted(bench.store) as first:
            await bench.broker.maintain()
        assert sum(size for name, size in first.items() if name.startswith("producers")) > 500_000
        with counted(bench.store) as nothing:
            await bench.broker.maintain()
        assert PRODUCERS not in nothing
        await bench.send("orders", b"one", dedup_ids=["one"], producer_id=7, producer_seq=1_000)
        with counted(bench.store) as after:
            await bench.broker.maintain()
        assert 0 < sum(after.values()) < 50_000, after

    world.run(scenario, capacity_messages=2_000_000, capacity_bytes=1 << 30)


def test_documents_that_are_not_named_any_more_are_emptied_and_used_again(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        for at in range(0, 60_000, 2_000):
            await send_ids(bench, at, 2_000)
            await bench.broker.maintain()
        documents = list(config(disk, "").glob("producers-*.bin"))
        assert len(documents) < 20
        assert sum(path.stat().st_size for path in documents) < 3 * 60_000 * 60

    disk.run(scenario)


@given(st.lists(st.lists(st.integers(0, 60), max_size=40), max_size=30), st.booleans())
def test_a_table_is_in_its_parts_whole_and_they_are_few(rounds: list[list[int]], renewed: bool) -> None:
    table, documents = dict[int, int](), dict[int, dict[int, int]]()
    generations = TableSnapshot[int](4, 32, 1)
    written = 0
    for time, fresh in enumerate(rounds):
        table |= dict.fromkeys(fresh, time)
        stale = renewed and generations.is_stale(len(table))
        plan = generations.plan(fresh, list(table) if stale else None)
        names = []
        for keys in plan.new:
            assert len(set(keys)) == len(keys) <= 32
            names.append(PartName(len(documents), 0, time))
            documents[len(documents)] = {key: table[key] for key in keys}
            written += len(keys)
        generations.commit(plan, names)
        assert len(generations.loose) <= 4
        found = dict[int, int]()
        for part in generations.parts:
            found |= documents[part.name.slot]
        found |= {key: table[key] for key in generations.loose}
        assert found == table
        assert len(generations.parts) <= 8 + sum(map(len, rounds)) // 8
    assert written <= 12 * sum(map(len, rounds)) + 1


def test_what_was_not_written_is_planned_again() -> None:
    generations = TableSnapshot[int](2, 8, 1)
    generations.plan([1, 2, 3])
    assert generations.plan([4]).new == [[1, 2, 3, 4]]


# Coming back


async def test_at_every_moment_of_a_save_a_killed_broker_comes_back_with_all_of_it(disk: World, tmp_path: Path) -> None:
    copies: list[World] = []

    async with disk.open() as bench:
        await send_ids(bench, 0, 5_000, producer_id=9)
        await bench.broker.maintain()
        await send_ids(bench, 5_000, 20_000, producer_id=9)
        unit = [("orders", 0, encode([b"y"], producer_id=one, producer_seq=1)) for one in range(1, 50)]
        await bench.broker.send(unit)
        save = bench.store.save

        async def and_crash(name: str, document: bytes) -> None:
            await save(name, document)
            if name.startswith("producers"):
                copies.append(crash(disk, tmp_path / f"crashed-{len(copies)}"))

        bench.store.save = and_crash  # type: ignore[method-assign]
        await bench.broker.maintain()
        await send_ids(bench, 25_000, 1_000, producer_id=9)
        await bench.broker.maintain()
    assert len(copies) >= 4
    for after in copies:
        async with after.open() as bench:
            assert await knows(bench, 0, 4_999, 5_000, 17_777, 24_999)
            for one in (1, 49):
                frame = encode([b"y"], producer_id=one, producer_seq=1)
                assert (await bench.broker.send([("orders", 0, frame)])).duplicate
            assert not places(await bench.send("orders", b"?", dedup_ids=["new"]))


async def test_a_document_of_an_earlier_version_which_has_all_in_it_is_read(disk: World) -> None:
    async with disk.open(retention_s=0.0) as bench:
        await send_ids(bench, 0, 3_000, producer_id=9)
        broker = bench.broker
        ends = {lane.stream: lane.end for lane in broker.topics["orders"].lanes if lane.end}
        seen = broker._dedup.entries(list(broker._dedup._keys), 1 << 62)
        whole = msgspec.msgpack.encode([ends, broker._producers.snapshot(), seen])
    for path in config(disk, "").glob("producers*"):
        path.unlink()
    config(disk, PRODUCERS).write_bytes(whole)
    async with disk.open() as bench:
        figures = bench.broker.figures()
        assert (figures["dedup_ids"], figures["remembered_frames"]) == (3_000, 3)
        assert await knows(bench, 0, 1_500, 2_999)


@pytest.mark.parametrize("how", ["missing", "damaged", "of another time", "the file that names them"])
def test_a_part_that_is_lost_is_said_and_what_came_of_late_is_read_from_the_log(
    disk: World, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with disk.open() as bench:
            await send_ids(bench, 0, 3_000, producer_id=9)
        path = config(disk, "producers-0.bin")
        if how == "missing":
            path.unlink()
        elif how == "damaged":
            document = bytearray(path.read_bytes())
            document[len(document) // 2] ^= 1
            path.write_bytes(document)
        elif how == "of another time":
            path.write_bytes(b"\x90")
        else:
            config(disk, PRODUCERS).write_bytes(b"\xc1")
        async with disk.open() as bench:
            assert await knows(bench, 0, 1_500, 2_999)
            ids = [f"id-{number}" for number in range(AT_ONCE)]
            frame = encode([b"x"] * AT_ONCE, dedup_ids=ids, producer_id=9, producer_seq=0)
            assert (await bench.broker.send([("orders", 1, frame)])).duplicate

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    (said,) = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert said.startswith(PRODUCERS if how.startswith("the file") else "producers-0.bin: missing or damaged")
    assert "is read from the log again" in said


async def test_ids_of_a_topic_that_was_purged_or_deleted_do_not_come_back(disk: World, tmp_path: Path) -> None:
    async with disk.open() as bench:
        await send_ids(bench, 0, 3_000)
        await send_ids(bench, 0, 3_000, "stock")
        delayed = encode([b"later"], dedup_ids=["later"], deliver_at_us=[-3600_000_000])
        await bench.broker.send([("orders", 1, delayed)])
        await bench.broker.maintain()
        await bench.broker.purge(Purge("orders"))
        await bench.broker.delete_topic("stock")
        assert not places(await bench.send("orders", b"again", dedup_ids=["id-7"]))
        assert places(await bench.send("orders", b"again", dedup_ids=["id-7"]))
        await bench.broker.maintain()
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as bench:
        assert places(await bench.send("orders", b"again", dedup_ids=["id-7"]))
        assert places(await bench.send("orders", b"later", dedup_ids=["later"]))
        assert not places(await bench.send("orders", b"again", dedup_ids=["id-8"]))
        assert not places(await bench.send("stock", b"again", dedup_ids=["id-7"]))
        assert await everything(bench) == [b"again", b"again"]


def test_what_is_refused_while_a_save_waits_is_not_written(disk: World) -> None:
    """As a database does it: the producer's frame and its id are taken back before the barrier is through."""

    async def scenario(bench: Bench) -> None:
        broker = bench.broker
        append = bench.store.append

        def refusing(unit: Sequence[object], durability: object) -> object:
            if not unit:
                broker._producers.forget(7, 1)
                broker._dedup.forget(new)
            return append(unit, durability)  # type: ignore[arg-type]

        await send_ids(bench, 0, 2_000)
        await bench.send("orders", b"x", dedup_ids=["refused"], producer_id=7, producer_seq=1)
        seen = broker._dedup.find("orders", b"refused", broker.time.now_us())
        assert seen is not None
        new = {("orders", b"refused"): seen}
        bench.store.append = refusing  # type: ignore[method-assign, assignment]
        await broker.maintain()
        documents = b"".join(path.read_bytes() for path in config(disk, "").glob("producers*.bin"))
        assert b"id-1999" in documents
        assert b"refused" not in documents
        assert b"\x07\xff" not in documents

    disk.run(scenario)


# Forgetting


async def test_forgetting_early_is_counted_said_once_and_shown(disk: World, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with disk.open(clock, dedup_max_ids=2_000, dedup_window_s=600.0) as bench:
        await send_ids(bench, 0, 2_000)
        await bench.broker.maintain()
        assert bench.broker.figures()["dedup_forgotten_early"] == 0
        assert not _look_at_dedup(bench.broker.figures())
        with caplog.at_level(logging.WARNING):
            for at in (2_000, 3_000, 4_000):
                clock.advance(10)
                await send_ids(bench, at, 1_000)
                await bench.broker.maintain()
        figures = bench.broker.figures()
        assert (figures["dedup_ids"], figures["dedup_forgotten_early"], figures["dedup_kept_s"]) == (
            2_000,
            3_000,
            10,
        )
        (finding,) = _look_at_dedup(figures)
        assert "forgotten after 10 s instead of 600" in finding.text
        said = [one.getMessage() for one in caplog.records if "dedup ids are forgotten after" in one.getMessage()]
        assert len(said) == 1
        assert "on topic orders" in said[0]
        clock.advance(10)
        await bench.broker.maintain()
        assert not _look_at_dedup(bench.broker.figures())


def test_several_thousand_ids_a_second_are_remembered_by_default() -> None:
    settings = World("memory", Path()).settings()
    assert settings.dedup_max_ids / settings.dedup_window_s > 3_000


async def test_producers_that_were_silent_for_long_are_forgotten(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers_module, "TIDY_AT_ONCE", 3)

    clock = ManualClock()
    disk.store_clock = clock
    async with disk.open(clock, retention_s=0.0) as bench:
        for one in range(1, 20):
            await bench.send("orders", b"x", producer_id=one, producer_seq=1)
        clock.advance(SILENT_US / 1e6 - 10)
        await bench.send("orders", b"x", producer_id=5, producer_seq=2)
        await bench.broker.maintain()
        assert bench.broker.figures()["remembered_producers"] == 19
        clock.advance(20)
        await bench.broker.maintain()
        assert bench.broker.figures()["remembered_producers"] == 1
        assert bench.broker.figures()["remembered_frames"] == 2
    async with disk.open(clock, retention_s=0.0) as bench:
        assert (await bench.send("orders", b"x", producer_id=5, producer_seq=1)).duplicate


async def test_a_crash_does_not_bring_back_ids_of_a_topic_that_was_deleted(disk: World, tmp_path: Path) -> None:
    async with disk.open() as bench:
        await send_ids(bench, 0, 10)
        await bench.broker.maintain()
        await bench.broker.delete_topic("orders")
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as bench:
        assert not places(await bench.send("orders", b"again", dedup_ids=["id-7"]))
        assert await everything(bench) == [b"again"]
