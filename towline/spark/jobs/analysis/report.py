"""Reports of topics and groups: tables by topic, group and hour, from a trace. `report_html` makes a page of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from towline.errors import BadRequest, NotFound
from towline.spark.jobs.analysis.trace import Window
from towline.spark.jobs.archive.archive_folder import ArchiveFolder
from towline.spark.jobs.archive.manifest import Archive

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Report", "report", "write_tables"]

TOP: Final = 15
"""Reasons, consumers and keys of each group that a report names."""
STEPS_S: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 7 * 86400)
POINTS_MAX: Final = 90
HOUR_US: Final = 3_600_000_000
Rows = list[dict[str, Any]]


class Report(msgspec.Struct):
    """Times are microseconds since 1970, lengths of time microseconds."""

    made_at_us: int
    from_us: int
    to_us: int
    step_us: int
    """The distance of the points of `series`."""
    topics: Rows
    """topic, messages, bytes"""
    groups: Rows
    """topic, group, messages, and how many of each status; attempts, failures; percentiles over all"""
    hours: Rows
    """topic, group, hour: volume, settled, backlog at its end, retries, percentiles"""
    series: Rows
    """the same at a finer step, for charts"""
    volume: Rows
    """topic, at, messages, bytes: by step"""
    failures: Rows
    """topic, group, reason: messages whose last failure it was, and how many of them died"""
    consumers: Rows
    """topic, group, consumer: messages it had last, failures, percentiles of processing"""
    keys: Rows
    """topic, group, key: the slowest"""


def report(
    spark: SparkSession,
    archive: Archive,
    trace: DataFrame,
    *,
    topics: list[str] | None = None,
    window: Window = Window(),  # noqa: B008 it is frozen
    now_us: int = 0,
) -> Report:
    """Sum up a trace. `now_us` is the time of the archive."""
    from pyspark.sql import functions as f

    trace = trace.withColumn("sent", f.unix_micros("sent_at")).withColumn("settled", f.unix_micros("settled_at"))
    bounds = trace.agg(f.min("sent"), f.greatest(f.max("sent"), f.max("settled"))).first()
    if bounds is None or bounds[0] is None:
        raise NotFound("there is nothing to report: no group was given any message")
    step_us = _step(bounds[1] - bounds[0])
    volume = _volume(spark, archive, topics, window, step_us)
    hours = _by_time(trace, HOUR_US)
    groups = _groups(trace)
    return Report(
        made_at_us=now_us,
        from_us=bounds[0],
        to_us=bounds[1],
        step_us=step_us,
        topics=_totals(volume),
        groups=groups,
        hours=hours,
        series=hours if step_us == HOUR_US else _by_time(trace, step_us),
        volume=volume,
        failures=_failures(trace),
        consumers=_consumers(trace),
        keys=_keys(spark, trace, groups),
    )


def _step(span_us: int) -> int:
    return next((s for s in STEPS_S if span_us / (s * 1_000_000) <= POINTS_MAX), STEPS_S[-1]) * 1_000_000


def _rows(frame: DataFrame) -> Rows:
    return [row.asDict(recursive=True) for row in frame.collect()]


def _percentiles(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.percentile_approx(f"{name}_us", [0.5, 0.95, 0.99], 1_000).alias(name)


def _spread(rows: Rows, *names: str) -> Rows:
    """Three percentiles of one column become three columns."""
    for row in rows:
        for name in names:
            for place, value in zip(("p50", "p95", "p99"), row.pop(name) or (None,) * 3, strict=True):
                row[f"{name}_{place}_us"] = value
    return rows


def _volume(spark: SparkSession, archive: Archive, topics: list[str] | None, window: Window, step_us: int) -> Rows:
    """Of messages as they were sent, whatever groups there are."""
    from pyspark.sql import functions as f

    urls = [archive.place.url(entry.path) for entry in archive.files("messages", topics) if window.overlaps(entry)]
    frame = spark.read.option("basePath", archive.place.url("messages")).parquet(*urls)
    sent = f.unix_micros("appended_at")
    frame = frame.withColumn("at", sent - sent % step_us).filter(sent >= window.from_us)
    frame = frame.filter(sent < window.to_us) if window.to_us else frame
    counted = frame.groupBy("topic", "at").agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))
    return _rows(counted.orderBy("topic", "at"))


def _totals(volume: Rows) -> Rows:
    totals: dict[str, dict[str, Any]] = {}
    for row in volume:
        total = totals.setdefault(row["topic"], {"topic": row["topic"], "messages": 0, "bytes": 0})
        total["messages"] += row["messages"]
        total["bytes"] += row["bytes"]
    return list(totals.values())


def _count(condition: str, name: str) -> Column:
    from pyspark.sql import functions as f

    return f.sum(f.expr(f"case when {condition} then 1 else 0 end")).alias(name)


def _groups(trace: DataFrame) -> Rows:
    from pyspark.sql import functions as f

    statuses = ("NEW", "RUNNING", "SUCCESS", "FAIL", "DEAD", "GONE", "UNKNOWN")
    found = trace.groupBy("topic", "group").agg(
        f.count("*").alias("messages"),
        *(_count(f"status = '{status}'", status.lower()) for status in statuses),
        f.sum("attempts").alias("attempts"),
        f.sum("failures").alias("failures"),
        _count("failures > 0", "retried"),
        *(_percentiles(name) for name in ("waiting", "processing", "total")),
    )
    return _spread(_rows(found.orderBy("topic", "group")), "waiting", "processing", "total")


def _by_time(trace: DataFrame, step_us: int) -> Rows:
    """Messages sent within each step and their outcomes; messages settled within it; and those open at its end."""
    from pyspark.sql import functions as f

    sent = trace.withColumn("at", f.col("sent") - f.col("sent") % step_us).groupBy("topic", "group", "at")
    rows = _spread(
        _rows(
            sent.agg(
                f.count("*").alias("messages"),
                f.sum("size").alias("bytes"),
                _count("status = 'DEAD'", "dead"),
                _count("failures > 0", "retried"),
                f.sum("failures").alias("failures"),
                *(_percentiles(name) for name in ("waiting", "processing", "total")),
            )
        ),
        *("waiting", "processing", "total"),
    )
    ended = trace.filter("settled is not null").withColumn("at", f.col("settled") - f.col("settled") % step_us)
    settled = {
        (row["topic"], row["group"], row["at"]): row["count"]
        for row in ended.groupBy("topic", "group", "at").count().collect()
    }
    return _with_backlog(rows, settled)


def _with_backlog(rows: Rows, settled: dict[tuple[str, str, int], int]) -> Rows:
    by_place = {(row["topic"], row["group"], row["at"]): row for row in rows}
    empty = dict.fromkeys(("messages", "bytes", "dead", "retried", "failures"), 0)
    result: Rows = []
    open_: dict[tuple[str, str], int] = {}
    for topic, group, at in sorted(by_place.keys() | settled.keys()):
        place = topic, group, at
        row = by_place.get(place, {"topic": topic, "group": group, "at": at, **empty})
        row["settled"] = settled.get(place, 0)
        backlog = open_.get((topic, group), 0) + row["messages"] - row["settled"]
        open_[topic, group] = row["backlog"] = max(0, backlog)
        result.append(row)
    return result


def _top(frame: DataFrame, order: Column) -> Rows:
    """The first of each topic and group."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as f

    ranked = frame.withColumn("rank", f.row_number().over(Over.partitionBy("topic", "group").orderBy(order)))
    return _rows(ranked.filter(f.col("rank") <= TOP).drop("rank").orderBy("topic", "group", order))


def _failures(trace: DataFrame) -> Rows:
    from pyspark.sql import functions as f

    found = trace.filter("reason is not null").groupBy("topic", "group", f.substring("reason", 1, 200).alias("reason"))
    counted = found.agg(f.count("*").alias("messages"), _count("status = 'DEAD'", "dead"))
    return _top(counted, f.col("messages").desc())


def _consumers(trace: DataFrame) -> Rows:
    from pyspark.sql import functions as f

    found = trace.filter("consumer is not null").groupBy("topic", "group", "consumer")
    counted = found.agg(f.count("*").alias("messages"), f.sum("failures").alias("failures"), _percentiles("processing"))
    return _spread(_top(counted, f.col("processing")[1].desc_nulls_last()), "processing")


def _keys(spark: SparkSession, trace: DataFrame, groups: Rows) -> Rows:
    """The slowest keys. They show in the slowest messages of a group, so that only these are sorted by key; where they
    have too few keys, all messages are."""
    from pyspark.sql import functions as f

    known = trace.filter("key is not null and total_us is not null")
    floors = [(row["topic"], row["group"], row["total_p99_us"] or 0) for row in groups]
    slow = spark.createDataFrame(floors, "topic string, group string, floor long")
    slowest = known.join(f.broadcast(slow), ["topic", "group"]).filter("total_us >= floor")
    worst = slowest.groupBy("topic", "group", "key").agg(f.max("total_us").alias("worst_us"))
    found = _top(worst, f.col("worst_us").desc())
    counts = Counter((row["topic"], row["group"]) for row in found)
    if all(counts[topic, group] >= TOP for topic, group, _ in floors):
        names = [(row["topic"], row["group"], row["key"]) for row in found]
        chosen = spark.createDataFrame(names, "topic string, group string, key string")
        known = known.join(f.broadcast(chosen), ["topic", "group", "key"])
    counted = known.groupBy("topic", "group", "key").agg(
        f.count("*").alias("messages"), f.max("total_us").alias("worst_us"), f.avg("total_us").alias("mean_us")
    )
    return _top(counted, f.col("worst_us").desc())


def write_tables(found: Report, to: str, kind: str) -> list[str]:
    """Write every table of a report as a file, `parquet` or `csv`; returns their names."""
    if kind not in ("parquet", "csv"):
        raise BadRequest(f"tables as {kind!r}: give parquet or csv")
    place, names = ArchiveFolder(to), []
    for table in ("topics", "groups", "hours", "failures", "consumers", "keys"):
        rows = getattr(found, table)
        if not rows:
            continue
        columns = list(dict.fromkeys(name for row in rows for name in row))
        arrow = pa.table({name: [row.get(name) for row in rows] for name in columns})
        names.append(f"{table}.{kind}")
        with place.writing(names[-1]) as sink:
            if kind == "csv":
                pyarrow.csv.write_csv(arrow, sink)
            else:
                pq.write_table(arrow, sink)
    return names
