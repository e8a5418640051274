"""Dead letters: sent again changed, purged, expired."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.broker.conftest import ACK, DEAD, Bench, World
from tests.broker.test_recovery import until
from towline.errors import Conflict, NotFound
from towline.frame import Frame
from towline.protocol.messages import Browse, Pull, PurgeDead, ReviseDead


async def die(bench: Bench, count: int = 3, **config: Any) -> None:
    await bench.send("orders", *(b"%d" % n for n in range(count)), keys=[f"k{n}" for n in range(count)])
    member = await bench.attach(**config)
    await bench.act(member, DEAD, await bench.pull(member), reason="never")
    await until(lambda: bench.broker.group_state("orders", "billing").dead == count)
    await bench.flush()


def test_a_letter_is_sent_again_changed(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await die(bench)
        revised = ReviseDead("orders", "billing", 1, b"mended", "new", {"a": "b"})
        assert (await bench.broker.revise_dead(revised)).count == 1
        with pytest.raises(Conflict):
            await bench.broker.revise_dead(revised)
        with pytest.raises(NotFound):
            await bench.broker.revise_dead(ReviseDead("orders", "billing", 9, b"mended"))
        await bench.broker.revise_dead(ReviseDead("orders", "billing", 2, key=""))
        member = await bench.attach(consumer="c2")
        answer, buffers = await bench.broker.pull(member, _pull())
        at, seen = 0, []
        data = b"".join(buffers)
        for part in answer.parts:
            frame = Frame(data[at : at + part.length])
            at += part.length
            keys = frame.keys(part.start, part.start + part.count) or [None] * part.count
            heads = frame.headers(part.start, part.start + part.count) or []
            seen += list(zip(frame.bodies(part.start, part.start + part.count), keys, heads, strict=True))
        assert seen[0] == (b"mended", "new", {"a": "b", "towline-origin": "orders/middle/1"})
        assert seen[1][:2] == (b"2", None)
        assert bench.broker.group_state("orders", "billing").dead == 1

    world.run(scenario)


def _pull() -> Pull:
    return Pull(0, 100, 1 << 20)


def test_letters_are_purged_from_the_oldest_on(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await die(bench)
        assert (await bench.broker.purge_dead(PurgeDead("orders", "billing", 2))).count == 2
        assert bench.broker.group_state("orders", "billing").dead == 1
        browsed, _ = await bench.broker.browse(Browse("orders", 0, "billing"))
        assert (browsed.first, browsed.end) == (2, 3)
        assert (await bench.broker.purge_dead(PurgeDead("orders", "billing", 1 << 40))).count == 1
        assert (await bench.broker.purge_dead(PurgeDead("orders", "billing", 1 << 40))).count == 0

    world.run(scenario)


def test_letters_expire_when_their_group_says_so(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        await die(bench, dead_retention_s=3600.0)
        await bench.broker.maintain()
        assert bench.broker.group_state("orders", "billing").dead == 3
        dispatcher = bench.broker.groups.named("orders", "billing")
        config = dispatcher.group.config
        dispatcher.group.config = type(config)(config.topic, config.name, dead_retention_s=1e-6)
        await bench.broker.maintain()
        assert bench.broker.group_state("orders", "billing").dead == 0

    world.run(scenario)


def test_letters_outlive_the_retention_of_messages_when_their_group_says_so(disk: World) -> None:
    async def main() -> None:
        async with disk.open(segment_bytes=1 << 16, retention_bytes=1) as bench:
            await die(bench, dead_retention_s=3600.0)
            member = await bench.attach()
            for _ in range(10):
                await bench.send("orders", bytes(30_000))
                await bench.act(member, ACK, await bench.pull(member))
            for _ in range(3):
                await bench.broker.maintain()
            assert bench.broker.group_state("orders", "billing").dead == 3

    asyncio.run(main())
