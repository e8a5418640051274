"""A broker that stops, in order or not, comes back as it was."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.broker.conftest import ACK, DEAD, NACK, Bench, World
from tests.eventually import eventually_done
from tests.inside.broker import Broker, Outgoing
from tests.inside.frame import encode
from tests.inside.protocol import Act, Resend
from towline.errors import BadRequest, LeaseLost, QueueFull
from towline.model import TopicConfig


def crash(world: World, to: Path) -> World:
    """The folder as a killed broker would have left it: all that was handed to the operating system."""
    source = Path(world.store_url.removeprefix("file:"))
    shutil.copytree(source, to / "data", copy_function=_copy, ignore=shutil.ignore_patterns("lock"))
    return World("log", to)


def _copy(source: str, target: str) -> None:
    """Another thread may be replacing a small file; a crash would leave the old or the new one, not its forerunner."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


async def _busy_history(bench: Bench) -> tuple[int, int]:
    """A group with everything in it: settled, leased, retrying, dead and waiting messages. Gives two open pulls."""
    await bench.send("orders", *(b"%d" % n for n in range(100)))
    await bench.send("orders", b"urgent", lane=0)
    member = await bench.attach(delays_s=(3600.0,))
    done = await bench.pull(member, 21)
    await bench.act(member, ACK, done)
    failing = await bench.pull(member, 10)
    await bench.act(member, NACK, failing, (1, 20, 5), reason="later")
    await bench.act(member, DEAD, failing, (1, 25, 2), reason="never")
    await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 2)
    open_pull = await bench.pull(member, 10)
    await bench.flush()
    return failing.pull, open_pull.pull


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_crash_leaves_positions_leases_retries_and_dead_letters_as_they_were(
    disk: World, tmp_path: Path, snapshot: bool
) -> None:
    async with disk.open() as bench:
        pulls = await _busy_history(bench)
        if snapshot:
            await bench.broker.maintain()
            member = await bench.attach(consumer="c2")
            await bench.act(member, ACK, await bench.pull(member, 1))
        before = bench.broker.group_state("orders", "billing")
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as bench:
        state = bench.broker.group_state("orders", "billing")
        assert (state.positions, state.lag, state.dead) == (before.positions, before.lag, before.dead)
        assert (state.in_flight, state.retrying) == (before.in_flight, before.retrying)
        back = await bench.attach(holding=pulls)
        assert back.held == sorted(pulls)
        for pull in pulls:
            refused = await bench.broker.consumers.settle(back, [_ack(pull)])
            assert refused.refused == []
        rest = await bench.pull(back, 1000)
        assert rest.bodies == [b"%d" % n for n in range(41 if snapshot else 40, 100)]
        assert bench.broker.group_state("orders", "billing").retrying == 5


async def test_consumers_keep_their_leases_through_an_orderly_restart(disk: World) -> None:
    async with disk.open() as bench:
        await bench.send("orders", b"a", b"b")
        got = await bench.pull(await bench.attach(), 1)
    async with disk.open() as bench:
        back = await bench.attach(holding=(got.pull,))
        assert (await bench.act(back, ACK, got)).refused == []
        assert (await bench.pull(back)).bodies == [b"b"]


async def test_an_ack_that_was_answered_is_not_forgotten_by_a_crash(disk: World, tmp_path: Path) -> None:
    async with disk.open() as bench:
        await bench.send("orders", b"a", b"b")
        member = await bench.attach()
        await bench.act(member, ACK, await bench.pull(member, 1))
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as bench:
        assert (await bench.pull(await bench.attach())).bodies == [b"b"]


async def test_a_consumer_that_does_not_come_back_after_a_restart_loses_its_lease(disk: World, tmp_path: Path) -> None:
    async with disk.open() as bench:
        await bench.send("orders", b"a")
        await bench.pull(await bench.attach(consumer="gone"))
        await bench.flush()
        after = crash(disk, tmp_path / "crashed")
    async with after.open(heartbeat_s=1.5) as bench:
        member = await bench.attach(consumer="other")
        pull = asyncio.create_task(bench.pull(member, wait_ms=20_000))
        while not pull.done():
            bench.broker.consumers.beat(member)
            await asyncio.sleep(0.01)
        got = await pull
        assert (got.bodies, got.attempts) == ([b"a"], [2])


async def test_a_pull_number_from_before_a_crash_is_never_given_out_again(disk: World, tmp_path: Path) -> None:
    async with disk.open() as bench:
        await bench.broker.topics.create(TopicConfig("orders"))
        await bench.send("orders", b"a", b"b")
        member = await bench.attach()
        after = crash(disk, tmp_path / "crashed")
        lost = await bench.pull(member, 1)
    async with after.open() as bench:
        member = await bench.attach()
        fresh = await bench.pull(member, 1)
        assert fresh.pull > lost.pull
        assert (await bench.act(member, ACK, lost)).refused[0][1] == LeaseLost.code
        assert bench.broker.group_state("orders", "billing").in_flight == 1


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_frame_sent_again_after_a_crash_is_recognised(disk: World, tmp_path: Path, snapshot: bool) -> None:
    async with disk.open() as bench:
        first = await bench.send("orders", b"a", b"b", producer_id=9, producer_seq=4)
        if snapshot:
            await bench.broker.maintain()
        last = await bench.send("orders", b"c", producer_id=9, producer_seq=5)
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as bench:
        again = await bench.send("orders", b"a", b"b", producer_id=9, producer_seq=4)
        assert (again.firsts, again.duplicate) == (first.firsts, True)
        assert (await bench.send("orders", b"c", producer_id=9, producer_seq=5)).firsts == last.firsts
        assert (await bench.pull(await bench.attach())).bodies == [b"a", b"b", b"c"]


@pytest.mark.parametrize("snapshot", [False, True])
def test_each_frame_of_a_unit_is_recognised_under_way_afterwards_and_after_a_crash(
    disk: World, tmp_path: Path, snapshot: bool
) -> None:
    def unit(*numbers: int, other: int = 9) -> list[Outgoing]:
        """Frames of one producer; the last may be of another one."""
        ids = [9] * (len(numbers) - 1) + [other]
        return [
            ("orders", number % 4, encode([b"%d" % number] * number, producer_id=producer_id, producer_seq=number))
            for number, producer_id in zip(numbers, ids, strict=True)
        ]

    async def check(bench: Bench) -> None:
        assert (await bench.broker.send(unit(1, 2, 3, 4))).firsts == [0, 0, 0, 0]
        assert (await bench.broker.send(unit(4, 2))).firsts == [0, 0]
        assert (await bench.broker.send(unit(5, 6, other=8))).firsts == [1, 2]
        for numbers, other in (((4, 7), 9), ((7, 1), 9), ((7, 8, 4), 9), ((5, 6), 9), ((7, 6), 8)):
            with pytest.raises(BadRequest, match="with other frames"):
                await bench.broker.send(unit(*numbers, other=other))
        assert [bench.broker.store.bounds(f"lane/orders/{lane}").end for lane in range(4)] == [4, 6, 8, 3]

    async def main() -> None:
        async with disk.open() as bench:
            await bench.broker.topics.create(TopicConfig("orders", shards=4))
            first, under_way = bench.broker.send(unit(1, 2, 3, 4)), bench.broker.send(unit(1, 2, 3, 4))
            assert [(await one).duplicate for one in (first, under_way)] == [False, True]
            if snapshot:
                await bench.broker.maintain()
            assert (await bench.broker.send(unit(5, 6, other=8))).firsts == [1, 2]
            await check(bench)
            after = crash(disk, tmp_path / "crashed")
        async with after.open() as bench:
            await check(bench)
            assert (await bench.broker.send(unit(7, 8))).firsts == [3, 4]

    asyncio.run(main())


async def test_a_dying_message_reaches_the_dead_letters_once_whenever_the_crash_comes(
    disk: World, tmp_path: Path
) -> None:
    async with disk.open() as bench:
        await bench.send("orders", b"a")
        member = await bench.attach()
        got = await bench.pull(member)
        await bench.act(member, DEAD, got, reason="never")
        during = crash(disk, tmp_path / "during")
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 1)
        afterwards = crash(disk, tmp_path / "afterwards")
    for world in (during, afterwards):
        async with world.open() as bench:
            broker = bench.broker
            await eventually_done(partial(_has_dead, broker))
            assert (await bench.broker.dead_letters.resend(Resend("orders", "billing"))).count == 1
            assert (await bench.pull(await bench.attach())).bodies == [b"a"]


async def test_a_dead_letter_sent_again_survives_a_crash_and_is_not_sent_twice(disk: World, tmp_path: Path) -> None:
    async with disk.open() as bench:
        await bench.send("orders", b"a")
        member = await bench.attach()
        await bench.act(member, DEAD, await bench.pull(member))
        await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 1)
        await bench.broker.dead_letters.resend(Resend("orders", "billing"))
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as bench:
        assert bench.broker.group_state("orders", "billing").dead == 0
        assert (await bench.broker.dead_letters.resend(Resend("orders", "billing"))).count == 0
        assert (await bench.pull(await bench.attach())).bodies == [b"a"]


async def test_topics_and_groups_outlive_a_crash_even_before_their_files_are_written(
    disk: World, tmp_path: Path
) -> None:
    async with disk.open() as bench:
        await bench.send("orders", b"a")
        member = await bench.attach()
        await bench.act(member, ACK, await bench.pull(member))
        after = crash(disk, tmp_path / "crashed")
        for name in ("topics.json", "subscriptionGroup.json"):
            (tmp_path / "crashed" / "data" / "config" / name).unlink(missing_ok=True)
    async with after.open() as bench:
        assert bench.broker.group_state("orders", "billing").lag == 0


def test_leased_and_retrying_messages_outlive_retention(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        body = bytes(30_000)
        await bench.send("orders", b"leased", b"retrying")
        member = await bench.attach(delays_s=(3600.0,))
        held = await bench.pull(member, 2)
        await bench.act(member, NACK, held, (1, 1, 1))
        for _ in range(30):
            await bench.send("orders", body)
        await bench.broker.maintain()
        assert bench.store.bounds("lane/orders/middle").first == 0
        await bench.act(member, ACK, held)
        rest = await bench.pull(member, 1000, max_bytes=1 << 24)
        await bench.act(member, ACK, rest)
        await bench.broker.maintain()
        assert bench.store.bounds("lane/orders/middle").first == 0, "the retrying message still holds it"

    disk.run(scenario, segment_bytes=1 << 16, retention_bytes=1)


def test_retention_drops_what_nobody_needs_and_tells_the_group(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        for n in range(30):
            await bench.send("orders", b"%d" % n + bytes(30_000))
        for _ in range(2):
            await bench.broker.maintain()
        first = bench.store.bounds("lane/orders/middle").first
        assert first > 0
        got = await bench.pull(member, 1000, max_bytes=1 << 24)
        assert got.bodies[0].startswith(b"%d" % first)
        await bench.act(member, ACK, got)
        assert bench.broker.group_state("orders", "billing").lag == 0

    disk.run(scenario, segment_bytes=1 << 16, retention_bytes=1)


def test_a_full_memory_store_refuses_and_recovers_when_its_messages_are_consumed(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        for _ in range(2):
            for n in range(10):
                await bench.send("orders", b"%d" % n)
            with pytest.raises(QueueFull):
                await bench.send("orders", b"one too many")
            got = await bench.pull(member)
            assert got.bodies == [b"%d" % n for n in range(10)]
            await bench.act(member, ACK, got)

    World("memory", tmp_path).run(scenario, capacity_messages=10)


def _has_dead(broker: Broker) -> bool:
    return broker.group_state("orders", "billing").dead == 1


def _ack(pull: int) -> Act:
    return Act(ACK, pull)


async def test_damage_in_a_pull_log_loses_no_message(disk: World, tmp_path: Path) -> None:
    """Flip one byte in each event of a pull log in turn: whatever is lost, every message is still delivered."""

    async with disk.open() as bench:
        await bench.send("orders", *(b"%d" % n for n in range(40)))
        member = await bench.attach()
        for _ in range(3):
            got = await bench.pull(member, 5)
            await bench.flush()
            await bench.act(member, ACK, got)
        open_pull = await bench.pull(member, 5)
        await bench.flush()
        await bench.act(member, NACK, open_pull, (1, 15, 2))
        await bench.flush()
        crash(disk, tmp_path / "sample")
    segment = next((tmp_path / "sample" / "data" / "log").glob("*.log"))
    content = segment.read_bytes()
    places = [at for at in range(0, len(content), 8) if content[at : at + 4] == b"TWR1"]
    damaged = 0
    for number, place in enumerate(places):
        if b"pull/" not in content[place : place + 96]:
            continue
        folder = tmp_path / f"damaged-{number}"
        shutil.copytree(tmp_path / "sample", folder)
        copy = folder / "data" / "log" / segment.name
        copy.write_bytes(content[: place + 100] + bytes([content[place + 100] ^ 1]) + content[place + 101 :])
        damaged += 1
        async with World("log", folder).open() as bench:
            assert bench.broker.group_state("orders", "billing").config.name == "billing"
            seen = await _drain(bench)
            assert set(range(15, 40)) <= seen, "what was not acked comes"
    assert damaged >= 8


async def _drain(bench: Bench) -> set[int]:
    member = await bench.attach(delays_s=(0.0,))
    seen: set[int] = set()
    while bench.broker.group_state("orders", "billing").lag:
        got = await bench.pull(member, 100, wait_ms=20_000)
        seen |= {int(body) for body in got.bodies}
        if got.pull:
            await bench.act(member, ACK, got)
    return seen
