"""The brokers behind a client, one by one, for bulk readers and writers (the Spark connector).

Where brokers have stores of their own, each holds messages that no other has, and has an id that does not change. A
broker alone has none here, and brokers that share a database are one: a link that finds the owner of each topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from towline.errors import NotFound
from towline.protocol.cluster import BrokerState

if TYPE_CHECKING:
    from towline.client._sync.client import Client
    from towline.client.link.blocking import Link

__all__ = ["Node", "is_shared", "node_of", "nodes_of"]


class Node(NamedTuple):
    id: str
    """Empty where there is only one."""
    name: str
    """For people: its name, with a part of its id where another one has the same."""
    link: Link
    alive: bool = True


def is_shared(client: Client) -> bool:
    """Whether the brokers share one store, of which each serves some topics."""
    return client._cluster is not None and client._cluster.fleet.shared


def nodes_of(client: Client, wanted: Sequence[str] = ()) -> list[Node]:
    """All brokers that hold messages, or those that are wanted, by name, id or address."""
    cluster = client._cluster
    if cluster is None or cluster.fleet.shared:
        welcome = client._link.connection.welcome
        assert welcome is not None, "a client is made once it has met its broker"
        return [Node("", welcome.broker, client._one_link())]
    members = sorted(cluster.fleet.members, key=lambda one: one.id)
    for word in wanted:
        if not any(word in _known_as(one) for one in members):
            known = ", ".join(one.name for one in members)
            raise NotFound(f"there is no broker {word[:100]} in the cluster; there are: {known}")
    names = Counter(one.name for one in members)
    return [
        Node(
            one.id,
            one.name if names[one.name] == 1 else f"{one.name}-{one.id[:6]}",
            cluster.link(one.id),
            one.state == "alive",
        )
        for one in members
        if not wanted or any(word in _known_as(one) for word in wanted)
    ]


def node_of(client: Client, id_: str) -> Node:
    """One broker, by its id."""
    for node in nodes_of(client):
        if node.id == id_:
            return node
    raise NotFound(f"broker {id_ or 'alone'} is not there any more: was it forgotten, or has the cluster changed?")


def _known_as(broker: BrokerState) -> tuple[str, ...]:
    return broker.id, broker.name, broker.address
