"""The archive is exact after any kill: at every single step of the driver, and with kill -9 of its process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.dataset
import pytest

import towline
from tests.broker.process import BrokerProcess
from tests.inside.spark import Archive, Options, Source, archive, verify
from tests.spark.jobs.history import Writer
from tests.spark.jobs.process_death import Killed, killed_at
from tests.spark.session import ROOT, environment, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = ("replace", "move", "remove", "remove_folder", "sync")


def test_a_driver_that_dies_at_any_step_leaves_an_exact_archive(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, source = tmp_path / "archive", Source.of(path=str(tmp_path / "data"))
    options = Options(task_rows=10, compact_files=3)
    writer = Writer(tmp_path / "data")
    sent, step, survived = 0, 0, 0
    while survived < 3:
        writer.send("orders", "middle", [b"%d" % (sent + n) for n in range(7)])
        writer.write()
        sent += 7
        try:
            with killed_at(step, monkeypatch, STEPS):
                archive(spark, source, str(to), options)
            survived += 1
        except Killed:
            survived = 0
        step += 1
        # Whoever knows nothing of the manifest sees no message twice, whatever was left undone.
        seen = _numbers(to)
        assert len(seen) == len(set(seen))
        assert step < 60, "it never gets through"
    assert step > 10
    assert archive(spark, source, str(to), options).rows == 0
    assert sorted(_numbers(to)) == list(range(sent))
    found = verify(spark, Archive.open(str(to)), source)
    assert (found.problems, found.behind, found.compared) == ([], 0, sent)


def _numbers(to: Path) -> list[int]:
    files = list(to.glob("messages/**/*.parquet"))
    if not files:
        return []
    rows = duckdb.connect().execute(f"select body from '{to}/messages/**/*.parquet'").fetchall()
    return [int(bytes(body)) for (body,) in rows]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_9_of_the_driver_while_messages_come(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every reader agrees with the log, after as many kills as `--kills` asks for, one in twenty-five."""
    rounds = max(2, request.config.getoption("--kills") // 25)
    to, chance = tmp_path / "archive", random.Random(7)
    sent = 0
    for _ in range(rounds):
        command = [sys.executable, "-m", "towline", "spark", "archive", str(to), "--path", str(tmp_path / "data")]
        command += ["--follow", "10ms", "--compact", "4", "--master", "local[1]", "-o", "json"]
        command += ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"]
        driver = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment()}, stdout=subprocess.PIPE, process_group=0
        )
        assert driver.stdout is not None
        until = chance.randint(1, 4)
        commits = 0
        while commits < until:
            sent += _send(mq, sent)
            line = driver.stdout.readline()
            assert line, "the driver ended by itself"
            commits += line.startswith(b"{")
        sent += _send(mq, sent)
        deadline = time.monotonic() + chance.random() * 0.3
        while time.monotonic() < deadline:
            sent += _send(mq, sent)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        driver.stdout.close()
    source = Source.of(path=str(tmp_path / "data"))
    archive(spark, source, str(to))
    assert verify(spark, Archive.open(str(to)), source).problems == []
    wanted = [(n, b"%d" % n) for n in range(sent)]
    by_duckdb = duckdb.connect().execute(f"select seq, body from '{to}/messages/**/*.parquet' order by seq").fetchall()
    assert [(seq, bytes(body)) for seq, body in by_duckdb] == wanted
    table = pyarrow.dataset.dataset(to / "messages", partitioning="hive").to_table(["seq", "body"]).sort_by("seq")
    assert list(zip(table["seq"].to_pylist(), table["body"].to_pylist(), strict=True)) == wanted
    rows = spark.read.parquet(f"file://{to}/messages").orderBy("seq").select("seq", "body").collect()
    assert [(row.seq, bytes(row.body)) for row in rows] == wanted


def _send(mq: towline.Client, first: int) -> int:
    mq.send_many("orders", [b"%d" % n for n in range(first, first + 50)])
    return 50


def test_a_stream_over_the_topic_counts_what_the_archive_counts(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    from pyspark.sql import functions as f

    from towline.spark import register

    register(spark)
    words = ["tow", "line", "pull", "rope"]
    for n in range(5):
        mq.send_many("words", [f"{words[k % 4]} {words[k * n % 3]}".encode() for k in range(400)])
    archive(spark, Source.of(path=str(tmp_path / "data")), str(tmp_path / "archive"))

    def count(frame: Any) -> Any:
        split = frame.select(f.explode(f.split(f.decode("body", "utf-8"), " ")).alias("word"))
        return split.groupBy("word").count()

    url = f"towline://127.0.0.1:{broker.port}"
    live = spark.readStream.format("towline").option("url", url).option("topic", "words")
    counted = count(live.option("maxMessagesPerTrigger", 700).load())
    query = counted.writeStream.format("memory").queryName("words").outputMode("complete").trigger(availableNow=True)
    run_to_end(query.option("checkpointLocation", str(tmp_path / "checkpoint")).start)
    streamed = {row["word"]: row["count"] for row in spark.table("words").collect()}
    batch = count(spark.read.parquet(*Archive.open(str(tmp_path / "archive")).urls("messages")))
    assert streamed == {row["word"]: row["count"] for row in batch.collect()}
    assert sum(streamed.values()) == 4_000
