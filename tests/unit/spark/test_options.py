"""Options and schemas that cannot be: the error names which, and what to do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from towline.errors import TowlineError
from towline.spark.arrow.to_frames import check_columns
from towline.spark.options import ReadOptions, WriteOptions

URL = {"url": "towline://127.0.0.1:7400"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "orders", "form": "5"}, "there is no option form: did you mean from?"),
        ({"topic": "orders", "weather": "fine"}, "there is no option weather; there are: url"),
        ({"topic": "orders", "from": "yesterday"}, "option from='yesterday': give earliest"),
        ({"topic": ""}, "no topic: give one"),
        ({"topic": "Orders"}, "use 1 to 50 lower-case letters"),
        ({"topic": "orders", "rowsPerPartition": "many"}, "option rowsPerPartition='many': give a whole number"),
        ({"topic": "orders", "batchRows": "0"}, "option batchRows='0': give a whole number, at least 1"),
        ({"topic": "orders", "skipDamaged": "perhaps"}, "option skipDamaged='perhaps': give true or false"),
        ({"topic": "orders", "kind": "deaf"}, "there is no kind 'deaf' of stream"),
        ({"topic": "orders", "columns": "seq,key,seq"}, "option columns: 'seq' is named twice"),
        ({"topic": "orders", "path": "/tmp"}, "give one of the options url"),
        ({"topic": "orders", "url": ""}, "give one of the options url"),
        ({"topic": "orders", "url": "http://127.0.0.1:1"}, "option url: give towline://host:port"),
        ({"topic": "orders", "timeout": "soon"}, "option timeout='soon': give seconds"),
        ({"topic": "orders", "group": "billing,audit"}, "option group: with messages, name one group"),
        (
            {"topic": "orders", "url": "", "path": "/data", "broker": "b1"},
            "option broker: it chooses",
        ),
        ({"topic": "orders", "url": "", "path": "/data", "progressGroup": "g"}, "progress is told to a broker"),
        ({"topic": "orders", "lane": "hihg"}, "option lane='hihg': give high, middle, low, or the number of a shard"),
        ({"topic": "orders", "kind": "dead", "lane": "high"}, "option lane: kind dead has no lanes"),
        ({"topic": "orders", "kind": "schedule", "group": "g"}, "option group: what waits for its time"),
        ({"topic": "orders", "kind": "schedule", "from": "7"}, "what waits for its time has no numbers"),
        ({"topic": "orders", "from": "latest"}, "option from=latest: nothing comes behind"),
        ({"topic": "orders", "to": "earliest"}, "option to=earliest: nothing comes before"),
        ({"topic": "orders", "from": "17", "to": "16"}, "option from: it is behind the option to"),
        ({"topic": "orders", "from": "9999-01-01"}, "option from: this time is in the future"),
    ],
)
def test_a_wrong_option_of_reading_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(TowlineError) as caught:
        ReadOptions.parse(URL | options, batch=True)
    assert message in str(caught.value)


def test_what_spark_adds_to_the_options_is_let_through() -> None:
    """`CREATE TABLE … USING towline` adds the provider."""
    ReadOptions.parse(URL | {"topic": "orders", "provider": "towline"}, batch=True)
    WriteOptions.parse(URL | {"topic": "orders", "provider": "towline"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "orders", "to": "17"}, "a stream has no end"),
        ({"topic": "orders", "kind": "events"}, "a stream reads messages"),
        ({"topic": "orders", "maxMessagesPerTrigger": "lots"}, "option maxMessagesPerTrigger='lots'"),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(TowlineError) as caught:
        ReadOptions.parse(URL | options, streaming=True)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "Bad Name"}, "use 1 to 50 lower-case letters"),
        ({"mode": "fast"}, "option mode='fast': give staged or direct"),
        ({"priority": "urgent"}, "option priority='urgent': give high, middle or low"),
        ({"durability": "paper"}, "durability 'paper' is not one of"),
        ({"txnId": "a b"}, "option txnId: use 1 to 100 letters"),
        ({"rerun": "never"}, "option rerun='never': give check or trust"),
        ({"broker": "b1"}, "there is no option broker"),
        ({"url": "", "path": "/data"}, "option path: messages are written to a broker"),
        ({"from": "17"}, "there is no option from"),
    ],
)
def test_a_wrong_option_of_writing_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(TowlineError) as caught:
        WriteOptions.parse(URL | options)
    assert message in str(caught.value)


def test_the_secret_is_not_shown() -> None:
    options = ReadOptions.parse(URL | {"topic": "orders", "token": "shop", "secret": "s3cret"})
    assert options.door.secret == "s3cret"
    assert "s3cret" not in repr(options)


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ([("body", pa.string()), ("number", pa.int64())], "t", "a message has no column 'number'"),
        ([("body", pa.int64())], "t", "column body is int64, but must be binary or string"),
        ([("key", pa.string())], "t", "there is no column body"),
        ([("body", pa.string())], "", "no topic: give the option topic"),
        ([("body", pa.string()), ("headers", pa.string())], "t", "column headers is string, but must be map<string"),
        (
            [("body", pa.string()), ("delay", pa.int64()), ("deliver_at", pa.timestamp("us"))],
            "t",
            "one of the columns delay and deliver_at",
        ),
    ],
)
def test_a_wrong_schema_for_writing_is_named(columns: list[Any], topic: str, message: str) -> None:
    with pytest.raises(TowlineError) as caught:
        check_columns(pa.schema(columns), topic)
    assert message in str(caught.value)
