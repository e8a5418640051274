"""`towline topic`, `towline group` and `towline dead`."""

from __future__ import annotations

import os
import pty

import pytest

import towline
from tests.cli.conftest import Cli
from tests.eventually import eventually
from towline.model import GroupConfig


def row(text: str, first: str) -> list[str]:
    """The cells of the table's row that begins with this cell."""
    (found,) = [line.split() for line in text.splitlines() if line.split()[:1] == [first]]
    return found


# --- topics


def test_topics_are_made_listed_shown_and_removed(cli: Cli, mq: towline.Client, topic: str) -> None:
    name = f"{topic}-new"
    assert cli("topic", "create", name, "--retention", "2d").text == ""
    mq.send_many(name, [b"abc"] * 1_500, priority="low")
    assert row(cli("topic", "ls").text, name)[1] == "1,500"
    assert "2d" in cli("topic", "info", name).text
    assert row(cli("topic", "info", name).text, "low")[1:4] == ["0", "1,500", "1,500"]
    facts = cli("topic", "info", name, "-o", "json").line
    assert (facts["topic"], facts["messages"], facts["retention_s"]) == (name, 1_500, 2 * 86400)
    assert {"lane": "high", "first": 0, "end": 0, "size_bytes": 0} in facts["lanes"]
    assert facts in cli("topic", "ls", "-o", "json").lines
    assert cli("topic", "rm", name, "--yes").text == ""
    assert cli("topic", "info", name, code=1).err.startswith("error: ")


def test_a_topic_and_the_template_are_edited(cli: Cli, mq: towline.Client, topic: str) -> None:
    assert cli("topic", "edit", topic, "--retention", "7d", "-o", "json").line["retention_s"] == 7 * 86400
    assert mq.topic(topic).config.retention_s == 7 * 86400
    assert "7d" in cli("topic", "edit", topic).text
    assert "broker's" in cli("topic", "edit", topic, "--broker-retention").text
    assert "which" in cli("topic", "edit", code=2).err
    cli("topic", "edit", "--template", "--retention", "3d")
    try:
        mq.send(f"{topic}-auto", b"x")
        assert mq.topic(f"{topic}-auto").config.retention_s == mq.template().retention_s == 3 * 86400
        mq.delete_topic(f"{topic}-auto")
    finally:
        cli("topic", "edit", "--template", "--broker-retention")


def test_a_topic_cannot_be_made_twice(cli: Cli, topic: str) -> None:
    assert cli("topic", "create", topic, code=1).err.startswith("error: ")


def test_where_nobody_can_be_asked_nothing_is_removed(cli: Cli, mq: towline.Client, topic: str) -> None:
    assert "--yes" in cli("topic", "rm", topic, code=2).err
    mq.put_group(GroupConfig(topic, "g"))
    assert "--yes" in cli("group", "rm", topic, "g", code=2).err
    assert mq.topic(topic).groups == ["g"]


def test_a_dry_run_removes_nothing_and_says_what_would_go(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send_many(topic, [b"abc"] * 3)
    mq.put_group(GroupConfig(topic, "g"))
    asked = cli("group", "rm", topic, "g", "--dry-run").text
    assert asked == f"would remove group g of topic {topic}, with 3 messages to go and 0 dead\n"
    assert cli("topic", "rm", topic, "--dry-run").text == f"would remove topic {topic} with 3 messages and 1 group\n"
    facts = cli("topic", "rm", topic, "--dry-run", "-o", "json").line
    assert (facts["messages"], facts["groups"], facts["dry_run"]) == (3, ["g"], True)
    assert mq.topic(topic).groups == ["g"]
    facts = cli("group", "rm", topic, "g", "--yes", "-o", "json").line
    assert (facts["group"], facts["lag"], facts["dry_run"]) == ("g", 3, False)
    assert cli("topic", "rm", topic, "--yes", "-o", "json").line["dry_run"] is False
    assert topic not in [state.config.name for state in mq.topics()]


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1)])
def test_on_a_terminal_it_asks_before_it_removes(
    cli: Cli, mq: towline.Client, topic: str, answer: bytes, code: int
) -> None:
    mq.send(topic, b"x")
    ours, theirs = pty.openpty()
    with cli.start("topic", "rm", topic, stdin=theirs) as process:
        os.close(theirs)
        os.write(ours, answer)
        _, err = process.communicate()
    os.close(ours)
    assert f"Remove topic {topic} with 1 message and 0 groups? [y/N]".encode() in err
    assert process.returncode == code
    assert (topic in [state.config.name for state in mq.topics()]) == (code == 1)


# --- groups


def test_groups_are_made_changed_shown_and_removed(cli: Cli, mq: towline.Client, topic: str) -> None:
    cli("group", "create", topic, "g", "--retry-delays", "1s,2m", "--max-attempts", "5", "--timeout", "30s")
    cli("group", "create", topic, "g", "--max-in-flight", "10", "--max-attempts", "6")
    facts = cli("group", "info", topic, "g", "-o", "json").line
    wanted = {"max_attempts": 6, "retry_delays_s": [1, 120], "timeout_s": 30, "max_in_flight": 10, "start": "earliest"}
    assert facts | wanted == facts
    text = cli("group", "info", topic, "g").text
    assert "1s, 2m" in text
    assert "30s" in text
    assert row(cli("group", "ls", topic).text, topic)[1] == "g"
    assert cli("group", "ls", topic, "-o", "json").line["group"] == "g"
    cli("group", "rm", topic, "g", "--yes")
    assert mq.groups(topic) == []
    assert cli("group", "info", topic, "g", code=1).err.startswith("error: ")


def test_a_new_group_can_begin_at_the_end(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send(topic, b"x")
    cli("group", "create", topic, "g", "--start", "latest")
    assert mq.group(topic, "g").lag == 0


def test_lag_tells_what_waits_flies_retries_and_died(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send_many(topic, [b"%d" % number for number in range(10)])
    with mq.consumer(topic, group="slow") as consumer:
        first, second, *rest = consumer.pull(max_messages=5, wait=60)
        first.nack("not now", delay=3600)
        second.dead("never")
        consumer.flush()
        eventually(lambda: mq.group(topic, "slow").dead == 1)
        line = row(cli("group", "lag", topic).text, topic)
        facts = cli("group", "lag", topic, "-o", "json").line
        shown = cli("group", "info", topic, "slow").text
    assert len(rest) == 3
    assert line == [topic, "slow", "9", "3", "1", "1", "1"]
    assert (facts["lag"], facts["in_flight"], facts["retrying"], facts["dead"]) == (9, 3, 1, 1)
    assert facts["next_retry_at"]
    assert "127.0.0.1" in shown


def test_groups_of_all_topics_can_be_listed(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.put_group(GroupConfig(topic, "here"))
    assert [facts["group"] for facts in cli("group", "lag", "-o", "json").lines if facts["topic"] == topic] == ["here"]


def test_an_empty_list_says_so_on_stderr(cli: Cli, topic: str) -> None:
    result = cli("group", "ls", topic)
    assert (result.out, result.err) == (b"", "no groups\n")


# --- dead letters


def kill(mq: towline.Client, topic: str, bodies: list[bytes]) -> None:
    mq.send_many(topic, bodies, keys=[f"key-{number}" for number in range(len(bodies))])
    with mq.consumer(topic, group="g") as consumer:
        left = len(bodies)
        while left:
            for message in consumer.pull(wait=60):
                message.dead(f"cannot bill {message.body.decode('utf-8', 'replace')}")
                left -= 1
    eventually(lambda: mq.group(topic, "g").dead == len(bodies))


def test_dead_letters_are_listed_with_their_story(cli: Cli, mq: towline.Client, topic: str) -> None:
    kill(mq, topic, [b"one", b"\xff\x1b[0m"])
    lines = cli("dead", "ls", topic, "g", "-o", "json").lines
    assert [line["number"] for line in lines] == [0, 1]
    assert lines[0]["origin"] == f"{topic}/middle/0"
    assert (lines[0]["reason"], lines[0]["attempt"], lines[0]["key"]) == ("cannot bill one", 1, "key-0")
    assert (lines[0]["body"], lines[0]["encoding"], lines[1]["encoding"]) == ("one", "utf-8", "base64")
    assert lines[0]["died_at"].endswith("Z")
    text = cli("dead", "ls", topic, "g").text
    assert "cannot bill one" in text
    assert "\x1b" not in text


def test_dead_letters_are_resent_by_number_and_all(cli: Cli, mq: towline.Client, topic: str) -> None:
    kill(mq, topic, [b"0", b"1", b"2", b"3"])
    assert cli("dead", "resend", topic, "g", "2").text == "resent 1 dead letter, 3 left\n"
    assert [line["number"] for line in cli("dead", "ls", topic, "g", "-o", "json").lines] == [0, 1, 3]
    assert [line["resent"] for line in cli("dead", "ls", topic, "g", "--all", "-o", "json").lines][2] is True
    assert cli("dead", "resend", topic, "g", "--all", "--limit", "1", "-o", "json").line["left"] == 2
    assert cli("dead", "resend", topic, "g", "--all", "-o", "json").line == {
        "topic": topic,
        "group": "g",
        "resent": 2,
        "left": 0,
    }
    again = cli("consume", topic, "-g", "g", "-n", "4").out.split()
    assert sorted(again) == [b"0", b"1", b"2", b"3"]
    assert cli("dead", "resend", topic, "g", "--all").text == "resent 0 dead letters, 0 left\n"


def test_a_long_list_of_dead_letters_is_cut_and_says_so(cli: Cli, mq: towline.Client, topic: str) -> None:
    kill(mq, topic, [b"x"] * 5)
    result = cli("dead", "ls", topic, "g", "--limit", "2", "-o", "json")
    assert [line["number"] for line in result.lines] == [0, 1]
    assert "--first 2" in result.err
    assert [line["number"] for line in cli("dead", "ls", topic, "g", "--first", "3", "-o", "json").lines] == [3, 4]


def test_no_group_is_an_error(cli: Cli, topic: str) -> None:
    assert cli("dead", "ls", topic, "nobody", code=1).err.startswith("error: ")
    assert cli("dead", "resend", topic, "nobody", "--all", code=1).err.startswith("error: ")


def test_dead_letters_are_filtered_counted_shown_and_exported(cli: Cli, mq: towline.Client, topic: str) -> None:
    kill(mq, topic, [b"one", b"two", b"two"])
    assert [line["number"] for line in cli("dead", "ls", topic, "g", "--reason", "two", "-o", "json").lines] == [1, 2]
    assert [line["number"] for line in cli("dead", "ls", topic, "g", "--key", "key-2", "-o", "json").lines] == [2]
    assert cli("dead", "ls", topic, "g", "--until", "1h", "-o", "json").lines == []
    assert len(cli("dead", "ls", topic, "g", "--since", "1h", "-o", "json").lines) == 3
    assert cli("dead", "count", topic, "g", "-o", "json").lines[0] == {"reason": "cannot bill two", "count": 2}
    assert "cannot bill one" in cli("dead", "count", topic, "g").text
    assert "cannot bill one" in cli("dead", "show", topic, "g", "0").text
    assert cli("dead", "show", topic, "g", "0", "-o", "json").line["body"] == "one"
    assert "no dead letter 9" in cli("dead", "show", topic, "g", "9", code=1).err
    assert [line["body"] for line in cli("dead", "export", topic, "g").lines] == ["one", "two", "two"]
    assert "--since" in cli("dead", "ls", topic, "g", "--since", "noon", code=2).err


def test_the_stack_of_a_reason_is_shown_with_its_letter_only(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send_many(topic, [b"one", b"two"])
    with mq.consumer(topic, group="g") as consumer:
        for line, message in enumerate(consumer.pull(wait=60)):
            message.dead(f"ValueError: no\n  shop.py:{line} bill: raise")
    assert cli("dead", "count", topic, "g", "-o", "json").line == {"reason": "ValueError: no", "count": 2}
    assert "shop.py" not in cli("dead", "ls", topic, "g").text + cli("trace", f"{topic}/middle/0").text
    assert "shop.py:1" in cli("dead", "ls", topic, "g", "-o", "json").lines[1]["reason"]
    reason = [line for line in cli("dead", "show", topic, "g", "0").text.splitlines() if "no" in line or "shop" in line]
    assert [line.split(maxsplit=1) for line in reason if "ValueError" in line] == [["reason", "ValueError: no"]]
    assert any(line.strip() == "shop.py:0 bill: raise" for line in reason)


def test_dead_letters_are_resent_by_filter_and_at_a_rate(cli: Cli, mq: towline.Client, topic: str) -> None:
    kill(mq, topic, [b"one", b"two", b"two", b"one"])
    assert (
        cli("dead", "resend", topic, "g", "--reason", "one", "--dry-run").text == "would resend 2 of 4 dead letters\n"
    )
    facts = cli("dead", "resend", topic, "g", "--reason", "one", "--rate", "50", "-o", "json").line
    assert (facts["resent"], facts["left"]) == (2, 2)
    assert "which" in cli("dead", "resend", topic, "g", "--all", "--reason", "one", code=2).err
    assert "rate" in cli("dead", "resend", topic, "g", "--all", "--rate", "0", code=2).err
    assert cli("consume", topic, "-g", "g", "-n", "2").out.split() == [b"one", b"one"]


def test_a_dead_letter_is_edited_and_resent(cli: Cli, mq: towline.Client, topic: str) -> None:
    kill(mq, topic, [b"one"])
    assert "what to change" in cli("dead", "edit", topic, "g", "0", code=2).err
    assert "NAME=VALUE" in cli("dead", "edit", topic, "g", "0", "--header", "x", code=2).err
    cli("dead", "edit", topic, "g", "0", "--body", "mended", "--key", "new", "--header", "a=b")
    line = cli("consume", topic, "-g", "g", "-n", "1", "-o", "json").line
    assert (line["body"], line["key"], line["headers"]["a"]) == ("mended", "new", "b")
    assert line["id"] == f"{topic}/middle/0", "it is still the message that it was"
    assert "already" in cli("dead", "edit", topic, "g", "0", "--body", "again", code=1).err


def test_dead_letters_are_purged(cli: Cli, mq: towline.Client, topic: str) -> None:
    kill(mq, topic, [b"0", b"1", b"2"])
    assert cli("dead", "purge", topic, "g", "--before", "1", "--dry-run").text == "would drop 1 of 3 dead letters\n"
    assert "--yes" in cli("dead", "purge", topic, "g", "--all", code=2).err
    assert cli("dead", "purge", topic, "g", "--until", "1h", "--yes", "-o", "json").line["purged"] == 0
    assert cli("dead", "purge", topic, "g", "--before", "1", "--yes").text == "dropped 1, 2 left\n"
    assert cli("dead", "purge", topic, "g", "--all", "--yes", "-o", "json").line["left"] == 0
    assert "which" in cli("dead", "purge", topic, "g", code=2).err


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--max-attempts", "0", "--max-attempts is between 1 and 10,000, not 0"),
        ("--max-in-flight", "0", "--max-in-flight is between 1 and 10,000,000, not 0"),
        ("--retry-delays", "900d", "--retry-delays: give 1 to 100 of them, each between 0 seconds and a year"),
    ],
)
def test_group_settings_out_of_bounds_name_the_flag(cli: Cli, flag: str, value: str, said: str) -> None:
    assert cli("group", "create", "t", "g", flag, value, code=2).err == f"error: {said}\n"
