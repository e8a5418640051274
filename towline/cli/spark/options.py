"""Options of the jobs on Spark."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from towline.cli.delivery_time import parse_time
from towline.cli.options import Connection, Usage
from towline.cli.output import note
from towline.cli.times import Duration  # noqa: F401 the fields of Connection are looked up here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from towline.spark.jobs.analysis.trace import Window
    from towline.spark.jobs.archive.manifest import Archive
    from towline.spark.jobs.source import Source

__all__ = ["Engine", "History", "Origin", "Topics", "parse_window"]

Topics = Annotated[
    list[str] | None,
    Parameter(
        name=("--topic", "-t"), negative=(), help="Only this topic, or a prefix such as `orders.*`; may be repeated."
    ),
]


@Parameter(name="*", group="Spark")
@dataclass(frozen=True)
class Engine:
    """The Spark master and its resources."""

    master: Annotated[
        str | None,
        Parameter(
            env_var="TOWLINE_SPARK_MASTER",
            help="The cluster, for example spark://HOST:7077, yarn, or local[4]. [default: local[*], or the one of "
            "spark-submit]",
            show_default=False,
        ),
    ] = None
    conf: Annotated[
        list[str] | None, Parameter(help="A setting of Spark, NAME=VALUE; may be repeated.", negative=())
    ] = None

    @contextmanager
    def session(self, name: str) -> Iterator[SparkSession]:
        settings = {}
        for pair in self.conf or []:
            key, equals, value = pair.partition("=")
            if not equals or not key:
                raise Usage(f"--conf {pair!r} is not of the form NAME=VALUE")
            settings[key] = value
        _need_spark()
        from towline.spark.jobs.session import session

        with session(f"towline {name}", self.master, settings, quiet=True) as spark:
            yield spark

    @property
    def here(self) -> bool:
        """Whether all tasks see this machine's files."""
        return (self.master or "local").startswith("local") and "PYSPARK_GATEWAY_PORT" not in os.environ


def _need_spark() -> None:
    from importlib.util import find_spec

    if missing := [name for name in ("pyspark", "pyarrow", "numpy") if find_spec(name) is None]:
        raise Usage(f"{' and '.join(missing)} not installed: pip install 'towline[spark]'")


@Parameter(name="*", group="Connection")
@dataclass(frozen=True)
class Origin(Connection):
    """The source: a broker's folder, or the broker itself."""

    path: Annotated[
        Path | None,
        Parameter(
            name=("--path", "-p"),
            help="The folder of the broker's log store, to be read directly: a broker may be running on it.",
        ),
    ] = None

    def source(self, topics: list[str] | None) -> Source:
        _need_spark()
        from towline.errors import BadRequest
        from towline.spark.jobs.source import Source

        try:
            if self.path is not None:
                return Source.of(path=str(self.path.expanduser().resolve()), topics=topics or ())
            door: dict[str, Any] = {"token": self.token, "timeout_s": self.patience}
            if self.ca_file is not None:
                door["ca_file"] = str(self.ca_file)
            return Source.of(url=self.url, topics=topics or (), secret=self.secret(), **door)
        except BadRequest as error:
            raise Usage(str(error)) from None


@Parameter(name="*", group="Connection")
@dataclass(frozen=True)
class History(Origin):
    """The source of messages and events: an archive, or a broker."""

    archive: Annotated[
        str | None,
        Parameter(
            name=("--archive", "-a"),
            help="The archive to read: a folder, or hdfs://…, s3://…. Without it, a broker's log is archived to a "
            "temporary folder first.",
        ),
    ] = None
    work: Annotated[
        str | None,
        Parameter(help="A folder for what the job keeps meanwhile; on a cluster, one that all its machines see."),
    ] = None

    @contextmanager
    def opened(self, spark: SparkSession, engine: Engine, topics: list[str] | None) -> Iterator[tuple[Archive, str]]:
        """The archive, and a folder to work in."""
        from towline.spark.jobs.archive.archive import archive
        from towline.spark.jobs.archive.archive_folder import ArchiveFolder
        from towline.spark.jobs.archive.manifest import Archive

        if self.work is None and not engine.here:
            raise Usage("--work: on a cluster, name a folder that all its machines see")
        with tempfile.TemporaryDirectory(prefix="towline-", ignore_cleanup_errors=True) as temporary:
            work = f"{(self.work or temporary).rstrip('/')}/{os.getpid()}"
            try:
                if self.archive is None:
                    archived = archive(spark, self.source(topics), f"{work}/archive")
                    note(f"read {archived.rows:,} rows of the log in {archived.seconds:.1f} s")
                yield Archive.open(self.archive or f"{work}/archive"), work
            finally:
                ArchiveFolder(os.path.dirname(work) if "://" not in work else work.rpartition("/")[0]).remove_folder(  # noqa: PTH120
                    str(os.getpid())
                )


def chosen_topics(archive: Archive, topics: list[str] | None) -> list[str] | None:
    """The topics of an archive that are meant, by name; None is all of them."""
    if not topics:
        return None
    known = archive.topics()
    found = [
        topic
        for topic in known
        if any(topic.startswith(name[:-1]) if name.endswith("*") else topic == name for name in topics)
    ]
    if missing := [name for name in topics if not name.endswith("*") and name not in known]:
        raise Usage(f"--topic {missing[0]}: the archive has no such topic; it has {', '.join(known[:10]) or 'none'}")
    return found


def parse_window(since: str | None, until: str | None) -> Window:
    from towline.spark.jobs.analysis.trace import Window

    begin, end = (round(parse_time(text) * 1_000_000) if text else 0 for text in (since, until))
    if end and begin >= end:
        raise Usage("--from is not before --to")
    return Window(begin, end)


Report = Callable[[str], None]
