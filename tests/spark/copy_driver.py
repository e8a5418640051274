"""A driver of its own: copies a topic into another. Tests kill it at any moment."""

from __future__ import annotations

import sys
from pathlib import Path


def main(master: str, url: str, how: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    import towline.spark
    from tests.spark.session import run_to_end

    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.memory": "512m",
        "spark.local.dir": f"{folder}/local",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    towline.spark.register(spark)
    options = {"url": url, "timeout": "60"}
    source = spark.readStream.format("towline").options(**options, topic="orders", maxMessagesPerTrigger="5000")
    rows = source.load().select("body", "key", "priority")
    if how == "shuffled":
        rows = rows.repartition(2)  # an order that does not repeat
    sink = rows.writeStream.format("towline").options(**options, topic="copies")
    sink = sink.option("checkpointLocation", f"{folder}/checkpoint")
    run_to_end((sink if how == "live" else sink.trigger(availableNow=True)).start)
    Path(folder, "done").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
