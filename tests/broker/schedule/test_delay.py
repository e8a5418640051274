"""Delayed messages, as a broker keeps and delivers them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import Bench, World
from tests.broker.schedule.test_model import lanes
from tests.broker.test_recovery import crash
from tests.inside.broker import SCHEDULE_MARKS as MARKS
from tests.inside.broker import Broker, open_store, scheduler
from tests.inside.frame import encode
from tests.inside.ground import SECOND_US, BrokerSettings, ManualClock
from tests.inside.protocol import CancelDelayed, ListDelayed, MoveDelayed
from tests.inside.store import Append, Appended
from towline.errors import BadRequest, Conflict, NotFound, QueueFull
from towline.model import Durability, TopicConfig, arrived_stream, parse_delay_levels

DAY_S = 86_400


async def pass_time(bench: Bench, clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds)
    await bench.broker.scheduler.catch_up()


def test_a_delayed_message_comes_when_it_is_due(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        await bench.send("orders", b"now")
        begin_s = time.monotonic()
        sent = await bench.send("orders", b"later", deliver_at_us=[-300_000])
        assert (sent.delayed, sent.firsts) == ([0], [1])
        assert (await bench.pull(member, 1, wait_ms=5_000)).bodies == [b"now"]
        assert (await bench.pull(member, wait_ms=60_000)).bodies == [b"later"]
        assert time.monotonic() - begin_s > 0.29

    world.run(scenario)


def test_an_old_time_is_no_delay(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        sent = await bench.send("orders", b"a", b"b", deliver_at_us=[5, 0])
        assert (sent.delayed, sent.firsts) == ([], [0])
        assert (await bench.pull(await bench.attach())).bodies == [b"a", b"b"]

    world.run(scenario)


async def test_levels_are_the_brokers(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock, delay_levels="2s 1.5m 3d") as bench:
        await bench.send("orders", b"1", b"3", b"2", deliver_at_us=[-1, -3, -2])
        await pass_time(bench, clock, 1.9)
        assert not await lanes(bench)
        await pass_time(bench, clock, 0.2)
        assert (await lanes(bench)).keys() == {b"1"}
        await pass_time(bench, clock, 88)
        assert (await lanes(bench)).keys() == {b"1", b"2"}
        await pass_time(bench, clock, 3 * DAY_S)
        assert (await lanes(bench)).keys() == {b"1", b"2", b"3"}
        with pytest.raises(BadRequest, match="levels 1 to 3"):
            await bench.send("orders", b"x", deliver_at_us=[-4])
        with pytest.raises(BadRequest, match="100 years"):
            await bench.send("orders", b"x", deliver_at_us=[-200 * 365 * DAY_S * SECOND_US])


def test_by_default_there_are_eighteen_levels() -> None:
    minutes = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)
    levels = (1, 5, 10, 30, *(60 * minute for minute in minutes))
    assert parse_delay_levels(BrokerSettings().delay_levels) == tuple(s * SECOND_US for s in levels)
    assert len(levels) == 18


def test_the_table_of_levels_is_read_as_people_write_it() -> None:
    assert parse_delay_levels("1s 5s 1m 2h 1d") == tuple(s * SECOND_US for s in (1, 5, 60, 7200, DAY_S))
    for text in ("", "5", "1s 5x", "1s " * 101):
        with pytest.raises(BadRequest, match="delay levels"):
            parse_delay_levels(text)


async def test_a_unit_of_delayed_and_other_frames_is_taken_as_one(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock) as bench:
        await bench.send("orders", b"before")
        unit = [
            ("orders", 1, encode([b"now"])),
            ("stock", 0, encode([b"x", b"y"], deliver_at_us=[-SECOND_US, -DAY_S * SECOND_US])),
            ("orders", 2, encode([b"past"], deliver_at_us=[7])),
            ("stock", 1, encode([b"z"], deliver_at_us=[-SECOND_US])),
        ]
        sent = await bench.broker.send(unit)
        assert (sent.firsts, sent.delayed) == ([1, 1, 0, 3], [1, 3])
        assert (await lanes(bench)).keys() == {b"before", b"now", b"past"}
        await pass_time(bench, clock, 1)
        assert (await lanes(bench))[b"x"] == ("stock", 0, 0)
        assert (await lanes(bench))[b"z"] == ("stock", 1, 0)
        assert bench.broker.topic_state("stock").delayed == 1
        assert bench.broker.figures()["delayed"] == 1


def test_what_is_sent_again_is_known_again(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        frame = encode([b"a", b"b"], deliver_at_us=[-60_000_000, -9_000_000_000], producer_id=7, producer_seq=1)
        first, under_way = await asyncio.gather(*(bench.broker.send([("orders", 0, frame)]) for _ in range(2)))
        again = await bench.broker.send([("orders", 0, frame)])
        assert [one.duplicate for one in (first, under_way, again)] == [False, True, True]
        assert {(*one.firsts, *one.delayed) for one in (first, under_way, again)} == {(1, 0)}
        assert bench.broker.topic_state("orders").delayed == 2

    world.run(scenario)


async def test_when_too_much_is_due_at_the_same_moment_it_is_delivered_in_parts(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "UNIT_BYTES", 300)

    clock = ManualClock()
    at_us = clock.now_us() + SECOND_US
    async with world.open(clock) as bench:
        for number in range(20):
            bodies = [b"%d-%d" % (number, k) for k in range(3)]
            await bench.send("orders", *bodies, deliver_at_us=[at_us] * 3)
        await bench.send("orders", b"last", deliver_at_us=[at_us + 1])
        marks = bench.broker.scheduler.journal.marks.next
        clock.advance(1)
        steps = 0
        while await bench.broker.scheduler.move_step() or await bench.broker.scheduler.deliver_step():
            await bench.flush()
            steps += 1
            if world.kind == "log":
                async with crash(world, tmp_path / f"after-{steps}").open(clock) as other:
                    await other.broker.scheduler.catch_up()
                    assert len(await lanes(other)) == 60
        assert bench.broker.scheduler.journal.marks.next - marks > 5, "each part has a mark, whoever delivered it"
        assert len(await lanes(bench)) == 60
        await pass_time(bench, clock, 1)
        assert len(await lanes(bench)) == 61


async def test_how_much_of_a_moment_is_delivered_comes_back_from_the_snapshot_alone(
    disk: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`until` stays before the moment until all of it is delivered, and marks before the snapshot are not read."""
    monkeypatch.setattr(scheduler, "UNIT_BYTES", 300)

    clock = ManualClock()
    settings = disk.settings()
    # No loops: nothing is delivered but by the steps taken here.
    broker = await Broker.recovered(await open_store(settings), settings, clock=clock)
    bench = Bench(broker, broker.store)
    for number in range(20):
        bodies = [b"%d-%d" % (number, k) for k in range(3)]
        await bench.send("orders", *bodies, deliver_at_us=[clock.now_us() + SECOND_US] * 3)
    clock.advance(1)
    for _ in range(3):
        await broker.scheduler.move_step()
        await broker.scheduler.deliver_step()
    await broker.maintain()
    delivered = len(await lanes(bench))
    assert 0 < delivered < 60
    after = crash(disk, tmp_path / "crashed")
    await broker.close()
    async with after.open(clock) as other:
        await other.broker.scheduler.catch_up()
        assert len(await lanes(other)) == 60


async def test_what_is_due_and_the_mark_that_says_so_are_one_unit(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock) as bench:
        await bench.send("orders", b"a", b"b", deliver_at_us=[-SECOND_US, -2 * SECOND_US])
        units: list[set[str]] = []
        append = bench.store.append

        def noted(unit: Sequence[Append], durability: Durability) -> Appended:
            units.append({one.stream for one in unit})
            return append(unit, durability)

        bench.store.append = noted  # type: ignore[method-assign]
        await pass_time(bench, clock, 1)
        await pass_time(bench, clock, 1)
        assert (await lanes(bench)).keys() == {b"a", b"b"}
        delivering = [unit for unit in units if "lane/orders/middle" in unit]
        assert delivering == [{"lane/orders/middle", arrived_stream("orders"), MARKS}] * 2


async def test_what_the_near_index_has_no_room_for_is_read_again(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock) as bench:
        bench.broker.scheduler.schedule.near._budget_bytes = 500
        for number in range(50):
            bodies = [b"%d-%d" % (number, k) for k in range(10)]
            times = [-(3 + number % 7 + k) * 100_000 for k in range(10)]
            await bench.send("orders", *bodies, deliver_at_us=times)
        for _ in range(30):
            await pass_time(bench, clock, 0.1)
        assert len(await lanes(bench)) == 500


async def test_nothing_is_delivered_and_time_does_not_pass_it_before_it_is_durable() -> None:
    clock = ManualClock()
    world = World("memory", Path())
    async with world.open(clock) as bench:
        held: list[tuple[asyncio.Future[None], asyncio.Future[None]]] = []
        append = bench.store.append

        def slow(unit: Sequence[Append], durability: Durability) -> Appended:
            appended = append(unit, durability)
            if not any(one.stream.startswith("delay/0") for one in unit):
                return appended
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            held.append((done, appended.done))
            return appended._replace(done=done)

        await bench.send("orders", b"first", deliver_at_us=[-500_000])
        bench.store.append = slow  # type: ignore[method-assign]
        answer = bench.broker.send([("orders", 1, encode([b"slow"], deliver_at_us=[-1_000_000]))])
        await pass_time(bench, clock, 2)
        assert (await lanes(bench)).keys() == {b"first"}
        assert bench.broker.scheduler.schedule.until_us < clock.now_us() - SECOND_US
        held[0][0].set_result(None)
        await answer
        await bench.broker.scheduler.catch_up()
        assert (await lanes(bench)).keys() == {b"first", b"slow"}


def test_messages_that_wait_together_are_listed_cancelled_and_delivered_each_at_its_time(disk: World) -> None:
    """A frame whose messages lie minutes apart: some wait in the slot of the first of them."""
    minutes = [3 + 7 * number for number in range(16)]

    async def main() -> None:
        clock = ManualClock()
        begin_us = clock.now_us()
        async with disk.open(clock) as bench:
            bodies = [b"%d" % minute for minute in minutes]
            await bench.send("orders", *bodies, deliver_at_us=[-minute * 60 * SECOND_US for minute in minutes])
            assert len(bench.broker.scheduler.schedule.slots) < 4
            await bench.broker.maintain()
        async with disk.open(clock) as bench:
            listed, after = list[int](), (0, 0)
            while page := (await bench.broker.delayed.list(ListDelayed("orders", *after, 3))).messages:
                listed += [one.id for one in page]
                after = page[-1].deliver_at_us, page[-1].id
            assert listed == list(range(1, 17))
            await pass_time(bench, clock, 60)
            assert (await bench.broker.delayed.cancel(CancelDelayed("orders", [7, 16]))).count == 2
            moved = await bench.broker.delayed.move(MoveDelayed("orders", [6], "", -SECOND_US))
            assert moved.count == 1
            expected: set[bytes] = set()
            for number, minute in enumerate(minutes, 1):
                await pass_time(bench, clock, minute * 60 - 1 - (clock.now_us() - begin_us) / SECOND_US)
                expected |= {b"38"}
                assert (await lanes(bench)).keys() == expected
                await pass_time(bench, clock, 1)
                expected |= {b"%d" % minute} if number not in (7, 16) else set()
                assert (await lanes(bench)).keys() == expected
            assert bench.broker.figures()["delayed"] == 0

    asyncio.run(main())


async def test_a_deleted_topic_takes_its_delayed_messages_with_it(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock) as bench:
        for topic in ("orders", "stock"):
            for delay_s in (1, 100, 10_000):
                body = f"{topic}-{delay_s}".encode()
                await bench.send(topic, body, deliver_at_us=[-delay_s * SECOND_US])
        await bench.broker.delete_topic("orders")
        await bench.broker.topics.create(TopicConfig("orders"))
        assert bench.broker.topic_state("orders").delayed == 0
        assert not (await bench.broker.delayed.list(ListDelayed("orders"))).messages
        await bench.send("orders", b"new", deliver_at_us=[-SECOND_US])
        for _ in range(5):
            await pass_time(bench, clock, 5_000)
            await bench.broker.maintain()
        expected = {b"new", b"stock-1", b"stock-100", b"stock-10000"}
        assert (await lanes(bench)).keys() == expected
        assert bench.broker.figures()["delayed"] == 0
        assert not bench.broker.scheduler.schedule.dropped


async def test_delayed_messages_outlive_retention_and_do_not_hold_on_to_the_log(disk: World) -> None:
    clock = ManualClock(time.time_ns() // 1000)
    async with disk.open(clock, retention_s=0.001, segment_bytes=64 << 10) as bench:
        await bench.send("orders", b"far", deliver_at_us=[-400 * DAY_S * SECOND_US])
        for _ in range(20):
            await bench.send("orders", bytes(20_000))
        folder = Path(disk.store_url.removeprefix("file:")) / "log"
        for _ in range(4):
            clock.value_us = time.time_ns() // 1000
            await bench.broker.scheduler.catch_up()
            await bench.broker.maintain()
        assert sum(path.stat().st_size for path in folder.iterdir()) < 200_000, "it was written anew"
    async with disk.open(clock) as bench:
        await pass_time(bench, clock, 401 * DAY_S)
        assert b"far" in await lanes(bench)


async def test_what_tells_where_delayed_messages_went_goes_with_them(disk: World) -> None:
    clock = ManualClock(time.time_ns() // 1000)
    async with disk.open(clock) as bench:
        config = TopicConfig("orders", retention_s=1_000.0)
        await bench.broker.topics.create(config)
        sent = [await bench.send("orders", b"%d" % number, deliver_at_us=[-SECOND_US]) for number in range(3)]
        await bench.send("stock", b"other", deliver_at_us=[-SECOND_US])
        await pass_time(bench, clock, 2)
        ids = [one.firsts[0] for one in sent]
        ask = ListDelayed("orders", ids=ids, arrived=True)
        assert [(one.id, one.seq) for one in (await bench.broker.delayed.list(ask)).arrived] == [
            (number, seq) for seq, number in enumerate(ids)
        ]
        clock.advance(900)
        await bench.broker.maintain()
        assert len((await bench.broker.delayed.list(ask)).arrived) == 3
        clock.advance(900)
        await bench.broker.maintain()
        assert (await bench.broker.delayed.list(ask)).arrived == []
        await bench.broker.delete_topic("stock")
        for topic in ("orders", "stock"):
            first, end, _ = bench.store.bounds(arrived_stream(topic))
            assert 0 < first == end


async def test_a_memory_store_lets_go_of_where_consumed_messages_went() -> None:
    clock = ManualClock()
    async with World("memory", Path()).open(clock) as bench:
        member = await bench.attach()
        for _ in range(3):
            await bench.send("orders", b"x", deliver_at_us=[-SECOND_US])
            await pass_time(bench, clock, 2)
        for _ in range(2):
            await bench.act(member, 0, await bench.pull(member, 1))
        await bench.broker.maintain()
        first, end, _ = bench.store.bounds(arrived_stream("orders"))
        assert (first, end) == (2, 3)


async def test_delivered_slots_are_let_go_of(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock) as bench:
        for delay_s in (1, 100, 10_000, 1_000_000):
            await bench.send("orders", bytes(1000), deliver_at_us=[-delay_s * SECOND_US])
        await pass_time(bench, clock, 2_000_000)
        for _ in range(2):
            clock.advance(100)
            await bench.broker.maintain()
        for stream in bench.store.streams("delay/"):
            first, end, _ = bench.store.bounds(stream)
            assert end - first <= (stream == "delay/marks"), (stream, first, end)


@pytest.mark.parametrize("size", [300, 800, 900, 1000, 5000])
async def test_a_full_memory_store_still_delivers_what_is_due(size: int) -> None:
    clock = ManualClock()
    async with World("memory", Path()).open(clock, capacity_bytes=100_000) as bench:
        sent = 0
        with suppress(QueueFull):
            while True:
                await bench.send("orders", bytes(size) + b"%d" % sent, deliver_at_us=[-(1 + sent % 5) * SECOND_US])
                sent += 1
        assert sent > 10
        got = 0
        member = await bench.attach()
        for _ in range(60):
            with suppress(QueueFull):
                await pass_time(bench, clock, 1)
            pulled = await bench.pull(member, 1000)
            got += len(pulled.bodies)
            if pulled.bodies:
                await bench.act(member, 0, pulled)
            await bench.broker.maintain()
        assert got == sent


def test_a_delivery_that_fails_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        failures = [QueueFull("no room") for _ in range(3)]
        deliver = bench.broker.scheduler._deliver

        def fail_at_first(taken: Sequence[Any]) -> Appended | None:
            if failures:
                raise failures.pop()
            return deliver(taken)

        monkeypatch.setattr(bench.broker.scheduler, "_deliver", fail_at_first)
        member = await bench.attach()
        await bench.send("orders", b"later", deliver_at_us=[-10_000])
        assert (await bench.pull(member, wait_ms=20_000)).bodies == [b"later"]
        assert not failures

    world.run(scenario)


async def test_a_damaged_parcel_harms_only_itself(disk: World) -> None:
    clock = ManualClock()
    async with disk.open(clock) as bench:
        for number in range(5):
            await bench.send("orders", b"message-%d" % number, deliver_at_us=[-10_000 * SECOND_US])
    (segment,) = (Path(disk.store_url.removeprefix("file:")) / "log").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"message-2")] ^= 1
    segment.write_bytes(data)
    async with disk.open(clock) as bench:
        await pass_time(bench, clock, 20_000)
        assert (await lanes(bench)).keys() == {b"message-%d" % n for n in (0, 1, 3, 4)}


async def test_cancelling_and_moving_are_exact(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock) as bench:
        broker = bench.broker
        keys = ["a", "b", "a", None, "b"]
        times = [-n * 3_000 * SECOND_US for n in range(1, 6)]
        await bench.send("orders", b"0", b"1", b"2", b"3", b"4", keys=keys, deliver_at_us=times)
        await bench.send("stock", b"5", keys=["a"], deliver_at_us=[-SECOND_US])
        assert (await broker.delayed.cancel(CancelDelayed("orders", [], "a", True))).count == 2
        assert (await broker.delayed.cancel(CancelDelayed("orders", [], "a"))).count == 2
        again = await broker.delayed.cancel(CancelDelayed("orders", [], "a"))
        assert (again.count, again.before) == (0, 2)
        moved = await broker.delayed.move(MoveDelayed("orders", [], "b", clock.now_us() + 500_000))
        assert (moved.count, moved.gone) == (2, [])
        wrong_topic = await broker.delayed.cancel(CancelDelayed("stock", [2]))
        assert (wrong_topic.count, wrong_topic.gone) == (0, [2])
        with pytest.raises(NotFound, match="orders/delay/99"):
            await broker.delayed.cancel(CancelDelayed("orders", [99]))
        with pytest.raises(BadRequest, match="one of them"):
            await broker.delayed.cancel(CancelDelayed("orders"))
        with pytest.raises(NotFound, match="nowhere"):
            await broker.delayed.cancel(CancelDelayed("nowhere", [1]))
        await pass_time(bench, clock, 0.5)
        assert (await lanes(bench)).keys() == {b"1", b"4"}
        late = await broker.delayed.cancel(CancelDelayed("orders", [2, 4]))
        assert (late.count, late.gone) == (1, [2])
        await pass_time(bench, clock, 20_000)
        assert (await lanes(bench)).keys() == {b"1", b"4", b"5"}


async def test_a_topic_known_only_by_its_delayed_messages_is_made_again(disk: World, tmp_path: Path) -> None:
    clock = ManualClock()
    async with disk.open(clock) as bench:
        await bench.send("orders", b"a", deliver_at_us=[-SECOND_US])
        after = crash(disk, tmp_path / "crashed")
    (Path(after.store_url.removeprefix("file:")) / "config" / "topics.json").unlink(missing_ok=True)
    async with after.open(clock, auto_create_topics=False, auto_create_groups=False) as bench:
        await pass_time(bench, clock, 1)
        assert (await lanes(bench)).keys() == {b"a"}
        with pytest.raises(Conflict):
            await bench.broker.topics.create(TopicConfig("orders"))


async def test_one_of_many_is_cancelled_without_reading_all_of_them(world: World) -> None:
    clock = ManualClock()
    async with world.open(clock) as bench:
        firsts = []
        for _ in range(300):
            # Each to slots of its own, and all to the same slots.
            times = [-3_600_000_000 * (n + 1) for n in range(8)]
            sent = await bench.send("orders", *[b"x"] * 8, deliver_at_us=times)
            firsts.append(sent.firsts[0])
        read = 0
        parcels = bench.broker.scheduler.journal.parcels

        async def counted(*arguments: Any) -> Any:
            nonlocal read
            async for found in parcels(*arguments):
                read += 1
                yield found

        bench.broker.scheduler.journal.parcels = counted  # type: ignore[method-assign, assignment]
        for number in (firsts[0], firsts[200] + 7, firsts[299] + 5):
            cancelled = await bench.broker.delayed.cancel(CancelDelayed("orders", [number]))
            assert cancelled.count == 1
        assert 0 < read <= 3 * 8 * 64, "of 2,400 parcels"
        again = await bench.broker.delayed.cancel(CancelDelayed("orders", [firsts[200] + 7]))
        assert again.count == 0


async def test_a_store_with_a_size_is_not_kept_too_large_by_one_message_that_waits(disk: World) -> None:
    clock = ManualClock()
    disk.store_clock = clock
    given: dict[str, Any] = {"retention_s": 0.0, "retention_bytes": 1 << 20, "segment_bytes": 64 << 10}
    async with disk.open(clock, heartbeat_s=1e6, **given) as bench:
        due_us = [clock.now_us() + days * DAY_S * SECOND_US for days in range(20, 320)]
        for at_us in due_us[:-1]:
            await bench.send("orders", b"waits", deliver_at_us=[at_us])
        await bench.send("orders", b"in a year", deliver_at_us=due_us[-1:])
        clock.advance(60)
        for _ in range(40):
            await bench.send("other", bytes(200_000))
        for _ in range(5):
            clock.advance(10)
            await bench.broker.maintain()
            await bench.broker.scheduler.catch_up()
        assert sum(bench.store.bounds(name).size_bytes for name in bench.store.streams("lane/")) < 1 << 20
        for _ in range(5):
            clock.advance(10)
            await bench.broker.maintain()
            await bench.broker.scheduler.catch_up()
        slots = [name for name in bench.store.streams("delay/") if name != MARKS]
        assert sum(bench.store.bounds(name).end for name in slots) == 600, "each was written anew once"
        assert bench.broker.topic_state("orders").delayed == 300
        clock.advance(320 * DAY_S)
        await bench.broker.scheduler.catch_up()
        assert bench.broker.topic_state("orders").delayed == 0
    async with disk.open(clock, **given) as bench:
        assert bench.broker.topic_state("orders").delayed == 0


async def test_what_waits_is_not_written_over_and_over_where_it_is_most_of_the_store(disk: World) -> None:
    clock = ManualClock()
    disk.store_clock = clock
    given: dict[str, Any] = {"retention_s": 0.0, "retention_bytes": 1 << 20, "segment_bytes": 64 << 10}
    async with disk.open(clock, heartbeat_s=1e6, **given) as bench:
        at_us = clock.now_us() + 300 * DAY_S * SECOND_US
        for _ in range(15):
            await bench.send("orders", bytes(100_000), deliver_at_us=[at_us])
        [stream] = [name for name in bench.store.streams("delay/") if name != MARKS]
        for _ in range(6):
            clock.advance(10)
            await bench.broker.maintain()
            await bench.broker.scheduler.catch_up()
        assert bench.store.bounds(stream).end == 15
        assert bench.broker.topic_state("orders").delayed == 15
