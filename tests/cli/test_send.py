"""`towline send`: from an argument, from stdin, from files."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import pytest

import towline
from tests.cli.conftest import Cli


def bodies(mq: towline.Client, topic: str, priority: towline.model.Priority = "middle") -> list[bytes]:
    return [message.body for message in mq.browse(topic, priority, first=0, max_messages=100_000)]


def test_an_argument_is_a_message(cli: Cli, mq: towline.Client, topic: str) -> None:
    assert cli("send", topic, "grüße").text == f"{topic}/middle/0\n"
    assert bodies(mq, topic) == ["grüße".encode()]


def test_a_receipt_can_be_read_by_a_program(cli: Cli, topic: str) -> None:
    receipt = cli("send", topic, "x", "-o", "json").line
    assert receipt | {"appended_at": ""} == {
        "id": f"{topic}/middle/0",
        "topic": topic,
        "lane": "middle",
        "seq": 0,
        "appended_at": "",
    }
    assert receipt["appended_at"].endswith("Z")


def test_key_headers_and_priority_go_along(cli: Cli, mq: towline.Client, topic: str) -> None:
    cli("send", topic, "x", "--key", "k-1", "-H", "a=1", "--header", "b=2=3", "-p", "high", "--durability", "fsync")
    (message,) = mq.browse(topic, "high", first=0, max_messages=10)
    assert (message.key, message.headers) == ("k-1", {"a": "1", "b": "2=3"})


@pytest.mark.parametrize("arguments", [(), ("-",), ("-", "--key", "k")])
def test_each_line_of_stdin_is_a_message(cli: Cli, mq: towline.Client, topic: str, arguments: tuple[str, ...]) -> None:
    assert cli("send", topic, *arguments, input=b"one\n\ntwo \xff\nlast").text == "sent 4 messages\n"
    assert bodies(mq, topic) == [b"one", b"", b"two \xff", b"last"]


def test_many_lines_go_in_batches_and_keep_their_order(cli: Cli, mq: towline.Client, topic: str) -> None:
    lines = [f"line {number}".encode() for number in range(12_345)]
    receipts = cli("send", topic, "-o", "json", input=b"\n".join(lines) + b"\n").lines
    assert [receipt["seq"] for receipt in receipts] == list(range(12_345))
    assert bodies(mq, topic) == lines


def test_lines_are_sent_as_they_come(cli: Cli, topic: str) -> None:
    with cli.start("send", topic, "-o", "json") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(3):
            process.stdin.write(b"line\n")
            process.stdin.flush()
            assert f'"seq":{number}'.encode() in process.stdout.readline()
        process.stdin.close()
        assert process.wait() == 0


def test_stdin_can_be_one_message(cli: Cli, mq: towline.Client, topic: str) -> None:
    assert cli("send", topic, "--whole", input=b"a\nb\n").text == f"{topic}/middle/0\n"
    assert bodies(mq, topic) == [b"a\nb\n"]


def test_no_stdin_at_all_sends_nothing(cli: Cli, topic: str) -> None:
    assert cli("send", topic).text == "sent 0 messages\n"


def test_each_file_is_a_message(cli: Cli, mq: towline.Client, topic: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"\x00" + name.encode())
    assert cli("send", topic, "--file", "a", "b").text == "sent 2 messages\n"
    assert bodies(mq, topic) == [b"\x00a", b"\x00b"]


def test_a_missing_file_is_an_error(cli: Cli, topic: str) -> None:
    assert cli("send", topic, "--file", "missing", code=1).err == "error: missing: No such file or directory\n"


def test_a_body_may_look_like_an_option_behind_two_hyphens(cli: Cli, mq: towline.Client, topic: str) -> None:
    cli("send", topic, "--", "--help")
    assert bodies(mq, topic) == [b"--help"]


def test_on_a_terminal_it_says_that_it_waits(cli: Cli, mq: towline.Client, topic: str) -> None:
    ours, theirs = pty.openpty()
    with cli.start("send", topic, stdin=theirs) as process:
        os.close(theirs)
        assert process.stderr is not None
        assert b"reading one message per line from the terminal" in process.stderr.readline()
        os.write(ours, b"typed\n\x04")
        assert process.wait() == 0
    os.close(ours)
    assert bodies(mq, topic) == [b"typed"]


def test_a_broker_that_is_not_there_is_one_line(cli: Cli) -> None:
    result = cli("send", "t", "x", "--url", "towline://127.0.0.1:1", "--patience", "200ms", code=1)
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1


def test_a_bad_topic_name_is_one_line(cli: Cli) -> None:
    assert cli("send", "No Such!", "x", code=2).err.startswith("error: topic ")
