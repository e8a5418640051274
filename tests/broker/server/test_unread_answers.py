"""Answers that nobody reads: one budget for all connections, and whoever stands still is cut first."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.broker.process import BrokerProcess
from tests.broker.raw_client import RawClient, open_pulled
from tests.certificates import KIND, openssl
from tests.eventually import eventually
from tests.inside.protocol import (
    CreateTopic,
    Done,
    GroupInfo,
    GroupState,
    ListGroups,
    ListTopics,
    Pull,
    PutGroup,
    Request,
    Scan,
)
from towline.model import GroupConfig, TopicConfig

MB = 1 << 20
BUDGET = 24 * MB
READERS = 24
PULLS = 30
"""Of each reader: more than what the kernel keeps for it."""
MESSAGES = 128
BODY = bytes(256 << 10)
"""32 MiB of them: more than all may leave unread."""
LISTED = 2_000
LISTS = 400
MOST_LISTS_MB = 60
MOST_MB = 2 * BUDGET / MB + 40
"""The budget, reads that are under way, and what Python takes for so many clients."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    openssl(folder, "req", "-x509", *KIND, "-days", "2", *names, "-keyout", "key.pem", "-out", "cert.pem")
    return str(folder / "cert.pem"), str(folder / "key.pem")


@pytest.fixture(params=["plain", "tls"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    cert, key = request.getfixturevalue("certificate") if request.param == "tls" else ("", "")
    settings: dict[str, Any] = {
        "max_unread_total_bytes": BUDGET,
        "idle_s": 600.0,
        "heartbeat_s": 600.0,
        "reconnect_grace_s": 0.1,
    }
    with BrokerProcess(
        store=f"file:{tmp_path}/data", tls_cert=cert, tls_key=key, metrics="127.0.0.1:0", **settings
    ) as process:
        process.context = ssl.create_default_context(cafile=cert) if cert else None  # type: ignore[attr-defined]
        with hello(process) as sender:
            for _ in range(MESSAGES // 2):
                sender.send("large", [BODY] * 2)
        yield process
        assert "Traceback" not in process.errors, process.errors


def hello(broker: BrokerProcess) -> RawClient:
    """A client for which the kernel keeps little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    sock.connect(("127.0.0.1", broker.port))
    return RawClient.hello(sock, context=broker.context)  # type: ignore[attr-defined]


def metric(broker: BrokerProcess, name: str) -> int:
    broker.wait_for_log("metrics on")
    found = re.search(r"http://\S+/metrics", broker.errors)
    assert found
    with urllib.request.urlopen(found[0]) as answer:
        value = re.search(rf"^{name} (\d+)$", answer.read().decode(), re.MULTILINE)
    assert value, name
    return int(value[1])


def pull_all(client: RawClient, group: str) -> int:
    subscription, got = client.attach("large", group), 0
    while got < MESSAGES:
        got += len(client.pull(subscription, MESSAGES))
    return got


def ask_for_all(client: RawClient, group: str) -> None:
    for subscription in [client.attach("large", f"{group}-{place}") for place in range(PULLS)]:
        client.post(Pull(subscription, MESSAGES, 1 << 30, 0))


def test_readers_that_stand_still_share_one_budget_and_are_cut(broker: BrokerProcess) -> None:
    with hello(broker) as early:
        pull_all(early, "early")
    before = broker.rss_mb
    with ExitStack() as stack:
        slow = [stack.enter_context(hello(broker)) for _ in range(READERS)]
        for number, client in enumerate(slow):
            ask_for_all(client, f"slow-{number}")
        eventually(lambda: metric(broker, "towline_unread_bytes") > BUDGET // 4)
        # Others are served meanwhile, and though they take much.
        with hello(broker) as reader:
            assert pull_all(reader, "quick") == MESSAGES
            eventually(lambda: metric(broker, "towline_cut_readers_total") > 0)
            assert "group quick" not in broker.errors
        assert broker.rss_mb < before + MOST_MB, "a megabyte for each would be more than this"
    broker.wait_for_log(r"closed: it has left \d+ bytes of answers for \d+ s, .* max_unread_total_bytes")
    broker.wait_for_log(r"consumer c of group slow-\d+-\d on topic large")
    with hello(broker) as client:
        eventually(lambda: client.call(GroupInfo("large", "slow-0-0"), GroupState).in_flight == 0)


def test_whoever_scans_and_does_not_read_is_in_the_same_budget(broker: BrokerProcess) -> None:
    before = broker.rss_mb
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(hello(broker))
            for _ in range(100):
                client.post(Scan("lane/large/middle", 0, MESSAGES, 1 << 30))
        eventually(lambda: metric(broker, "towline_unread_bytes") > BUDGET // 4)
        with hello(broker) as reader:
            assert pull_all(reader, "quick") == MESSAGES
        assert broker.rss_mb < before + MOST_MB


def test_one_who_reads_slowly_is_not_cut_while_those_that_stand_still_are(broker: BrokerProcess) -> None:
    done, got = threading.Event(), 0
    with ExitStack() as stack:
        steady = stack.enter_context(hello(broker))
        ask_for_all(steady, "steady")

        def drip() -> None:
            nonlocal got
            steady.socket.settimeout(0.1)
            while not done.wait(0.05):
                with suppress(TimeoutError):
                    got += len(steady.socket.recv(32 << 10))

        dripping = threading.Thread(target=drip)
        dripping.start()
        for number in range(READERS):
            client = stack.enter_context(hello(broker))
            ask_for_all(client, f"still-{number}")
        eventually(lambda: metric(broker, "towline_cut_readers_total") > 0)
        assert "group steady" not in broker.errors
        done.set()
        dripping.join()
        assert got > 0


def test_what_was_cut_up_for_tls_is_whole(broker: BrokerProcess) -> None:
    """Whoever reads late reads it all, though nothing more was read for it meanwhile."""
    with hello(broker) as client:
        ask_for_all(client, "late")
        eventually(lambda: metric(broker, "towline_unread_bytes") > 0)
        for _ in range(PULLS):
            envelope = client.read_envelope()
            assert envelope is not None
            assert set(open_pulled(envelope)[1]) == {BODY}


@pytest.mark.parametrize("request_", [ListTopics(), ListGroups()], ids=lambda one: type(one).__name__)
def test_lists_that_nobody_reads_are_made_as_they_are_read(request_: Request) -> None:
    with BrokerProcess(max_unread_total_bytes=BUDGET, idle_s=600.0, heartbeat_s=600.0) as broker:
        broker.context = None  # type: ignore[attr-defined]
        with hello(broker) as other, hello(broker) as client:
            for number in range(LISTED):
                topic = f"topic-{number}-{'x' * 30}"
                other.post(CreateTopic(TopicConfig(topic)))
                other.post(PutGroup(GroupConfig(topic, "g")))
            assert {answer for _, answer in [other.read() or (0, None) for _ in range(2 * LISTED)]} == {Done()}
            before = broker.rss_mb
            for _ in range(LISTS):
                client.post(request_)
            for _ in range(5):  # by the last one, all that come before it were carried out, or wait
                other.post(request_)
                answer = other.read_envelope()
            assert answer is not None
            length = len(answer.head)
            assert length * LISTS > 2 * MOST_LISTS_MB * MB, "all of them would be more than this"
            assert broker.rss_mb < before + MOST_LISTS_MB
            answers = [client.read_envelope() for _ in range(10)]
            assert all(one is not None and one.kind == answer.kind for one in answers)
