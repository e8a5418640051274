"""The jobs on Spark: the archive beside Spark's own Parquet writer, replay into a broker, trace and report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any

import towline
from bench.figures import Figure, spread
from bench.spark import fill_rows, spark_session, watching
from bench.stage import Stage
from towline.load.broker import BrokerProcess

__all__ = ["jobs"]

PULL = 500


def jobs(stage: Stage) -> Iterator[Figure]:
    """Archive, replay, trace and report of messages with 100-byte bodies; `--backlog` says how many."""
    rows = stage.backlog
    with stage.space() as folder, BrokerProcess(f"file:{folder / 'data'}", durability="os") as broker:
        fill_rows(broker, rows)
        _consume(broker, rows)
        with spark_session(folder) as session, watching() as peaks:
            yield from _archive(stage, session, folder, rows)
            yield from _replay(stage, session, broker, folder, rows)
            yield from _analyse(session, folder, rows)
        yield Figure(
            scenario="jobs",
            name="largest Python worker of all jobs",
            value=max(peaks, default=0) / 1e6,
            unit="MB",
            target=1_000,
            less_is_better=True,
            note=f"{rows / 1e6:g} M messages",
        )


def _consume(broker: BrokerProcess, rows: int) -> None:
    """Two groups pull by the hundred; one acks whole pulls, the other gives up a message of every hundredth first."""
    for group in ("whole", "failing"):
        with towline.connect(broker.url) as mq, mq.consumer("rows", group=group) as consumer:
            left, pulls = rows, 0
            while left > 0:
                batch = consumer.pull(max_messages=PULL, max_bytes=1 << 20, wait=5)
                if not batch:
                    break
                left, pulls = left - len(batch), pulls + 1
                if group == "failing" and pulls % 100 == 0:
                    batch[0].dead("the benchmark says so")
                batch.ack()


def _archive(stage: Stage, session: Any, folder: Path, rows: int) -> Iterator[Figure]:
    from towline.spark.jobs.archive.archive import Options, archive
    from towline.spark.jobs.source import Source

    source = Source.of(path=str(folder / "data"))
    only = Options(kinds=("messages",), compact_files=0)
    reader = session.read.format("towline").option("path", str(folder / "data")).option("topic", "rows")
    fused, plain = [], []
    for number in range(1 + max(1, stage.repeats - 1)):  # the first ones do not count: the JVM gets warm
        begun = time.perf_counter()
        reader.load().write.option("compression", "zstd").parquet(str(folder / f"spark-{number}"))
        plain.append(rows / (time.perf_counter() - begun))
        begun = time.perf_counter()
        archive(session, source, str(folder / f"archive-{number}"), only)
        fused.append(rows / (time.perf_counter() - begun))
        rmtree(folder / f"spark-{number}")
    fused, plain = fused[1:], plain[1:]
    ratios = [one / other for one, other in zip(fused, plain, strict=True)]
    about = f"{rows / 1e6:g} M messages"
    yield Figure(scenario="jobs", name="archive", value=median(fused), unit="rows/s", note=about + spread(fused))
    yield Figure(
        scenario="jobs", name="read → df.write.parquet", value=median(plain), unit="rows/s", note=about + spread(plain)
    )
    yield Figure(
        scenario="jobs",
        name="archive ÷ df.write.parquet",
        value=median(ratios),
        unit="×",
        target=3,
        note="side by side" + spread(ratios),
    )


def _replay(stage: Stage, session: Any, broker: BrokerProcess, folder: Path, rows: int) -> Iterator[Figure]:
    from towline.spark.jobs.archive.manifest import Archive
    from towline.spark.jobs.replay import Chosen, replay
    from towline.spark.sources import ReadSource

    shelf = Archive.open(str(folder / "archive-0"))
    speeds = []
    for number in range(max(1, stage.repeats - 1)):
        state, chosen = str(folder / f"replay-{number}"), Chosen(to_topic=f"again-{number}")
        done = replay(session, shelf, ReadSource(url=broker.url), f"bench-{number}", state, chosen=chosen)
        assert done.rows == rows, done
        speeds.append(done.rows / done.seconds)
    yield Figure(
        scenario="jobs",
        name="replay into a broker, in order",
        value=median(speeds),
        unit="rows/s",
        target=1_000_000,
        note=f"{rows / 1e6:g} M messages, durability os" + spread(speeds),
    )


def _analyse(session: Any, folder: Path, rows: int) -> Iterator[Figure]:
    from towline.spark.jobs.analysis.reconcile import reconcile
    from towline.spark.jobs.analysis.report import report
    from towline.spark.jobs.analysis.report_html import render
    from towline.spark.jobs.analysis.trace import trace
    from towline.spark.jobs.archive.archive import archive
    from towline.spark.jobs.archive.manifest import Archive
    from towline.spark.jobs.source import Source

    archive(session, Source.of(path=str(folder / "data"), topics=["rows"]), str(folder / "archive-0"))
    shelf = Archive.open(str(folder / "archive-0"))
    note = f"{rows / 1e6:g} M messages, two groups that pulled {PULL} at a time"
    begun = time.perf_counter()
    frame = trace(session, shelf, str(folder / "trace"), topics=["rows"])
    yield Figure(scenario="jobs", name="trace", value=time.perf_counter() - begun, unit="s", note=note)
    begun = time.perf_counter()
    render(report(session, shelf, frame, topics=["rows"]))
    yield Figure(scenario="jobs", name="report", value=time.perf_counter() - begun, unit="s", note=note)
    begun = time.perf_counter()
    found = reconcile(session, shelf, frame, topics=["rows"])
    assert found.sent == rows, found
    yield Figure(scenario="jobs", name="reconcile", value=time.perf_counter() - begun, unit="s", note=note)
