"""What `towline check` says of open messages that hold retention back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.broker.monitor.test_metrics import address_of, fresh
from tests.broker.process import BrokerProcess
from tests.broker.raw_client import RawClient
from tests.cli.conftest import Cli
from tests.eventually import eventually
from tests.inside.cli import WARNING, _look_at_retention


@pytest.mark.parametrize(("held_s", "said"), [(0, False), (1_000, False), (50_000, True), (90_000, True)])
def test_it_warns_from_half_of_the_time_on(held_s: float, said: bool) -> None:
    who = "group billing on topic orders"
    found = _look_at_retention({"retention_held_s": held_s, "retention_held_max_s": 86_400.0, "retention_held_by": who})
    assert [one.level for one in found] == [WARNING] * said
    assert all(f"open messages of {who} hold retention back for" in one.text for one in found)


@pytest.mark.parametrize(("held_bytes", "said"), [(0, False), (4 << 30, False), (5 << 30, True), (20 << 30, True)])
def test_it_warns_from_half_of_the_bytes_on(held_bytes: int, said: bool) -> None:
    figures = {"retention_held_bytes": held_bytes, "retention_held_max_bytes": 10 << 30, "retention_held_by": "group b"}
    found = _look_at_retention(figures)
    assert [one.level for one in found] == [WARNING] * said
    assert all(one.text.startswith("open messages of group b keep ") for one in found)
    assert all(one.text.endswith(" GiB too many, and are dropped at 10.0 GiB") for one in found)


def test_a_real_broker_says_it_in_check_and_metrics(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "retention_s": 0.0,
        "retention_bytes": 1 << 20,
        "segment_bytes": 64 << 10,
        "maintenance_s": 0.2,
    }
    settings |= {"open_max_s": 3600.0, "open_max_bytes": 2 << 20, "metrics": "127.0.0.1:0"}
    with BrokerProcess(store=f"file:{tmp_path}/data", **settings) as broker:
        metrics = address_of(broker)
        with RawClient.hello(broker.port) as client:
            attachment = client.attach("orders", "billing")
            client.send("orders", [b"open"])
            client.pull(attachment, wait_ms=30_000)
            for _ in range(12):
                client.send("other", [bytes(200_000)])
            cli = Cli(f"towline://127.0.0.1:{broker.port}", tmp_path)
            samples = eventually(
                lambda: fresh(metrics), holds=lambda found: found["towline_retention_held_bytes", "", ""] > 1 << 20
            )
            assert samples["towline_retention_held_seconds", "", ""] > 0
            assert samples["towline_retention_dropped_open_total", "", ""] == 0
            said = cli("check", code=WARNING).text
            who = "group billing on topic orders"
            assert re.search(
                rf"^WARNING - .*open messages of {who} keep 1\.\d MiB too many, and are dropped at 2", said
            )
            for _ in range(8):
                client.send("other", [bytes(200_000)])
            samples = eventually(
                lambda: fresh(metrics), holds=lambda found: found["towline_retention_held_bytes", "", ""] == 0
            )
            assert samples["towline_retention_held_seconds", "", ""] == 0
            assert samples["towline_retention_dropped_open_total", "", ""] == 1
            assert "retention" not in cli("check").text


def test_a_broker_of_an_earlier_version_says_nothing_of_it() -> None:
    assert _look_at_retention({}) == []
