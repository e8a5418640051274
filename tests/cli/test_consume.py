"""`towline consume`: formats, where to begin, when to end, and what counts as consumed."""

from __future__ import annotations

import base64
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import towline
from tests.cli.conftest import Cli, stop
from tests.eventually import eventually
from towline.model import GroupConfig

ENDS = ("--no-follow",)


def test_text_is_a_body_a_line(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send_many(topic, [b"one", "zwölf".encode(), b"\xff"])
    assert cli("consume", topic, *ENDS).out == b"one\nzw\xc3\xb6lf\n\xff\n"


def test_a_prefix_takes_all_topics_under_it(cli: Cli, mq: towline.Client, topic: str) -> None:
    for name in "ab":
        mq.send(f"{topic}.{name}", name.encode())
    mq.send(f"{topic}-other", b"c")
    lines = cli("consume", f"{topic}.*", "-g", "g", *ENDS, "-o", "json").lines
    assert sorted((line["topic"], line["body"]) for line in lines) == [(f"{topic}.a", "a"), (f"{topic}.b", "b")]
    lags = {line["topic"]: line["lag"] for line in cli("group", "lag", f"{topic}.*", "-o", "json").lines}
    assert lags == {f"{topic}.a": 0, f"{topic}.b": 0}
    assert "single topic" in cli("consume", f"{topic}.*", "--peek", code=2).err


def test_json_has_everything(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send(topic, b"hello", key="k", headers={"a": "b"}, priority="low")
    mq.send(topic, b"\xff\x00", priority="low")
    first, second = cli("consume", topic, *ENDS, "-o", "json").lines
    assert first["id"] == f"{topic}/low/0"
    assert first["body"] == "hello"
    assert first["encoding"] == "utf-8"
    assert (first["key"], first["headers"], first["attempt"], first["lane"]) == ("k", {"a": "b"}, 1, "low")
    assert first["source"] == "127.0.0.1"
    assert first["appended_at"] >= first["produced_at"][:19]
    assert second["encoding"] == "base64"
    assert base64.b64decode(second["body"]) == b"\xff\x00"


def test_raw_and_hex(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send_many(topic, [b"\x00a", b"b"])
    assert cli("consume", topic, *ENDS, "-o", "raw").out == b"\x00ab"
    assert cli("consume", topic, *ENDS, "-o", "hex").out == b"0061\n62\n"


def test_a_group_goes_on_where_it_stands(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send_many(topic, [b"1", b"2", b"3", b"4"])
    assert cli("consume", topic, "-g", "g", "-n", "1").out == b"1\n"
    assert cli("consume", topic, "-g", "g", "-n", "2").out == b"2\n3\n"
    assert cli("consume", topic, "-g", "g", *ENDS).out == b"4\n"
    assert cli("consume", topic, "-g", "g", *ENDS).out == b""
    assert mq.group(topic, "g").lag == 0


def test_without_a_group_it_leaves_no_trace(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send(topic, b"x")
    for _ in range(2):
        assert cli("consume", topic, *ENDS).out == b"x\n"
    assert mq.groups(topic) == []


def test_a_peek_changes_nothing(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.put_group(GroupConfig(topic, "g"))
    mq.send_many(topic, [b"m1", b"m2"])
    mq.send(topic, b"h", priority="high")
    assert cli("consume", topic, "--peek").out == b"h\nm1\nm2\n"
    assert cli("consume", topic, "--peek", "-n", "2").out == b"h\nm1\n"
    assert cli("consume", topic, "--peek", "-p", "middle").out == b"m1\nm2\n"
    (group,) = mq.groups(topic)
    assert (group.lag, group.in_flight) == (3, 0)


def test_from_a_number_or_a_time(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send(topic, b"0")
    receipt = mq.send(topic, b"1")
    mq.send(topic, b"2")
    assert cli("consume", topic, "--from", "1", *ENDS).out == b"1\n2\n"
    since = cli("consume", topic, "--peek", "-o", "json", "--from", "1", "-n", "1").line["appended_at"]
    assert receipt.appended_at_us
    assert cli("consume", topic, "--from", since, *ENDS).out == b"1\n2\n"
    assert cli("consume", topic, "--from", "1h", *ENDS).out == b"0\n1\n2\n"
    assert cli("consume", topic, "--peek", "--from", "latest").out == b""


def test_from_latest_sees_only_what_comes(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send(topic, b"before")
    with cli.start("consume", topic, "-g", "g", "--from", "latest", "-n", "1") as process:
        eventually(lambda: any(group.members for group in mq.groups(topic)))
        mq.send(topic, b"after")
        assert process.communicate()[0] == b"after\n"
        assert process.returncode == 0


def test_a_message_is_shown_while_it_waits_for_more(cli: Cli, mq: towline.Client, topic: str) -> None:
    with cli.start("consume", topic, "-g", "g") as process:
        assert process.stdout is not None
        for body in (b"one", b"two"):
            mq.send(topic, body)
            assert process.stdout.readline() == body + b"\n"
        assert stop(process, signal.SIGTERM).code == 0
    assert mq.group(topic, "g").lag == 0


def test_a_peek_can_follow(cli: Cli, mq: towline.Client, topic: str) -> None:
    with cli.start("consume", topic, "--peek", "--follow") as process:
        assert process.stdout is not None
        for body in (b"one", b"two"):
            mq.send(topic, body)
            assert process.stdout.readline() == body + b"\n"
        assert stop(process, signal.SIGTERM).code == 0


def test_it_stops_when_nothing_comes(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send(topic, b"x")
    assert cli("consume", topic, "--idle-timeout", "100ms").out == b"x\n"
    assert cli("consume", topic, "--idle-timeout", "100ms", "--from", "0").out == b"x\n"


def test_ctrl_c_ends_it_cleanly(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send(topic, b"x")
    with cli.start("consume", topic, "-g", "g") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        result = stop(process, signal.SIGINT)
    assert (result.code, result.err) == (130, "")
    assert mq.group(topic, "g").lag == 0


def test_a_closed_pipe_ends_it_cleanly_and_what_was_not_written_comes_again(
    cli: Cli, mq: towline.Client, topic: str
) -> None:
    with cli.start("consume", topic, "-g", "g") as process:
        eventually(lambda: any(group.members for group in mq.groups(topic)))
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        mq.send(topic, b"nobody reads this")
        assert process.wait() == 0
        assert b"error" not in process.stderr.read()
    assert cli("consume", topic, "-g", "g", "-n", "1").out == b"nobody reads this\n"


def test_a_closed_pipe_is_noticed_while_nothing_comes(cli: Cli, topic: str) -> None:
    with cli.start("consume", topic, "-g", "g") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(30) == 0


def test_it_says_once_that_it_waits(cli: Cli, mq: towline.Client, topic: str) -> None:
    new = topic + "-new"
    for name, said in ((topic, b""), (new, f"topic {new} is new\n".encode())):
        with cli.start("consume", name, "-g", "g") as process:
            assert process.stderr is not None
            whole = said + f"waiting for messages on topic {name} (group g); Ctrl-C ends\n".encode()
            assert process.stderr.read(len(whole)) == whole
            assert stop(process, signal.SIGTERM).err == ""
    mq.delete_topic(new)


def test_it_says_that_its_group_is_paused(cli: Cli, mq: towline.Client, topic: str) -> None:
    mq.send(topic, b"x")
    cli("group", "create", topic, "g")
    cli("group", "pause", topic, "g")
    with cli.start("consume", topic, "-g", "g", "-n", "1") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"group g is paused")
        cli("group", "resume", topic, "g")
        assert process.wait(30) == 0


def test_without_a_buffer_nothing_is_acknowledged_that_was_not_written(
    cli: Cli, mq: towline.Client, topic: str
) -> None:
    bodies = [b"%05d " % number + b"x" * 2_000 for number in range(200)]
    mq.send_many(topic, bodies)
    unbuffered = {"PYTHONUNBUFFERED": "1"}
    with cli.start("consume", topic, "-g", "g", env=unbuffered) as process:
        assert process.stdout is not None
        seen = os.read(process.stdout.fileno(), 10)  # the pipe holds far less than all
        process.stdout.close()
        assert process.wait() == 0
    assert seen.startswith(b"00000")
    rest = cli("consume", topic, "-g", "g", *ENDS, env=unbuffered).out
    assert rest.splitlines() == bodies


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_full_disk_did_not_take_comes_again(cli: Cli, mq: towline.Client, topic: str, unbuffered: str) -> None:
    mq.send_many(topic, [b"1", b"2"])
    with Path("/dev/full").open("wb") as full:
        result = cli("consume", topic, "-g", "g", "-n", "2", stdout=full, env={"PYTHONUNBUFFERED": unbuffered}, code=1)
    assert result.err == "error: cannot write the output: No space left on device\n"
    assert cli("consume", topic, "-g", "g", "-n", "2").out == b"1\n2\n"


@pytest.mark.parametrize(
    "command", [("--help",), ("topic", "ls"), ("topic", "ls", "-o", "json"), ("send", "{topic}", "x")]
)
def test_output_that_cannot_be_written_is_said_and_not_a_traceback(cli: Cli, topic: str, command: list[str]) -> None:
    arguments = [each.format(topic=topic) for each in command]
    with Path("/dev/full").open("wb") as full:
        result = cli(*arguments, stdout=full, code=1)
    assert result.err == "error: cannot write the output: No space left on device\n"


def test_a_topic_that_does_not_exist_is_an_error(cli: Cli) -> None:
    assert cli("consume", "no-such-topic", "--peek", code=1).err.startswith("error: ")


@pytest.mark.parametrize("body", [b"\x1b[31mred", b"bell\x07"])
def test_a_terminal_gets_no_control_characters(cli: Cli, mq: towline.Client, topic: str, body: bytes) -> None:
    mq.send(topic, body)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "towline", "consume", topic, "-n", "1", "-u", cli.url]
    with subprocess.Popen(command, stdout=theirs) as process:
        os.close(theirs)
        shown = os.read(ours, 1000)
        assert process.wait() == 0
    os.close(ours)
    assert b"\x1b" not in shown
    assert b"\x07" not in shown
    assert shown.startswith((b"\\x1b[31mred", b"bell\\x07"))
