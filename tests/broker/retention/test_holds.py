"""Retention that waits for an archive, and not for ever."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from tests.broker.conftest import ACK, NACK, Bench, World
from tests.inside.cli import _look_at_holds
from tests.inside.ground import ManualClock
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


def test_a_hold_keeps_no_more_than_so_many_bytes_where_only_their_age_asks_for_it(
    disk: World, caplog: pytest.LogCaptureFixture
) -> None:
    clock = disk.store_clock = ManualClock()

    async def main() -> None:
        given = {"segment_bytes": SEGMENT, "retention_s": 10.0, "holds": "archive", "hold_max_bytes": 300_000}
        async with disk.open(clock, **given) as bench:
            await moved(bench, 0)
            await fill(bench, 8)
            assert bench.broker.figures()["retention_hold_s"] == 0
            clock.advance(11)
            assert await first_after_maintenance(bench) == 0, "there is room"
            clock.advance(5)
            figures = bench.broker.figures()
            assert (figures["retention_hold_s"], figures["retention_hold_by"]) == (5, "archive")
            assert 200_000 < figures["retention_hold_bytes"] < 300_000
            [finding] = _look_at_holds(figures)
            assert finding.text.startswith("retention waits for archive, which keeps 2")
            [finding] = _look_at_holds(figures | {"retention_hold_s": 200_000.0, "retention_hold_bytes": 0})
            assert finding.text == "retention waits for archive since 200000s, and goes on in 59200s"
            await fill(bench, 22)
            assert await first_after_maintenance(bench) == 0, "they are young"
            clock.advance(11)
            first = await first_after_maintenance(bench)
            assert 20 <= first < 25, "as much as the bound asks for, and no more"
            await moved(bench, 1_000)
            await bench.broker.maintain()
            figures = bench.broker.figures()
            assert (figures["retention_hold_s"], figures["retention_hold_bytes"]) == (0, 0)
            assert _look_at_holds(figures) == []

    with caplog.at_level(logging.ERROR, "towline.broker"):
        asyncio.run(main())
    assert "dropped although archive has not come to it" in caplog.text


def test_open_messages_and_an_archive_keep_so_many_bytes_each(disk: World) -> None:
    """Where only their age asks for it."""
    clock = disk.store_clock = ManualClock()

    async def main() -> None:
        given = {"segment_bytes": SEGMENT, "retention_s": 10.0, "holds": "archive", "hold_max_bytes": 300_000}
        async with disk.open(clock, **given, open_max_bytes=300_000) as bench:
            await moved(bench, 0)
            member = await bench.attach(delays_s=(30 * 86400.0,))
            await fill(bench, 6)
            await bench.act(member, ACK, await bench.pull(member, 5))
            await bench.act(member, NACK, await bench.pull(member, 1))
            await fill(bench, 35)
            clock.advance(11)
            for _ in range(3):
                await bench.broker.maintain()
            assert bench.broker.group_state("orders", "billing").retrying == 0
            assert bench.broker.figures()["retention_dropped_open"] == 1
            assert 30 <= bench.store.bounds(LANE).first < 36

    asyncio.run(main())


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
