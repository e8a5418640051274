"""`spark.read.format("towline")` on real brokers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import towline
from tests.broker.access.declared import declared
from tests.broker.process import BrokerProcess
from tests.inside.spark import NEVER_NULL

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

pytestmark = pytest.mark.stores("log", "mariadb")


def fill(mq: towline.Client, topic: str, count: int) -> None:
    for first in range(0, count, 500):
        numbers = range(first, min(first + 500, count))
        mq.send_many(topic, [b"%d" % n for n in numbers], keys=[f"k{n % 10}" for n in numbers])


def source(spark: SparkSession, broker: BrokerProcess) -> DataFrameReader:
    return spark.read.format("towline").option("url", f"towline://127.0.0.1:{broker.port}")


def test_messages_become_rows(spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path) -> None:
    fill(mq, "orders", 12_000)
    mq.send("orders", b"urgent", priority="high", headers={"from": "shop"}, key="vip")
    over_network = source(spark, broker).option("topic", "orders").option("rowsPerPartition", "5000").load()
    assert over_network.rdd.getNumPartitions() == 4
    frames = [over_network]
    if (tmp_path / "data").exists():
        frames.append(spark.read.format("towline").options(path=str(tmp_path / "data"), topic="orders").load())
    for frame in frames:
        assert frame.count() == 12_001
        (urgent,) = frame.where("lane = 'high'").collect()
        assert (urgent.id, urgent.key, bytes(urgent.body), urgent.headers) == (
            "orders/high/0",
            "vip",
            b"urgent",
            {"from": "shop"},
        )
        assert frame.where("lane = 'middle'").selectExpr("sum(cast(string(body) as long))").collect()[0][0] == sum(
            range(12_000)
        )
    for folder in frames[1:]:
        assert over_network.drop("broker", "headers").exceptAll(folder.drop("broker", "headers")).isEmpty()


@pytest.mark.stores("log")
def test_a_schema_prunes_and_types_are_checked(spark: SparkSession, broker: BrokerProcess, mq: towline.Client) -> None:
    fill(mq, "orders", 1_000)
    pruned = source(spark, broker).option("topic", "orders").schema("body string, seq long").load()
    assert pruned.columns == ["body", "seq"]
    assert pruned.orderBy("seq").collect()[0].body == "0"
    for schema, message in [
        ("body string, sequence long", "no column 'sequence'"),
        ("seq string", "a column is seq:string, but must be seq:bigint"),
        ("seq long, key string not null", "the column key may be null"),
    ]:
        with pytest.raises(Exception, match=message):
            source(spark, broker).option("topic", "orders").schema(schema).load().count()
    with pytest.raises(Exception, match="there is no lane orders/midle among what is read; there are: orders/middle"):
        source(spark, broker).options(topic="orders", **{"from": '{"orders/midle": 990}'}).load().count()


@pytest.mark.stores("log")
def test_columns_prune_and_say_what_is_never_null(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client
) -> None:
    mq.send("orders", b"", key="")
    mq.send("orders", b"two", key="k", headers={"a": "b"})
    reader = source(spark, broker).option("topic", "orders")
    frame = reader.option("columns", "seq, key,body,headers").load()
    assert [(one.name, one.nullable) for one in frame.schema] == [
        ("seq", False),
        ("key", True),
        ("body", False),
        ("headers", True),
    ]
    first, second = frame.orderBy("seq").collect()
    assert (first.seq, first.key, bytes(first.body), first.headers) == (0, None, b"", None)
    assert (second.seq, second.key, bytes(second.body), second.headers) == (1, "k", b"two", {"a": "b"})
    assert {one.name for one in reader.option("columns", "").load().schema if not one.nullable} == NEVER_NULL
    with pytest.raises(Exception, match="there is no column 'sequence'"):
        reader.option("columns", "sequence").load()
    with pytest.raises(Exception, match="give one of both"):
        reader.option("columns", "seq").schema("key string").load().count()


def test_filters_narrow_what_is_read(spark: SparkSession, broker: BrokerProcess, mq: towline.Client) -> None:
    fill(mq, "orders", 10_000)
    fill(mq, "stock", 100)
    reader = source(spark, broker).option("topic", "*").option("pushFilters", "true").option("rowsPerPartition", "1000")
    found = reader.load().where("topic = 'orders' and seq >= 2500 and seq < 4500 and key = 'k3'")
    assert found.rdd.getNumPartitions() == 2
    rows = found.collect()
    assert sorted(row.seq for row in rows) == [n for n in range(2500, 4500) if n % 10 == 3]
    time = rows[100].appended_at
    later = reader.load().where(f"appended_at >= timestamp'{time.isoformat()}' and topic = 'orders'")
    assert 0 < later.count() <= 10_000


def test_dead_letters_and_events_can_be_read(spark: SparkSession, broker: BrokerProcess, mq: towline.Client) -> None:
    mq.send_many("orders", [b"1", b"2"])
    with mq.consumer("orders", group="billing", name="c1") as consumer:
        batch = consumer.pull(max_messages=10, wait=60)
        batch.ack()
        consumer.flush()
    events = source(spark, broker).option("topic", "orders").option("kind", "events").load()
    assert events.where("event = 'acked'").selectExpr("sum(count)").collect()[0][0] == 2
    dead = source(spark, broker).option("topic", "orders").option("kind", "dead").load()
    assert dead.count() == 0
    assert "reason" in dead.columns


@pytest.mark.stores("log")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "missing"}, "there is no topic missing at towline://"),
        ({"topic": "orders", "form": "5"}, "there is no option form: did you mean from?"),
        ({"topic": "orders", "url": "towline://127.0.0.1:1", "timeout": "0.2"}, "127.0.0.1:1 cannot be reached"),
    ],
)
def test_what_is_wrong_is_named_shortly(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of several types, all Spark's
        source(spark, broker).options(**options).load().count()
    text = str(caught.value)
    assert message in text
    assert len(text.splitlines()) < 60, text


def test_permission_denied_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with BrokerProcess(**declared(tmp_path, shop="s3cret-of-the-shop")) as broker:
        reader = source(spark, broker).option("topic", "orders").option("token", "shop").option("secret", "wrong-one")
        with pytest.raises(Exception, match="this broker asks for a token and its secret") as caught:
            reader.load().count()
        assert "wrong-one" not in str(caught.value)


@pytest.mark.stores("log")
def test_damage_fails_the_query_unless_it_is_to_be_skipped(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    fill(mq, "orders", 40_000)
    mq.close()
    log = sorted((tmp_path / "data" / "log").glob("*.log"))[0]
    with log.open("r+b") as file:
        file.seek(100_000)
        file.write(b"damaged!")
    reader = source(spark, broker).option("topic", "orders")
    with pytest.raises(Exception, match=r"records \d+ to \d+ cannot be read.*skipDamaged=true"):
        reader.load().count()
    assert reader.option("skipDamaged", "true").load().count() == 39_500
