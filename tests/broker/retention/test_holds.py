"""Retention that waits for an archive, and not for ever."""

from __future__ import annotations

import logging

import msgspec
import pytest

from tests.broker.conftest import Bench, World
from tests.inside.protocol import EditTopic
from towline.errors import BadName, NotFound

LANE = "lane/orders/middle"
SEGMENT = 1 << 16


async def fill(bench: Bench, count: int = 30) -> None:
    for n in range(count):
        await bench.send("orders", b"%d" % n + bytes(30_000))


async def moved(bench: Bench, position: int) -> None:
    await bench.store.save("hold-archive.json", msgspec.json.encode({"at_us": 1, "positions": {LANE: position}}))


async def first_after_maintenance(bench: Bench) -> int:
    for _ in range(2):
        await bench.broker.maintain()
    return bench.store.bounds(LANE).first


def test_retention_waits_until_the_archive_has_come_by(disk: World, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bench: Bench) -> None:
        await fill(bench)
        assert await first_after_maintenance(bench) == 0, "nobody has said anything yet: all of it is held"
        assert "which has not said yet how far it has come" in caplog.text
        await moved(bench, 10)
        first = await first_after_maintenance(bench)
        assert 0 < first <= 10
        assert caplog.text.count("retention waits for archive: record") == 1, "once an hour"
        await moved(bench, 1_000)
        assert await first_after_maintenance(bench) > 20

    with caplog.at_level(logging.WARNING, "towline.broker"):
        disk.run(scenario, segment_bytes=SEGMENT, retention_bytes=1, holds="archive")
    assert "dropped although" not in caplog.text


def test_a_hold_is_moved_by_a_request(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        await fill(bench)
        with pytest.raises(NotFound, match="start the broker with --holds"):
            await bench.broker.holds.move("other", {LANE: 10})
        await bench.broker.holds.move("archive", {LANE: 10})
        assert 0 < await first_after_maintenance(bench) <= 10
        await bench.broker.holds.move("archive", {LANE: 1_000})
        assert await first_after_maintenance(bench) > 20

    disk.run(scenario, segment_bytes=SEGMENT, retention_bytes=1, holds="archive")


def test_a_hold_has_an_end_and_says_so(disk: World, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bench: Bench) -> None:
        await moved(bench, 0)
        await fill(bench)
        first = await first_after_maintenance(bench)
        assert 0 < first < 25, "as much as the bound asks for, and no more"

    with caplog.at_level(logging.ERROR, "towline.broker"):
        disk.run(scenario, segment_bytes=SEGMENT, retention_bytes=1, holds="archive", hold_max_bytes=300_000)
    assert "dropped although archive has not come to it" in caplog.text


def test_the_retention_of_a_topic_waits_as_well(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send("orders", b"1", b"2", b"3")
        await bench.broker.topics.edit(EditTopic("orders", 1e-6))
        await moved(bench, 2)
        assert await first_after_maintenance(bench) == 2
        await moved(bench, 3)
        assert await first_after_maintenance(bench) == 3

    disk.run(scenario, holds="archive")


def test_a_bad_name_is_refused_at_the_start(disk: World) -> None:
    async def scenario(bench: Bench) -> None:
        raise AssertionError("it does not start")

    with pytest.raises(BadName, match="holds"):
        disk.run(scenario, holds="../x")
