"""`towline trace` and `towline find`."""

from __future__ import annotations

import towline
from tests.cli.conftest import Cli


def test_a_trace_is_a_timeline_for_people_and_json_for_programs(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send(topic, b"hello", key="k1")
    with mq.consumer(topic, group="billing", name="anna") as consumer:
        (message,) = consumer.pull(wait=60)
        message.dead("no such customer")
        consumer.flush()
    lines = cli("trace", f"{topic}/middle/0").text.splitlines()
    assert lines[0] == f"{topic}/middle/0  hello  key k1"
    assert lines[1].endswith("sent from 127.0.0.1")
    assert lines[3].endswith("pulled by anna, attempt 1")
    assert lines[4].endswith("given up after attempt 1: no such customer")
    facts = cli("trace", f"{topic}/middle/0", "-o", "json").line
    assert facts["message"]["body"] == "hello"
    assert facts["groups"][0]["group"] == "billing"
    assert [step["what"] for step in facts["groups"][0]["steps"]][:2] == ["pulled", "gaveup"]
    assert "yet" in cli("trace", f"{topic}/middle/1", "--group", "billing", code=1).err


def test_messages_are_found_by_id_key_and_time(cli: Cli, mq: towline.Client, topic: str) -> None:
    for key in ("a", "b", "a"):
        mq.send(topic, key.encode(), key=key, priority="high" if key == "b" else "middle")
    assert cli("find", topic, "--id", f"{topic}/high/0", "-o", "json").line["body"] == "b"
    assert cli("find", topic, "--id", "middle/1", "-o", "json").line["key"] == "a"
    assert [line["seq"] for line in cli("find", topic, "--key", "a", "-o", "json").lines] == [0, 1]
    assert len(cli("find", topic, "--since", "1h", "-o", "json").lines) == 3
    assert cli("find", topic, "--until", "1h", "-o", "json").lines == []
    assert f"{topic}/middle/1" in cli("find", topic, "--key", "a").text
    assert "not there yet" in cli("find", topic, "--id", "middle/9", code=1).err
    assert "--id" in cli("find", topic, code=2).err
    assert "--since" in cli("find", topic, "--since", "noon", code=2).err
