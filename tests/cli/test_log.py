"""`towline log`: looking into a folder, with and without damage."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import towline
from tests.cli.conftest import Cli
from tests.inside.load import BrokerProcess

COUNT = 250


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log with messages, delivery events and a broker that was killed."""
    path = tmp_path / "data"
    with BrokerProcess(f"file:{path}", log_level="warning") as broker, towline.connect(broker.url) as mq:
        for begin in range(0, COUNT, 50):
            mq.send_many("orders", [b"order %d" % number for number in range(begin, begin + 50)], keys=["k"] * 50)
        with mq.consumer("orders", group="g") as consumer:
            consumer.pull(10).ack()
        broker.kill()
    return path


def test_stat_shows_files_and_streams(cli: Cli, folder: Path) -> None:
    text = cli("log", "stat", folder).text
    assert "lane/orders/middle" in text
    assert "pull/orders/g" in text
    facts = cli("log", "stat", folder, "-o", "json").line
    (lane,) = [stream for stream in facts["streams"] if stream["name"] == "lane/orders/middle"]
    assert (lane["first"], lane["end"], lane["frames"]) == (0, COUNT, 5)
    assert lane["first_at"].endswith("Z")
    assert facts["segments"][0]["path"].startswith(str(folder))


def test_a_sound_log_is_said_to_be_sound(cli: Cli, folder: Path) -> None:
    assert "damage   none" in cli("log", "verify", folder).text
    facts = cli("log", "verify", folder, "-o", "json").line
    assert facts["sound"] is True
    assert facts["messages"] >= COUNT
    assert facts["damages"] == []


def test_damage_is_named_and_is_exit_code_1(cli: Cli, folder: Path) -> None:
    segment = min((folder / "log").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"order 60")] ^= 1
    segment.write_bytes(data)
    text = cli("log", "verify", folder, code=1).text
    assert "damage   1 places" in text
    assert "lane/orders/middle" in text
    facts = cli("log", "verify", folder, "-o", "json", code=1).line
    assert facts["sound"] is False
    assert facts["damages"][0]["path"] == str(segment)
    left = cli("log", "dump", folder, "--records", "--stream", "lane/orders/middle", "-o", "json").lines
    assert len(left) == COUNT - 50


def test_dump_lists_frames(cli: Cli, folder: Path) -> None:
    frames = cli("log", "dump", folder, "-s", "lane/orders/middle", "-o", "json").lines
    assert [(frame["first"], frame["count"]) for frame in frames] == [(at, 50) for at in range(0, COUNT, 50)]
    assert frames[0]["source"] == "127.0.0.1"
    assert cli("log", "dump", folder, "-s", "lane/orders/middle", "-n", "2").text.count("50 records") == 2


def test_dump_lists_records(cli: Cli, folder: Path) -> None:
    arguments = ("log", "dump", folder, "--records", "--stream", "lane/orders/middle", "--from", "60")
    records = cli(*arguments, "-n", "3", "-o", "json").lines
    assert [record["seq"] for record in records] == [60, 61, 62]
    assert (records[0]["body"], records[0]["key"]) == ("order 60", "k")
    assert "lane/orders/middle/60  [k] order 60" in cli(*arguments, "-n", "1").text
    events = cli("log", "dump", folder, "--records", "--stream", "pull/orders/g", "-o", "json").lines
    assert events
    assert all("event" in event for event in events)


def test_it_can_look_while_a_broker_runs(cli: Cli, folder: Path) -> None:
    with BrokerProcess(f"file:{folder}", log_level="warning") as broker, towline.connect(broker.url) as mq:
        mq.send("orders", b"one more")
        assert cli("log", "verify", folder, "-o", "json").line["sound"] is True
        assert broker.running


@pytest.mark.parametrize("verb", ["stat", "verify", "dump"])
def test_another_folder_is_an_error(cli: Cli, tmp_path: Path, verb: str) -> None:
    result = cli("log", verb, tmp_path, code=1)
    assert result.err.startswith("error: ")
    assert "not the folder of a log store" in result.err


def test_a_reader_that_leaves_ends_it_cleanly(cli: Cli, folder: Path) -> None:
    with cli.start("log", "dump", folder, "--records", "-o", "json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait() in (0, -signal.SIGPIPE)
        assert process.stderr.read() == b""
