"""`towline send --delay` and `towline delay`."""

from __future__ import annotations

import towline
from tests.cli.conftest import Cli
from tests.eventually import eventually
from tests.inside.cli import about


def test_a_message_is_sent_for_later(cli: Cli, mq: towline.Client, topic: str) -> None:
    begun = cli("send", topic, "soon", "--delay", "200ms").text
    assert begun.startswith(f"{topic}/delay/")
    eventually(lambda: len(mq.browse(topic)))
    assert mq.browse(topic)[0].body == b"soon"
    receipts = cli("send", topic, "--delay-level", "18", "-o", "json", input=b"a\nb\n").lines
    assert [receipt["lane"] for receipt in receipts] == ["delay", "delay"]
    cli("send", topic, "far", "--at", "2099-05-01T12:00Z")
    assert [entry.deliver_at.year for entry in mq.delayed(topic)][-1] == 2099


def test_what_waits_is_listed_soonest_first(cli: Cli, topic: str) -> None:
    assert "no delayed messages" in cli("delay", "ls", topic).err + cli("delay", "ls", topic).text
    for delay in ("3h", "1h", "2h"):
        cli("send", topic, delay, "--delay", delay, "--key", delay)
    lines = cli("delay", "ls", topic, "-o", "json").lines
    assert [line["key"] for line in lines] == ["1h", "2h", "3h"]
    assert lines[0].keys() == {"id", "topic", "lane", "priority", "deliver_at", "produced_at", "key", "size_bytes"}
    text = cli("delay", "ls", topic, "-n", "2")
    assert lines[1]["id"] in text.text
    assert "there are more" in text.err
    assert cli("topic", "info", topic, "-o", "json").line["delayed"] == 3
    assert "delayed" in cli("topic", "info", topic).text


def test_messages_are_cancelled_and_moved(cli: Cli, mq: towline.Client, topic: str) -> None:
    one = cli("send", topic, "one", "--delay", "1h").text.strip()
    cli("send", topic, "--key", "k", "--delay", "1h", input=b"a\nb\n")
    assert cli("delay", "cancel", topic, "--key", "k", "--dry-run", "-o", "json").line == {
        "topic": topic,
        "cancelled": 0,
        "found": 2,
        "dry_run": True,
    }
    assert cli("delay", "cancel", topic, "--key", "k").text == "cancelled 2 delayed messages\n"
    assert cli("delay", "move", topic, one, "--delay", "2h", "--dry-run").text == "would move 1 delayed message\n"
    assert cli("delay", "move", topic, one, "--delay", "0s", "-o", "json").line["moved"] == 1
    eventually(lambda: len(mq.browse(topic)))
    short = one.removeprefix(f"{topic}/")
    for name in (one, short, short.removeprefix("delay/")):
        assert "does not wait any more" in cli("delay", "cancel", topic, name, code=1).err


def test_how_long_it_waits_is_told_in_two_units() -> None:
    lengths = {-1: "0s", 0.4: "0s", 59: "59s", 60: "1m 0s", 7_193: "1h 59m", 86_400: "1d 0h", 3_902_066: "45d 3h"}
    assert {seconds: about(seconds) for seconds in lengths} == lengths


def test_wrong_calls_are_explained(cli: Cli, topic: str) -> None:
    assert "one of them" in cli("send", topic, "x", "--delay", "1s", "--delay-level", "2", code=2).err
    assert "is not a time" in cli("send", topic, "x", "--at", "tomorrow", code=2).err
    assert "say which" in cli("delay", "cancel", topic, code=2).err
    assert "say when" in cli("delay", "move", topic, "--key", "k", code=2).err


def test_find_shows_what_is_still_delayed(cli: Cli, mq: towline.Client, topic: str) -> None:
    waiting = mq.send(topic, b"later", key="a", delay=3_600)
    mq.send(topic, b"now", key="a")
    text = cli("find", topic, "--key", "a").text
    assert waiting.id in text
    assert "DELAYED, due " in text
    assert f"{topic}/middle/0" in text
    lines = cli("find", topic, "--key", "a", "-o", "json").lines
    assert [line.get("status") for line in lines] == [None, "DELAYED"]
    assert cli("find", topic, "--id", waiting.id, "-o", "json").line["status"] == "DELAYED"
    mq.cancel(topic, waiting)
    assert "does not wait any more" in cli("find", topic, "--id", waiting.id, code=1).err
    assert "DELAYED" not in cli("find", topic, "--key", "a").text


def test_find_and_trace_follow_a_delayed_message_to_its_lane(cli: Cli, mq: towline.Client, topic: str) -> None:
    sent = mq.send(topic, b"later", delay=0.05)
    still = mq.send(topic, b"much later", delay=3_600)
    with mq.consumer(topic, group="g") as consumer:
        consumer.pull(wait=30).ack()
    arrived = f"{topic}/middle/0"
    for name in (sent.id, sent.id.removeprefix(f"{topic}/")):
        assert cli("find", topic, "--id", name, "-o", "json").line["id"] == arrived
    text = cli("trace", sent.id).text
    assert text.startswith(f"{arrived}  later")
    assert f"put into its lane; it waited as {sent.id}" in text
    assert "group g: SUCCESS" in text
    life = cli("trace", sent.id, "-o", "json").line
    assert (life["id"], life["delay_id"]) == (arrived, sent.id)
    assert cli("trace", arrived, "-o", "json").line["delay_id"] is None
    assert "still waits for its time" in cli("trace", still.id, code=1).err
