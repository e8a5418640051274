"""The registry: which brokers there are, and which clients are connected to this one.

Every broker keeps one for itself. Whether another is alive it believes only when it has heard of it itself; that one
exists, and where, it also believes when it is told. A broker that keeps messages on a disk of its own stays in the list
when it is gone, because they will be there when it returns; one without is dropped.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterator
from typing import Final, Protocol

import msgspec

from towline.clock import Clock
from towline.errors import Conflict, NotFound, TooLarge
from towline.protocol.cluster import BROKERS_MAX, Brokers, BrokerState, ClientState, ListClients
from towline.settings import BrokerSettings
from towline.store import Store

__all__ = ["Node", "Registry", "Visitor"]

log = logging.getLogger("towline.cluster")

DOCUMENT: Final = "cluster.json"
SILENT_BEATS: Final = 3
SHARED: Final = ("mysql", "mariadb", "tidb")
"""Stores that many brokers use at once."""


class Visitor(Protocol):
    """A connection, as far as the registry must know it."""

    def describe(self) -> list[ClientState]: ...


class _Kept(msgspec.Struct):
    """What of the registry outlives the process."""

    id: str
    brokers: list[BrokerState] = []


class Node:
    """Another broker."""

    __slots__ = ("heard_s", "lost", "state")

    def __init__(self, state: BrokerState, heard_s: float | None) -> None:
        self.state = state
        self.heard_s = heard_s
        """When it was last heard of, by ourselves; None if it never was."""
        self.lost = False
        """Its connection broke, and was not made again yet."""


class Registry:
    def __init__(
        self, store: Store, settings: BrokerSettings, clock: Clock, count_topics: Callable[[], int] = lambda: 0
    ) -> None:
        self._count_topics = count_topics
        self._store = store
        self._settings = settings
        self._clock = clock
        self._kind = settings.store.partition(":")[0]
        self._opened_s = clock.steady_s()
        self._changed = False
        self.id = secrets.token_hex(8)
        self.address = ""
        """Where we are reached; empty while we listen nowhere."""
        self.epoch = 0
        self.leaving = False
        self.nodes: dict[str, Node] = {}
        self.visitors: Collection[Visitor] = ()

    @property
    def shared(self) -> bool:
        return self._kind in SHARED and bool(self._settings.join)

    @property
    def clustered(self) -> bool:
        return bool(self._settings.join or self.nodes)

    async def load(self, epoch: int) -> None:
        """Who we are, and whom we knew. A broker without a store of its own is a new one with every start."""
        self.epoch = epoch
        if self._kind != "file":
            return
        document = await self._store.load(DOCUMENT)
        if document is None:
            self._changed = True
            await self.save()
            return
        kept = msgspec.json.decode(document, type=_Kept)
        self.id = kept.id
        self.nodes = {one.id: Node(one, None) for one in kept.brokers if one.id != self.id}

    async def save(self) -> None:
        if self._changed and self._kind == "file":
            self._changed = False
            kept = _Kept(self.id, [node.state for node in self.nodes.values()])
            await self._store.save(DOCUMENT, msgspec.json.encode(kept))

    # Brokers

    def me(self) -> BrokerState:
        return BrokerState(
            self.id,
            self._settings.name,
            self.address,
            self.epoch,
            "leaving" if self.leaving else "alive",
            0.0,
            self._kind,
            bool(self._settings.tls_cert),
            len(self.visitors),
            self._count_topics(),
            round(self._clock.steady_s() - self._opened_s, 3),
        )

    def heard(self, state: BrokerState) -> bool:
        """A broker spoke to us, or answered. True if it was not known, or has moved or restarted."""
        if state.id == self.id:
            if state.address != self.address:
                raise Conflict(
                    f"the brokers at {self.address} and {state.address} both say that they are {self.id}: the store of "
                    "one is a copy of the other's; remove cluster.json from the config folder of the copy"
                )
            return False
        node = self._note(state)
        news = node.heard_s is None or node.lost or node.state.epoch != state.epoch
        node.state, node.heard_s, node.lost = state, self._clock.steady_s(), False
        return news

    def told(self, states: Collection[BrokerState]) -> None:
        """Others know of these."""
        for state in states:
            known = self.nodes.get(state.id)
            if state.id == self.id or not state.address:
                continue
            if known is None:
                # One without a disk that is not alive will not return under this id.
                taken = any(one.state.address == state.address for one in self.nodes.values())
                if state.store == "file" or (state.state == "alive" and not taken):
                    self._note(state)
            elif state.epoch > known.state.epoch:
                # It has restarted, maybe elsewhere.
                self._changed = self._changed or state.address != known.state.address
                known.state = state

    def _note(self, state: BrokerState) -> Node:
        node = self.nodes.get(state.id)
        if node is None:
            if len(self.nodes) >= BROKERS_MAX:
                raise TooLarge(f"a cluster has at most {BROKERS_MAX} brokers besides this one")
            self._drop_replaced(state)
            node = self.nodes[state.id] = Node(state, None)
            self._changed = True
        elif node.state.address != state.address:
            self._changed = True
        return node

    def _drop_replaced(self, state: BrokerState) -> None:
        """A broker without a store of its own has a new id with every start, at its old address."""
        for other in [one for one in self.nodes.values() if one.state.address == state.address]:
            if other.state.store != "file":
                del self.nodes[other.state.id]

    def lost(self, address: str) -> None:
        """The broker at this address cannot be reached, or its connection broke."""
        for node in self.nodes.values():
            if node.state.address == address and node.heard_s is not None:
                node.lost = True

    def broke_off(self, broker: str) -> bool:
        """Whether the connection to a broker broke although it did not say farewell, and was not made again yet."""
        node = self.nodes.get(broker)
        return node is not None and node.lost and node.state.state == "alive"

    def forget(self, broker: str) -> None:
        found = [one for one in self.nodes.values() if broker in (one.state.id, one.state.address)]
        if not found:
            raise NotFound(f"there is no broker {broker} in this cluster")
        if self._state_of(found[0]) == "alive":
            raise Conflict(f"broker {found[0].state.name} at {found[0].state.address} is alive: stop it first")
        del self.nodes[found[0].state.id]
        self._changed = True

    def sweep(self) -> None:
        """Drop those that are gone for good."""
        for node in list(self.nodes.values()):
            if node.state.store != "file" and node.heard_s is not None and self._state_of(node) == "gone":
                log.warning("broker %s at %s is gone", node.state.name, node.state.address)
                del self.nodes[node.state.id]
                self._changed = True

    def states(self) -> Iterator[BrokerState]:
        """This broker, then the others by address."""
        yield self.me()
        now_s = self._clock.steady_s()
        for node in sorted(self.nodes.values(), key=lambda one: one.state.address):
            heard_s = self._opened_s if node.heard_s is None else node.heard_s
            yield msgspec.structs.replace(node.state, state=self._state_of(node), last_seen_s=round(now_s - heard_s, 3))

    def _state_of(self, node: Node) -> str:
        silent_s = self._clock.steady_s() - (self._opened_s if node.heard_s is None else node.heard_s)
        if silent_s > self._settings.cluster_gone_s:
            return "gone"
        if node.heard_s is None or node.lost or silent_s > SILENT_BEATS * self._settings.cluster_beat_s:
            return "silent"
        return node.state.state

    def alive(self) -> list[BrokerState]:
        return [state for state in self.states() if state.state == "alive"]

    def brokers(self) -> Brokers:
        return Brokers(self.id, list(self.states()), self.clustered, self.shared)

    # Clients

    def clients(self, request: ListClients) -> list[ClientState]:
        found = [client for visitor in list(self.visitors) for client in visitor.describe()]
        return sorted(
            (client for client in found if request.topic in ("", client.topic) and request.group in ("", client.group)),
            key=lambda client: (client.topic, client.group, client.rank, client.address),
        )
