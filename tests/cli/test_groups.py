"""`towline group reset|pause|resume`, `towline topic edit|purge`, and ordered topics."""

from __future__ import annotations

import towline
from tests.cli.conftest import Cli
from towline.model import GroupConfig


def test_a_group_is_reset_after_a_dry_run(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send_many(topic, [b"0", b"1", b"2"])
    cli("consume", topic, "-g", "g", "-n", "3")
    trial = cli("group", "reset", topic, "g", "--to", "earliest", "--dry-run", "-o", "json").line
    assert (trial["again"], trial["passed"], trial["dry_run"]) == (3, 0, True)
    assert (
        "3 messages would be delivered again" in cli("group", "reset", topic, "g", "--to", "middle=0", "--dry-run").text
    )
    assert cli("group", "reset", topic, "g", "--to", "middle=1", code=2).err, "nobody can be asked"
    assert cli("group", "reset", topic, "g", "--to", "middle=1", "--yes", "-o", "json").line["again"] == 2
    assert cli("consume", topic, "-g", "g", "-n", "2").out.split() == [b"1", b"2"]
    for wrong in ("nowhere", "17", "purple=1"):
        assert cli("group", "reset", topic, "g", "--to", wrong, "-y", code=2).err


def test_a_group_is_paused_and_resumed(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.put_group(GroupConfig(topic, "g"))
    cli("group", "pause", topic, "g", "--reason", "deploying")
    facts = cli("group", "info", topic, "g", "-o", "json").line
    assert (facts["paused"], facts["pause_reason"]) == (True, "deploying")
    assert "deploying" in cli("group", "info", topic, "g").text
    cli("group", "resume", topic, "g")
    assert cli("group", "info", topic, "g", "-o", "json").line["paused"] is False
    facts = cli("group", "pause", topic, "g", "--reason", "again", "-o", "json").line
    assert facts == {"topic": topic, "group": "g", "paused": True, "reason": "again"}
    assert cli("group", "resume", topic, "g", "-o", "json").line == {"topic": topic, "group": "g", "paused": False}


def test_a_topic_is_edited_and_purged(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send_many(topic, [b"0", b"1", b"2"])
    cli("topic", "edit", topic, "--retention", "2h")
    assert cli("topic", "info", topic, "-o", "json").line["retention_s"] == 7200
    cli("topic", "edit", topic, "--retention", "default")
    assert cli("topic", "info", topic, "-o", "json").line["retention_s"] is None
    assert cli("topic", "purge", topic, "--dry-run", "-o", "json").line["messages"] == 3
    assert cli("topic", "purge", topic, "--yes").text.startswith("3 messages")
    assert cli("topic", "info", topic, "-o", "json").line["messages"] == 0


def test_an_ordered_topic_is_made_and_sent_to(cli: Cli, topic: str) -> None:
    cli("topic", "create", f"{topic}-ordered", "--shards", "8")
    assert cli("topic", "info", f"{topic}-ordered", "-o", "json").line["shards"] == 8
    sent = cli("send", f"{topic}-ordered", "one", "--shard-key", "k", "-o", "json").line
    assert sent["lane"].isdigit()
    assert cli("consume", f"{topic}-ordered", "--peek", "-o", "json").line["lane"] == sent["lane"]
    assert "shard_key" in cli("send", f"{topic}-ordered", "one", code=1).err
    together = cli("send", f"{topic}-ordered", "two", "--shard-key", "k", "--transaction", "-o", "json").line
    assert together["lane"] == sent["lane"]
    assert cli("trace", sent["id"], "-o", "json").line["id"] == sent["id"]
    late = cli("send", f"{topic}-ordered", "late", "--shard-key", "k", "--delay", "1h", "-o", "json").line
    assert late["lane"] == "delay"
    assert cli("delay", "ls", f"{topic}-ordered", "-o", "json").line["lane"] == sent["lane"]


def test_a_groups_way_of_delivering_is_chosen(cli: Cli, mq: towline.Client, topic: str) -> None:
    cli("group", "create", topic, "g", "--backoff", "1s,2,10m,0.2", "--mode", "at-most-once", "--expired-to-dead")
    facts = cli("group", "info", topic, "g", "-o", "json").line
    assert (facts["mode"], facts["expired_to_dead"]) == ("at-most-once", True)
    assert (facts["retry"]["kind"], facts["retry"]["cap_s"], facts["retry"]["jitter"]) == ("exponential", 600, 0.2)
    assert "from 1s by 2 up to 10m, jitter 0.2" in cli("group", "info", topic, "g").text
    cli("group", "create", topic, "g", "--retry-delays", "5s", "--share", "none", "--no-expired-to-dead")
    facts = cli("group", "info", topic, "g", "-o", "json").line
    assert (facts["retry"]["kind"], facts["share"], facts["expired_to_dead"]) == ("delays", [], False)
    for wrong in (("--backoff", "soon"), ("--share", "1;2")):
        assert cli("group", "create", topic, "g", *wrong, code=2).err


def test_a_message_with_a_short_life_is_not_consumed(cli: Cli, topic: str) -> None:
    cli("send", topic, "old", "--ttl", "1ms")
    cli("send", topic, "new", "--ttl", "1h")
    assert cli("consume", topic, "-g", "g", "--no-follow").out == b"new\n"
