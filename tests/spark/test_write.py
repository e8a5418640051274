"""`df.write.format("towline")`: every row becomes a message, exactly once."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import towline
from tests.broker.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.stores("log", "mariadb")


def write(frame: DataFrame, broker: BrokerProcess, **options: str) -> None:
    url = f"towline://127.0.0.1:{broker.port}"
    frame.write.format("towline").mode("append").options(**({"url": url} | options)).save()


def bodies(mq: towline.Client, topic: str, lane: str = "middle") -> list[bytes]:
    found: list[bytes] = []
    while page := mq.browse(topic, lane, first=len(found), max_messages=10_000):  # type: ignore[arg-type]
        found += [message.body for message in page]
    return found


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_rows_become_messages(spark: SparkSession, broker: BrokerProcess, mq: towline.Client, mode: str) -> None:
    frame = spark.range(0, 30_000, 1, 3).selectExpr("string(id) as body", "concat('k', id % 7) as key")
    write(frame, broker, topic="orders", mode=mode)
    found = bodies(mq, "orders")
    assert sorted(map(int, found)) == list(range(30_000))
    # In order within each partition.
    for low in (0, 10_000, 20_000):
        part = [n for n in map(int, found) if low <= n < low + 10_000]
        assert part == sorted(part)
    message = mq.message("orders/middle/0")
    assert message.key == f"k{int(message.body) % 7}"


def test_topic_priority_headers_and_delay_are_columns(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client
) -> None:
    mq.create_topic("serial", shards=4)
    rows = [
        ("a", b"1", "k1", "high", {"h": "1", "g": "2"}, None),
        ("b", b"2", None, None, None, None),
        ("a", b"3", None, "low", {}, None),
        ("b", b"4", None, None, None, 60.0),
        ("serial", b"5", "s1", None, None, None),
        ("serial", b"6", "s1", None, None, None),
    ]
    schema = "topic string, body binary, key string, priority string, headers map<string,string>, delay double"
    begun = time.time()
    write(spark.createDataFrame(rows, schema).coalesce(1), broker)
    (first,) = mq.browse("a", "high")
    assert (first.body, first.key, first.headers) == (b"1", "k1", {"h": "1", "g": "2"})
    assert bodies(mq, "a", "low") == [b"3"]
    assert bodies(mq, "b") == [b"2"]
    (delayed,) = mq.delayed("b")
    assert begun + 59.9 < delayed.deliver_at_us / 1e6 < time.time() + 60.1
    shards = [message.body for lane in range(4) for message in mq.browse("serial", lane)]
    assert shards == [b"5", b"6"]
    at = datetime.now(UTC) + timedelta(hours=1)
    write(spark.createDataFrame([(b"later", at)], "body binary, deliver_at timestamp"), broker, topic="c")
    assert abs(mq.delayed("c")[0].deliver_at_us / 1e6 - at.timestamp()) < 0.01


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_a_task_that_is_tried_again_writes_once(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path, mode: str
) -> None:
    from pyspark.sql.functions import udf

    marker = str(tmp_path / "failed-once")

    def fail_once(number: int) -> str:
        if number == 25_000 and not Path(marker).exists():
            Path(marker).touch()
            raise OSError("the task dies here, with most of it sent")
        return str(number)

    write(
        spark.range(0, 60_000, 1, 2).select(udf(fail_once, "string", useArrow=False)("id").alias("body")),
        broker,
        topic="orders",
        mode=mode,
    )
    assert Path(marker).exists()
    assert sorted(map(int, bodies(mq, "orders"))) == list(range(60_000))


def test_a_job_that_fails_leaves_nothing_to_be_seen(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client
) -> None:
    from pyspark.sql.functions import udf

    mq.create_topic("orders")

    def fail(number: int) -> str:
        if number == 0:
            raise OSError("this task never succeeds")
        return str(number)

    with pytest.raises(Exception, match="this task never succeeds"):
        write(
            spark.range(0, 20_000, 1, 4).select(udf(fail, "string", useArrow=False)("id").alias("body")),
            broker,
            topic="orders",
        )
    assert bodies(mq, "orders") == []


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_a_job_with_the_same_txn_id_is_recognised(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, mode: str
) -> None:
    frame = spark.range(0, 1_000, 1, 2).selectExpr("string(id) as body", "concat('k', id % 7) as key")
    night = {"txnId": "nightly-2026-05-01", "mode": mode}
    write(frame, broker, topic="orders", **night)
    write(frame.repartition(3, "key"), broker, topic="orders", **night)  # the same rows, in another order
    assert len(bodies(mq, "orders")) == 1_000
    others = spark.range(0, 2_000, 1, 2).selectExpr("string(id) as body")
    with pytest.raises(Exception, match=r"published before, with other contents\. Nothing was written"):
        write(others, broker, topic="orders", **night)
    write(others, broker, topic="orders", rerun="trust", **night)
    assert len(bodies(mq, "orders")) == 1_000
    write(others, broker, topic="elsewhere", **night)
    assert len(bodies(mq, "elsewhere")) == 2_000
    write(
        spark.range(5).selectExpr("string(id) as body"), broker, topic="orders", txnId="nightly-2026-05-02", mode=mode
    )
    assert len(bodies(mq, "orders")) == 1_005


@pytest.mark.stores("log")
@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id as body", {"topic": "t"}, "column body is int64, but must be binary or string"),
        ("string(id) as body, 'urgent' as priority", {"topic": "t"}, "'urgent' is not one of high, middle, low"),
    ],
)
def test_what_cannot_be_written_is_named(
    spark: SparkSession, broker: BrokerProcess, columns: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of several types, all Spark's
        write(spark.range(3).selectExpr(*columns.split(", ")), broker, **options)
    assert message in str(caught.value)
