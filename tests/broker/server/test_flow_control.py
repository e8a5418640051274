"""Clients that are slow, silent, greedy or too many: each is held back or closed, and memory stays bounded."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.broker.process import BrokerProcess
from tests.broker.raw_client import RawClient, open_pulled
from tests.broker.steady_client import Bystander
from tests.eventually import eventually
from tests.inside.frame import encode
from tests.inside.protocol import (
    PREFACE,
    Act,
    Beat,
    Done,
    Failed,
    FrameHead,
    GroupInfo,
    GroupState,
    Hello,
    ListTopics,
    Pull,
    Send,
    Sent,
    Settle,
    Settled,
    Stat,
    Stated,
    Topics,
    Welcome,
    encode_envelope,
)
from towline.errors import Unavailable

MB = 1 << 20
DEADLINE_S = 60.0


HASTE_S = 1.5
"""Long enough for a client that is held up for a moment."""


@contextmanager
def serving(**settings: Any) -> Iterator[BrokerProcess]:
    limits: dict[str, Any] = {"max_frame_bytes": 2 * MB, "max_pending_bytes": 4 * MB, "capacity_bytes": 64 * MB}
    with BrokerProcess(**limits, max_connections=20, reconnect_grace_s=0.1, **settings) as broker:
        yield broker
        assert "Traceback" not in broker.errors, broker.errors


@contextmanager
def watched(broker: BrokerProcess) -> Iterator[Bystander]:
    with Bystander(broker.port) as bystander:
        yield bystander
    assert bystander.slowest_s < 20


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with serving(heartbeat_s=60.0, handshake_s=60.0, idle_s=60.0) as broker:
        yield broker


@pytest.fixture
def bystander(broker: BrokerProcess) -> Iterator[Bystander]:
    with watched(broker) as bystander:
        yield bystander


@pytest.fixture(scope="module")
def hasty() -> Iterator[BrokerProcess]:
    """A broker that does not wait long for anybody."""
    with serving(heartbeat_s=HASTE_S, handshake_s=HASTE_S, idle_s=HASTE_S) as broker:
        yield broker


@pytest.fixture
def beside(hasty: BrokerProcess) -> Iterator[Bystander]:
    with watched(hasty) as bystander:
        yield bystander


def is_closed_by_broker(sock: socket.socket) -> bool:
    """Whether writing to it fails by now. Nothing is read, so that a client that never reads can find out."""
    try:
        sock.sendall(b"")
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return True
    return info[0] != 1  # TCP_ESTABLISHED


@pytest.mark.parametrize("said", [b"", PREFACE[:5], PREFACE, PREFACE + encode_envelope(1, Hello(1, 1, "me"))[:-1]])
def test_who_does_not_introduce_itself_in_time_is_closed(hasty: BrokerProcess, beside: Bystander, said: bytes) -> None:
    began = time.monotonic()
    with RawClient(hasty.port) as client:
        client.write(said)
        assert client.last_words() == []
        assert HASTE_S - 0.1 < time.monotonic() - began < DEADLINE_S


def test_a_half_sent_request_is_closed_with_a_reason(hasty: BrokerProcess, beside: Bystander) -> None:
    with RawClient.hello(hasty.port) as client:
        began = time.monotonic()
        client.write(struct.pack("<IIII", MB, 1, 3, 10) + bytes(1000))
        [answer] = client.last_words()
        assert isinstance(answer, Failed)
        assert "did not come" in answer.message
        assert HASTE_S - 0.1 < time.monotonic() - began < DEADLINE_S


def test_a_request_that_drips_in_is_closed(hasty: BrokerProcess, beside: Bystander) -> None:
    with RawClient.hello(hasty.port) as client:
        client.write(struct.pack("<IIII", MB, 1, 3, 10))
        client.socket.settimeout(0.02)
        deadline = time.monotonic() + DEADLINE_S
        heard = b""
        while not heard:
            assert time.monotonic() < deadline
            client.write(b"x")
            try:
                heard = client.socket.recv(1000)
            except TimeoutError:
                pass


def test_a_client_that_is_only_silent_is_not_closed(hasty: BrokerProcess, beside: Bystander) -> None:
    with RawClient.hello(hasty.port) as silent, RawClient.hello(hasty.port) as loris:
        loris.write(b"\x20")
        assert loris.last_words() != [], "by then the silent one has been silent for as long"
        silent.call(Beat(), Done)


def test_a_large_request_that_keeps_coming_is_not_closed(hasty: BrokerProcess, beside: Bystander) -> None:
    frame = encode([bytes(1_500_000)])
    data = encode_envelope(1, Send([FrameHead("slow", 0, len(frame))]), len(frame)) + frame
    with RawClient.hello(hasty.port) as client:
        began = time.monotonic()
        for at in range(0, len(data), 100_000):
            client.write(data[at : at + 100_000])
            beside.wait_for_rounds(1)
            time.sleep(HASTE_S / 10)  # a slow line
        assert time.monotonic() - began > HASTE_S
        assert isinstance((client.read() or (0, 0))[1], Sent)


def test_thousands_of_half_sent_requests_take_no_memory(broker: BrokerProcess, bystander: Bystander) -> None:
    before = broker.rss_mb
    for _ in range(50):
        clients = [RawClient.hello(broker.port) for _ in range(15)]
        for client in clients:
            client.write(struct.pack("<IIII", 2 * MB, 1, 3, 10) + bytes(100))
        for client in clients:
            client.socket.close()
    eventually(lambda: broker.rss_mb < before + 20)


def fill(client: RawClient, topic: str, megabytes: int) -> None:
    for _ in range(megabytes):
        client.send(topic, [bytes(1000)] * 1000)


def test_a_client_that_never_reads_is_closed_and_takes_little_memory(hasty: BrokerProcess, beside: Bystander) -> None:
    with RawClient.hello(hasty.port) as client:
        fill(client, "unread", 20)
        before = hasty.rss_mb
        subscriptions = [client.attach("unread", f"g{i}", "c") for i in range(10)]
        client.socket.settimeout(0.01)
        most, began, held_back = before, time.monotonic(), False
        while not is_closed_by_broker(client.socket):
            assert time.monotonic() < began + DEADLINE_S, "a client that never reads must be closed"
            most = max(most, hasty.rss_mb)
            for subscription in () if held_back else subscriptions:
                try:
                    client.post(Pull(subscription, 100_000, 1 << 30, 0))
                except OSError:
                    held_back = True  # maybe in the middle of a request: no other may follow
                    break
        assert most < before + 60
    # Its own last request was cut off when it was held back: either may be noticed first.
    hasty.wait_for_log("does not read its answers|its request stays half-sent")


def test_a_flood_of_small_requests_without_reading_is_held_back(broker: BrokerProcess, bystander: Bystander) -> None:
    with RawClient.hello(broker.port) as client:
        before = broker.rss_mb
        flood = encode_envelope(1, ListTopics()) * 5000 + encode_envelope(2, Stat()) * 5000
        client.socket.settimeout(0.2)
        with pytest.raises((TimeoutError, ConnectionError)):  # held back, then closed
            client.write(flood * 300)
        assert broker.rss_mb < before + 60


def test_small_answers_that_a_slow_reader_takes_in_pieces_are_whole() -> None:
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with serving() as broker, RawClient.hello(broker.port) as other:
        for number in range(24):
            other.send(f"topic-{number}", [b"x"])
        narrow.connect(("127.0.0.1", broker.port))
        with RawClient.hello(narrow) as client:
            numbers = []
            for _ in range(3_000):
                numbers.append(client.post(ListTopics()))
                other.call(Stat(), Stated)  # by then the answer was written by itself, as far as there was room
            answers = [client.read() for _ in numbers]
    assert sorted(answer[0] for answer in answers if answer) == numbers  # in any order
    assert {type(answer[1]) for answer in answers if answer} == {Topics}


def test_a_flood_that_is_read_is_answered_in_full(broker: BrokerProcess, bystander: Bystander) -> None:
    with RawClient.hello(broker.port) as client:
        for number in range(10):
            client.write(encode_envelope(number, Beat()) * 3000)
            for _ in range(3000):
                assert client.read() == (number, Done())


def test_thousands_of_running_requests_are_all_answered(broker: BrokerProcess, bystander: Bystander) -> None:
    with RawClient.hello(broker.port) as client:
        subscription = client.attach("running")
        settle = encode_envelope(1, Settle(subscription, [Act(0, 1)]))
        client.write(settle * 5000)
        assert sum(isinstance((client.read() or (0, 0))[1], Settled) for _ in range(5000)) == 5000


def test_a_pull_is_bounded_whatever_it_asks_for(broker: BrokerProcess, bystander: Bystander) -> None:
    with RawClient.hello(broker.port) as client:
        fill(client, "greedy", 8)
        client.post(Pull(client.attach("greedy"), 1_000_000, 1 << 30, 0))
        envelope = client.read_envelope()
        assert envelope is not None
        assert 1000 <= len(open_pulled(envelope)[1]) < 4000


def test_connections_over_the_limit_are_told_so() -> None:
    with serving() as broker:
        more_than_the_limit(broker)


def more_than_the_limit(broker: BrokerProcess) -> None:
    def welcome() -> bool:
        try:
            RawClient.hello(broker.port).socket.close()
        except (Unavailable, AssertionError):
            return False
        return True

    clients: list[RawClient] = []
    try:
        while True:
            client = RawClient(broker.port)
            clients.append(client)
            client.write(PREFACE)
            client.write(encode_envelope(1, Hello(1, 1, "me")))
            got = client.read()
            assert got is not None
            if isinstance(got[1], Failed):
                break
            assert isinstance(got[1], Welcome)
        assert got[0] == 0, "it speaks of the connection, not of a request"
        assert got[1].code == "unavailable"
        assert "20 connections" in got[1].message
        assert len(clients) == 21
        clients[0].call(Beat(), Done)
    finally:
        for client in clients:
            client.socket.close()
    eventually(welcome)


def test_a_storm_of_connections_leaves_the_others_alone(broker: BrokerProcess) -> None:
    with Bystander(broker.port) as bystander:
        for _ in range(10):
            sockets = [socket.create_connection(("127.0.0.1", broker.port), timeout=DEADLINE_S) for _ in range(300)]
            bystander.wait_for_rounds(1)
            for one in sockets:
                one.close()
    assert broker.rss_mb < 200


def test_any_bytes_keep_a_consumer_alive_and_silence_does_not(hasty: BrokerProcess) -> None:
    with RawClient.hello(hasty.port) as client, RawClient.hello(hasty.port) as other:
        client.send("alive", [b"1", b"2"])
        subscription = client.attach("alive", "g", "beating")
        pull, bodies = client.pull_with_id(subscription)
        assert bodies == [b"1", b"2"]
        began = time.monotonic()
        while time.monotonic() - began < 2.5 * HASTE_S:
            client.call(Stat(), Stated)
            time.sleep(0.05)
        assert client.call(Settle(subscription, [Act(0, pull, [(1, 0, 1)])]), Settled).refused == []
        second = other.attach("alive", "g", "waiting")
        other.post(Pull(second, 10, 1000, 20_000))
        envelope = None
        while envelope is None:
            other.socket.settimeout(0.2)
            try:
                envelope = other.read_envelope()
            except TimeoutError:
                other.write(encode_envelope(99, Beat()))
                continue
            assert envelope is not None
            if envelope.number == 99:
                envelope = None
        assert open_pulled(envelope)[1] == [b"2"]


def test_a_lost_connection_gives_its_messages_back(broker: BrokerProcess) -> None:
    with RawClient.hello(broker.port) as sender:
        sender.send("lost", [b"1"])
        client = RawClient.hello(broker.port)
        assert client.pull(client.attach("lost", "g", "first")) == [b"1"]
        client.post(Pull(1, 10, 1000, 60_000))
        with RawClient.hello(broker.port) as other:
            subscription = other.attach("lost", "g", "second")
            client.socket.close()
            assert other.pull(subscription) == [b"1"], "long before its heartbeats would be missed"
            eventually(
                lambda: [m.consumer for m in other.call(GroupInfo("lost", "g"), GroupState).members] == ["second"]
            )
