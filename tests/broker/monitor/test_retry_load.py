"""A retry queue that is nearly full: everybody who looks is told."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest

from tests.broker.conftest import ACK, NACK, Bench, World
from tests.inside.broker import Server, exposition
from tests.inside.cli import CRITICAL, WARNING, _look
from tests.inside.delivery import retry
from tests.inside.protocol import GroupFigures, Measure

MOST = 10


async def _levels(bench: Bench) -> list[tuple[int, str]]:
    [figures] = (await bench.broker.measure(Measure())).groups
    found = _look(figures, 0, {}, False)
    return [(one.level, one.text) for one in found]


async def _group_info(bench: Bench) -> str:
    """What `towline group info` prints of the retry queue."""
    server = await Server.start(bench.broker, "127.0.0.1", 0)
    try:
        command = ("-m", "towline", "group", "info", "orders", "billing", "-u", f"towline://127.0.0.1:{server.port}")
        asked = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
        printed, _ = await asked.communicate()
    finally:
        await server.drain_and_close()
    lines = [line.split(maxsplit=2) for line in printed.decode().splitlines()]
    return "".join(line[2] for line in lines if line[:2] == ["retry", "queue"])


@pytest.mark.service
def test_a_retry_queue_that_is_nearly_full_is_said_in_log_group_check_and_metrics(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry, "ENTRIES_MAX", MOST)

    def said() -> list[str]:
        return [one.getMessage() for one in caplog.records if "retry queue" in one.getMessage()]

    async def scenario(bench: Bench) -> None:
        member = await bench.attach(delays_s=(3600.0,))
        await bench.send("orders", *[b"%d" % number for number in range(60)])
        got = await bench.pull(member, 40)

        async def fail(first: int, end: int) -> None:
            """Every second one."""
            for at in range(first, end):
                await bench.act(member, NACK, got, (1, 2 * at, 1))
            await bench.broker.outlook.census.refresh()

        await fail(0, 7)
        assert bench.broker.group_state("orders", "billing").retry_load == 0.7
        assert (said(), await _levels(bench)) == ([], [])
        await fail(7, 8)
        assert await _levels(bench) == [(WARNING, "orders/billing: the retry queue is 80 % full")]
        assert await _group_info(bench) == "80 % full: then nothing new is delivered"
        assert b'towline_group_retry_load_ratio{topic="orders",group="billing"} 0.8' in await exposition(bench.broker)
        await fail(8, 10)
        full = "orders/billing: the retry queue is full, and nothing new is delivered"
        assert await _levels(bench) == [(CRITICAL, full)]
        assert await _group_info(bench) == "full: nothing new is delivered"
        [line] = said()
        assert "retry queue of group billing on topic orders is 80 % full, with 8 messages" in line
        await bench.act(member, ACK, got)
        assert (await bench.pull(member)).bodies == [], "nothing new comes"

    with caplog.at_level(logging.WARNING, "towline.broker"):
        world.run(scenario)


def test_a_broker_of_an_earlier_version_says_nothing_of_it() -> None:
    assert _look(GroupFigures("t", "g", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 0, {}, False) == []
