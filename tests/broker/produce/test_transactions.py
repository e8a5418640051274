"""Transactions in the broker: units that are seen all at once, and prepared ones that wait for their sender's word."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.broker.conftest import ACK, Bench, World
from tests.broker.produce.test_producers_file import counted
from tests.broker.test_recovery import crash
from tests.inside.broker import CARRY_AFTER_US, LARGE_BYTES, MARKS, PREPARED, Broker
from tests.inside.delivery import transactions as rules
from tests.inside.frame import encode
from tests.inside.ground import ManualClock
from tests.inside.protocol import AwaitChecks, Check, Decide, Decided, FrameHead, ListTransactions, Prepare, Prepared
from tests.inside.store import LogSettings, LogStore
from towline.errors import BadName, Conflict, NotFound, QueueFull, Refused, StoreDamaged
from towline.model import Durability

Unit = list[tuple[str, int, list[bytes]]]
"""Topic, lane and bodies of each frame."""

UNIT: Unit = [("orders", 1, [b"a", b"b"]), ("stock", 0, [b"c"]), ("orders", 2, [b"d"])]


async def prepare(
    broker: Broker,
    name: str = "t1",
    unit: Unit = UNIT,
    *,
    dedup_ids: list[str | None] | None = None,
    check_after_s: float = 0,
) -> Prepared:
    frames = [encode(bodies, dedup_ids=dedup_ids, token=b"shop-token") for _, _, bodies in unit]
    heads = [FrameHead(topic, lane, len(frame)) for (topic, lane, _), frame in zip(unit, frames, strict=True)]
    request = Prepare(name, "shop", f"business {name}", heads, check_after_s)
    return await broker.transactions.prepare(request, frames, source=b"\x7f\0\0\1", token=b"shop-token")


async def decide(broker: Broker, commit: bool, name: str = "t1", token: bytes = b"shop-token") -> Decided:
    return await broker.transactions.decide(Decide(name, commit), token=token)


async def checks(broker: Broker, wait_ms: int = 0, token: bytes = b"shop-token") -> list[Check]:
    return (await broker.transactions.asking.wait(AwaitChecks("shop", wait_ms), token=token)).checks


def states(broker: Broker, name: str = "") -> list[tuple[str, str]]:
    found = broker.transactions.states(ListTransactions(name))
    return [(one.transaction, one.state) for one in found.transactions]


async def stored(bench: Bench) -> dict[str, list[bytes]]:
    """What a consumer of all lanes gets, by topic."""
    found = {}
    for topic in ("orders", "stock"):
        member = await bench.attach(topic, "reader")
        got = await bench.pull(member, 10_000)
        if got.pull:
            await bench.act(member, ACK, got)
        found[topic] = got.bodies
    return found


WHOLE = {"orders": [b"a", b"b", b"d"], "stock": [b"c"]}
ABSENT: dict[str, list[bytes]] = {"orders": [], "stock": []}


# Units


def test_a_unit_is_seen_all_at_once_though_one_lane_has_something_slower_before_it(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        broker = bench.broker
        await bench.send("orders", b"warm up")
        slow = broker.send([("orders", 1, encode([bytes(300_000)]))], Durability.FSYNC)
        unit = broker.send([("orders", 1, encode([b"x"])), ("stock", 1, encode([b"y"]))], Durability.OS)
        later = broker.send([("stock", 1, encode([b"z"]))], Durability.OS)
        orders, stock = broker.topics["orders"].lanes[1], broker.topics["stock"].lanes[1]
        while not (unit.done() and later.done() and slow.done() and orders.end == 3):
            assert (orders.end == 3) == (stock.end == 2), "one half was seen without the other"
            await asyncio.sleep(0)
        assert stock.end == 2

    disk.run(scenario)


def test_messages_of_others_come_in_while_a_transaction_is_prepared(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await prepare(bench.broker)
        await bench.send("orders", b"first")
        await decide(bench.broker, True)
        await bench.send("orders", b"last")
        assert await stored(bench) == {"orders": [b"first", b"a", b"b", b"last", b"d"], "stock": [b"c"]}

    world.run(scenario)


# Prepared transactions


def test_a_prepared_transaction_is_invisible_until_it_is_committed(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"before", lane=1)
        prepared = await prepare(bench.broker)
        assert not prepared.duplicate
        assert await stored(bench) == {"orders": [b"before"], "stock": []}
        assert states(bench.broker) == [("t1", "prepared")]
        decided = await decide(bench.broker, True)
        assert (decided.firsts, decided.duplicate) == ([1, 0, 0], False)
        assert await stored(bench) == WHOLE
        assert states(bench.broker) == []
        assert states(bench.broker, "t1") == [("t1", "committed")]

    world.run(scenario)


def test_a_transaction_that_is_rolled_back_was_never_there(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await prepare(bench.broker)
        assert (await decide(bench.broker, False)).firsts == []
        assert await stored(bench) == ABSENT
        assert states(bench.broker, "t1") == [("t1", "rolled back")]

    world.run(scenario)


def test_to_say_the_same_again_changes_nothing_and_to_say_the_other_is_a_conflict(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        broker = bench.broker
        assert (await prepare(broker)).duplicate is False
        assert (await prepare(broker)).duplicate is True
        first, *others = await asyncio.gather(*(decide(broker, True) for _ in range(5)))
        assert [(one.firsts, one.decided_at_us) for one in others] == [(first.firsts, first.decided_at_us)] * 4
        assert [one.duplicate for one in (first, *others)] == [False, True, True, True, True]
        with pytest.raises(Conflict, match="t1 was committed already: it cannot be rolled back any more"):
            await decide(broker, False)
        assert (await prepare(broker)).duplicate is True, "a late repetition of what is long decided"
        assert await stored(bench) == WHOLE

        await prepare(broker, "t2")
        await decide(broker, False, "t2")
        assert (await decide(broker, False, "t2")).duplicate
        with pytest.raises(Conflict, match="t2 was rolled back already"):
            await decide(broker, True, "t2")
        assert await stored(bench) == ABSENT, "nothing more came"

    world.run(scenario)


def test_commit_and_rollback_at_the_same_time_have_one_winner(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        for name in ("t1", "t2"):
            await prepare(bench.broker, name)
        outcomes = await asyncio.gather(
            decide(bench.broker, True), decide(bench.broker, False), decide(bench.broker, False, "t2"),
            decide(bench.broker, True, "t2"), return_exceptions=True,
        )  # fmt: skip
        assert [isinstance(one, Conflict) for one in outcomes] == [False, True, False, True]
        assert await stored(bench) == WHOLE

    world.run(scenario)


def test_only_its_own_token_may_decide_or_is_asked(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        broker = bench.broker
        await prepare(broker, check_after_s=0.001)
        with pytest.raises(Refused, match="another token"):
            await decide(broker, True, token=b"thief")
        await asyncio.sleep(0.002)
        assert await checks(broker, token=b"thief") == []
        assert len(await checks(broker)) == 1
        with pytest.raises(NotFound, match="no transaction t9"):
            await decide(broker, True, "t9")
        with pytest.raises(NotFound, match="no transaction t9"):
            states(broker, "t9")
        with pytest.raises(BadName, match="producer group"):
            await broker.transactions.asking.wait(AwaitChecks("no such!"))

    world.run(scenario)


def test_the_number_of_open_transactions_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "OPEN_MAX", 2)
    monkeypatch.setattr(rules, "FINISHED_MAX", 1)

    async def scenario(bench: Bench) -> None:
        await prepare(bench.broker, "t1")
        await prepare(bench.broker, "t2")
        with pytest.raises(QueueFull, match="wait to be decided"):
            await prepare(bench.broker, "t3")
        await decide(bench.broker, True, "t1")
        await decide(bench.broker, True, "t2")
        with pytest.raises(NotFound, match="long ago"):
            await decide(bench.broker, True, "t1")

    world.run(scenario)


def test_dedup_ids_count_when_it_is_committed(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        unit: Unit = [("orders", 1, [b"a", b"b"])]
        await prepare(bench.broker, "t1", unit, dedup_ids=["a", "b"])
        await bench.send("orders", b"other a", dedup_ids=["a"])
        decided = await decide(bench.broker, True)
        assert [one[:4] for one in decided.repeats] == [(0, 0, 1, 0)]
        assert decided.firsts == [1]
        assert (await decide(bench.broker, True)).repeats == decided.repeats
        await prepare(bench.broker, "t2", unit, dedup_ids=["a", "b"])
        again = await decide(bench.broker, True, "t2")
        assert [one[:4] for one in again.repeats] == [(0, 0, 1, 0), (0, 1, 1, 1)]
        assert (await stored(bench))["orders"] == [b"other a", b"b"]

    world.run(scenario)


# Crashes

Step = Callable[[Broker], Awaitable[object]]


async def _check(broker: Broker) -> None:
    assert len(await checks(broker, wait_ms=20_000)) == 1


async def _maintain(broker: Broker) -> None:
    await broker.maintain()


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_a_crash_between_any_two_steps_leaves_it_whole_or_absent_and_once(
    disk: World, tmp_path: Path, commit: bool, snapshot: bool
) -> None:
    """Take a copy of the folder after every step, start a broker on each, and go on from there."""
    steps: list[Step] = [prepare, _check, lambda broker: decide(broker, commit), lambda broker: decide(broker, commit)]
    if snapshot:
        steps = [step for pair in zip(steps, [_maintain] * 4, strict=True) for step in pair]
    crashed: list[World] = []

    async def history() -> None:
        async with disk.open(tx_check_after_s=0.05) as bench:
            await bench.send("orders", b"before", lane=0)
            for number, step in enumerate(steps):
                crashed.append(crash(disk, tmp_path / f"before-{number}"))
                await step(bench.broker)
            crashed.append(crash(disk, tmp_path / "end"))

    async def go_on(number: int, world: World) -> None:
        async with world.open() as bench:
            known = number > 0
            decided_at = steps.index(next(step for step in steps if step not in (prepare, _check, _maintain)))
            found = states(bench.broker)
            if not known:
                assert found == []
                await prepare(bench.broker)
            elif number <= decided_at:
                assert found == [("t1", "prepared")], number
                assert (await prepare(bench.broker)).duplicate
            else:
                assert states(bench.broker, "t1") == [("t1", "committed" if commit else "rolled back")]
            before = await stored(bench)
            assert before["orders"][0] == b"before"
            answer = await decide(bench.broker, commit)
            assert answer.duplicate == (number > decided_at)
            assert answer.firsts == ([0, 0, 0] if commit else [])
            rest = await stored(bench)
            total = {topic: before[topic] + rest[topic] for topic in before}
            part = WHOLE if commit else ABSENT
            assert total == {"orders": [b"before", *part["orders"]], "stock": part["stock"]}
            with pytest.raises(Conflict):
                await decide(bench.broker, not commit)
            await bench.broker.maintain()

    asyncio.run(history())
    for number, world in enumerate(crashed):
        asyncio.run(go_on(number, world))
        asyncio.run(go_on_once_more(world, commit))


async def go_on_once_more(world: World, commit: bool) -> None:
    """After one more restart nothing has changed, and nothing comes twice."""
    async with world.open() as bench:
        assert await stored(bench) == ABSENT
        assert (await decide(bench.broker, commit)).duplicate
        assert await stored(bench) == ABSENT


async def test_answers_are_the_same_after_a_crash(disk: World, tmp_path: Path) -> None:
    async with disk.open() as bench:
        await bench.send("orders", b"x", b"y", dedup_ids=["x", "y"])
        unit: Unit = [("orders", 1, [b"x", b"z"]), ("stock", 1, [b"x", b"z"])]
        await prepare(bench.broker, "t1", unit, dedup_ids=["x", "z"])
        first = await decide(bench.broker, True)
        worlds = [crash(disk, tmp_path / "plain")]
        await bench.broker.maintain()
        worlds.append(crash(disk, tmp_path / "snapshot"))
    for world in worlds:
        async with world.open() as bench:
            again = await decide(bench.broker, True)
            assert (again.firsts, again.repeats, again.duplicate) == (first.firsts, first.repeats, True)
            assert again.decided_at_us == first.decided_at_us


# Looking after itself


def test_what_is_decided_gives_its_room_back(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        for n in range(4):
            await prepare(bench.broker, f"t{n}")
        await decide(bench.broker, True, "t0")
        await decide(bench.broker, False, "t1")
        await bench.broker.maintain()
        assert bench.store.bounds(PREPARED)[:2] == (8, 16)
        assert bench.store.bounds(MARKS)[:2] == (2, 2)
        await decide(bench.broker, True, "t3")
        await decide(bench.broker, True, "t2")
        await bench.broker.maintain()
        assert bench.store.bounds(PREPARED)[:2] == (16, 16)
        assert (await decide(bench.broker, True, "t0")).duplicate

    world.run(scenario)


def test_a_full_memory_store_makes_room_and_refuses_when_there_is_none(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        unit: Unit = [("orders", 1, [b"a", b"b"])]
        member = await bench.attach()
        for n in range(20):
            await prepare(bench.broker, f"t{n}", unit)
            await decide(bench.broker, True, f"t{n}")
            await bench.act(member, ACK, await bench.pull(member))
        for n in range(5):
            await prepare(bench.broker, f"x{n}", unit)
        for _ in range(2):
            with pytest.raises(QueueFull):
                await decide(bench.broker, True, "x4")
            with pytest.raises(QueueFull):
                await prepare(bench.broker, "x5", unit)
        await decide(bench.broker, False, "x0")
        await decide(bench.broker, True, "x4")
        assert states(bench.broker) == [(f"x{n}", "prepared") for n in (1, 2, 3)]
        assert (await bench.pull(member)).bodies == [b"a", b"b"]

    World("memory", tmp_path).run(scenario, capacity_messages=10)


async def test_an_old_transaction_does_not_hold_the_whole_store_back(disk: World, tmp_path: Path) -> None:
    clock = ManualClock()
    folder = Path(disk.store_url.removeprefix("file:"))
    settings = disk.settings(retention_s=3600.0 * 24, segment_bytes=1 << 16)
    store = await LogStore.open(folder, LogSettings(segment_bytes=1 << 16, min_free_bytes=0), clock=clock)
    broker = await Broker.open(store, settings, clock=clock)
    await prepare(broker)
    for _ in range(10):
        await broker.send([("logs", 1, encode([bytes(30_000)]))])
    clock.advance(CARRY_AFTER_US / 1_000_000 + 1)
    await broker.maintain()
    assert store.bounds(PREPARED)[:2] == (4, 8), "it was carried forward"
    for _ in range(4):
        clock.advance(3600.0 * 12)
        await broker.send([("logs", 1, encode([bytes(30_000)]))])
        await broker.maintain()
    assert store.bounds("lane/logs/middle").first >= 10
    await broker.close()
    store = await LogStore.open(folder, LogSettings(segment_bytes=1 << 16, min_free_bytes=0), clock=clock)
    broker = await Broker.open(store, settings, clock=clock)
    assert states(broker) == [("t1", "prepared")]
    assert (await decide(broker, True)).firsts == [0, 0, 0]
    await broker.close()


async def test_damage_to_a_prepared_transaction_harms_only_that_one(disk: World, tmp_path: Path) -> None:
    async with disk.open() as bench:
        await prepare(bench.broker, "t1", [("orders", 1, [b"x" * 1000])])
        await prepare(bench.broker, "t2", [("orders", 1, [b"y" * 1000])])
        await bench.broker.maintain()
        damaged = crash(disk, tmp_path / "damaged")
    segment = next((tmp_path / "damaged" / "data" / "log").glob("*.log"))
    content = segment.read_bytes()
    at = content.index(b"x" * 1000)
    segment.write_bytes(content[:at] + b"?" + content[at + 1 :])
    async with damaged.open() as bench:
        with pytest.raises(StoreDamaged, match="transaction t1 cannot be read"):
            await decide(bench.broker, True, "t1")
        await decide(bench.broker, True, "t2")
        await decide(bench.broker, False, "t1")
        assert (await stored(bench))["orders"] == [b"y" * 1000]


async def test_what_was_decided_since_the_last_snapshot_keeps_its_owner_though_its_record_is_gone(
    disk: World, tmp_path: Path
) -> None:
    async with disk.open() as bench:
        await prepare(bench.broker, "t0")
        await bench.broker.maintain()
        await prepare(bench.broker, "t1")
        await decide(bench.broker, True, "t0")
        await decide(bench.broker, True, "t1")
        await prepare(bench.broker, "t2")
        before = bench.broker.transactions.pins()
        assert before == {PREPARED: 4, MARKS: 0}, "records behind the snapshot are needed to replay it"
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as bench:
        with pytest.raises(Refused):
            await decide(bench.broker, True, "t1", token=b"thief")
        assert (await decide(bench.broker, True, "t1")).duplicate


def test_a_large_snapshot_is_not_written_each_time_something_happens(disk: World) -> None:
    finished = rules.Finished(True, 1, "shop", "a name that says nothing", b"shop-token", [1], [], "")

    async def scenario(bench: Bench, clock: ManualClock) -> None:
        broker = bench.broker
        for number in range(10_000):
            broker.transactions._state.finished[f"before-{number}"] = finished
        with counted(bench.store) as sizes:
            for number in range(5):
                await prepare(broker, f"t{number}")
                await broker.transactions.tidy()
                clock.advance(0.1)
            size = sizes["transactions.bin"]
            assert LARGE_BYTES < size < 1 << 20, "it was written once"
            clock.advance(60)
            await broker.transactions.tidy()
            assert sizes["transactions.bin"] > 1.9 * size

    async def main() -> None:
        clock = ManualClock()
        async with disk.open(clock=clock) as bench:
            await scenario(bench, clock)
        async with disk.open(clock=clock) as bench:
            assert len(bench.broker.transactions) == 5
            assert states(bench.broker, "before-7") == [("before-7", "committed")]

    asyncio.run(main())


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("case", ["ahead", "behind", "damaged"])
def test_a_prepared_transaction_does_not_keep_the_log(
    disk: World, case: str, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    off_s = {"ahead": 20, "behind": -20, "damaged": 0}[case] * 365 * 86_400.0
    small = {"segment_bytes": 64 << 10, "retention_s": 2 * 86_400.0, "maintenance_s": 1e9, "heartbeat_s": 1e9}

    async def main() -> None:
        clock = disk.store_clock = ManualClock()
        async with AsyncExitStack() as stack:
            bench = await stack.enter_async_context(disk.open(clock, **small))
            await bench.send("orders", b"before")
            clock.advance(off_s)
            await prepare(bench.broker, "t1", [("orders", 1, [b"prepared"])])
            clock.advance(-off_s)
            if case == "damaged":
                [path] = (disk.folder / "data" / "log").glob("*.log")
                content = path.read_bytes()
                path.write_bytes(content.replace(b"prepared", b"PREPARED"))
            for _ in range(10):
                for _ in range(4):
                    await bench.send("other", os.urandom(50_000))
                clock.advance(86_400)
                for _ in range(3):
                    await bench.broker.maintain()
                if restarted:
                    await stack.aclose()
                    bench = await stack.enter_async_context(disk.open(clock, **small))
            assert sum(path.stat().st_size for path in (disk.folder / "data" / "log").glob("*.log")) < 15 * 50_000
            if case == "damaged":
                with pytest.raises(StoreDamaged):
                    await decide(bench.broker, True)
                await decide(bench.broker, False)
            else:
                await decide(bench.broker, True)
                assert (await stored(bench))["orders"] == [b"prepared"]

    with caplog.at_level(logging.WARNING, "towline.broker"):
        asyncio.run(main())
    said = [one for one in caplog.records if "transaction t1 cannot be read" in one.getMessage()]
    assert len(said) == (case == "damaged" and (10 if restarted else 1))
