"""A broker whose store takes no more writes: it says so to those who wait, in its figures and by alarms, and ends if it
is to."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import towline
from tests.eventually import eventually_done
from tests.inside.alarms import AlarmRule
from tests.inside.broker import Broker, stats
from tests.inside.frame import encode
from tests.inside.ground import BrokerSettings
from tests.inside.protocol import Attach, Pull
from tests.inside.store import DiskIo, LogSettings, LogStore
from towline.errors import BadRequest, StoreFailed

LONG = Pull(0, 10, 1 << 20, wait_ms=600_000)


class FailingDisk(DiskIo):
    def __init__(self) -> None:
        self.fails = False

    def fdatasync(self, fd: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        super().fdatasync(fd)


def with_failing_disk(folder: Path, scenario: Callable[[Broker, FailingDisk], Awaitable[None]]) -> None:
    async def main() -> None:
        disk = FailingDisk()
        settings = BrokerSettings(store=f"file:{folder}", heartbeat_s=0.3, maintenance_s=3600.0, alarm_wait_s=0.0)
        store = await LogStore.open(folder, LogSettings(segment_bytes=1 << 20, min_free_bytes=0), io=disk)
        broker = await Broker.open(store, settings)
        try:
            await scenario(broker, disk)
        finally:
            await broker.close()

    asyncio.run(main())


async def fail(broker: Broker, disk: FailingDisk) -> None:
    disk.fails = True
    with pytest.raises(StoreFailed):
        await broker.send([("orders", 1, encode([b"lost"]))])


def test_consumers_that_wait_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(broker: Broker, disk: FailingDisk) -> None:
        await broker.send([("orders", 1, encode([b"first"]))])
        member = await broker.consumers.attach(Attach("orders", "billing", "c1"))
        fan = await broker.consumers.fan(Attach("ord*", "audit", "c2"), may=lambda _: True)
        for who in (member, fan):
            await broker.consumers.pull(who, Pull(0, 10, 1 << 20))
        waiting = [asyncio.create_task(broker.consumers.pull(who, LONG)) for who in (member, fan)]
        await eventually_done(lambda: member.waiting and fan.waiting)
        await fail(broker, disk)
        async with asyncio.timeout(20):
            for told in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(told, StoreFailed), told
            # And whoever comes later does not wait for what cannot come.
            for who in (member, fan):
                with pytest.raises(StoreFailed, match="takes no more writes"):
                    await broker.consumers.pull(who, LONG)
        assert "Input/output error" in broker.trouble()

    with caplog.at_level(logging.CRITICAL, "towline.broker"):
        with_failing_disk(tmp_path, scenario)
    [said] = [record.message for record in caplog.records if "consumers that wait are told" in record.message]
    assert "start the broker anew" in said


def test_nothing_is_taken_from_silent_consumers_and_that_is_no_failure_each_beat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker, disk: FailingDisk) -> None:
        await broker.send([("orders", 1, encode([b"first"]))])
        member = await broker.consumers.attach(Attach("orders", "billing", "c1"))
        await broker.consumers.pull(member, Pull(0, 10, 1 << 20))
        await fail(broker, disk)
        member.last_seen_s -= 3600
        for _ in range(3):
            await broker._watch()
        assert member.in_flight == 1

    with caplog.at_level(logging.ERROR, "towline.broker"):
        with_failing_disk(tmp_path, scenario)
    assert not [one for one in caplog.records if "heartbeat watch failed" in one.getMessage()]


def test_figures_are_taken_and_alarms_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stats, "EVERY_S", 0.01)

    async def scenario(broker: Broker, disk: FailingDisk) -> None:
        outlook = broker.outlook
        await broker.send([("orders", 1, encode([b"first"]))])
        member = await broker.consumers.attach(Attach("orders", "billing", "c1"))
        await outlook.alarms.put(AlarmRule("broken", "store", 1))
        await fail(broker, disk)
        # Its event cannot be written any more.
        await broker.consumers.pull(member, Pull(0, 10, 1 << 20))
        walks = outlook.census.walks
        await eventually_done(lambda: outlook.census.walks > walks + 3)
        assert outlook.census.topics["orders"].groups["billing"].in_flight == 1
        [alarm] = outlook.alarms.listed().active
        assert (alarm.rule, alarm.value) == ("broken", 1)

    with caplog.at_level(logging.WARNING):
        with_failing_disk(tmp_path, scenario)
    assert any("alarm broken begun" in record.getMessage() for record in caplog.records)


def test_a_walk_that_fails_is_reported_and_the_next_one_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stats, "EVERY_S", 0.01)

    async def scenario(broker: Broker, _: FailingDisk) -> None:
        seen = broker.outlook.census
        failures = iter([StoreFailed("the disk is gone"), ZeroDivisionError("a bug")])

        async def listen() -> None:
            for failure in failures:
                raise failure

        seen.on_walk.append(listen)
        walks = seen.walks
        await eventually_done(lambda: seen.walks > walks + 4)

    with caplog.at_level(logging.ERROR, "towline.broker"):
        with_failing_disk(tmp_path, scenario)
    said = [record.getMessage() for record in caplog.records if "could not be taken" in record.getMessage()]
    assert [one.rpartition(": ")[2] for one in said] == ["the disk is gone", "a bug"]


def test_a_task_that_ends_by_a_failure_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(broker: Broker, _: FailingDisk) -> None:
        async def task() -> None:
            raise ZeroDivisionError("a bug")

        broker._start(task(), "a task")
        await eventually_done(lambda: any("ended" in record.message for record in caplog.records))

    with caplog.at_level(logging.CRITICAL, "towline.broker"):
        with_failing_disk(tmp_path, scenario)


def test_a_store_rule_has_no_other_threshold_than_one() -> None:
    with pytest.raises(BadRequest, match="a broker has one store"):
        AlarmRule("broken", "store", 2)


@pytest.mark.parametrize("ends", [True, False])
def test_the_process_ends_if_it_is_to(tmp_path: Path, ends: bool) -> None:
    command = [sys.executable, "-m", "towline", "serve", "--store", f"file:{tmp_path}", "--listen", "127.0.0.1:0"]
    command += ["--console", "off", "--heartbeat-s", "0.3", *(["--exit-on-store-failure"] if ends else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with towline.connect("towline://" + process.stdout.readline().split()[-1]) as mq, mq.consumer("t") as consumer:
            mq.send("t", b"x")
            assert [message.body for message in consumer.pull(wait=20)] == [b"x"]
            # From now on its disk takes no byte more.
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            with pytest.raises((StoreFailed, towline.Unavailable)):
                mq.send("t", b"lost", timeout=20)
            with pytest.raises((StoreFailed, towline.Unavailable)):
                consumer.pull(wait=60)
        assert process.stderr is not None
        assert any("the store failed, and consumers that wait are told so: " in line for line in process.stderr)
        if not ends:
            assert process.poll() is None, "it stays, and says why"
            process.terminate()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert log.rstrip().rpartition("\n")[2].startswith("error: writing "), log
