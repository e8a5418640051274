"""Starting and stopping: a broker ends decently, loses nothing, and says in one line why it does not start."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess, failing_start
from tests.broker.raw_client import RawClient
from tests.inside.frame import encode
from tests.inside.protocol import Act, Failed, FrameHead, Pull, Pulled, Send, Sent, Settle, Settled, encode_envelope
from tests.ports import free_port
from towline.errors import Stopping

STOPPING = Failed(Stopping.code, str(Stopping()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_broker_answers_waiting_pulls_and_exits_cleanly(tmp_path: Path, number: int) -> None:
    with BrokerProcess(store=f"file:{tmp_path}") as broker, RawClient.hello(broker.port) as client:
        client.send("t", [b"1", b"2"])
        subscription = client.attach("t")
        pull, _ = client.pull_with_id(subscription, 1)
        client.pull_with_id(subscription, 1)
        began = time.monotonic()
        waiting = client.post(Pull(subscription, 1, 1000, 300_000, 1, [Act(0, pull), Act(0, 12345)]))
        client.knock()
        broker.stop(number)
        got = client.read()
        assert got is not None
        assert got[0] == waiting
        assert isinstance(got[1], Pulled)
        assert (got[1].pull, got[1].parts) == (0, [])
        assert [(act, code) for act, code, _ in got[1].refused] == [(1, "lease-lost")], "the acts are answered as well"
        assert client.last_words() == [STOPPING]
        client.socket.close()
        assert broker.wait() == 0
        assert time.monotonic() - began < 60
        assert broker.rest_of_stdout() == ""
    with BrokerProcess(store=f"file:{tmp_path}") as broker, RawClient.hello(broker.port) as client:
        assert client.pull(client.attach("t")) == [b"2"], "the first was acked, the second given back"


def test_what_was_sent_before_the_signal_is_answered_and_durable(tmp_path: Path) -> None:
    frame = encode([bytes(1000)] * 100)
    send = encode_envelope(1, Send([FrameHead("t", 0, len(frame))], 2), len(frame)) + frame
    with BrokerProcess(store=f"file:{tmp_path}") as broker, RawClient.hello(broker.port) as client:
        client.write(send * 30)
        broker.stop()
        words = client.last_words()
        client.socket.close()
        assert words.pop() == STOPPING
        assert all(isinstance(word, Sent) for word in words), "each request is answered properly or not at all"
        assert broker.wait() == 0, broker.errors
    with BrokerProcess(store=f"file:{tmp_path}") as broker, RawClient.hello(broker.port) as client:
        subscription, count = client.attach("t"), 0
        while bodies := client.pull(subscription, 1000, 0):
            count += len(bodies)
        assert count == len(words) * 100, "what was not answered before the last word was not carried out"


def test_a_client_that_does_not_go_is_left_behind() -> None:
    with BrokerProcess(drain_s=0.3) as broker, RawClient.hello(broker.port) as client:
        broker.stop()
        assert client.last_words() == [STOPPING]
        assert broker.wait() == 0
        assert "did not end within 0.3 s" in broker.errors


def test_nobody_new_is_served_while_the_broker_drains() -> None:
    with (
        BrokerProcess(listen=f"127.0.0.1:{free_port()}", drain_s=2.0) as broker,
        RawClient.hello(broker.port) as client,
    ):
        broker.stop()
        assert client.last_words() == [STOPPING]
        with pytest.raises(ConnectionError):
            RawClient(broker.port)


def test_a_second_signal_ends_it_at_once() -> None:
    with BrokerProcess(drain_s=60.0) as broker, RawClient.hello(broker.port) as client:
        broker.stop()
        broker.wait_for_log("stopping")
        broker.stop(signal.SIGINT)
        assert broker.wait() == 130
        del client


def test_a_second_broker_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(store=f"file:{tmp_path}") as broker:
        error = failing_start(store=f"file:{tmp_path}")
        assert error.startswith("error: ")
        assert str(tmp_path) in error
        with RawClient.hello(broker.port) as client:
            client.send("t", [b"still here"])


@pytest.mark.parametrize("store", ["", "memory", "file:", "sqlite://x", "memory:x"])
def test_a_store_that_is_none_is_refused(store: str) -> None:
    advice = "write memory:, file:DIR or mysql://USER@HOST:PORT/DATABASE"
    assert failing_start(store=store) == f"error: store {store!r}: {advice}\n"


def test_a_database_that_cannot_be_had_is_one_clear_line() -> None:
    assert failing_start(store="mysql://x") == (
        "error: store 'mysql://x': write mysql://USER@HOST:PORT/DATABASE, several hosts with commas\n"
    )
    said = failing_start(store="mysql://nobody@127.0.0.1:1/queue")
    assert said.startswith("error: the database nobody@127.0.0.1:1/queue cannot be reached: cannot connect")


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("in the way")
    assert failing_start(store=f"file:{tmp_path}/a file/data").startswith("error: ")


def test_the_log_has_times_and_its_level_is_set() -> None:
    with BrokerProcess(log_level="warning") as quiet, BrokerProcess(log_level="info") as loud:
        loud.stop()
        quiet.stop()
        assert (quiet.wait(), loud.wait()) == (0, 0)
        assert quiet.errors == ""
        loud.wait_for_log(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO towline\.serve: stopped$")


def test_settling_goes_on_to_the_end(tmp_path: Path) -> None:
    with BrokerProcess(store=f"file:{tmp_path}") as broker, RawClient.hello(broker.port) as client:
        client.send("t", [b"x"])
        subscription = client.attach("t")
        pull, _ = client.pull_with_id(subscription)
        assert client.call(Settle(subscription, [Act(0, pull)]), Settled).refused == []
        broker.process.kill()
    with BrokerProcess(store=f"file:{tmp_path}") as broker, RawClient.hello(broker.port) as client:
        assert client.pull(client.attach("t"), 10, 0) == []
