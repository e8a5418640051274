"""A power cut that keeps a document and loses what was not synced of the log: it speaks of nothing that is gone."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tests.inside.broker import Broker
from tests.inside.frame import encode
from tests.inside.ground import BrokerSettings, ManualClock
from tests.inside.protocol import Act, Attach, Pull
from tests.inside.store import LogSettings, LogStore
from tests.store.log.test_power_cut import PowerCutIo


class HarshIo(PowerCutIo):
    """Nothing arrives that was not synced."""

    def _torn(self, now: bytes, safe: bytes) -> bytes:
        return safe.ljust(len(now), b"\0")


@asynccontextmanager
async def opened(path: Path, clock: ManualClock, io: PowerCutIo) -> AsyncIterator[Broker]:
    settings = BrokerSettings(store=f"file:{path}", durability="os", maintenance_s=3600.0, min_free_bytes=0)
    store = await LogStore.open(path, LogSettings(segment_bytes=1 << 20, min_free_bytes=0), clock=clock, io=io)
    broker = await Broker.open(store, settings, clock=clock)
    try:
        yield broker
    finally:
        await broker.close()


async def test_the_positions_of_groups_speak_of_what_is_on_the_disk(tmp_path: Path) -> None:
    clock, io = ManualClock(), HarshIo(random.Random(1))
    async with opened(tmp_path / "store", clock, io) as broker:
        member = await broker.consumers.attach(Attach("orders", "billing", "c1"))
        for number in range(5):
            await broker.send([("orders", 1, encode([b"%d" % number]))])
        pulled, _ = await broker.consumers.pull(member, Pull(0, 3, 1 << 20))
        assert (await broker.consumers.settle(member, [Act(0, pulled.pull)])).refused == []
        await broker._save_snapshots()
        io.cut(tmp_path / "store", tmp_path / "cut")
    assert (tmp_path / "cut" / "config" / "consumerOffset.json").exists()
    async with opened(tmp_path / "cut", clock, HarshIo(random.Random(2))) as broker:
        assert broker.store.bounds("lane/orders/middle").end == 5
        state = broker.group_state("orders", "billing")
        assert (state.lag, state.positions[1]) == (2, ("middle", 3, 5))
        assert (await broker.send([("orders", 1, encode([b"5"]))])).firsts == [5]


async def test_the_positions_of_the_schedule_speak_of_what_is_on_the_disk(tmp_path: Path) -> None:
    clock, io = ManualClock(), HarshIo(random.Random(1))
    async with opened(tmp_path / "store", clock, io) as broker:
        due_us = clock.now_us() + 3_600_000_000
        await broker.send([("orders", 1, encode([b"later"], deliver_at_us=[due_us]))])
        await broker._agenda.save()
        io.cut(tmp_path / "store", tmp_path / "cut")
    saved = msgspec.json.decode((tmp_path / "cut" / "config" / "delayOffset.json").read_bytes())
    store = await LogStore.open(tmp_path / "cut", LogSettings(segment_bytes=1 << 20, min_free_bytes=0))
    ends = {stream: store.bounds(stream).end for stream in saved["ends"]}
    await store.close()
    assert ends == saved["ends"] != {}
    async with opened(tmp_path / "cut", clock, HarshIo(random.Random(2))) as broker:
        assert broker.figures()["delayed"] == 1
        member = await broker.consumers.attach(Attach("orders", "billing", "c1"))
        clock.advance(3601)
        await broker.scheduler.catch_up()
        pulled, _ = await broker.consumers.pull(member, Pull(0, 3, 1 << 20))
        assert [part.count for part in pulled.parts] == [1]
