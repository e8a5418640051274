"""The metrics of a real broker, read by Prometheus' own parser; `towline top` and `towline check`."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

import towline
from tests.broker.access.secured import secured
from tests.broker.process import BrokerProcess, failing_start
from tests.cli.conftest import Cli
from tests.eventually import eventually
from tests.inside.broker import FRESH_S
from tests.inside.client import Client
from tests.ports import free_port
from towline.model import GroupConfig, RetryPolicy

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "docs" / "grafana-dashboard.json"


class Measured(NamedTuple):
    process: BrokerProcess
    url: str
    metrics: str
    client: Client


def address_of(process: BrokerProcess) -> str:
    process.wait_for_log("metrics on")
    found = re.search(r"http://\S+/metrics", process.errors)
    assert found, process.errors
    return found[0]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("metrics")
    with BrokerProcess(store=f"file:{folder}/data", metrics="127.0.0.1:0") as process:
        url = f"towline://127.0.0.1:{process.port}"
        with towline.connect(url) as client:
            yield Measured(process, url, address_of(process), client)
        assert "Traceback" not in process.errors, process.errors


def scrape(url: str) -> dict[tuple[str, str, str], float]:
    """The samples by name, topic and group."""
    with urllib.request.urlopen(url) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    samples: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name
        for sample in family.samples:
            labels = sample.labels
            key = (sample.name, labels.get("topic", labels.get("le", labels.get("work", ""))), labels.get("group", ""))
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def fresh(url: str) -> dict[tuple[str, str, str], float]:
    """A scrape that was not made just now for somebody else."""
    time.sleep(FRESH_S + 0.05)
    return scrape(url)


def test_the_metrics_tell_what_happened(broker: Measured) -> None:
    client = broker.client
    client.send_many("orders", [b"0123456789"] * 100, priority="low")
    client.send("orders", b"later", delay=3600)
    client.put_group(GroupConfig("orders", "billing", retry=RetryPolicy(1)))
    client.put_group(GroupConfig("orders", "patient", retry=RetryPolicy(5, (3600.0,))))
    with (
        client.consumer("orders", group="billing", prefetch=0) as consumer,
        client.consumer("orders", group="patient", prefetch=0) as patient,
    ):
        consumer.pull(10).ack()
        consumer.pull(5).nack("no")  # its only attempt: dead
        patient.pull(7).nack("later")
        held = consumer.pull(20)
        consumer.flush()
        patient.flush()
        eventually(lambda: client.group("orders", "billing"), holds=lambda group: group.dead >= 5)
        seen = fresh(broker.metrics)
        assert seen["towline_topic_messages_in_total", "orders", ""] == 100
        assert seen["towline_topic_bytes_in_total", "orders", ""] > 1000
        assert seen["towline_topic_delayed_messages", "orders", ""] == 1
        assert seen["towline_group_messages_out_total", "orders", "billing"] == 35
        assert seen["towline_group_bytes_out_total", "orders", "billing"] > 350
        assert seen["towline_group_acks_total", "orders", "billing"] == 1
        assert seen["towline_group_nacks_total", "orders", "billing"] == 1
        assert seen["towline_group_backlog_messages", "orders", "billing"] == 85
        assert seen["towline_group_in_flight_messages", "orders", "billing"] == 20
        assert seen["towline_group_leases", "orders", "billing"] == 1
        assert seen["towline_group_dead_letters", "orders", "billing"] == 5
        assert seen["towline_group_retrying_messages", "orders", "patient"] == 7
        assert seen["towline_group_backlog_messages", "orders", "patient"] == 100
        assert seen["towline_group_consumers", "orders", "billing"] == 1
        assert seen["towline_connections", "", ""] == 3
        assert seen["towline_received_messages_total", "", ""] >= 101
        assert seen["towline_commit_seconds_count", "", ""] >= 2
        assert seen["towline_fsync_seconds_count", "", ""] >= 1
        assert seen["towline_loop_lag_seconds_count", "", ""] >= 1
        for work in ("heartbeat watch", "looking after connections"):
            assert ("towline_background_step_seconds", work, "") in seen
        works = [work for name, work, _ in seen if name == "towline_background_step_seconds"]
        assert [work for work in works if "_" in work or "." in work] == []
        assert seen["towline_fsync_seconds_sum", "", ""] > 0
        assert seen["towline_commit_seconds_bucket", "+Inf", ""] == seen["towline_commit_seconds_count", "", ""]
        assert seen["process_resident_memory_bytes", "", ""] > 10 << 20
        assert seen["towline_store_free_bytes", "", ""] > 0
        held.ack()


@pytest.mark.parametrize("page", ["operations.md", "metrics.md"])
def test_every_metric_that_is_written_about_is_there(broker: Measured, page: str) -> None:
    with urllib.request.urlopen(broker.metrics) as answer:
        there = set(re.findall(r"^# TYPE (\S+)", answer.read().decode(), re.MULTILINE))
    named = set(re.findall(r"\btowline_[a-z_]+", (ROOT / "docs" / page).read_text(encoding="utf-8")))
    assert named
    assert named - there == set()


def test_the_age_is_that_of_the_oldest_message_not_consumed(broker: Measured) -> None:
    client = broker.client
    sent = time.monotonic()
    client.send("aged", b"old")
    client.put_group(GroupConfig("aged", "g"))
    name = ("towline_group_oldest_age_seconds", "aged", "g")
    with client.consumer("aged", group="g", prefetch=0) as consumer:
        first = fresh(broker.metrics)[name]
        assert 0.5 <= first <= time.monotonic() - sent + 0.1
        young = time.monotonic()
        client.send("aged", b"young")
        batch = consumer.pull(1)
        leased = fresh(broker.metrics)[name]
        assert leased > first, "what a consumer holds is not consumed"
        batch.ack()
        consumer.flush()
        assert fresh(broker.metrics)[name] <= time.monotonic() - young + 0.1
        consumer.pull(1).ack()
        consumer.flush()
        assert fresh(broker.metrics)[name] == 0


def test_histograms_only_grow(broker: Measured) -> None:
    before = fresh(broker.metrics)
    broker.client.send("grown", b"x")
    after = fresh(broker.metrics)
    for name in ("towline_commit_seconds_bucket", "towline_fsync_seconds_bucket"):
        bounds = [key for key in after if key[0] == name]
        values = [after[key] for key in bounds]
        assert values == sorted(values)
        assert all(after[key] >= before[key] for key in bounds)
    assert after["towline_commit_seconds_count", "", ""] == before["towline_commit_seconds_count", "", ""] + 1


def test_health_says_whether_it_works(broker: Measured) -> None:
    with urllib.request.urlopen(broker.metrics.replace("metrics", "health")) as answer:
        assert answer.read() == b"ok\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"HEAD /health HTTP/1.0\r\n\r\n", b"200"),
        (b"nonsense\r\n\r\n", b"405"),
        (b"GET /metrics HTTP/1.1\r\n" + b"x: " + b"y" * 20_000 + b"\r\n\r\n", b""),
        (b"", b"405"),
    ],
)
def test_whatever_is_said_to_it_does_no_harm(broker: Measured, sent: bytes, status: bytes) -> None:
    host, port = broker.metrics.removeprefix("http://").removesuffix("/metrics").split(":")
    answer = b""
    with (
        socket.create_connection((host, int(port)), timeout=60) as client,
        contextlib.suppress(ConnectionError),  # it may hang up before it has read all
    ):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        answer = client.makefile("rb").read()
    assert answer.split(b" ")[1:2] == ([status] if status else [])


def asked_by(address: str, host: str) -> int:
    """The status, when a browser asks by this name."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers={"Host": host}), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code if b"--metrics-hosts" in error.read() else 0


def test_a_page_from_elsewhere_does_not_read_them_by_a_name_of_its_own(broker: Measured) -> None:
    """Without security. Its name points to this machine, for a moment."""
    ours = ["127.0.0.1", "127.0.0.1:7490", "localhost:7490", "LOCALHOST.", "[::1]:7490", "10.1.2.3:7490"]
    assert [asked_by(broker.metrics, host) for host in (*ours, socket.gethostname())] == [200] * (len(ours) + 1)
    for host in (
        "attacker.example",
        "attacker.example:7490",
        "127.0.0.1.attacker.example",
        "localhost.attacker.example",
    ):
        for address in (broker.metrics, broker.metrics.replace("/metrics", "/health")):
            assert asked_by(address, host) == 403


def test_names_by_which_metrics_are_asked_for_can_be_given() -> None:
    given = {"metrics_hosts": "towline, Queue.example", "advertise": "tow-7.example:7400"}
    with BrokerProcess(metrics="127.0.0.1:0", **given) as process:
        for host in ("towline:7490", "queue.example", "tow-7.example"):
            assert asked_by(address_of(process), host) == 200
        assert asked_by(address_of(process), "attacker.example") == 403


def test_a_metrics_address_that_cannot_be_is_refused() -> None:
    assert failing_start(metrics="nowhere").startswith("error: metrics 'nowhere': write HOST:PORT")
    assert "allow_remote" in failing_start(metrics="0.0.0.0:0")


def test_with_security_metrics_are_for_those_who_may_describe_the_cluster(tmp_path: Path) -> None:
    with secured(tmp_path, metrics="127.0.0.1:0") as broker:
        url = address_of(broker.process)
        watcher = broker.admin.access.create_token("watcher", roles=["viewer"])
        other = broker.admin.access.create_token("other", roles=["producer"])
        for header in (
            "",
            "Bearer watcher.wrong",
            f"Bearer other.{other.secret}",
            "Basic ???",
            f"Bearer root.{watcher.secret}",
        ):
            request = urllib.request.Request(url, headers={"Authorization": header})
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                urllib.request.urlopen(request)
            refused.value.close()
        basic = base64.b64encode(f"watcher:{watcher.secret}".encode()).decode()
        for header in (f"Bearer watcher.{watcher.secret}", f"Basic {basic}"):
            with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": header})) as answer:
                assert b"towline_connections" in answer.read()
        broker.admin.access.revoke_token("watcher")
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": header}))
        refused.value.close()


def test_the_dashboard_asks_for_metrics_that_there_are(broker: Measured) -> None:
    broker.client.send("drawn", b"x")
    broker.client.put_group(GroupConfig("drawn", "g"))
    asked = set(re.findall(r"\b(?:towline|process)_[a-z_]+", DASHBOARD.read_text()))
    there = {name for name, _, _ in fresh(broker.metrics)}
    assert len(asked) > 15
    assert asked - there == set()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert all(panel["title"] for panel in panels)


# The command line


def test_top_shows_rates_and_lag(broker: Measured, tmp_path: Path) -> None:
    broker.client.send_many("watched", [b"x"] * 30)
    broker.client.put_group(GroupConfig("watched", "slow"))
    cli = Cli(broker.url, tmp_path)
    shown = cli("top", "--count", "1", "--topic", "watched").text
    assert re.search(r"watched\s+slow\s+0\s+0\s+30\s", shown), shown
    row = cli("top", "-n", "1", "-o", "json").line["rows"]
    assert {"watched"} <= {one["topic"] for one in row}
    assert cli("top", "--every", "0", code=2).err.startswith("error: ")


def test_check_tells_by_its_exit_code(broker: Measured, tmp_path: Path) -> None:
    broker.client.send_many("checked", [b"x"] * 30)
    broker.client.put_group(GroupConfig("checked", "g"))
    cli = Cli(broker.url, tmp_path)
    assert cli("check", "--topic", "checked").text == "OK - 1 topic, 1 group\n"
    assert cli("check", "--topic", "checked", "--warn-lag", "30", code=1).text == (
        "WARNING - checked/g: 30 messages to go\n"
    )
    result = cli("check", "--group", "g", "--topic", "checked", "--crit-age", "1ms", "-o", "json", code=2).line
    assert result["status"] == "CRITICAL"
    assert result["findings"][0]["group"] == "g"
    assert "no consumer" in cli("check", "--topic", "checked", "--need-consumers", code=2).text
    nobody = f"towline://127.0.0.1:{free_port()}"
    assert cli("check", "-u", nobody, "--patience", "300ms", code=2).text.startswith("CRITICAL")
