"""Consumption against production: messages of a window that were lost, sent twice, late or out of order.

| finding | meaning |
|---|---|
| missing | a sequence number of a lane that holds no message, though the lane goes on behind it |
| unsent | expected by the producers' own account (`expected`), but in no lane |
| lost | a group never handled it and never will: dropped by retention, unreadable, or passed over |
| dead | a group gave it up: it is among its dead letters |
| pending | not settled yet, though it is older than `late_s` |
| late | settled, but later than `late_s` after it could be delivered |
| duplicated | sent more than once: the same identity twice in a topic |
| repeated | acknowledged more than once by a group |
| disordered | of one key, in an ordered lane: settled before one that was sent before it |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from towline.errors import BadRequest
from towline.spark.jobs.analysis.trace import Window
from towline.spark.jobs.archive.manifest import Archive, parts_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

__all__ = ["FINDINGS", "Finding", "Reconciled", "reconcile"]

SAMPLES: Final = 10
FINDINGS: Final = ("missing", "unsent", "lost", "dead", "pending", "late", "duplicated", "repeated", "disordered")
HARMLESS: Final = frozenset({"late", "pending"})
"""Findings that are no failure unless `strict`."""


class Finding(msgspec.Struct):
    what: str
    topic: str
    group: str
    count: int
    samples: list[str]
    """A few ids, oldest first."""


class Reconciled(msgspec.Struct):
    sent: int
    """Messages in the window."""
    deliveries: int
    """Messages, times the groups that they are for."""
    settled: int
    """Of these, acknowledged."""
    findings: list[Finding] = []
    strict: bool = False

    @property
    def sound(self) -> bool:
        return not any(self.strict or finding.what not in HARMLESS for finding in self.findings)


def reconcile(
    spark: SparkSession,
    archive: Archive,
    trace: DataFrame,
    *,
    window: Window = Window(),  # noqa: B008 it is frozen
    topics: list[str] | None = None,
    late_s: float = 60.0,
    identity: str = "",
    order: str = "auto",
    expected: DataFrame | None = None,
    strict: bool = False,
    now_us: int = 0,
) -> Reconciled:
    """Check the messages of a window; `trace` is their trace.

    `identity` defines when two messages are the same: `key`, `body`, `key+body`, `dedup_id` or `header:NAME`; without
    it no duplicates are looked for. `order` is `auto` (lanes of ordered topics), `all` or `none`. `expected` has a
    column `key` (and `topic`, if there are several) of the messages that producers have sent by their own account.
    `now_us` is the time of the archive: messages not settled by then are pending.
    """
    from pyspark.sql import functions as f

    if order not in ("auto", "all", "none"):
        raise BadRequest(f"order {order!r}: give auto, all or none")
    messages = _messages(spark, archive, topics, window)
    late_us = round(late_s * 1_000_000)
    open_ = f"status in ('NEW', 'RUNNING', 'FAIL') and unix_micros(sent_at) + {late_us} < {now_us}"
    tests = {
        "lost": "status in ('GONE', 'UNKNOWN')",
        "dead": "status = 'DEAD'",
        "pending": open_,
        "late": f"status = 'SUCCESS' and total_us > {late_us}",
        "repeated": "acks > 1",
    }
    counted = trace.groupBy("topic", "group").agg(
        f.count("*").alias("messages"),
        f.count_if(f.expr("status = 'SUCCESS'")).alias("settled"),
        *(f.count_if(f.expr(test)).alias(what) for what, test in tests.items()),
    )
    groups = counted.orderBy("topic", "group").collect()
    found = [
        *_missing(archive, topics, window),
        *([] if expected is None else _unsent(messages, expected)),
        *(
            Finding(what, row["topic"], row["group"], row[what], _samples(trace.filter(test), row))
            for what, test in tests.items()
            for row in groups
            if row[what]
        ),
        *(_duplicated(messages, identity) if identity else []),
        *(_disordered(trace, order) if order != "none" else []),
    ]
    found.sort(key=lambda finding: FINDINGS.index(finding.what))
    totals = sum(row["messages"] for row in groups), sum(row["settled"] for row in groups)
    return Reconciled(messages.count(), *totals, found, strict)


def _samples(found: DataFrame, row: Row) -> list[str]:
    from pyspark.sql import functions as f

    some = found.filter((f.col("topic") == row["topic"]) & (f.col("group") == row["group"]))
    return [one["id"] for one in some.orderBy("sent_at", "lane", "seq").select("id").limit(SAMPLES).collect()]


def _messages(spark: SparkSession, archive: Archive, topics: list[str] | None, window: Window) -> DataFrame:
    from pyspark.sql import functions as f

    urls = [archive.place.url(entry.path) for entry in archive.files("messages", topics) if window.overlaps(entry)]
    if not urls:
        raise BadRequest(f"{archive.place}: no messages of these topics and times")
    frame = spark.read.option("basePath", archive.place.url("messages")).parquet(*urls)
    at = f.unix_micros("appended_at")
    frame = frame.filter(at >= window.from_us)
    return frame.filter(at < window.to_us) if window.to_us else frame


def _missing(archive: Archive, topics: list[str] | None, window: Window) -> list[Finding]:
    """Holes: files know how many rows they hold, so that none has to be read."""
    holes: dict[str, list[tuple[int, int]]] = {}
    before: dict[str, int] = {}
    for entry in archive.files("messages", topics):
        if not window.overlaps(entry):
            continue
        hole = entry.end - entry.first - entry.rows + max(0, entry.first - before.get(entry.stream, entry.first))
        if hole:
            holes.setdefault(entry.stream, []).append((before.get(entry.stream, entry.first), hole))
        before[entry.stream] = entry.end
    found = []
    for stream, some in holes.items():
        _, topic, _, lane, broker = parts_of(stream)
        lane = f"{lane}@{broker}" if broker else lane
        samples = [f"{count} of {topic}/{lane} from {first} on" for first, count in some[:SAMPLES]]
        found.append(Finding("missing", topic, "", sum(count for _, count in some), samples))
    return found


def _unsent(messages: DataFrame, expected: DataFrame) -> list[Finding]:
    if "key" not in expected.columns:
        raise BadRequest("what is expected has no column key")
    on = ["topic", "key"] if "topic" in expected.columns else ["key"]
    gone = expected.select(on).distinct().join(messages.select(on).distinct(), on, "left_anti")
    count = gone.count()
    samples = [row["key"] for row in gone.orderBy(*on).limit(SAMPLES).collect()] if count else []
    return [Finding("unsent", "", "", count, samples)] if count else []


def _identity(identity: str) -> list[Column]:
    from pyspark.sql import functions as f

    kind, _, name = identity.partition(":")
    if kind == "header" and name:
        return [f.col("headers")[name]]
    columns: dict[str, list[Any]] = {
        "key": ["key"],
        "body": ["body"],
        "key+body": ["key", "body"],
        "dedup_id": ["dedup_id"],
    }
    if identity not in columns:
        raise BadRequest(f"identity {identity!r}: give key, body, key+body, dedup_id or header:NAME")
    return [f.col(column) for column in columns[identity]]


def _duplicated(messages: DataFrame, identity: str) -> list[Finding]:
    """Every message but the first of its identity; by hash, so that no bodies are shuffled."""
    from pyspark.sql import functions as f

    columns = _identity(identity)
    known = messages
    for column in columns:
        known = known.filter(column.isNotNull())
    marked = known.select(
        "topic", "lane", "seq", "appended_at", f.xxhash64(*columns).alias("one"), f.hash(*columns).alias("two")
    )
    several = marked.groupBy("topic", "one", "two").agg(
        f.count("*").alias("times"), f.sort_array(f.collect_list(f.struct("appended_at", "lane", "seq"))).alias("all")
    )
    several = several.filter("times > 1")
    found = []
    for row in several.groupBy("topic").agg(f.sum(f.col("times") - 1).alias("count")).orderBy("topic").collect():
        some = several.filter(f.col("topic") == row["topic"]).orderBy(f.col("all")[0]["appended_at"]).limit(SAMPLES)
        samples = [
            " = ".join(f"{row['topic']}/{each['lane']}/{each['seq']}" for each in one["all"][:5])
            for one in some.collect()
        ]
        found.append(Finding("duplicated", row["topic"], "", row["count"], samples))
    return found


def _disordered(trace: DataFrame, order: str) -> list[Finding]:
    """Settled before one of the same key that came before it in its lane."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as f

    chosen = trace.filter("status in ('SUCCESS', 'DEAD') and key is not null")
    if order == "auto":
        chosen = chosen.filter(f.col("lane").rlike("^[0-9]+$"))
    before = (
        Over.partitionBy("topic", "group", "broker", "lane", "key")
        .orderBy("seq")
        .rowsBetween(Over.unboundedPreceding, -1)
    )
    found = chosen.withColumn("latest", f.max("settled_at").over(before)).filter("settled_at < latest")
    groups = found.groupBy("topic", "group").count().orderBy("topic", "group").collect()
    return [Finding("disordered", row["topic"], row["group"], row["count"], _samples(found, row)) for row in groups]
