"""The jobs on a real HDFS: `pytest tests/spark/jobs/test_hdfs.py --hdfs hdfs://HOST:PORT/FOLDER`, with `CLASSPATH` and
`ARROW_LIBHDFS_DIR` as pyarrow wants them. Skipped where there is none."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import towline
from tests.broker.process import BrokerProcess
from tests.inside.spark import (
    Archive,
    Chosen,
    Options,
    ReadSource,
    Source,
    Writable,
    archive,
    manifest,
    reconcile,
    replay,
    report,
    trace,
    verify,
    write_tables,
)
from tests.parts import named
from towline.errors import Conflict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 9


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> str:
    given = named(request.config, "--hdfs", "hdfs://HOST:PORT/FOLDER")
    return f"{given.rstrip('/')}/{secrets.token_hex(4)}"


class Killed(BaseException):
    pass


def dying() -> Any:
    """The job dies between its commit and what follows from it."""
    finish, calls = Writable.finish, iter([True])

    def work(shelf: Writable) -> None:
        if not next(calls, False):
            raise Killed
        finish(shelf)

    return work


def numbers(frame: Any) -> list[int]:
    return sorted(int(bytes(row.body)) for row in frame.select("body").collect())


def test_the_jobs_on_hdfs(
    spark: SparkSession,
    broker: BrokerProcess,
    mq: towline.Client,
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manifest, "FOLD_AT", 4)
    monkeypatch.setattr("tests.inside.spark.archive_folder.LEASE_S", 0.0)  # of what died
    to, source = f"{folder}/archive", Source.of(path=str(tmp_path / "data"), topics=["orders"])
    sent = 0
    for number in range(ROUNDS):
        mq.send_many("orders", [b"%d" % n for n in range(sent, sent + 100)])
        sent += 100
        with monkeypatch.context() as broken, suppress(Killed):
            if number % 3 == 1:
                broken.setattr(Writable, "finish", dying())
            archive(spark, source, to, Options(compact_files=3, task_rows=30))
    with mq.consumer("orders", group="billing") as consumer:
        left = sent
        while left:
            batch = consumer.pull(max_messages=100, wait=5)
            left -= len(batch)
            batch.ack()
        consumer.flush()
    monkeypatch.setattr("tests.inside.spark.archive_folder.LEASE_S", 120.0)
    archive(spark, source, to)
    shelf = Archive.open(to)
    assert shelf.place.exists(manifest.BASE)
    found = verify(spark, shelf, source)
    assert (found.problems, found.behind) == ([], 0)
    assert numbers(spark.read.parquet(f"{to}/messages")) == list(range(sent)), "Spark's own client of HDFS"
    with Writable.opened(to), pytest.raises(Conflict, match="another job"):
        archive(spark, source, to)

    door, again = ReadSource(url=f"towline://127.0.0.1:{broker.port}"), Chosen(to_topic="again")
    for _ in range(2):
        replay(spark, shelf, door, "again", f"{folder}/replay", chosen=again)
    copies = spark.read.format("towline").options(url=door.url, topic="again").load()
    assert numbers(copies) == list(range(sent))
    frame = trace(spark, shelf, f"{folder}/trace")
    assert {row.status for row in frame.collect()} == {"SUCCESS"}
    assert reconcile(spark, shelf, frame).findings == []
    names = write_tables(report(spark, shelf, frame), f"{folder}/report", "parquet")
    assert spark.read.parquet(f"{folder}/report/{names[0]}").count() == 1
