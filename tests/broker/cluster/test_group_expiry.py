"""Groups that nobody uses, where each broker keeps messages of its own: used at one, they are used at all."""

from __future__ import annotations

from collections.abc import Callable

from tests.broker.raw_client import RawClient
from tests.inside.protocol import CreateTopic, Done, Groups, GroupState, ListGroups
from tests.system.cluster.conftest import Brokers, eventually
from towline.model import TopicConfig

EXPIRY_S = 2.0


def groups_at(brokers: Brokers, number: int) -> dict[str, GroupState]:
    with RawClient.hello(brokers.ports[number]) as client:
        return {one.config.name: one for one in client.call(ListGroups("orders"), Groups).groups}


def test_a_group_that_is_used_at_one_broker_is_removed_at_neither(cluster_of: Callable[..., Brokers]) -> None:
    flags = ("--broadcast-expiry-s", str(EXPIRY_S), "--maintenance-s", "0.2")
    pair = cluster_of(2, *flags).start().wait_for()
    with RawClient.hello(pair.ports[0]) as here:
        for port in pair.ports:
            with RawClient.hello(port) as one:
                one.call(CreateTopic(TopicConfig("orders")), Done)
                one.attach("orders", "~pod")
                one.attach("orders", "~gone")
        # Its consumer reaches only one of them now.
        here.attach("orders", "~pod")
        seen: list[float] = []

        def was_kept_in_spite_of_its_age() -> bool:
            here.knock()
            seen.append(groups_at(pair, 1)["~pod"].unused_s)
            return max(seen) > EXPIRY_S / 2 and seen[-1] < max(seen)

        eventually(was_kept_in_spite_of_its_age)
        eventually(lambda: groups_at(pair, 0).keys() == groups_at(pair, 1).keys() == {"~pod"})
    eventually(lambda: not groups_at(pair, 0) and not groups_at(pair, 1))


def test_while_a_broker_is_away_nothing_is_removed(cluster_of: Callable[..., Brokers]) -> None:
    flags = ("--broadcast-expiry-s", str(EXPIRY_S), "--maintenance-s", "0.2")
    pair = cluster_of(2, *flags).start().wait_for()
    with RawClient.hello(pair.ports[0]) as one:
        one.call(CreateTopic(TopicConfig("orders")), Done)
        one.attach("orders", "~pod")
    pair.kill(1)
    eventually(lambda: "kept while a broker of the cluster is away" in (pair.folder / "0.log").read_text())
    assert groups_at(pair, 0).keys() == {"~pod"}
    pair.start(1)
    eventually(lambda: not groups_at(pair, 0))
