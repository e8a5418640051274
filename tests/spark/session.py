"""A Spark session for tests: small, local, and quick to start; and streams that run to their end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.parts import need

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 600.0
"""For Spark, on a machine that does much else."""


def environment() -> dict[str, str]:
    """For this process and for the workers that Spark starts."""
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def sessions(folder: Path, master: str = "local[2,3]", **conf: str) -> Iterator[SparkSession]:
    need("java")
    os.environ.update(environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("towline-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.authenticate.socketTimeout": "300s",
        "spark.log.level": "ERROR",
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def run_to_end(start: Callable[[], Any]) -> Any:
    """Run a query until it ends by itself. Spark gives each Python process of a stream ten seconds to start, and no
    setting changes that: on a machine that is busy for so long the query fails, and is started again, from its
    checkpoint."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        query = start()
        try:
            query.awaitTermination()
        except Exception as error:
            if "Python worker failed to connect back" not in str(error):
                raise
        else:
            return query
    raise AssertionError("Spark's Python workers do not start on this machine")
