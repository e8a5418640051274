"""What a client makes of the brokers of a cluster."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from towline.client._sync.cluster import Cluster
from towline.client.cluster.brokers import ClusterBrokers, Liveness
from towline.client.link.blocking import Link
from towline.client.link.connection import Connection, State
from towline.client.link.dial import Route
from towline.client.link.url import parse_url
from towline.protocol.cluster import Brokers, BrokerState, RealmState


class _Connection:
    state = State.READY
    ready = True


class _Link:
    """To a broker that says nothing more."""

    connection: Any = _Connection()
    last_received = 0.0
    at = "h:1"

    def __init__(self) -> None:
        self.asked = 0

    def ask_for_sign(self) -> None:
        self.asked += 1


def test_a_silent_broker_is_left_when_nobody_says_any_more_who_has_what_and_only_after_it_was_asked() -> None:
    members = [BrokerState("A", "a", "h:1"), BrokerState("B", "b", "h:2")]
    fleet, link = ClusterBrokers(Brokers("A", members, True, True, [RealmState("h:1", 3)], 7)), _Link()
    liveness = Liveness(fleet=fleet)
    assert not any(liveness.is_away(now, link) for now in (1.0, 2.0, 50.0))
    fleet.update(Brokers("B", members, True, True))
    assert not any(liveness.is_away(now, link) for now in (50.1, 50.4))
    assert link.asked == 0
    assert not liveness.is_away(50.6, link)
    assert link.asked == 1
    assert liveness.is_away(51.1, link)


class _Changing(ClusterBrokers):
    """Of which a broker leaves as soon as it was found."""

    coming: Brokers | None = None

    def owner(self, topic: str) -> str | None:
        found = super().owner(topic)
        coming, self.coming = self.coming, None
        if coming is not None:
            self.update(coming)
        return found


def _brokers(id_: str, address: str, epoch: int) -> Brokers:
    return Brokers(id_, [BrokerState(id_, id_.lower(), address)], True, True, [RealmState(address, epoch)], epoch)


def _make_link(addresses: tuple[tuple[str, int], ...]) -> Link:
    """Nobody is there: a fleet is told nothing by it."""

    def dial(route: Route, timeout_s: float) -> socket.socket:
        raise ConnectionRefusedError

    return Link(Route(parse_url("towline://h:1")._replace(addresses=addresses)), dial, Connection(), 1.0)


@pytest.mark.parametrize(
    "reach", [lambda cluster: cluster._choose("orders", "")[1], Cluster.any_link], ids=["for a topic", "for anything"]
)
def test_a_broker_that_leaves_in_the_moment_in_which_it_is_chosen_is_not_asked(
    reach: Callable[[Cluster], Link],
) -> None:
    fleet = _Changing(_brokers("A", "h:1", 3))
    cluster = Cluster(fleet, _make_link, 1.0)
    try:
        fleet.coming = _brokers("B", "h:2", 4)
        assert reach(cluster).route.address == ("h", 2)
    finally:
        cluster.close()
