"""A disk that lies or fails: what was not synced is never acknowledged, and the broker says so."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.inside.broker import Broker
from tests.inside.frame import encode
from tests.inside.ground import BrokerSettings
from tests.inside.protocol import Act, Attach, Pull
from tests.inside.store import DiskIo, LogSettings, LogStore
from towline.errors import StoreFailed
from towline.model import Durability


class FailingDisk(DiskIo):
    """Works until it is told to fail; then syncing fails once, and seems to work ever after."""

    def __init__(self) -> None:
        self.fail_next = False

    def fdatasync(self, fd: int) -> None:
        if self.fail_next:
            self.fail_next = False
            raise OSError(errno.EIO, "Input/output error")
        super().fdatasync(fd)


async def test_a_failed_fsync_is_never_followed_by_an_acknowledgement(tmp_path: Path) -> None:
    disk = FailingDisk()
    settings = BrokerSettings(store=f"file:{tmp_path}", durability="fsync", maintenance_s=3600.0)
    store = await LogStore.open(tmp_path, LogSettings(segment_bytes=1 << 20, min_free_bytes=0), io=disk)
    broker = await Broker.open(store, settings)
    await broker.send([("orders", 1, encode([b"safe"]))])
    member = await broker.consumers.attach(Attach("orders", "billing", "c1"))
    pulled, _ = await broker.consumers.pull(member, Pull(0, 10, 1 << 20))
    disk.fail_next = True
    with pytest.raises(StoreFailed):
        await broker.send([("orders", 1, encode([b"lost"]))])
    for durability in Durability:
        with pytest.raises(StoreFailed):
            await broker.send([("orders", 1, encode([b"refused"]))], durability)
    assert (await broker.consumers.settle(member, [Act(0, pulled.pull)])).refused[0][1] == StoreFailed.code
    await broker.close()

    store = await LogStore.open(tmp_path, LogSettings(segment_bytes=1 << 20, min_free_bytes=0))
    broker = await Broker.open(store, settings)
    member = await broker.consumers.attach(Attach("orders", "billing", "c1"))
    pulled, _ = await broker.consumers.pull(member, Pull(0, 10, 1 << 20))
    assert pulled.parts[0].first == 0, "what was acknowledged is there, and was not settled by a refused ack"
    await broker.close()
