"""Compressed frames count as what they unpack to."""

from __future__ import annotations

import pytest

from tests.broker.conftest import Bench, World
from towline.errors import TooLarge
from towline.frame import Frame, encode
from towline.protocol.messages import Browse, Find
from towline.protocol.scanning import Scan

MIB = 1 << 20


def test_a_frame_that_unpacks_to_more_than_the_limit_is_refused_before_it_is_unpacked(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        bomb, half = encode([bytes(20 * MIB)], compress=True), encode([bytes(9 * MIB)], compress=True)
        with pytest.raises(TooLarge, match="unpacks to"):
            await bench.broker.send([("orders", 1, bomb)])
        with pytest.raises(TooLarge, match="unpack to"):
            await bench.broker.send([("orders", 1, half), ("orders", 1, half)])
        await bench.broker.send([("orders", 1, half)])

    world.run(scenario)


def test_pulls_pages_searches_and_scans_count_unpacked_bytes(world: World) -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(8):
            await bench.broker.send([("orders", 1, encode([bytes(4 * MIB)], keys=["k"], compress=True))])
        room = 9 * MIB
        member = await bench.attach()
        assert len((await bench.pull(member, 100, max_bytes=room)).bodies) <= 2
        browsed, buffers = await bench.broker.browse(Browse("orders", 1, "", 0, 100, room))
        assert (len(buffers), browsed.next) == (2, 2)
        for key in ("k", ""):
            found, buffers = await bench.broker.find(Find("orders", 1, key, 0, 0, 0, 100, room))
            assert (len(buffers), found.next) == (2, 2)
        scanned, buffers = await bench.broker.scanning.scan(Scan("lane/orders/middle", 0, 8, room))
        assert (len(buffers), scanned.next) == (2, 2)
        assert sum(Frame(one).columns_length for one in buffers) <= room

    world.run(scenario)
