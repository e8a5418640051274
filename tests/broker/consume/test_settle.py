"""Acts that come in one request: carried out in their order, acks of several pulls in one append."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.broker.conftest import ACK, NACK, Bench, Got, World
from tests.inside.broker import Member
from tests.inside.protocol import Act
from tests.inside.store import Append, Appended, Store
from towline.errors import DiskFull
from towline.model import Durability


class Watched:
    """Counts what is appended, and refuses it on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
        self.counts: list[int] = []
        self.full = False
        self._append = store.append
        monkeypatch.setattr(store, "append", self.append)

    def append(self, appends: Sequence[Append], durability: Durability) -> Appended:
        if self.full:
            raise DiskFull("no room")
        self.counts.append(sum(one.count for one in appends))
        return self._append(appends, durability)


async def singles(bench: Bench, member: Member, count: int) -> list[Got]:
    """So many pulls of one message each, which are in the log."""
    for number in range(count):
        await bench.send("orders", b"%d" % number)
    gots = [await bench.pull(member, 1) for _ in range(count)]
    await bench.flush()
    return gots


def in_flight(bench: Bench) -> int:
    return bench.broker.group_state("orders", "billing").in_flight


def acks(gots: list[Got]) -> list[Act]:
    return [Act(ACK, got.pull) for got in gots]


def test_acks_of_several_pulls_are_one_append(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        gots = await singles(bench, member, 5)
        watched = Watched(monkeypatch, bench.store)
        settled = await bench.broker.consumers.settle(member, acks(gots))
        assert (settled.refused, settled.lost) == ([], [])
        assert watched.counts == [5], "five events, written at once"
        assert in_flight(bench) == 0

    disk.run(scenario)


def test_they_are_all_there_after_a_restart(disk: World) -> None:
    async def before(bench: Bench) -> None:
        member = await bench.attach()
        gots = await singles(bench, member, 600)
        assert not (await bench.broker.consumers.settle(member, acks(gots[:-1]))).refused
        assert in_flight(bench) == 1

    async def after(bench: Bench) -> None:
        assert in_flight(bench) == 1
        assert (await bench.pull(await bench.attach())).bodies == [b"599"]

    disk.run(before)
    disk.run(after)


def test_one_that_is_refused_hinders_no_other(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        gots = await singles(bench, member, 3)
        first, second, third = acks(gots)
        wrong = Act(ACK, gots[0].pull, [(1, 77, 1)])
        settled = await bench.broker.consumers.settle(member, [first, Act(ACK, 4711), second, wrong, third])
        assert sorted((at, code) for at, code, _ in settled.refused) == [(1, "lease-lost"), (3, "bad-request")]
        assert in_flight(bench) == 0

    disk.run(scenario)


def test_the_same_pull_twice_is_acked_bit_by_bit(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        await bench.send("orders", b"a", b"b", b"c")
        got = await bench.pull(member)
        parts = [Act(ACK, got.pull, [(1, at, 1)]) for at in (0, 1)]
        assert not (await bench.broker.consumers.settle(member, parts)).refused
        assert in_flight(bench) == 1
        again = [*parts, Act(ACK, got.pull), Act(ACK, got.pull)]
        assert not (await bench.broker.consumers.settle(member, again)).refused, "to say it twice does no harm"
        assert in_flight(bench) == 0

    disk.run(scenario)


def test_a_nack_between_acks_keeps_its_place(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach(delays_s=(0.0,))
        await bench.send("orders", b"a", b"b")
        got = await bench.pull(member)
        other = (await singles(bench, member, 1))[0]
        acts = [
            Act(ACK, other.pull),
            Act(ACK, got.pull, [(1, 0, 1)]),
            Act(NACK, got.pull),
            Act(ACK, got.pull, [(1, 1, 1)]),
        ]
        settled = await bench.broker.consumers.settle(member, acts)
        assert [at for at, _, _ in settled.refused] == [3], "it was nacked before"
        assert (await bench.pull(member, wait_ms=10_000)).bodies == [b"b"]

    disk.run(scenario)


def test_an_ack_of_all_before_comes_after_the_single_ones(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        gots = await singles(bench, member, 4)
        acts = [Act(ACK, gots[3].pull), Act(ACK, gots[1].pull), Act(ACK, gots[2].pull, [], True)]
        assert not (await bench.broker.consumers.settle(member, acts)).refused
        assert in_flight(bench) == 0

    disk.run(scenario)


def test_a_full_disk_refuses_all_of_them_and_loses_none(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        member = await bench.attach()
        gots = await singles(bench, member, 3)
        watched = Watched(monkeypatch, bench.store)
        watched.full = True
        settled = await bench.broker.consumers.settle(member, acks(gots))
        assert [(at, code) for at, code, _ in settled.refused] == [(at, DiskFull.code) for at in range(3)]
        assert in_flight(bench) == 3
        watched.full = False
        assert not (await bench.broker.consumers.settle(member, acks(gots))).refused
        assert in_flight(bench) == 0

    disk.run(scenario)
