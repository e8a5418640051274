"""A full disk, for real: a small file system in memory with a ballast file on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import towline
from tests import disks
from tests.eventually import eventually
from tests.inside.load import BrokerProcess
from towline.errors import DiskFull


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disks.small_disk(tmp_path / "disk", "16m") as folder:
        yield folder


def _fill(client: towline.Client) -> tuple[int, DiskFull]:
    """Send until the disk is full; how many were taken, and what the next was told."""
    for sent in range(0, 500_000, 50):
        try:
            client.send_many("orders", [bytes(1000)] * 50)
        except DiskFull as error:
            return sent, error
    raise AssertionError("the disk never gets full")


def _is_taken(client: towline.Client, body: bytes) -> bool:
    try:
        client.send("orders", body)
    except DiskFull:
        return False
    return True


def test_a_full_disk_refuses_producers_while_pulls_and_acks_go_on_and_recovers_by_itself(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(6 << 20))
    settings = {"durability": "os", "segment_bytes": 1 << 20, "min_free_bytes": 0, "retention_s": 0}
    with (
        BrokerProcess(f"file:{small_disk / 'data'}", **settings) as broker,
        towline.connect(broker.url) as client,
        client.consumer("orders", group="billing") as consumer,
    ):
        sent, refused = _fill(client)
        assert str(small_disk) in str(refused), "the error names the folder"
        assert sent >= 1000

        consumed = 0
        while consumed < sent:
            batch = consumer.pull(max_messages=100, wait=5.0)
            assert batch, f"only {consumed} of {sent} messages came"
            consumed += len(batch)
            batch.ack()
        assert consumed == sent
        assert client.group("orders", "billing").lag == 0

        ballast.unlink()
        eventually(lambda: _is_taken(client, b"there is room again"))
        batch = consumer.pull(wait=5.0)
        assert [message.body for message in batch] == [b"there is room again"]
        batch.ack()
        broker.kill()
        broker.start()
        assert client.topic("orders").lanes[1].end == sent + 1
        assert client.group("orders", "billing").lag == 0
