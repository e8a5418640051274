"""Membership: the known brokers, and the clients connected to this one.

Every broker keeps one for itself. It believes that another is alive only when it has heard of it itself; its existence
and address it also takes from others. A broker that keeps messages on a disk of its own stays in the list when it is
gone, because they will be there when it returns; one without is dropped. At an address there is one broker: when
another one answers there, because its disk was replaced, the one before is forgotten.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from towline.errors import Conflict, NotFound, TooMany
from towline.format import FORMAT, decode_document
from towline.protocol.cluster import BROKERS_MAX, Brokers, BrokerState, ClientState, ListClients
from towline.protocol.messages import VERSION
from towline.version import __version__

if TYPE_CHECKING:
    from towline.clock import Clock
    from towline.settings import BrokerSettings
    from towline.store import Store

__all__ = ["BrokerEntry", "ClientEntry", "Membership"]

log = logging.getLogger("towline.cluster")

DOCUMENT: Final = "cluster.json"
SILENT_BEATS: Final = 3
SHARED: Final = ("mysql", "mariadb", "tidb")
"""Stores that many brokers use at once."""


class ClientEntry(Protocol):
    """A connection as the membership lists it."""

    def describe(self) -> list[ClientState]: ...


class _Kept(msgspec.Struct):
    """The part of the membership that outlives the process."""

    id: str
    brokers: list[BrokerState] = []
    clear: list[str] = []
    """Brokers that are known to have nothing that our shards would have to wait for."""


class BrokerEntry:
    """Another broker."""

    __slots__ = ("heard_s", "lost", "state")

    def __init__(self, state: BrokerState, heard_s: float | None) -> None:
        self.state = state
        self.heard_s = heard_s
        """When it was last heard of, by ourselves; None if it never was."""
        self.lost = False
        """Its connection broke, and was not made again yet."""


class Membership:
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
        """Our own address; empty while we listen nowhere."""
        self.epoch = 0
        self.leaving = False
        self.replaced = ""
        """The id of the broker with a disk that was at our address before."""
        self.nodes: dict[str, BrokerEntry] = {}
        self.clear: set[str] = set()
        self.prepared: Callable[[], set[tuple[str, int]]] = set
        """Topics and lanes of prepared transactions."""
        self.visitors: Collection[ClientEntry] = ()

    @property
    def shared(self) -> bool:
        return self._kind in SHARED and bool(self._settings.join)

    @property
    def clustered(self) -> bool:
        return bool(self._settings.join or self.nodes)

    async def load(self, epoch: int) -> None:
        """Our identity, and the brokers known before. A broker without a store of its own is a new one with every
        start."""
        self.epoch = epoch
        if self._kind != "file":
            return
        document = await self._store.load(DOCUMENT)
        if document is None:
            self._changed = True
            await self.save()
            return
        kept = decode_document(DOCUMENT, document, _Kept)
        self.id = kept.id
        self.nodes = {one.id: BrokerEntry(one, None) for one in kept.brokers if one.id != self.id}
        self.clear = set(kept.clear)

    async def save(self) -> None:
        if self._changed and self._kind == "file":
            self._changed = False
            self.clear &= self.nodes.keys()
            kept = _Kept(self.id, [node.state for node in self.nodes.values()], sorted(self.clear))
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
            self.replaced,
            __version__,
            VERSION,
            FORMAT,
        )

    def heard(self, state: BrokerState) -> bool:
        """A broker sent something, or answered. True if it was not known, or has moved or restarted."""
        if state.id == self.id:
            if state.address != self.address:
                raise Conflict(
                    f"the brokers at {self.address} and {state.address} both say that they are {self.id}: the store of "
                    "one is a copy of the other's; remove cluster.json from the config folder of the copy"
                )
            return False
        if self.address and state.address == self.address:
            raise Conflict(
                f"the brokers {self.id} and {state.id} both say that they are reached at {self.address}: give each an "
                "address of its own (--listen, --advertise)"
            )
        self._forget_replaced(state)
        node = self._note(state)
        state = msgspec.structs.replace(state, replaced=state.replaced or node.state.replaced)
        news = node.heard_s is None or node.lost or node.state.epoch != state.epoch
        node.state, node.heard_s, node.lost = state, self._clock.steady_s(), False
        return news

    def told(self, states: Collection[BrokerState]) -> None:
        """Brokers in another's list."""
        for state in states:
            known = self.nodes.get(state.id)
            if state.id == self.id:
                # The others have forgotten the one before us already.
                self._note_replaced(state.replaced)
            elif not state.address:
                continue
            elif state.address == self.address:
                self._note_replaced(state.id if state.store == "file" else "")
            elif known is None:
                # One without a disk that is not alive will not return under this id. Who is at an address that is
                # taken, we find out there.
                taken = any(one.state.address == state.address for one in self.nodes.values())
                if not taken and (state.store == "file" or state.state == "alive"):
                    self._note(state)
            elif state.epoch > known.state.epoch:
                # It has restarted, maybe elsewhere.
                self._changed = self._changed or state.address != known.state.address
                known.state = state

    def _note_replaced(self, broker: str) -> None:
        """This broker with a disk was at our address before."""
        if broker and not self.replaced:
            self.replaced = broker
            log.warning(
                "broker %s was at %s before, where this one is now: it is forgotten; what its disk held comes only if "
                "it returns at another address", broker, self.address,
            )  # fmt: skip

    def _note(self, state: BrokerState) -> BrokerEntry:
        node = self.nodes.get(state.id)
        if node is None:
            if len(self.nodes) >= BROKERS_MAX:
                raise TooMany(f"a cluster has at most {BROKERS_MAX} brokers besides this one")
            node = self.nodes[state.id] = BrokerEntry(state, None)
            self._changed = True
        elif node.state.address != state.address:
            self._changed = True
        return node

    def _forget_replaced(self, state: BrokerState) -> None:
        """This broker answers at its address, so no other one does. One without a store of its own has a new id with
        every start; one with a disk has another if that is empty."""
        for other in [one.state for one in self.nodes.values() if one.state.address == state.address]:
            if other.id == state.id:
                continue
            del self.nodes[other.id]
            self._changed = True
            if other.store == "file":
                log.warning(
                    "broker %s at %s is another one than before (%s), which is forgotten: its keys and messages are "
                    "not waited for any more; what its disk held comes only if it returns at another address",
                    state.id, state.address, other.id,
                )  # fmt: skip
                self._note(state).state = msgspec.structs.replace(state, replaced=other.id)

    def note_clear(self, broker: str, *, clear: bool) -> None:
        """Note whether a broker has nothing that our shards would have to wait for."""
        if clear != (broker in self.clear):
            (self.clear.add if clear else self.clear.discard)(broker)
            self._changed = True

    def lost(self, address: str) -> None:
        """The broker at this address cannot be reached, or its connection broke."""
        for node in self.nodes.values():
            if node.state.address == address and node.heard_s is not None:
                node.lost = True

    def heard_s(self, broker: str) -> float:
        """When a broker was last heard of; before all time, if it never was."""
        node = self.nodes.get(broker)
        return -math.inf if node is None or node.heard_s is None else node.heard_s

    def broke_off(self, broker: str) -> bool:
        """Whether the connection to a broker broke without a farewell, and was not made again yet."""
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

    def _state_of(self, node: BrokerEntry) -> str:
        silent_s = self._clock.steady_s() - (self._opened_s if node.heard_s is None else node.heard_s)
        if silent_s > self._settings.cluster_gone_s:
            return "gone"
        if node.heard_s is None or node.lost or silent_s > SILENT_BEATS * self._settings.cluster_beat_s:
            return "silent"
        return node.state.state

    def state_of(self, broker: str) -> str:
        return self._state_of(self.nodes[broker])

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
