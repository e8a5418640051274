"""The Spark session of a job."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from towline.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session", "why_not"]

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # Percentiles by topic, group and hour: with more groups than this Spark would sort all rows first.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "20000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None, *, quiet: bool = False
) -> Iterator[SparkSession]:
    """A session for one job. Under `spark-submit` it is the submitted one; else `local[*]`, if no master is named. One
    that is there already is used as it is, and left open. `quiet` keeps the JVM's log off the terminal."""
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Unavailable(f"Spark is not installed ({error}): pip install 'towline[spark]'") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    builder: Any = SparkSession.builder.appName(name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master or not submitted:
        builder = builder.master(master or "local[*]")
        if (master or "local").startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            for key in ("spark.driver.host", "spark.driver.bindAddress"):
                builder = builder.config(key, "127.0.0.1")
            builder = builder.config("spark.sql.shuffle.partitions", 2 * (os.cpu_count() or 1))
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile() as log:
        try:
            with _stderr_to(log.fileno()) if quiet and not submitted else nullcontext():
                spark = builder.getOrCreate()
        except (PySparkException, Py4JError, OSError, RuntimeError) as error:
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip()
            raise Unavailable(f"Spark does not start: {why_not(said, error, master)}") from None
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()


def why_not(said: str, error: Exception, master: str | None) -> str:
    """Why Spark does not start, in one line: by the JVM's log, and by the error."""
    if hasattr(error, "java_exception"):  # then Java is there
        if master and ("All masters are unresponsive" in said or "stopped SparkContext" in str(error)):
            return f"the master {master} cannot be reached; is it running?"
        causes = [line for line in str(error).splitlines() if line.startswith((": ", "Caused by: "))]
        return causes[-1].removeprefix("Caused by").removeprefix(": ").strip() if causes else str(error)
    return f"{said.rpartition(chr(10))[2] or error}; is Java 17 there (JAVA_HOME)?"


@contextmanager
def _stderr_to(fd: int) -> Iterator[None]:
    """The JVM, which is started meanwhile, keeps its stderr there."""
    kept = os.dup(2)
    try:
        os.dup2(fd, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
