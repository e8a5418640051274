"""A cluster is upgraded one broker after another, while it is used: nothing is lost, nothing is stored twice, and what
has an order keeps it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import towline
from tests.broker.raw_client import RawClient
from tests.eventually import eventually
from tests.inside.alarms import AlarmRule
from tests.inside.ground import FORMAT
from tests.inside.protocol import Done, PutAlarm
from tests.store.sql.server import mariadb, new_database
from tests.system.cluster.conftest import Brokers
from tests.system.cluster.load import Load
from tests.system.cluster.test_sql_chaos import SHARDS, OrderedLoad, is_in_order, stored
from tests.system.upgrade.before import ROOT, environment
from towline.errors import Unsupported

REALMS = 4
GONE_S = "3"


class Loads:
    """Messages without an order, and ordered ones."""

    def __init__(self, url: str) -> None:
        self.plain = Load(url, "plain", producers=2, consumers=1)
        self.ordered = OrderedLoad(url, "ordered")

    def goes_on(self) -> None:
        """More of both is sent and consumed."""
        sent, seen, ordered = len(self.plain.acked), len(self.plain.seen), self.ordered.count()
        eventually(lambda: len(self.plain.acked) > sent + 50 and len(self.plain.seen) > seen + 50)
        eventually(lambda: self.ordered.count() > ordered + 20)

    def end(self) -> None:
        self.plain.stop_sending()
        self.ordered.stop()
        eventually(lambda: not self.plain.lost(), 120)
        assert not self.plain.failed
        assert not self.ordered.failed
        assert len(self.plain.acked) == self.plain.sent
        assert self.plain.stored() == self.plain.sent, "each message is stored, and once"
        assert self.ordered.inversions() == 0
        assert self.ordered.count() == self.ordered.sent

    def close(self) -> None:
        self.plain.stop()
        self.ordered.close()
        assert not self.plain.errors


def _change(brokers: Brokers, number: int, programs: Path) -> None:
    brokers.terminate(number)
    brokers.programs[number] = programs
    brokers.start(number).wait_for(len(brokers.ports))


def _log(brokers: Brokers, number: int) -> str:
    return (brokers.folder / f"{number}.log").read_text()


def _refused(programs: Path, store: str, *flags: str) -> str:
    """What a broker says that does not start."""
    command = [sys.executable, "-m", "towline", "serve", "--store", store, "--listen", "127.0.0.1:0", *flags]
    done = subprocess.run(
        [*command, "--console", "off"],
        cwd=programs, env=environment(programs), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done
    return done.stderr


@pytest.mark.slow
def test_brokers_with_disks_are_upgraded_one_after_another(
    programs_before: Path, cluster_of: Callable[..., Brokers]
) -> None:
    brokers = cluster_of(3)
    brokers.programs = [programs_before] * 3
    brokers.start().wait_for()
    loads = Loads(brokers.url)
    try:
        loads.goes_on()
        for number in range(3):
            _change(brokers, number, ROOT)
            loads.goes_on()
            assert f"is upgraded from format 1 to {FORMAT}" in _log(brokers, number)
        loads.end()
    finally:
        loads.close()
    brokers.terminate(0)
    assert "has format 2; this version of Towline knows 1: use a newer one" in _refused(
        programs_before, brokers.stores[0]
    )


@pytest.mark.slow
def test_brokers_on_a_database_are_upgraded_one_after_another_and_may_be_taken_back_until_the_last(
    programs_before: Path, cluster_of: Callable[..., Brokers]
) -> None:
    url = new_database()
    name = url.rpartition("/")[2]
    brokers = cluster_of(3, "--realms", str(REALMS), "--cluster-gone-s", GONE_S, stores=[url] * 3)
    brokers.programs = [programs_before] * 3
    brokers.start().wait_for()

    def number_of_format() -> int:
        return int(mariadb().sql("SELECT MAX(version) FROM mq_schema", name)[0][0])

    loads = Loads(brokers.url)
    try:
        loads.goes_on()
        for number in (0, 1):
            _change(brokers, number, ROOT)
            loads.goes_on()
        once = _send_once(brokers.url)
        with pytest.raises(Unsupported, match="brokers on this database that are not upgraded yet cannot raise alarms"):
            _put_new_alarm(brokers.ports[1])
        brokers.kill(1)
        loads.goes_on()
        brokers.start(1).wait_for()
        _change(brokers, 0, programs_before)
        loads.goes_on()
        assert number_of_format() == 1
        assert _send_once(brokers.url) == once
        for number in (0, 2):
            _change(brokers, number, ROOT)
            loads.goes_on()
        eventually(lambda: number_of_format() == FORMAT)
        eventually(lambda: _can_raise(brokers))
        loads.goes_on()
        assert _send_once(brokers.url) == once
        loads.end()
    finally:
        loads.close()
    shards = stored(brokers, "ordered", [str(shard) for shard in range(SHARDS)])
    assert sorted(number for numbers in shards.values() for number in numbers) == list(range(loads.ordered.sent))
    assert all(is_in_order(numbers) for numbers in shards.values())
    logs = "".join(_log(brokers, number) for number in range(3))
    assert f"the database is upgraded from format 1 to {FORMAT}" in logs
    assert "use the newer version of Towline" in _refused(programs_before, url, "--join", brokers.address(0))


def _send_once(url: str) -> list[str]:
    """Messages with dedup ids, to topics of all realms; whoever has these by now must know the ids."""
    with towline.connect(url) as mq:
        return [mq.send(f"once-{number}", b"x", dedup_id=f"d{number}").id for number in range(4 * REALMS)]


def _can_raise(brokers: Brokers) -> bool:
    try:
        _put_new_alarm(brokers.ports[1])
    except Unsupported:
        return False
    return True


def _put_new_alarm(port: int) -> None:
    with RawClient.hello(port) as client:
        client.call(PutAlarm(AlarmRule("held", "retention", 60.0)), Done)


@pytest.mark.slow
def test_a_broker_alone_on_its_database_upgrades_it_at_once(
    programs_before: Path, cluster_of: Callable[..., Brokers]
) -> None:
    url = new_database()
    serve = ["serve", "--store", url, "--listen", "127.0.0.1:0", "--console", "off"]

    def run(programs: Path, work: Callable[[str], None]) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "towline", *serve],
            cwd=programs, env=environment(programs), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        work(process.stdout.readline().split()[-1])
        process.terminate()
        return process.communicate(timeout=120)[1]

    def send(address: str) -> None:
        with towline.connect(f"towline://{address}") as mq:
            mq.send("orders", b"before")

    def receive(address: str) -> None:
        with towline.connect(f"towline://{address}") as mq, mq.consumer("orders", group="g") as consumer:
            assert consumer.pull(wait=30).bodies() == [b"before"]

    run(programs_before, send)
    assert f"is upgraded from format 1 to {FORMAT}" in run(ROOT, receive)
    assert "use the newer version of Towline" in _refused(programs_before, url)
