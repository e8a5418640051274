"""`towline spark archive`: history backup."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from towline.cli.output import Output, note, print_json, print_pairs, print_table, progress, size, stamp
from towline.cli.spark.options import Engine, Origin, Topics
from towline.cli.times import Duration

if TYPE_CHECKING:
    from towline.spark.jobs.archive.archive import Archived, Options
    from towline.spark.jobs.archive.manifest import Archive

__all__ = ["archive"]

archive = App(
    name="archive",
    help="Write messages and delivery events to Parquet files, by topic and day; incrementally, and exactly once.",
)

Where = Annotated[str, Parameter(help="The archive: a folder, or hdfs://…, s3://…, gs://….")]


@Parameter(name="*")
@dataclass(frozen=True)
class Contents:
    """The contents of the archive, and the number of its files."""

    skip_lost: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Pass over what is damaged or was dropped before it was archived, and note it in the manifest.",
        ),
    ] = False
    messages_only: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="No delivery events and dead letters: then there is nothing to trace."
        ),
    ] = False
    compact: Annotated[
        int, Parameter(help="Join the small files of a lane and day when there are so many; 0 never does.")
    ] = 16

    def options(self) -> Options:
        """As the job takes them."""
        from towline.spark.jobs.archive.archive import Options
        from towline.spark.jobs.archive.manifest import KINDS

        kinds = ("messages",) if self.messages_only else tuple(KINDS.values())
        return Options(kinds=kinds, skip_lost=self.skip_lost, compact_files=self.compact)


@archive.default
def run(
    to: Where,
    /,
    *,
    topic: Topics = None,
    follow: Annotated[
        Duration | None, Parameter(help="Go on until SIGTERM or SIGINT, looking for more so often, e.g. 10s.")
    ] = None,
    hold: Annotated[
        str,
        Parameter(
            help="Tell a broker that was started with --holds NAME how far this archive has come, so that its "
            "retention waits.",
            show_default=False,
        ),
    ] = "",
    contents: Contents = Contents(),  # noqa: B008 it is frozen
    origin: Origin = Origin(),  # noqa: B008
    engine: Engine = Engine(),  # noqa: B008
    output: Output = "text",
) -> int:
    """Bring an archive up to date with a broker's log.

    Kill it whenever you like: what was committed is there, what was not leaves nothing behind, and the next run goes on
    from there.

        towline spark archive /backup/orders --path /var/lib/towline --topic 'orders.*'

        towline spark archive hdfs://nn/towline --url towline://broker:7400 --follow 30s
    """
    source = origin.source(topic)
    with engine.session("archive") as spark, progress("archiving", None, "rows") as step:
        from towline.spark.jobs.archive import archive as job

        options = contents.options()

        def told(archived: Archived, left: int) -> None:
            step(archived.rows, archived.rows + left)
            if follow and output == "json":
                print_json(msgspec.to_builtins(archived))

        done = job.archive(
            spark, source, to, options, hold=hold, follow_s=follow or 0, stop=_until_signal(follow), told=told
        )
    if output == "json":
        print_json(msgspec.to_builtins(done))
    else:
        rate = done.rows / done.seconds if done.seconds else 0
        print_pairs(
            [
                ("archive", to),
                ("rows", f"{done.rows:,}"),
                ("files", f"{done.files:,}, {size(done.size_bytes)}"),
                *([("joined", f"{done.compacted:,} small files")] if done.compacted else []),
                *([("lost", f"{done.lost:,} records: see `towline spark archive ls`")] if done.lost else []),
                ("took", f"{done.seconds:.1f} s, {rate:,.0f} rows/s"),
            ]
        )
    return 0


def _until_signal(follow: float | None) -> threading.Event:
    """An event that SIGTERM and SIGINT set, so that a job that follows ends between two commits."""
    stop = threading.Event()
    if follow:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    return stop


@archive.command
def verify(
    where: Where,
    /,
    *,
    topic: Topics = None,
    alone: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="Check the archive by itself, without the log that it comes from."
        ),
    ] = False,
    origin: Origin = Origin(),  # noqa: B008
    engine: Engine = Engine(),  # noqa: B008
    output: Output = "text",
) -> int:
    """Compare an archive with the log it comes from, exactly; the exit code is 1 if they differ.

    Every file is read and its checksum compared with the manifest's; and with that of the same records in the log, as
    far as the log still has them.
    """
    source = None if alone else origin.source(topic)
    with engine.session("verify") as spark:
        from towline.spark.jobs.archive.manifest import Archive
        from towline.spark.jobs.archive.verify import verify as check

        found = check(spark, Archive.open(where), source)
    if output == "json":
        print_json(msgspec.to_builtins(found) | {"sound": found.sound})
    else:
        print_pairs(
            [
                ("files", f"{found.files:,}"),
                ("rows", f"{found.rows:,}"),
                ("compared with the log", f"{found.compared:,}"),
                ("not archived yet", f"{found.behind:,}"),
                ("lost when archived", f"{found.lost:,}"),
                ("problems", len(found.problems) or "none"),
            ]
        )
        for problem in found.problems:
            note(problem)
    return 0 if found.sound else 1


@archive.command
def ls(where: Where, /, *, output: Output = "text") -> None:
    """Show what an archive holds, by stream."""
    from towline.spark.jobs.archive.manifest import Archive

    rows = list(_streams(Archive.open(where)))
    if output == "json":
        for row in rows:
            print_json(row)
        return
    print_table(
        ("STREAM", "#FIRST", "#END", "#ROWS", "#FILES", "#SIZE", "#LOST", "FROM", "TO"),
        [
            (
                row["stream"],
                f"{row['first']:,}",
                f"{row['end']:,}",
                f"{row['rows']:,}",
                f"{row['files']:,}",
                size(row["size_bytes"]),
                f"{row['lost']:,}",
                row["from"],
                row["to"],
            )
            for row in rows
        ],
        empty="the archive is empty",
    )


def _streams(found: Archive) -> list[dict[str, Any]]:
    by_stream: dict[str, dict[str, Any]] = {}
    for entry in found.files():
        row = by_stream.setdefault(
            entry.stream,
            {"stream": entry.stream, "first": entry.first, "end": 0, "rows": 0, "files": 0, "size_bytes": 0, "lost": 0}
            | {"from": stamp(entry.from_us)},
        )
        row["end"] = entry.end
        row["rows"] += entry.rows
        row["files"] += 1
        row["size_bytes"] += entry.size_bytes
        row["to"] = stamp(entry.to_us)
    for lost in found.lost:
        if lost.stream in by_stream:
            by_stream[lost.stream]["lost"] += lost.count
    return list(by_stream.values())
