"""Groups that get every message at most once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.broker.conftest import ACK, NACK, Bench, World
from tests.broker.test_recovery import crash

ONCE: dict[str, Any] = {"mode": "at-most-once"}


def test_what_is_delivered_is_consumed_and_acts_change_nothing(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach(**ONCE)
        await mq.send("orders", b"a", b"b", b"c")
        got = await mq.pull(one, 2)
        assert got.bodies == [b"a", b"b"]
        state = mq.broker.group_state("orders", "billing")
        assert (state.lag, state.in_flight) == (1, 0)
        for what in (NACK, ACK):
            assert not (await mq.act(one, what, got)).refused
        assert (await mq.pull(one)).bodies == [b"c"]
        assert mq.broker.group_state("orders", "billing").retrying == 0

    world.run(scenario)


def test_a_vanished_consumers_messages_do_not_come_again(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach(**ONCE)
        await mq.send("orders", b"a", b"b")
        await mq.pull(one, 1)
        await mq.broker.consumers.detach(one)
        assert (await mq.pull(await mq.attach(consumer="c2", **ONCE))).bodies == [b"b"]

    world.run(scenario)


def test_what_does_not_fit_into_an_answer_is_not_lost(world: World) -> None:
    async def scenario(mq: Bench) -> None:
        one = await mq.attach(**ONCE)
        # Small ones first, so that the mean size promises more than fits.
        await mq.send("orders", *[b"x"] * 50)
        await mq.send("orders", *[b"y" * 5000 for _ in range(5)])
        bodies: list[bytes] = []
        while len(bodies) < 55:
            got = await mq.pull(one, 100, max_bytes=6000)
            assert got.bodies
            bodies += got.bodies
        assert bodies == [b"x"] * 50 + [b"y" * 5000] * 5

    world.run(scenario)


async def test_nothing_comes_twice_after_a_crash(disk: World, tmp_path: Path) -> None:
    async with disk.open() as mq:
        one = await mq.attach(**ONCE)
        await mq.send("orders", b"a", b"b", b"c")
        assert (await mq.pull(one, 2)).bodies == [b"a", b"b"]
        after = crash(disk, tmp_path / "crashed")
    async with after.open() as mq:
        assert (await mq.pull(await mq.attach(consumer="c2", **ONCE))).bodies == [b"c"]
