"""What `towline check` says of several brokers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import towline
from tests.broker.raw_client import RawClient
from tests.cli.conftest import Cli
from tests.inside.cli import CRITICAL, OK, WARNING, _look_at_away
from tests.inside.client import Outcome, merge
from tests.inside.protocol import BrokerState, GroupFigures, Measured
from tests.system.cluster.conftest import Brokers, eventually

RETENTION = ("--retention-s", "0", "--retention-bytes", str(1 << 20), "--segment-bytes", str(64 << 10))
OFTEN = ("--maintenance-s", "0.2", "--open-max-bytes", str(2 << 20))


def test_check_looks_at_every_broker_of_a_cluster_and_says_which_one_it_is(
    tmp_path: Path, cluster_of: Callable[..., Brokers]
) -> None:
    brokers = cluster_of(2, *RETENTION, *OFTEN).start().wait_for()
    cli = Cli(f"towline://{brokers.address(0)}", tmp_path)
    assert cli("check", code=OK).text.startswith("OK - ")
    with RawClient.hello(brokers.ports[1]) as client:
        attachment = client.attach("orders", "billing")
        client.send("orders", [b"open"])
        client.pull(attachment, wait_ms=30_000)
        for _ in range(12):
            client.send("other", [bytes(200_000)])
        with towline.connect(f"towline://{brokers.address(0)}") as mq:
            eventually(lambda: mq.measure().broker["retention_held_bytes"] > 1 << 20)
        said = cli("check", code=WARNING).text
    who = rf"broker b1 at {re.escape(brokers.address(1))}: open messages of group billing on topic orders"
    assert re.match(rf"WARNING - {who} keep 1\.\d MiB too many, and are dropped at 2", said)


def test_a_broker_that_is_away_is_critical_where_nobody_else_has_its_messages(
    tmp_path: Path, cluster_of: Callable[..., Brokers]
) -> None:
    brokers = cluster_of(2).start().wait_for()
    brokers.kill(1)
    said = Cli(f"towline://{brokers.address(0)}", tmp_path)("check", code=CRITICAL).text
    assert said == f"CRITICAL - broker b1 at {brokers.address(1)} does not answer\n"
    assert [one.level for one in _look_at_away({"store": "mysql", "away": ["b1 at 10.0.0.1:7400"]})] == [WARNING]


def test_a_group_is_as_near_to_its_limits_as_at_the_worst_of_its_brokers() -> None:
    def at(number: int, *late: object) -> Outcome[Measured]:
        figures = GroupFigures("orders", "billing", *([1] * 11), *late)  # type: ignore[arg-type]
        broker = BrokerState(f"b{number}", f"b{number}", f"10.0.0.{number}:7400", 1)
        return Outcome(broker, Measured(1, {}, [], [figures]), None)

    [one] = merge.join_figures([at(1, "", 0.5, -1.0), at(2, "a disk", 0.6, 500.0)]).groups
    assert (one.unreadable, one.retry_load, one.expires_in_s) == ("a disk", 0.6, -1.0)
    [one] = merge.join_figures([at(1, "", 0.0, 300.0), at(2, "", 0.0, 500.0)]).groups
    assert one.expires_in_s == 500.0, "each asks the others first"
    assert one.backlog == 2
