"""Every kind of rule by every channel: told when it begins, all together, again when it is time, and when it is over.

The broker, its store, the mail server and the webhook are real; only the clock goes as fast as the test wants."""

from __future__ import annotations

import asyncio
import queue
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.broker.conftest import ACK, DEAD, NACK, Bench, World
from tests.broker.monitor.conftest import PATIENCE_S, Mailbox
from tests.eventually import eventually_done
from tests.inside.alarms import UNITS, AlarmRule, What
from tests.inside.ground import SystemClock
from tests.inside.protocol import Pulse, Resend

THRESHOLDS: dict[What, float] = {"dead": 2, "failures": 4, "backlog": 5, "age": 50, "offline": 50, "disk": 100}
"""`disk` is below it; all others from it on."""
Heard = list[tuple[str, str]]
"""(what, state) of all alarms of one notice."""


class FastClock(SystemClock):
    """Goes as clocks go, and ahead when it is told to."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_us(self) -> int:
        return super().now_us() + round(self.ahead_s * 1e6)

    def steady_s(self) -> float:
        return super().steady_s() + self.ahead_s


def mailed(mailbox: tuple[Mailbox, int]) -> Heard:
    lines = mailbox[0].mails.get_nowait().get_content().splitlines()
    states = {"alarm": "begun", "still an alarm": "goes on", "cleared": "cleared"}
    heard = []
    for said, value in zip(lines[2::2], lines[3::2], strict=True):
        state, _, rest = said.removeprefix("- ").partition(": ")
        what = rest.split()[0]
        assert UNITS[what] in value
        heard.append((what, states[state]))
    return heard


def posted(heard: queue.Queue[dict[str, Any]]) -> Heard:
    return [(one["what"], one["state"]) for one in heard.get_nowait()["alarms"]]


def all_of(state: str) -> Heard:
    return sorted((what, state) for what in THRESHOLDS)


def test_every_kind_is_here() -> None:
    # Of a broker as a whole: tests/broker/monitor/test_store_failure.py and test_overdue.py.
    assert {*THRESHOLDS, "store", "retention"} == set(get_args(What))


async def look(bench: Bench) -> None:
    """Ask for the figures, which makes the broker take them anew. (Every few seconds it does so by itself.)"""
    await bench.broker.outlook.surveyor.pulse(Pulse(), bench.broker.stat)


async def trouble(bench: Bench, clock: FastClock) -> None:
    """Of each kind."""
    await bench.send("orders", *(b"%d" % n for n in range(10)))
    member = await bench.attach(delays_s=(1.0,))
    got = await bench.pull(member, 4)
    await look(bench)
    await bench.act(member, DEAD, got, (1, 0, 2), reason="never")
    await bench.act(member, NACK, got, (1, 2, 2), reason="not now")
    await eventually_done(lambda: bench.broker.group_state("orders", "billing").dead == 2)
    await bench.broker.consumers.detach(member)
    await look(bench)
    clock.ahead_s += 100


async def mend(bench: Bench, clock: FastClock, disk: AlarmRule) -> None:
    await bench.broker.dead_letters.resend(Resend("orders", "billing", [0, 1]))
    member = await bench.attach(consumer="c2")
    while bench.broker.group_state("orders", "billing").lag:
        await bench.act(member, ACK, await bench.pull(member, 100, 1000))
    await bench.broker.outlook.alarms.put(disk)
    clock.ahead_s += 301  # failures count for five minutes


@pytest.mark.parametrize("channel", ["mail", "webhook"])
def test_each_kind_is_told_together_repeated_sparingly_and_cleared(
    channel: str, mailbox: tuple[Mailbox, int], hook: tuple[str, queue.Queue[dict[str, Any]]], tmp_path: Path
) -> None:
    clock = FastClock()
    to: dict[str, Any] = {"emails": ("ops@example.com",)} if channel == "mail" else {"webhooks": (hook[0] + "/x",)}

    async def heard(bench: Bench) -> Heard:
        """All six, mostly in one notice; in two or three if the broker looked by itself just then."""
        found: Heard = []

        async def next_notice() -> None:
            deadline_s = time.monotonic() + PATIENCE_S
            while (mailbox[0].mails if channel == "mail" else hook[1]).empty():
                assert time.monotonic() < deadline_s, found
                await look(bench)
                await asyncio.sleep(0.02)

        while len(found) < len(THRESHOLDS):
            await next_notice()
            found += mailed(mailbox) if channel == "mail" else posted(hook[1])
        return sorted(found)

    async def main() -> None:
        settings = {
            "smtp": f"127.0.0.1:{mailbox[1]}",
            "smtp_tls": "none",
            "alarm_wait_s": 0,
            "webhook_allow": "127.0.0.1",
        }
        async with World("log", tmp_path).open(clock, name="harbour", **settings) as bench:
            alarms = bench.broker.outlook.alarms
            await trouble(bench, clock)
            for what, threshold in THRESHOLDS.items():
                await alarms.put(AlarmRule(what, what, threshold, repeat_s=60, **to))
            await alarms.put(AlarmRule("off", "dead", 1, enabled=False, **to))
            await alarms.put(AlarmRule("elsewhere", "dead", 1, topic="stock*", **to))
            assert await heard(bench) == all_of("begun")
            for _ in range(3):
                await look(bench)  # nobody is told anything: what comes next shows it
            clock.ahead_s += 61
            assert await heard(bench) == all_of("goes on")
            await mend(bench, clock, AlarmRule("disk", "disk", 0, **to))
            assert await heard(bench) == all_of("cleared")
            assert alarms.listed().active == []
            await eventually_done(
                lambda: not any(one.error for one in alarms.listed().told) and len(alarms.listed().told) >= 3
            )

    asyncio.run(main())
    assert mailbox[0].mails.empty()
    assert hook[1].empty()
