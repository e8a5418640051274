"""What a client makes of the brokers of a cluster."""

from __future__ import annotations

from typing import Any

from towline.client.connection import State
from towline.client.fleet import Fleet, Liveness
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
    fleet, link = Fleet(Brokers("A", members, True, True, [RealmState("h:1", 3)], 7)), _Link()
    liveness = Liveness(fleet=fleet)
    assert not any(liveness.is_away(now, link) for now in (1.0, 2.0, 50.0))
    fleet.update(Brokers("B", members, True, True))
    assert not any(liveness.is_away(now, link) for now in (50.1, 50.4))
    assert link.asked == 0
    assert not liveness.is_away(50.6, link)
    assert link.asked == 1
    assert liveness.is_away(51.1, link)
