"""`towline bench`: small runs of each kind."""

from __future__ import annotations

import pytest

import towline
from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "--count", "2500", "--batch", "1000"),
        ("produce", "--how", "producer", "--count", "2500"),
        ("produce", "--how", "single", "--count", "2500", "--durability", "os"),
        ("consume", "--count", "2500", "--batch", "100"),
        ("pubsub", "--count", "2500", "--size", "10"),
        ("latency", "--count", "2500", "--rate", "5000", "--size", "20"),
    ],
)
def test_each_kind_measures_and_cleans_up(cli: Cli, mq: towline.Client, arguments: tuple[str, ...]) -> None:
    facts = cli("bench", *arguments, "-o", "json").line
    assert facts["bench"] == arguments[0]
    assert facts["messages"] == 2500
    assert facts["messages_per_s"] > 0
    if "producer" not in arguments:
        times = facts["latency_ms"]
        assert 0 < times["p50"] <= times["p99"] <= times["p99.9"] <= times["max"]
    assert [state.config.name for state in mq.topics() if state.config.name.startswith("bench-")] == []


def test_text_is_for_people(cli: Cli) -> None:
    text = cli("bench", "latency", "--count", "50", "--rate", "1000").text
    assert "msg/s" in text
    assert "p99.9" in text


def test_a_time_can_be_set_instead_of_a_count(cli: Cli) -> None:
    facts = cli("bench", "produce", "--seconds", "0.2", "--rate", "10000", "--batch", "100", "-o", "json").line
    assert 0.15 < facts["seconds"] < 60
    assert 100 <= facts["messages"] <= 3000


def test_a_given_topic_is_kept(cli: Cli, mq: towline.Client, topic: str) -> None:
    cli("bench", "produce", "--count", "300", "--topic", topic)
    assert cli("bench", "consume", "--count", "200", "--topic", topic, "-o", "json").line["messages"] == 200
    assert sum(lane.end for lane in mq.topic(topic).lanes) == 300
    assert mq.groups(topic) == []


def test_a_broker_that_is_not_there_is_one_line(cli: Cli) -> None:
    assert cli("bench", "produce", "--url", "towline://127.0.0.1:1", "--patience", "200ms", code=1).err.startswith(
        "error: "
    )
