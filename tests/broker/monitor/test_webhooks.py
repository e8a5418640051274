"""Where webhooks go: not to the broker's own machine, nor to what only it may reach, however that is written."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import towline
from tests.broker.access.secured import PASSWORD, secured
from tests.broker.conftest import World
from tests.broker.process import BrokerProcess, failing_start
from tests.broker.raw_client import RawClient
from tests.inside.alarms import AlarmRule
from tests.inside.broker import Webhooks, masked, webhooks
from tests.inside.protocol import Failed, Pulse, TestAlarm
from towline.errors import BadRequest, Unavailable

Hook = tuple[str, "queue.Queue[dict[str, Any]]"]

HERE = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "127.200.3.4",
    "[::1]",
    "localhost",
    "LOCALHOST.",
]
HERE_IN_IPV6 = ["[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::1]"]
NOWHERE = ["0.0.0.0", "0", "[::]", "255.255.255.255", "224.0.0.1", "[ff02::1]", "240.0.0.1", "[2001:0:1::1]"]
NEAR = ["169.254.1.1", "[fe80::1]", "[fe80::1%25lo]", "[fec0::1]"]
CLOUDS = [
    "169.254.169.254",
    "[::ffff:a9fe:a9fe]",
    "[64:ff9b::a9fe:a9fe]",
    "100.100.100.200",
    "[fd00:ec2::254]",
    "168.63.129.16",
]
FINE = ["10.1.2.3", "192.168.7.7", "172.16.0.9", "100.64.1.1", "[fd12:3456::1]", "8.8.8.8", "[2001:4860:4860::8888]"]


@pytest.mark.parametrize("host", HERE + HERE_IN_IPV6 + NOWHERE + NEAR + CLOUDS)
def test_an_address_that_only_the_broker_may_reach_is_refused(host: str) -> None:
    for url in (f"http://{host}/x", f"https://{host}:8443/x"):
        with pytest.raises((BadRequest, Unavailable), match="webhook") as refused:
            Webhooks().post(url, {})
        assert "--webhook-allow" in str(refused.value) or "is not known" in str(refused.value)


@pytest.mark.parametrize("host", FINE)
def test_private_and_public_receivers_are_fine(host: str) -> None:
    Webhooks().check(f"http://{host}/x")


def test_networks_addresses_and_hosts_can_be_allowed() -> None:
    Webhooks("10.0.0.0/8, 127.0.0.0/8").check("http://127.0.0.9/x")
    Webhooks("127.0.0.1").check("http://[::ffff:127.0.0.1]/x")
    Webhooks("::1,127.0.0.1").check("http://localhost/x")
    Webhooks("localhost").check("http://LocalHost./x")
    with pytest.raises(BadRequest, match="this machine itself"):
        Webhooks("localhost, 127.0.0.2").check("http://127.0.0.1/x")


@pytest.mark.parametrize("url", ["http://x:99999/", "http://x:0/", "http://u:p@10.1.2.3/"])
def test_an_address_that_is_none_is_refused_and_can_be_shown(url: str) -> None:
    with pytest.raises(BadRequest):
        Webhooks().check(url)
    assert "p@" not in masked(url)


class Resolver:
    """A name server that says something else each time, as whoever owns a name may have it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.left = list(answers)
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        if host != "hooks.example":
            return self._real(host, port, *rest, **options)
        return [one for address in self.left.pop(0) for one in self._real(address, port, *rest, **options)]


def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to(
    monkeypatch: pytest.MonkeyPatch, hook: Hook
) -> None:
    port = hook[0].rpartition(":")[2]
    resolver = Resolver(monkeypatch, ["127.0.0.1"], ["127.0.0.2"])
    Webhooks("127.0.0.1").post(f"http://hooks.example:{port}/x", {"text": "hello"})
    assert hook[1].get(timeout=60) == {"text": "hello"}
    assert len(resolver.left) == 1
    with pytest.raises(BadRequest, match=r"hooks\.example \(127\.0\.0\.2\) is not sent to"):
        Webhooks("127.0.0.1").post(f"http://hooks.example:{port}/x", {})


def test_all_addresses_of_a_name_must_be_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    Resolver(monkeypatch, ["10.1.2.3", "169.254.169.254"])
    with pytest.raises(BadRequest, match=r"169\.254\.169\.254"):
        Webhooks().post("http://hooks.example/x", {})


def test_who_answers_byte_by_byte_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "WHOLE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with server.accept()[0] as client, contextlib.suppress(OSError):
                while True:
                    client.sendall(b"y")
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(Unavailable, match="webhook"):
            Webhooks("127.0.0.1").post(f"http://127.0.0.1:{server.getsockname()[1]}/x", {})
        thread.join(60)


def test_few_addresses_of_a_name_are_tried_and_all_of_them_within_the_time_of_one_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[str, float]] = []
    real = socket.create_connection

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        tried.append((address[0], timeout))
        return real(address, timeout)

    addresses = [f"127.0.0.{number}" for number in range(1, 100)]
    with full_server() as port:
        monkeypatch.setattr(socket, "create_connection", connect)
        monkeypatch.setattr(webhooks, "PATIENCE_S", 0.05)
        Resolver(monkeypatch, addresses, addresses)
        with pytest.raises(Unavailable, match="timed out"):
            Webhooks("127.0.0.0/8").post(f"http://hooks.example:{port}/x", {})
        assert [address for address, _ in tried] == addresses[:4]
        tried.clear()
        monkeypatch.setattr(webhooks, "WHOLE_S", 0.08)
        with pytest.raises(Unavailable, match="timed out"):
            Webhooks("127.0.0.0/8").post(f"http://hooks.example:{port}/x", {})
        assert sum(timeout for _, timeout in tried) <= 0.09


@contextlib.contextmanager
def full_server() -> Iterator[int]:
    """A port where nobody gets through any more: who has not been taken fills its queue."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("0.0.0.0", 0), backlog=0))
        port: int = server.getsockname()[1]
        with contextlib.suppress(TimeoutError):
            while True:
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 0.2))
        yield port


def test_a_name_that_is_looked_up_slowly_does_not_hide_the_webhook_behind_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate, real = threading.Event(), socket.getaddrinfo

    def look_up(host: Any, *rest: Any, **options: Any) -> Any:
        assert host != "slow.example" or gate.wait(60)
        return real("10.1.2.3" if host == "slow.example" else host, *rest, **options)

    async def main() -> None:
        async with World("log", tmp_path).open() as bench:
            rule = AlarmRule("one", "dead", 1, webhooks=("http://slow.example/x", "http://169.254.169.254/x"))
            with pytest.raises(BadRequest, match="clouds give out credentials"):
                await bench.broker.outlook.alarms.put(rule)
            gate.set()

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    asyncio.run(main())


@pytest.fixture
def deaf() -> Iterator[tuple[str, socket.socket]]:
    """A receiver that takes what comes, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:
        server.settimeout(60)
        yield f"http://127.0.0.1:{server.getsockname()[1]}/x", server


async def test_one_receiver_that_does_not_answer_keeps_nobody_else_waiting(
    hook: Hook, deaf: tuple[str, socket.socket], tmp_path: Path
) -> None:
    async with World("log", tmp_path).open(alarm_wait_s=0, webhook_allow="127.0.0.1") as bench:
        alarms = bench.broker.outlook.alarms
        for url in (deaf[0], hook[0] + "/x"):
            await alarms.put(AlarmRule("deaf" if url == deaf[0] else "hearing", "disk", 100, webhooks=(url,)))
            await bench.broker.outlook.surveyor.pulse(Pulse(), bench.broker.stat)
            if url == deaf[0]:
                taken, _ = await asyncio.to_thread(deaf[1].accept)
        told = await asyncio.to_thread(hook[1].get, timeout=60)
        assert [one["rule"] for one in told["alarms"]] == ["hearing"]
        taken.close()


def test_rules_are_tested_one_at_a_time_and_passwords_do_not_wait_for_it(
    deaf: tuple[str, socket.socket], tmp_path: Path
) -> None:
    with secured(tmp_path, store="memory:", webhook_allow="127.0.0.1", drain_s=0.5) as broker:
        broker.admin.access.create_user("bob", PASSWORD)
        broker.admin.put_alarm(AlarmRule("one", "disk", 0, webhooks=(deaf[0],)))
        with RawClient.hello(broker.process.port, "root", PASSWORD) as client:
            for _ in range(40):
                client.post(TestAlarm("one"))
            for _ in range(39):
                _, answer = client.read() or (0, None)
                assert isinstance(answer, Failed)
                assert "another rule is being tested" in answer.message
            broker.connect("bob", PASSWORD).close()
            broker.process.stop()
            assert broker.process.wait() == 0


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch, hook: Hook) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    Webhooks("127.0.0.1").post(hook[0] + "/x", {"text": "straight"})
    assert hook[1].get(timeout=60) == {"text": "straight"}


@pytest.fixture
def allowing(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(store=f"file:{tmp_path}/data", durability="os", webhook_allow="127.0.0.1") as broker:
        yield broker


def test_a_broker_refuses_when_the_rule_is_made_and_when_it_is_told(
    tmp_path: Path, allowing: BrokerProcess, hook: Hook
) -> None:
    """Also by the rules that it has: some may have been made before, or at another broker."""
    with towline.connect(f"towline://127.0.0.1:{allowing.port}") as mq:
        mq.put_alarm(AlarmRule("old", "dead", 1, webhooks=(hook[0] + "/x",)))
        mq.test_alarm("old")
        assert hook[1].get(timeout=60)["text"]
    allowing.stop()
    assert allowing.wait() == 0
    with (
        BrokerProcess(store=f"file:{tmp_path}/data", durability="os") as broker,
        towline.connect(f"towline://127.0.0.1:{broker.port}") as mq,
    ):
        with pytest.raises(BadRequest, match=r"alarm old: webhook .* this machine itself"):
            mq.test_alarm("old")
        for url in (hook[0] + "/y", "http://169.254.169.254/latest", "http://x:99999/"):
            with pytest.raises(BadRequest, match="alarm new: webhook"):
                mq.put_alarm(AlarmRule("new", "dead", 1, webhooks=(url,)))
        assert [rule.name for rule in mq.alarms().rules] == ["old"]
        mq.put_alarm(AlarmRule("new", "dead", 1, webhooks=("https://not-known.invalid/x",)))
    assert hook[1].empty()


def test_a_setting_that_names_no_network_is_refused() -> None:
    assert "webhook_allow: '10.0.0.0/40' is neither" in failing_start(webhook_allow="127.0.0.1,10.0.0.0/40")
