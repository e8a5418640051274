"""Exactly once, whatever is killed: drivers, executors, their Python workers and the broker, at random moments, while
messages come in; on a standalone master with two workers. `--rounds` says how often."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow.dataset
import pytest

import towline
from tests.inside.load import BrokerProcess
from tests.inside.spark import Archive, Source, archive, verify
from tests.parts import need
from tests.spark.cluster import PATIENCE_S, Cluster, kill_group, running_cluster
from tests.spark.session import ROOT, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LANES = ("high", "middle")
VICTIMS = ("driver", "executor", "python", "broker")
Log = dict[str, list[bytes]]
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need("java")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


class Rounds:
    """A pipeline at work, and how its parts are killed."""

    def __init__(self, cluster: Cluster, folder: Path, command: list[str], progress: Callable[[], int]) -> None:
        self.cluster, self.folder, self.command, self.progress = cluster, folder, command, progress
        self.broker = BrokerProcess(f"file:{folder / 'data'}", durability="os", segment_bytes=1 << 20)
        self.sent = 0
        self.seed = int.from_bytes(os.urandom(4), "big")
        self.chance = random.Random(self.seed)
        self.killed: list[str] = []
        self._driver: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Rounds:
        self.broker.start()
        self.mq = towline.connect(self.broker.url, timeout=PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.mq.close()
        self.broker.__exit__()

    def end(self) -> None:
        if self._driver is not None:
            kill_group(self._driver)
            self._driver = None

    def keep_running(self) -> None:
        """A driver that was killed, or that gave up while the broker was away, is started again."""
        if self._driver is None or self._driver.poll() is not None:
            self.end()
            with (self.folder / "driver.log").open("ab") as log, (self.folder / "told").open("ab") as told:
                self._driver = subprocess.Popen(
                    [*self.command, "--url", self.broker.url] if "spark" in self.command else self.command,
                    cwd=ROOT,
                    env=os.environ | environment(),
                    stdout=told,
                    stderr=log,
                    start_new_session=True,
                )

    def send(self) -> None:
        lane = LANES[self.chance.random() < 0.7]
        bodies = [b"%d" % n for n in range(self.sent, self.sent + self.chance.randint(1, 40))]
        self.mq.send_many("orders", bodies, priority=lane)  # type: ignore[arg-type]  # one of them
        self.sent += len(bodies)

    def until(self, what: str, true: Callable[[], bool], *, sending: bool = True) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, f"{what}, {self}: {(self.folder / 'driver.log').read_text()[-3000:]}"
            self.keep_running()
            if sending:
                self.send()
            time.sleep(0.02)

    def __str__(self) -> str:
        return f"seed {self.seed}, killed {', '.join(self.killed)}"

    def work(self) -> None:
        """Until something was done since."""
        before = self.progress()
        self.until("nothing is done any more", lambda: self.progress() > before)

    def kill(self, victim: str) -> None:
        """At a moment that nothing is waited for."""
        until = time.monotonic() + self.chance.random()
        while time.monotonic() < until:
            self.send()
            time.sleep(0.01)
        self.killed.append(victim)
        if victim == "driver":
            self.end()
        elif victim == "broker":
            self.broker.kill()
            time.sleep(self.chance.random())
            self.broker.start()
        else:
            find = self.cluster.executors if victim == "executor" else self.cluster.python_workers
            self.until(f"there is no {victim}", lambda: bool(find()))
            try:
                os.kill(self.chance.choice(find()), signal.SIGKILL)
            except (IndexError, ProcessLookupError):
                pass  # it ended by itself in this moment

    def play(self, rounds: int) -> None:
        victims = [VICTIMS[n % len(VICTIMS)] for n in range(rounds + len(VICTIMS))]
        self.chance.shuffle(victims)
        for victim in victims[:rounds]:
            self.work()
            self.kill(victim)
        self.work()

    def log(self, topic: str) -> Log:
        found: Log = {lane: [] for lane in LANES}
        for lane, bodies in found.items():
            while page := self.mq.browse(topic, lane, first=len(bodies), max_messages=10_000):  # type: ignore[arg-type]
                bodies += [bytes(message.body) for message in page]
        return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_archive_is_the_log_for_every_reader(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    to = tmp_path / "archive"
    command = [sys.executable, "-m", "towline", "spark", "archive", str(to), "--master", cluster.url]
    command += ["--follow", "10ms", "--compact", "4", "-o", "json", "--conf", "spark.executor.memory=512m"]
    command += ["--conf", f"spark.driver.extraJavaOptions={JAVA}", "--conf", f"spark.executor.extraJavaOptions={JAVA}"]
    told = tmp_path / "told"
    told.touch()
    with Rounds(cluster, tmp_path, command, lambda: told.read_bytes().count(b"\n")) as rounds:
        rounds.play(request.config.getoption("--rounds"))
        rounds.end()
        source = Source.of(url=rounds.broker.url)
        archive(spark, source, str(to))
        found = verify(spark, Archive.open(str(to)), source)
        assert (found.problems, found.behind, found.lost) == ([], 0, 0), rounds
        log = rounds.log("orders")
        assert sum(map(len, log.values())) == rounds.sent
        rows = duckdb.connect().execute(f"select lane, body from '{to}/messages/**/*.parquet' order by seq").fetchall()
        assert by_lane((lane, bytes(body)) for lane, body in rows) == log, f"DuckDB, {rounds}"
        table = pyarrow.dataset.dataset(to / "messages", partitioning="hive").to_table(["lane", "seq", "body"])
        table = table.sort_by("seq")
        assert by_lane(zip(table["lane"].to_pylist(), table["body"].to_pylist(), strict=True)) == log, (
            f"Arrow, {rounds}"
        )
        read = spark.read.parquet(f"file://{to}/messages").orderBy("seq").select("lane", "body").collect()
        assert by_lane((row.lane, bytes(row.body)) for row in read) == log, f"Spark, {rounds}"
        print(f"{rounds}: {rounds.sent} messages")


def by_lane(rows: Iterator[tuple[str, bytes]]) -> Log:
    found: Log = {lane: [] for lane in LANES}
    for lane, body in rows:
        found[lane].append(body)
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_sink_writes_the_log_again_in_its_order(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def batches() -> int:
        names = (path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
        return max((int(name) + 1 for name in names if name.isdigit()), default=0)

    with Rounds(cluster, tmp_path, [], batches) as rounds:
        rounds.command = [sys.executable, "-m", "tests.spark.copy_driver", cluster.url, rounds.broker.url, "live"]
        rounds.command += [str(tmp_path)]
        rounds.play(request.config.getoption("--rounds"))
        log = rounds.log("orders")
        assert sum(map(len, log.values())) == rounds.sent

        def arrived() -> bool:
            return sum(lane.end for lane in rounds.mq.topic("copies").lanes) >= rounds.sent

        rounds.until("not all arrives", arrived, sending=False)
        assert rounds.log("copies") == log, rounds
        print(f"{rounds}: {rounds.sent} messages")
