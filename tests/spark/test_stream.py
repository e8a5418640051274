"""`readStream` and `writeStream` on real brokers: each message in exactly one micro-batch, each row written once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import towline
from tests.broker.process import BrokerProcess
from tests.spark.session import run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.stores("log", "mariadb")


def url(broker: BrokerProcess) -> str:
    return f"towline://127.0.0.1:{broker.port}"


def stream(spark: SparkSession, broker: BrokerProcess, **options: str) -> DataFrame:
    return spark.readStream.format("towline").options(**({"url": url(broker)} | options)).load()


def fill(mq: towline.Client, topic: str, first: int, count: int) -> None:
    mq.send_many(topic, [b"%d" % n for n in range(first, first + count)])


class Run:
    """A query that runs until all that is there is read, with what it saw."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batches: list[list[int]] = []

    def __call__(self, frame: DataFrame) -> Any:
        def note(batch: DataFrame, _: int) -> None:
            self.batches.append(sorted(int(row.body) for row in batch.select("body").collect()))

        query = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(self.folder / "checkpoint"))
        return run_to_end(query.trigger(availableNow=True).start)

    @property
    def rows(self) -> list[int]:
        return [row for batch in self.batches for row in batch]


def test_every_message_is_in_one_batch_also_after_a_restart(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    fill(mq, "orders.eu", 0, 1_000)
    run = Run(tmp_path)
    options = {"topic": "orders.*", "maxMessagesPerTrigger": "400"}
    run(stream(spark, broker, **options))
    assert [len(batch) for batch in run.batches] == [400, 400, 200]
    fill(mq, "orders.eu", 1_000, 300)
    fill(mq, "orders.us", 1_300, 100)  # a topic that joins
    fill(mq, "other", 9_999, 1)
    run(stream(spark, broker, **options))
    assert sorted(run.rows) == list(range(1_400))
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(offsets[-1].read_text().splitlines()[-1])
    assert last["orders.eu/middle"] == 1_300
    assert list(last) == sorted(last)


@pytest.mark.stores("log")
def test_a_stream_reads_a_folder_and_counts_bytes(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    mq.send_many("orders", [b"%0100d" % n for n in range(1_000)])
    run = Run(tmp_path)
    options = {"path": str(tmp_path / "data"), "topic": "orders", "maxBytesPerTrigger": "30000", "from": "100"}
    run(spark.readStream.format("towline").options(**options).load())
    assert run.rows == list(range(100, 1_000))
    assert 3 <= len(run.batches) <= 5


def test_retention_that_overtook_the_query_is_an_error(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    fill(mq, "orders", 0, 100)
    run = Run(tmp_path)
    run(stream(spark, broker, topic="orders"))
    fill(mq, "orders", 100, 100)
    mq.purge("orders")
    fill(mq, "orders", 200, 10)
    with pytest.raises(Exception, match=r"orders/middle: messages 100 to 199 were dropped.*failOnDataLoss=false"):
        run(stream(spark, broker, topic="orders"))
    run(stream(spark, broker, topic="orders", failOnDataLoss="false"))
    assert run.rows == [*range(100), *range(200, 210)]


def test_progress_shows_as_the_lag_of_a_group(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    fill(mq, "orders", 0, 1_000)
    run = Run(tmp_path)
    run(stream(spark, broker, topic="orders", maxMessagesPerTrigger="400", progressGroup="spark"))
    # The last batch of a run is told by the next one.
    assert mq.group("orders", "spark").lag <= 200


def test_what_is_streamed_arrives_once_though_the_query_is_restarted(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    def copy() -> None:
        source = stream(spark, broker, topic="orders", maxMessagesPerTrigger="500")
        rows = source.selectExpr("upper(string(body)) as body", "key").repartition(2)  # an order that does not repeat
        sink = rows.writeStream.format("towline").option("url", url(broker)).option("topic", "copies")
        run_to_end(sink.option("checkpointLocation", str(tmp_path / "copy")).trigger(availableNow=True).start)

    fill(mq, "orders", 0, 1_200)
    copy()
    # As if the driver had died between the broker's commit and Spark's own: the last batch is run again.
    last = max((tmp_path / "copy" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (tmp_path / "copy" / "commits" / f".{last.name}.crc").unlink()
    fill(mq, "orders", 1_200, 300)
    copy()
    found: list[int] = []
    while page := mq.browse("copies", first=len(found), max_messages=1_000):
        found += [int(message.body) for message in page]
    assert sorted(found) == list(range(1_500))


def test_a_windowed_count_of_a_stream_is_that_of_the_batch(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    words = [b"tow", b"line", b"tow", b"rope"] * 50
    mq.send_many("words", words)
    out = str(tmp_path / "counts")

    def counted(frame: DataFrame) -> DataFrame:
        return (
            frame.selectExpr("string(body) as word", "appended_at")
            .withWatermark("appended_at", "1 minute")
            .groupBy("word")
            .count()
        )

    query = (
        counted(stream(spark, broker, topic="words"))
        .writeStream.outputMode("complete")
        .foreachBatch(lambda batch, _: batch.write.mode("overwrite").parquet(out))
        .option("checkpointLocation", str(tmp_path / "words"))
        .trigger(availableNow=True)
    )
    run_to_end(query.start)
    batch = counted(spark.read.format("towline").option("url", url(broker)).option("topic", "words").load())
    assert sorted(spark.read.parquet(out).collect()) == sorted(batch.collect())
    assert {row.word: row["count"] for row in batch.collect()} == {"tow": 100, "line": 50, "rope": 50}


@pytest.mark.stores("log")
def test_a_checkpoint_that_was_restored_or_copied_leaves_no_row_out(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    check, backup = tmp_path / "check", tmp_path / "backup"

    def run(topic: str = "copies", checkpoint: Path = check, **options: str) -> list[int]:
        rows = stream(spark, broker, topic="orders").select("body").repartition(2)
        sink = rows.writeStream.format("towline").options(url=url(broker), topic=topic, **options)
        run_to_end(sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start)
        return [int(message.body) for message in mq.browse(topic, max_messages=5_000)]

    fill(mq, "orders", 0, 100)
    run()
    shutil.copytree(check, backup)
    fill(mq, "orders", 100, 100)
    assert sorted(run()) == list(range(200))
    # As if the driver had died between the broker's commit and Spark's own: the same batch again, in any order.
    (check / "commits" / "1").unlink()
    (check / "commits" / ".1.crc").unlink()
    assert sorted(run()) == list(range(200))

    # A copy that writes to another topic is a query of its own.
    copied = tmp_path / "copied"
    shutil.copytree(backup, copied)
    assert sorted(run("elsewhere", copied)) == list(range(100, 200))

    # Restored: batch 1 has other rows than it had.
    fill(mq, "orders", 200, 100)
    shutil.rmtree(check)
    shutil.copytree(backup, check)
    with pytest.raises(Exception, match=r"epoch 1 of sink .* with other contents.* give the option txnId a name"):
        run()
    assert len(mq.browse("copies", max_messages=5_000)) == 200
    found = run(txnId="after-the-backup")
    assert sorted(found) == sorted([*range(300), *range(100, 200)])
