"""A message with a dedup id that came already is not stored twice; its sender gets the first receipt."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from tests.broker.conftest import ACK, Bench, World
from tests.broker.test_recovery import crash
from tests.eventually import DEADLINE_S, eventually_done
from tests.inside.broker import Broker
from tests.inside.delivery import DEDUP_ID_MAX
from tests.inside.frame import encode
from tests.inside.ground import ManualClock
from tests.inside.protocol import Sent
from tests.inside.store import DiskIo, MemoryStore
from towline.errors import BadRequest, StoreFailed, TooLarge
from towline.model import Durability


async def everything(bench: Bench, topic: str = "orders") -> list[bytes]:
    member = await bench.attach(topic, "reader")
    got = await bench.pull(member, 10_000)
    if got.pull:
        await bench.act(member, ACK, got)
    return got.bodies


def places(sent: Sent) -> list[tuple[int, int, int, int]]:
    return [repeat[:4] for repeat in sent.repeats]


def test_a_message_with_a_known_id_is_not_stored_and_gets_the_first_receipt(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"before")
        first = await bench.send("orders", b"a", dedup_ids=["order-1"])
        again = await bench.send("orders", b"a again", dedup_ids=["order-1"])
        assert (first.firsts, first.repeats) == ([1], [])
        assert again.repeats == [(0, 0, 1, 1, first.appended_at_us)]
        other = await bench.send("stock", b"another topic", dedup_ids=["order-1"])
        assert (other.firsts, other.repeats) == ([0], [])
        assert await everything(bench) == [b"before", b"a"]
        assert await everything(bench, "stock") == [b"another topic"]

    world.run(scenario)


def test_the_lane_does_not_matter(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a", lane=2, dedup_ids=["x"])
        assert places(await bench.send("orders", b"a", lane=0, dedup_ids=["x"])) == [(0, 0, 2, 0)]
        assert await everything(bench) == [b"a"]

    world.run(scenario)


@pytest.mark.parametrize("compress", [False, True])
def test_a_frame_with_some_known_ids_is_stored_without_them(world: World, compress: bool) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"0", b"1", dedup_ids=["a", "b"])
        sent = await bench.send(
            "orders",
            *(b"%d" % n * 100 for n in range(6)),
            keys=["k0", None, "k2", "k3", "k4", "k5"],
            headers=[None, {"n": "1"}, {"n": "2"}, None, None, None],
            dedup_ids=["b", "new", None, "a", "new", "last"],
            compress=compress,
        )
        assert places(sent) == [(0, 0, 1, 1), (0, 3, 1, 0), (0, 4, 1, 2)]
        assert sent.firsts == [2]
        assert await everything(bench) == [b"0", b"1", b"1" * 100, b"2" * 100, b"5" * 100]
        assert places(await bench.send("orders", b"", dedup_ids=["last"])) == [(0, 0, 1, 4)]

    world.run(scenario)


def test_frames_of_one_unit_know_each_other(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        one, two = encode([b"a", b"b"], dedup_ids=["a", "b"]), encode([b"b again", b"c"], dedup_ids=["b", None])
        sent = await bench.broker.send([("orders", 1, one), ("orders", 1, two), ("orders", 0, two)])
        assert sent.firsts == [0, 2, 0]
        assert places(sent) == [(1, 0, 1, 1), (2, 0, 1, 1)]
        assert await everything(bench) == [b"c", b"a", b"b", b"c"]

    world.run(scenario)


def test_a_unit_sent_again_gets_the_same_answer_though_a_whole_frame_of_it_was_known(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"x", dedup_ids=["x"])
        known = encode([b"x"], dedup_ids=["x"], producer_id=7, producer_seq=1)
        mixed = encode([b"x", b"y", b"z"], dedup_ids=["x", "y", None], producer_id=7, producer_seq=2)
        plain = encode([b"plain"], producer_id=7, producer_seq=3)
        unit = [("orders", 1, known), ("orders", 1, mixed), ("orders", 2, plain)]
        first = await bench.broker.send(unit)
        again = await bench.broker.send(unit)
        assert (again.firsts, again.repeats, again.duplicate) == (first.firsts, first.repeats, True)
        assert await everything(bench) == [b"x", b"y", b"z", b"plain"]

    world.run(scenario)


@pytest.mark.parametrize("snapshot", [False, True])
async def test_ids_and_answers_outlive_a_crash(disk: World, tmp_path: Path, snapshot: bool) -> None:
    unit = [
        ("orders", 1, encode([b"a"], dedup_ids=["a"], producer_id=7, producer_seq=1)),
        ("orders", 0, encode([b"b", b"a", b"c"], dedup_ids=["b", "a", None], producer_id=7, producer_seq=2)),
        ("orders", 2, encode([b"d"], producer_id=7, producer_seq=3)),
    ]

    async with disk.open() as bench:
        await bench.send("orders", b"a", dedup_ids=["a"])
        first = await bench.broker.send(unit)
        if snapshot:
            await bench.broker.maintain()
        await bench.send("orders", b"e", dedup_ids=["e"])
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as bench:
        again = await bench.broker.send(unit)
        assert (again.repeats, again.duplicate) == (first.repeats, True)
        assert again.firsts[1:] == first.firsts[1:]
        for known, place in (("a", (1, 0)), ("b", (0, 0)), ("e", (1, 1))):
            assert places(await bench.send("orders", b"?", dedup_ids=[known])) == [(0, 0, *place)]
        assert sorted(await everything(bench)) == [b"a", b"b", b"c", b"d", b"e"]


async def test_an_id_is_forgotten_when_its_window_has_passed_or_too_many_came() -> None:
    clock = ManualClock()
    settings = World("memory", Path()).settings(dedup_window_s=600.0, dedup_max_ids=3)
    broker = await Broker.open(MemoryStore(clock=clock), settings, clock=clock)

    async def stored(name: str) -> bool:
        return not (await broker.send([("orders", 1, encode([b"x"], dedup_ids=[name]))])).repeats

    assert await stored("a")
    clock.advance(599)
    assert not await stored("a")
    clock.advance(2)
    assert await stored("a"), "its window has passed"
    assert not await stored("a"), "and begins anew"
    for name in ("b", "c", "d"):
        assert await stored(name)
    assert not await stored("d")
    assert await stored("a"), "three others came since"
    assert broker.figures()["dedup_ids"] == 3
    await broker.close()


def test_two_at_the_same_time_are_one_and_both_wait_until_it_is_durable(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        one = bench.broker.send([("orders", 1, encode([b"one"], dedup_ids=["a"]))])
        two = bench.broker.send([("orders", 1, encode([b"two"], dedup_ids=["a"]))])
        assert not one.done()
        assert not two.done()
        assert (await two).repeats[0][3] == 0
        assert one.done()
        assert await everything(bench) == [b"one"]

    disk.run(scenario, durability="fsync")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("ids", [["a"], ["a", "new"]], ids=["alone", "beside a new one"])
@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
def test_a_repeat_is_answered_when_the_first_is_synced_and_fails_if_that_fails(
    disk: World, monkeypatch: pytest.MonkeyPatch, durability: Durability, ids: list[str], fails: bool
) -> None:
    syncing, go_on = threading.Event(), threading.Event()

    def fdatasync(_io: DiskIo, _fd: int) -> None:
        syncing.set()
        assert go_on.wait(DEADLINE_S)
        if fails:
            raise OSError(errno.EIO, "no more")

    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"before")
        monkeypatch.setattr(DiskIo, "fdatasync", fdatasync)
        repeat = [("orders", 0, encode([b"x"] * len(ids), dedup_ids=ids))]
        first = bench.broker.send([("orders", 1, encode([b"a"], dedup_ids=["a"]))], Durability.FSYNC)
        repeats = [bench.broker.send(repeat, durability)]
        try:
            await eventually_done(syncing.is_set)
            repeats.append(bench.broker.send(repeat, durability))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not any(answer.done() for answer in (first, *repeats))
        finally:
            go_on.set()
        if not fails:
            assert (await first).firsts == [1]
            assert [places(await answer)[0] for answer in repeats] == [(0, 0, 1, 1)] * 2
            return
        for answer in (first, *repeats):
            with pytest.raises(StoreFailed, match="no more"):
                await answer

    disk.run(scenario)


def test_a_topic_that_was_deleted_takes_its_ids_along(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"a", dedup_ids=["x"])
        await bench.broker.delete_topic("orders")
        assert (await bench.send("orders", b"b", dedup_ids=["x"])).repeats == []

    world.run(scenario)


def test_what_is_wrong_is_refused(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(TooLarge, match="topic orders: a dedup id has at most 200 bytes"):
            await bench.send("orders", b"x", dedup_ids=["x" * (DEDUP_ID_MAX + 1)])
        await bench.send("orders", b"x", producer_id=5, producer_seq=1)
        await asyncio.sleep(0)
        unit = [("orders", 1, encode([b"x"], producer_id=5, producer_seq=n)) for n in (1, 2)]
        with pytest.raises(BadRequest, match="with other frames"):
            await bench.broker.send(unit)

    world.run(scenario)
