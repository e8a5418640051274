"""Ids after damage to the log: none names two messages."""

from __future__ import annotations

import pytest

from tests.broker.conftest import ACK, World
from tests.inside.store import STAMP


@pytest.mark.parametrize("consumed", [True, False])
@pytest.mark.parametrize("at", [0, 4, 24, STAMP.size + 5])
async def test_a_damaged_last_message_leaves_its_id_to_nobody_else(disk: World, at: int, consumed: bool) -> None:
    async with disk.open() as bench:
        member = await bench.attach()
        for number in range(5):
            await bench.send("orders", b"%d" % number)
        if consumed:
            assert (await bench.act(member, ACK, await bench.pull(member))).refused == []
    log = next((disk.folder / "data" / "log").glob("*1.log"))
    data = bytearray(log.read_bytes())
    data[data.rindex(b"lane/orders/middle") - STAMP.size + at] ^= 0x10
    log.write_bytes(data)
    async with disk.open() as bench:
        sent = await bench.send("orders", b"new")
        assert sent.firsts == [5]
        got = await bench.pull(await bench.attach(), wait_ms=60_000)
        assert got.bodies == ([b"new"] if consumed else [b"0", b"1", b"2", b"3", b"new"])
