"""Two brokers on one database are read and written as one, whichever of them has a topic, and if one of them goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import towline
from tests.spark.session import run_to_end
from tests.store.sql.server import mariadb, new_database
from tests.system.cluster.conftest import Brokers, eventually
from towline.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 400
TOPICS = [f"orders.{number}" for number in range(6)]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    made = Brokers(tmp_path_factory.mktemp("brokers"), 2, "--realms", "8", stores=[new_database()] * 2)
    try:
        made.start().wait_for()
        eventually(lambda: len(holders(made)) == 2, 60)
        yield made
    finally:
        made.close()


def holders(brokers: Brokers) -> set[str]:
    """The brokers that have a part of the database."""
    database = brokers.stores[0].rpartition("/")[2]
    rows = mariadb().sql("SELECT address FROM mq_realm WHERE expires_at > NOW(6) AND address <> ''", database)
    return {row[0] for row in rows}


def numbers(rows: list[Any]) -> list[int]:
    return sorted(int(bytes(row.body)) for row in rows)


def test_rows_go_in_and_out_once_through_all_four_doors(spark: SparkSession, brokers: Brokers, tmp_path: Path) -> None:
    register(spark)
    rows = spark.range(COUNT).selectExpr("string(id) as body", "concat('orders.', id % 6) as topic").repartition(3)
    write = rows.write.format("towline").mode("append").options(url=brokers.url, txnId="one")
    for _ in range(2):  # the second changes nothing
        write.save()
    for url in (brokers.url, f"towline://{brokers.address(1)}"):
        found = spark.read.format("towline").options(url=url, topic="orders.*").load().collect()
        assert numbers(found) == list(range(COUNT))
        assert {row.topic for row in found} == set(TOPICS)

    def copy() -> None:
        live = spark.readStream.format("towline").options(url=brokers.url, topic="orders.*", maxMessagesPerTrigger=150)
        sink = live.load().selectExpr("body", "concat('copy.', topic) as topic").repartition(2).writeStream
        sink = sink.format("towline").options(url=brokers.url, checkpointLocation=str(tmp_path / "check"))
        run_to_end(sink.trigger(availableNow=True).start)

    def copies() -> list[int]:
        return numbers(spark.read.format("towline").options(url=brokers.url, topic="copy.*").load().collect())

    copy()
    assert copies() == list(range(COUNT))
    # As if the driver had died between the brokers' commit and Spark's own; and one of the brokers with it.
    last = max((tmp_path / "check" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()
    brokers.kill(0)
    with towline.connect(f"towline://{brokers.address(1)}", timeout=60) as mq:
        for topic in TOPICS:
            mq.send_many(topic, [b"%d" % n for n in range(COUNT, COUNT + 10)])
    copy()
    assert copies() == sorted([*range(COUNT), *(list(range(COUNT, COUNT + 10)) * 6)])
