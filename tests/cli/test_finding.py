"""`towline trace` and `towline find`."""

from __future__ import annotations

import towline
from tests.cli.conftest import Cli


def test_a_trace_is_a_timeline_for_people_and_json_for_programs(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send(topic, b"hello", key="k1")
    with mq.consumer(topic, group="billing", name="anna") as consumer:
        (message,) = consumer.pull(wait=10)
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
