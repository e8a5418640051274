"""`towline spark trace`, `report` and `reconcile`: the life of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from towline.cli.options import Usage
from towline.cli.output import Output, fail, note, print_json, print_pairs, print_table, stamp
from towline.cli.spark.options import Engine, History, Topics, chosen_topics, parse_window
from towline.cli.times import Duration
from towline.errors import TowlineError

__all__ = ["reconcile", "report", "trace"]

Groups = Annotated[
    list[str] | None, Parameter(name=("--group", "-g"), negative=(), help="Only this group; may be repeated.")
]
Since = Annotated[
    str | None, Parameter(name="--from", help="Only messages sent at this time or later, e.g. 2026-05-01T12:00Z.")
]
Until = Annotated[str | None, Parameter(name="--to", help="Only messages sent before this time.")]


def trace(
    out: Annotated[str, Parameter(help="A new folder for the trace, as Parquet files by topic and group.")],
    /,
    *,
    topic: Topics = None,
    group: Groups = None,
    since: Since = None,
    until: Until = None,
    history: History = History(),  # noqa: B008 it is frozen
    engine: Engine = Engine(),  # noqa: B008
    output: Output = "text",
) -> int:
    """Write the life of every message: one row for each message and group.

    When it was sent, first pulled and settled; how often it was tried, by whom, why it failed, how long it waited and
    was worked on. Prints how many messages there are of each status.

        towline spark trace ./trace --archive /backup/orders --from 2026-05-01T00:00Z
    """
    window = parse_window(since, until)
    with engine.session("trace") as spark, history.opened(spark, engine, topic) as (archive, _):
        from towline.spark.jobs.analysis.trace import trace as job

        frame = job(spark, archive, out, topics=chosen_topics(archive, topic), groups=group, window=window)
        rows = frame.groupBy("topic", "group", "status").count().orderBy("topic", "group", "status").collect()
    if output == "json":
        for row in rows:
            print_json(row.asDict())
    else:
        print_table(
            ("TOPIC", "GROUP", "STATUS", "#MESSAGES"),
            [(row["topic"], row["group"], row["status"], f"{row['count']:,}") for row in rows],
            empty="no messages",
        )
    return 0


def report(
    out: Annotated[str, Parameter(help="A folder for the report: `report.html` and the tables behind it.")],
    /,
    *,
    topic: Topics = None,
    group: Groups = None,
    since: Since = None,
    until: Until = None,
    tables: Annotated[Literal["parquet", "csv", "none"], Parameter(help="How to write the tables.")] = "csv",
    title: Annotated[str, Parameter(help="The title of the page.")] = "Towline report",
    history: History = History(),  # noqa: B008
    engine: Engine = Engine(),  # noqa: B008
    output: Output = "text",
) -> int:
    """Sum up how topics and groups did: one HTML page with charts, and tables.

    By topic, group and hour: volume, percentiles of waiting and processing, backlog, retries; why messages failed; the
    slowest keys and consumers. The page loads nothing: send it to whom you like.

        towline spark report ./report --archive /backup/orders --from 2026-05-01T00:00Z
    """
    window = parse_window(since, until)
    with engine.session("report") as spark, history.opened(spark, engine, topic) as (archive, work):
        from towline.spark.jobs.analysis.report import report as job
        from towline.spark.jobs.analysis.report import write_tables
        from towline.spark.jobs.analysis.report_html import render
        from towline.spark.jobs.analysis.trace import trace as trace_job
        from towline.spark.jobs.archive.archive_folder import ArchiveFolder

        topics = chosen_topics(archive, topic)
        frame = trace_job(spark, archive, f"{work}/trace", topics=topics, groups=group, window=window)
        now_us = archive.last.made_at_us if archive.last else 0
        found = job(spark, archive, frame, topics=topics, window=window, now_us=now_us)
        place = ArchiveFolder(out)
        place.replace("report.html", render(found, title).encode())
        names = ["report.html", *(write_tables(found, out, tables) if tables != "none" else ())]
    if output == "json":
        print_json({"files": [place.path(name) for name in names], "groups": found.groups, "topics": found.topics})
        return 0
    print_table(
        ("TOPIC", "GROUP", "#MESSAGES", "#HANDLED", "#RETRIED", "#DEAD", "#HALF WITHIN", "#99% WITHIN"),
        [
            (
                row["topic"],
                row["group"],
                f"{row['messages']:,}",
                f"{row['success']:,}",
                f"{row['retried']:,}",
                f"{row['dead']:,}",
                _span(row["total_p50_us"]),
                _span(row["total_p99_us"]),
            )
            for row in found.groups
        ],
        empty="no groups",
    )
    note(f"the report is in {place.path('report.html')}")
    return 0


def _span(us: int | None) -> str:
    return "" if us is None else f"{us / 1e6:,.3f}s"


@Parameter(name="*")
@dataclass(frozen=True)
class Demands:
    """The criteria of a problem."""

    late: Annotated[
        Duration, Parameter(help="How long after it could be delivered a message may be settled.", show_default="1m")
    ] = 60.0
    identity: Annotated[
        str,
        Parameter(
            help="When two messages are the same: key, body, key+body, dedup_id or header:NAME. Without it nobody "
            "looks for messages that were sent twice.",
            show_default=False,
        ),
    ] = ""
    order: Annotated[
        Literal["auto", "all", "none"],
        Parameter(help="Where messages of one key must be settled in order: in ordered topics, everywhere, nowhere."),
    ] = "auto"
    expected: Annotated[
        str | None,
        Parameter(help="What the producers say they sent: a Parquet or CSV file with a column key (and topic)."),
    ] = None
    strict: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Late and pending messages are problems as well.")
    ] = False

    def options(self, spark: Any) -> dict[str, Any]:
        """As the job takes them."""
        return {
            "late_s": self.late,
            "identity": self.identity,
            "order": self.order,
            "strict": self.strict,
            "expected": _read(spark, self.expected),
        }


def reconcile(
    *,
    topic: Topics = None,
    group: Groups = None,
    since: Since = None,
    until: Until = None,
    demands: Demands = Demands(),  # noqa: B008
    history: History = History(),  # noqa: B008
    engine: Engine = Engine(),  # noqa: B008
    output: Output = "text",
) -> int:
    """Prove that what was sent was consumed: lost, duplicated, late, out of order.

    The exit code is 0 if all is well, 1 if there are problems, 2 if it could not be found out.

        towline spark reconcile --archive /backup/orders --from 2026-05-01T00:00Z --to 2026-05-02T00:00Z
    """
    try:
        window = parse_window(since, until)
        with engine.session("reconcile") as spark, history.opened(spark, engine, topic) as (archive, work):
            from towline.spark.jobs.analysis.reconcile import reconcile as job
            from towline.spark.jobs.analysis.trace import trace as trace_job

            topics = chosen_topics(archive, topic)
            frame = trace_job(spark, archive, f"{work}/trace", topics=topics, groups=group, window=window)
            now_us = archive.last.made_at_us if archive.last else 0
            options = demands.options(spark)
            found = job(spark, archive, frame, window=window, topics=topics, now_us=now_us, **options)
    except (TowlineError, Usage) as error:
        fail(str(error))
        return 2
    if output == "json":
        print_json(msgspec.to_builtins(found) | {"sound": found.sound})
        return 0 if found.sound else 1
    bounds = f"{stamp(window.from_us) or 'the beginning'} to {stamp(window.to_us) or 'now'}"
    print_pairs(
        [
            ("window", bounds),
            ("messages", f"{found.sent:,}"),
            ("to be handled", f"{found.deliveries:,}"),
            ("handled", f"{found.settled:,}"),
            ("verdict", "all is well" if found.sound else "there are problems"),
        ]
    )
    if found.findings:
        print_table(
            ("FINDING", "TOPIC", "GROUP", "#COUNT", "FOR EXAMPLE"),
            [
                (each.what, each.topic, each.group, f"{each.count:,}", ", ".join(each.samples[:3]))
                for each in found.findings
            ],
            empty="",
        )
    elif not found.deliveries:
        note("no group was given any of them")
    return 0 if found.sound else 1


def _read(spark: Any, path: str | None) -> Any:
    if path is None:
        return None
    return spark.read.option("header", "true").csv(path) if path.endswith(".csv") else spark.read.parquet(path)
