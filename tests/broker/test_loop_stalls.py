"""With very much in it, a broker's own work never holds its event loop for long."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import thread_time
from typing import Any

import pytest

from tests.broker.conftest import ACK, GIVE_BACK, Bench, World
from tests.broker.produce.test_producers_file import counted, send_ids
from tests.eventually import eventually_done
from tests.inside.alarms import AlarmRule
from tests.inside.broker import (
    STALL_S,
    Broker,
    GarbageCollector,
    LoopLag,
    Member,
    MessageLimits,
    ProducersFile,
    TableSnapshot,
    exposition,
    open_store,
)
from tests.inside.delivery import Group, Part, PartSet, Pulled, Start, due_after
from tests.inside.frame import encode, limit_of
from tests.inside.ground import SECOND_US, SYSTEM, Clock, ManualClock
from tests.inside.protocol import Seek
from towline.model import GroupConfig, RetryPolicy

ENTRIES = 200_000
HOUR_US = 3600 * SECOND_US
TOPICS, GROUPS, IDS = 20_000, 4_000, 100_000
ROUNDS = 4
RULES = 20
PULLS = 4_000
FRAGMENTS = 100_000
OPEN = 500_000
BLAMED = ("is silent", "is too slow", "does not come back")
"""Consumers that may have failed because of what they held."""


@contextmanager
def longest_step() -> Iterator[Callable[[], float]]:
    """The processor time of the longest step of the loop, whoever takes it."""
    run, longest = asyncio.Handle._run, 0.0

    def timed(handle: asyncio.Handle) -> None:
        nonlocal longest
        begin_s = thread_time()
        run(handle)
        longest = max(longest, thread_time() - begin_s)

    gc.collect()
    gc.disable()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncio.Handle, "_run", timed)
        try:
            yield lambda: longest
        finally:
            gc.enable()


async def fill(bench: Bench) -> None:
    """Topics and groups as they are after a start; one by one they are made on file, which is not the subject here."""
    broker = bench.broker
    for number in range(TOPICS):
        sent = broker.send([(f"t{number}", 1, encode([b"x"]))])
        if number % 500 == 0:
            await sent
    for number in range(GROUPS):
        config = GroupConfig(f"t{number}", f"g{number}", created_at_us=1)
        broker._catalog.put_group(config)
        dispatcher = broker.groups._install(broker.topics[config.topic], Group(config))
        dispatcher.run(Start(tuple(0 for _ in dispatcher.lanes)))
        if number % 100 == 0:
            await asyncio.sleep(0)
    await broker._catalog.save()
    await send_ids(bench, 0, IDS, "t0")
    for producer_id in range(1, 391):
        unit = [("t1", 1, encode([b"y"], producer_id=producer_id, producer_seq=seq)) for seq in range(200)]
        await broker.send(unit)


@contextmanager
def garbage_as_in_a_process() -> Iterator[None]:
    thresholds, callbacks = gc.get_threshold(), gc.callbacks[:]
    try:
        yield
    finally:
        gc.callbacks[:] = callbacks
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def longest_step_of_a_start(disk: World, clock: Clock, check: Callable[[Broker], None]) -> float:
    """The best of three, which find the same."""
    best = []
    for _ in range(3):
        lag, store = LoopLag(), await open_store(disk.settings())
        start = lag.timed("start", Broker.recovered(store, disk.settings(), clock=clock))
        broker = await asyncio.create_task(start)
        check(broker)
        await broker._stop()
        await store.close()
        best.append(lag.longest()["start"])
    return min(best)


def forget_what_is_on_file(broker: Broker) -> None:
    """All is to be written, as if it had just come."""
    file, producers, dedup = ProducersFile(broker.store, broker.time), broker._producers, broker._dedup
    file._slots = broker._producers_file._slots
    # In one part, which takes by far too long at a time.
    file._ids = TableSnapshot[bytes](1_000, 2 * IDS, 250, distinct=True)
    broker._producers_file = file
    producers._fresh = set(producers._windows)
    dedup._fresh = list(dedup._places)
    broker._snapshots._noted.clear()
    broker._snapshots._next_s = 0.0
    broker._catalog._topics.stale = broker._catalog._groups.stale = True
    broker._catalog._written_s = broker.clock.steady_s()  # so that nobody else writes it


@pytest.mark.slow
def test_no_step_takes_long_with_100_000_ids_4_000_groups_and_20_000_topics(disk: World) -> None:
    """Processor time is what counts, and of each kind of work the best of a few rounds: what a busy machine adds
    is not the work's. Each of them has all to do; only then come two that write what has changed."""
    best: dict[str, float] = {}
    written: list[int] = []

    async def scenario(bench: Bench) -> None:
        broker, lag = bench.broker, bench.broker.lag
        for number in range(RULES):
            await broker.outlook.alarms.put(AlarmRule(f"backlog-{number}", "backlog", 10**9))
        await fill(bench)
        await hold(bench, "t3")
        GarbageCollector(lambda: 1).settle()

        async def work(name: str, task: Any) -> None:
            await lag.timed(name, task)

        async def traffic() -> None:
            number = 0
            while True:
                ids = [f"new-{number}"]
                await bench.send("t5", b"z", dedup_ids=ids, producer_id=77, producer_seq=number)
                number += 1
                await asyncio.sleep(0.001)

        sending = asyncio.create_task(traffic())
        for number in range(ROUNDS + 2):
            lag._longest.clear()
            lag._before.clear()
            if number < ROUNDS:
                forget_what_is_on_file(broker)
            await work("the catalog", broker._catalog.write())
            with counted(bench.store) as sizes:
                await work("maintenance", broker.maintain())
            written.append(sum(size for name, size in sizes.items() if name != "topics.json"))
            await work("the census", broker.outlook.census._walk())
            await work("heartbeat watch", broker._watch())
            await work("metrics", exposition(broker))
            await work("alarms", broker.outlook.alarms.look())
            await work("homes of shards", broker.homes.review())
            await work("a list of topics", broker.topic_states())
            await work("a list of groups", broker.group_states())
            for name, seconds in lag.longest().items() if number < ROUNDS else ():
                best[name] = min(best.get(name, seconds), seconds)
            for group in range(number, GROUPS, 200):
                member = await bench.attach(f"t{group}", f"g{group}")
                await bench.act(member, ACK, await bench.pull(member, 1))
        sending.cancel()
        assert await knows_all(bench)

    async def knows_all(bench: Bench) -> bool:
        return all([await knows_in(bench, number) for number in (0, IDS // 2, IDS - 1)])

    async def knows_in(bench: Bench, number: int) -> bool:
        return bool((await bench.send("t0", b"?", dedup_ids=[f"id-{number}"])).repeats)

    async def main() -> None:
        async with disk.open(segment_bytes=8 << 20, heartbeat_s=3600.0) as bench:
            await scenario(bench)

    with garbage_as_in_a_process():
        asyncio.run(main())
    print(best)
    assert {name: seconds for name, seconds in best.items() if seconds >= STALL_S} == {}
    assert best["the catalog"] < STALL_S / 2, "without slices, a quick machine needs little more than that"
    assert {"maintenance", "retention", "snapshots of groups", "snapshots of producers", "the census"} <= best.keys()
    assert min(written[:ROUNDS]) > 1_000_000, written
    assert min(written[ROUNDS:]) < 200_000, written


async def hold(bench: Bench, topic: str = "orders", **config: Any) -> Member:
    """A consumer that holds very many messages, with as many between them that it has settled."""
    member = await bench.attach(topic, max_in_flight=2 * FRAGMENTS, max_attempts=9, **config)
    for _ in range(0, 2 * FRAGMENTS, 10_000):
        await bench.send(topic, *[b"x"] * 10_000)
    while (got := await bench.pull(member, 2 * FRAGMENTS)).pull:
        seqs = [seq for part in got.parts for seq in range(part.first, part.first + part.count) if seq % 2 == 0]
        await bench.act(member, ACK, got, *[(1, seq, 1) for seq in seqs])
    assert member.in_flight == FRAGMENTS
    return member


@pytest.mark.slow
@pytest.mark.parametrize("how", ["leaves", "is silent", "is too slow", "comes anew", "does not come back"])
def test_no_step_takes_long_where_very_much_is_taken_back(disk: World, how: str) -> None:
    clock = ManualClock()

    async def take_back(bench: Bench, member: Member | None) -> None:
        consumers = bench.broker.consumers
        if how == "comes anew":
            await bench.attach(max_in_flight=2 * FRAGMENTS, max_attempts=9)
        elif how == "leaves":
            assert member is not None
            await consumers.detach(member)
        elif how == "is too slow":
            clock.advance(10)
            bench.broker.groups.named("orders", "billing").arm()
        else:
            clock.advance(60)
            await consumers.sweep()

    async def longest_s() -> float:
        async with disk.open(clock, heartbeat_s=30.0) as bench:
            member: Member | None = await hold(bench, timeout_s=5.0 if how == "is too slow" else 0.0)
            if how != "does not come back":
                return await measured(bench, member)
        async with disk.open(clock, heartbeat_s=30.0) as bench:
            return await measured(bench, None)

    async def measured(bench: Bench, member: Member | None) -> float:
        group = bench.broker.groups.named("orders", "billing").group
        await eventually_done(lambda: not bench.broker.groups.named("orders", "billing")._limits.recalling)
        with longest_step() as longest:
            await asyncio.create_task(take_back(bench, member))
            await eventually_done(lambda: not group.leases)
            seconds = longest()
        assert {(part.count, part.attempt) for part, _ in group.retries} == {(1, 2 if how in BLAMED else 1)}
        assert group.retries.messages == FRAGMENTS
        await bench.broker.groups.delete("orders", "billing")
        await bench.broker.delete_topic("orders")
        return seconds

    assert min([asyncio.run(longest_s()) for _ in range(2)]) < STALL_S


def hold_in_pulls(group: Group, count: int) -> None:
    """A consumer has pulled twice as much, 10,000 messages at a time, and settled every second one."""
    for at in range(0, 2 * count, 10_000):
        group.grant(Pulled(1, 1 + at, "c1", 0, tuple(Part(1, seq, 1, 1) for seq in range(at + 1, at + 10_000, 2))))
        group.leases[1 + at].settled["acked"] = PartSet(Part(1, seq, 1, 1) for seq in range(at, at + 10_000, 2))
    group.next[1] = 2 * count


def fail_with_jitter(group: Group, count: int, now_us: int) -> None:
    policy = RetryPolicy(kind="exponential", first_s=60, factor=2, cap_s=600, jitter=0.5)
    for seq in range(0, 2 * count, 2):
        due_us = due_after(now_us, policy.delay_s(1 + seq // 2 % 4, (seq // 1_000, seq)))
        group.retries.add(Part(1, seq, 1, 2), due_us, 0)
    group.next[1] = 2 * count


async def with_messages(bench: Bench, count: int, **config: Any) -> Member:
    member = await bench.attach(max_attempts=9, **config)
    for _ in range(0, count, 20_000):
        await bench.send("orders", *[b"x"] * 20_000)
    return member


@pytest.mark.slow
@pytest.mark.parametrize("how", ["held", "dying"])
def test_no_step_takes_long_where_very_much_is_open(disk: World, how: str) -> None:
    async def main() -> None:
        async with disk.open(segment_bytes=8 << 20, heartbeat_s=3600.0) as bench:
            broker, best = bench.broker, list[float]()
            await with_messages(bench, 2 * OPEN)
            group = broker.groups.named("orders", "billing").group
            if how == "held":
                hold_in_pulls(group, OPEN)
            else:
                for seq in range(0, 2 * FRAGMENTS, 2):
                    group.dying.add(Part(1, seq, 1, 9), "no stock")
                group.next[1] = 2 * FRAGMENTS
            for _ in range(3):
                forget_what_is_on_file(broker)
                with longest_step() as longest:
                    for work in (broker.maintain, broker.outlook.census._walk, broker._watch, broker.group_states):
                        await asyncio.create_task(work())
                    best.append(longest())
            assert min(best) < STALL_S

    asyncio.run(main())


@pytest.mark.slow
def test_no_step_takes_long_when_very_much_is_due_that_was_due_at_different_times(tmp_path: Path) -> None:
    """As after a start, or when its consumers have come back. A pull has its share of it at once."""

    async def main(number: int) -> float:
        disk = World("log", tmp_path / str(number))
        clock = ManualClock()
        async with disk.open(clock, segment_bytes=8 << 20, heartbeat_s=36_000.0) as bench:
            member = await with_messages(bench, 2 * OPEN)
            dispatcher = bench.broker.groups.named("orders", "billing")
            retries = dispatcher.group.retries
            fail_with_jitter(dispatcher.group, OPEN, clock.now_us())
            clock.advance(3600)
            with longest_step() as longest:
                await asyncio.create_task(bench.broker.maintain())
                got = await asyncio.create_task(bench.pull(member, 1_000))
                assert len(got.bodies) == 1_000
                dispatcher.arm()
                await eventually_done(lambda: retries.next_due_us() is None)
                return longest()

    assert min([asyncio.run(main(number)) for number in range(2)]) < STALL_S


@pytest.mark.slow
@pytest.mark.parametrize("how", ["held", "failed"])
def test_no_step_takes_long_that_moves_a_group_with_very_much_open(tmp_path: Path, how: str) -> None:
    async def main(number: int) -> float:
        disk = World("log", tmp_path / str(number))
        clock = ManualClock()
        async with disk.open(clock, segment_bytes=8 << 20, heartbeat_s=36_000.0) as bench:
            await with_messages(bench, 2 * ENTRIES)
            group = bench.broker.groups.named("orders", "billing").group
            if how == "held":
                hold_in_pulls(group, ENTRIES)
            else:
                fail_with_jitter(group, ENTRIES, clock.now_us())
            with longest_step() as longest:
                for dry_run in (True, False):
                    move = Seek("orders", "billing", "latest", dry_run=dry_run)
                    sought = await asyncio.create_task(bench.broker.groups.seek(move))
                    assert (sought.again, sought.passed) == (0, ENTRIES)
                seconds = longest()
            assert (group.lag(), group.leases, group.in_flight) == (0, {}, {})
            return seconds

    assert min([asyncio.run(main(number)) for number in range(2)]) < STALL_S


@pytest.mark.slow
def test_no_step_takes_long_that_acks_the_rest_of_a_large_pull(tmp_path: Path) -> None:
    """Of which every second message was settled before."""

    async def main(number: int) -> float:
        async with World("log", tmp_path / str(number)).open(heartbeat_s=3600.0) as bench:
            member = await with_messages(bench, 20_000)
            got = await bench.pull(member, 20_000)
            await bench.act(member, ACK, got, *[(1, seq, 1) for seq in range(0, 20_000, 2)])
            with longest_step() as longest:
                await asyncio.create_task(bench.act(member, ACK, got))
                seconds = longest()
            assert bench.broker.group_state("orders", "billing").lag == 0
            return seconds

    assert min([asyncio.run(main(number)) for number in range(3)]) < STALL_S


@pytest.mark.slow
def test_no_step_takes_long_that_pulls_fragments_which_have_expired(tmp_path: Path) -> None:
    async def main(number: int) -> float:
        disk = World("log", tmp_path / str(number))
        clock = ManualClock(SYSTEM.now_us())
        async with disk.open(clock, heartbeat_s=36_000.0) as bench:
            await bench.send("orders", *[b"x"] * 2_000, expires_at_us=[clock.now_us() + SECOND_US] * 2_000)
            member = await bench.attach()
            got = await bench.pull(member, 2_000)
            await bench.act(member, ACK, got, *[(1, seq, 1) for seq in range(0, 2_000, 2)])
            await bench.act(member, GIVE_BACK, got)
            clock.advance(60)
            with longest_step() as longest:
                assert not (await asyncio.create_task(bench.pull(member, 2_000))).bodies
                seconds = longest()
            assert bench.broker.group_state("orders", "billing").lag == 0
            return seconds

    assert min([asyncio.run(main(number)) for number in range(3)]) < STALL_S


@pytest.mark.slow
def test_no_step_of_a_start_takes_long_with_very_much_held(disk: World) -> None:
    def check(broker: Broker) -> None:
        assert broker.groups.named("orders", "billing").group.leased() == OPEN

    async def main() -> float:
        async with disk.open(segment_bytes=8 << 20, heartbeat_s=3600.0) as bench:
            await with_messages(bench, 2 * OPEN)
            hold_in_pulls(bench.broker.groups.named("orders", "billing").group, OPEN)
        GarbageCollector(lambda: 1).settle()
        return await longest_step_of_a_start(disk, SYSTEM, check)

    with garbage_as_in_a_process():
        assert asyncio.run(main()) < STALL_S


@pytest.mark.slow
@pytest.mark.parametrize("old", [10, 20_000])
def test_no_step_takes_long_where_a_few_of_very_many_are_given_up(tmp_path: Path, old: int) -> None:
    """What waits to be tried again is due at a thousand different times."""

    async def main(number: int) -> float:
        world = World("log", tmp_path / str(number))
        clock = world.store_clock = ManualClock(SYSTEM.now_us())
        async with world.open(clock, retention_s=600.0, open_max_s=3600.0) as bench:
            await bench.attach()
            group = bench.broker.groups.named("orders", "billing").group
            await bench.send("orders", *[b"x"] * 2 * old)
            clock.advance(4300)
            for _ in range(10):
                await bench.send("orders", *[b"x"] * ((ENTRIES - old) // 5))
            for seq in range(0, 2 * ENTRIES, 2):
                group.retries.add(Part(1, seq, 1, 2), clock.now_us() + HOUR_US + seq % 2_000 * SECOND_US, HOUR_US)
            group.next[1] = 2 * ENTRIES
            with longest_step() as longest:
                await asyncio.create_task(bench.broker.overdue.look((one, 0) for one in bench.broker.topics.values()))
                seconds = longest()
            assert bench.broker.overdue.dropped == old
            assert group.retries.messages == ENTRIES - old
            return seconds

    assert min([asyncio.run(main(number)) for number in range(3)]) < STALL_S


@pytest.mark.slow
@pytest.mark.parametrize("set_back_s", [0, 7200])
def test_no_step_of_a_start_takes_long_with_very_much_to_be_tried_again(disk: World, set_back_s: int) -> None:
    """Also where the clock is set back, so that all of it waits anew."""
    clock = ManualClock()

    async def main() -> float:
        async with disk.open(clock) as bench:
            await bench.attach()
            group = bench.broker.groups.named("orders", "billing").group
            for start in range(0, 2 * ENTRIES, 20_000):
                await bench.send("orders", *[b"x"] * 20_000)
                for seq in range(start, start + 20_000, 2):
                    group.retries.add(Part(1, seq, 1, 2), clock.now_us() + HOUR_US + seq % 7, HOUR_US)
            group.next[1] = 2 * ENTRIES
        clock.advance(-set_back_s)

        def check(broker: Broker) -> None:
            retries = broker.groups.named("orders", "billing").group.retries
            assert retries.messages == ENTRIES
            assert retries.next_due_us() == clock.now_us() + HOUR_US
            # What was capped is not noted: the next start has as much to do.

        return await longest_step_of_a_start(disk, clock, check)

    assert asyncio.run(main()) < STALL_S


@pytest.mark.slow
def test_no_step_takes_long_that_reads_the_limits_of_very_many_pulls_again(disk: World) -> None:
    async def main() -> float:
        async with disk.open() as bench:
            for _ in range(0, PULLS, 1_000):
                limits = [limit_of(HOUR_US, 3 + number % 2) for number in range(1_000)]
                await bench.send("orders", *[b"x"] * 1_000, limits=limits)
            member = await bench.attach(max_in_flight=PULLS)
            for _ in range(PULLS):
                await bench.pull(member, 1)
        best = []
        for _ in range(3):
            lag, store = LoopLag(), await open_store(disk.settings())
            broker = await Broker.recovered(store, disk.settings(), lag=lag)
            recalled: MessageLimits = broker.groups.named("orders", "billing")._limits
            await recalled.recalled()
            assert len(recalled._pulls) == PULLS
            await broker._stop()
            await store.close()
            best.append(lag.longest()["reading the limits of messages that are out"])
        return min(best)

    assert asyncio.run(main()) < STALL_S


@pytest.mark.slow
def test_no_step_of_a_start_takes_long_with_100_000_ids_4_000_groups_and_20_000_topics(disk: World) -> None:
    """On a shared database others are served meanwhile, by the same loop."""

    def check(broker: Broker) -> None:
        assert (len(broker.topics), len(list(broker.topics.dispatchers()))) == (TOPICS, GROUPS)
        assert len(broker._dedup) == IDS

    async def main() -> float:
        async with disk.open(segment_bytes=8 << 20, heartbeat_s=3600.0) as bench:
            await fill(bench)
        GarbageCollector(lambda: 1).settle()
        return await longest_step_of_a_start(disk, SYSTEM, check)

    with garbage_as_in_a_process():
        assert asyncio.run(main()) < STALL_S
