"""What `towline check` says of groups that nobody uses."""

from __future__ import annotations

import re
from pathlib import Path

from tests.broker.process import BrokerProcess
from tests.broker.raw_client import RawClient
from tests.cli.conftest import Cli
from tests.eventually import eventually
from tests.inside.cli import OK, WARNING, _look, _look_at_broadcast, _summary
from tests.inside.protocol import GroupFigures, Measured


def figures(group: str, expires_in_s: float) -> GroupFigures:
    return GroupFigures("orders", group, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, expires_in_s=expires_in_s)


def test_a_group_that_is_removed_soon_is_a_warning() -> None:
    found = _look(figures("billing", 7193), 0, {}, need_consumers=False)
    assert [(one.level, one.text) for one in found] == [
        (WARNING, "orders/billing: nobody uses it, and it is removed in 1h 59m")
    ]
    assert _look(figures("billing", -1), 0, {}, need_consumers=False) == []
    assert _look(figures("~pod", 60), 0, {}, need_consumers=False) == [], "said of all of them together"


def test_broadcast_consumers_that_are_removed_are_mentioned_and_all_is_well() -> None:
    groups = [figures("~b", 7200), figures("~a", 3600), figures("~c", -1), figures("billing", 60)]
    [found] = _look_at_broadcast(groups)
    assert found.level == OK
    assert found.text == "2 broadcast consumers that nobody uses, removed from 1h 0m on: first orders/~a"
    assert _summary(OK, [found], Measured(0, {}, [], groups)) == f"0 topics, 4 groups; {found.text}"
    assert _look_at_broadcast([figures("~c", -1)]) == []


def test_a_real_broker_says_it_in_check_and_group_info(tmp_path: Path) -> None:
    with BrokerProcess(broadcast_expiry_s=7.0, maintenance_s=3600.0) as broker:
        with RawClient.hello(broker.port) as client:
            client.attach("orders", "~pod")
        cli = Cli(f"towline://127.0.0.1:{broker.port}", tmp_path)
        shown = eventually(lambda: cli("group", "info", "orders", "~pod").text, holds=lambda text: "unused for" in text)
        assert re.search(r"unused for\s+\d+s; it is removed in \d+s if nobody uses it", shown)
        facts = cli("group", "info", "orders", "~pod", "-o", "json").line
        assert 0 <= facts["expires_in_s"] <= 7
        said = eventually(lambda: cli("check").text, holds=lambda text: "broadcast consumer" in text)
        assert re.search(r"^OK - 1 topic, 1 group; 1 broadcast consumer that nobody uses, removed from \d+s on", said)
