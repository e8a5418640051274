"""The brokers of a cluster as a client sees them, sans I/O: which there are, which can be used, and what goes where.

Whether a broker can be used has two sources: what the brokers say of each other, and what we met with ourselves. The
second is a circuit breaker: a broker that failed us is left alone for a second, for two when it fails again, and so on
up to half a minute; it is trusted again as soon as it is heard of.

What goes where is decided by rendezvous hashing, so that everybody comes to the same answer without asking, and one
that comes or goes moves only what is its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from towline.errors import NotFound
from towline.model import rank
from towline.protocol.cluster import Brokers, BrokerState

__all__ = ["DEDUP", "Fleet", "address_of", "rendezvous"]

_HOLD_S: Final = 1.0
_HOLD_MAX_S: Final = 30.0
_OWNERS_MAX: Final = 10_000
DEDUP: Final = -1
"""In place of a shard: where the messages of a topic go that have dedup ids."""


class _Breaker:
    __slots__ = ("failures", "open_until")

    def __init__(self) -> None:
        self.failures = 0
        self.open_until = 0.0


class Fleet:
    def __init__(self, brokers: Brokers, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._breakers: dict[str, _Breaker] = {}
        self._members: dict[str, BrokerState] = {}
        self._usable: frozenset[str] = frozenset()
        self._owners: dict[str, str] = {}
        self.shared = brokers.shared
        self.version = 0
        """Grows whenever something may have to go elsewhere."""
        self.update(brokers)

    def __repr__(self) -> str:
        return f"<Fleet of {len(self._members)} brokers, {len(self._usable)} usable>"

    @property
    def members(self) -> list[BrokerState]:
        return list(self._members.values())

    def get(self, broker: str) -> BrokerState | None:
        return self._members.get(broker)

    def label(self, broker: str) -> str:
        """What people call a broker: its name, or its address where that is not the only one of its name."""
        state = self._members.get(broker)
        if state is None:
            return broker
        alone = sum(one.name == state.name for one in self._members.values()) == 1
        return state.name if alone and state.name else state.address

    def named(self, text: str) -> str:
        """The broker of this name, address or id."""
        found = [key for key, one in self._members.items() if text in (key, one.address, one.name)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(f"{one.name} at {one.address}" for one in self._members.values()))
        problem = f"there is no broker {text[:100]}" if not found else f"several brokers have the name {text[:100]}"
        raise NotFound(f"{problem} in this cluster: it has {known}")

    def update(self, brokers: Brokers) -> None:
        """The registry of a broker."""
        with self._lock:
            members = {state.id: state for state in brokers.brokers if state.address}
            if members.keys() != self._members.keys() or any(
                state.address != self._members[key].address for key, state in members.items()
            ):
                self.version += 1
            self._members = members
            self._breakers = {key: one for key, one in self._breakers.items() if key in members}
            self._review()

    def refresh(self) -> None:
        """Time has passed: a breaker may have closed."""
        with self._lock:
            self._review()

    def suspect(self, broker: str) -> None:
        """It failed us."""
        with self._lock:
            breaker = self._breakers.setdefault(broker, _Breaker())
            now = self._clock()
            if breaker.open_until > now:
                return
            breaker.open_until = now + min(_HOLD_S * 2.0 ** min(breaker.failures, 10), _HOLD_MAX_S)
            breaker.failures += 1
            self._review()

    def trust(self, broker: str) -> None:
        """It was heard of."""
        with self._lock:
            if self._breakers.pop(broker, None) is not None:
                self._review()

    def usable(self, broker: str) -> bool:
        return broker in self._usable

    def _review(self) -> None:
        now = self._clock()
        shut = {key for key, one in self._breakers.items() if one.open_until > now}
        usable = frozenset(
            state.id for state in self._members.values() if state.state == "alive" and state.id not in shut
        )
        if usable != self._usable:
            self._usable = usable
            self.version += 1

    # What goes where

    def route(self, salt: str, topic: str) -> str:
        """The broker that a sender, known by its salt, sends a topic to."""
        return self.owner(topic) or self.pick(salt + topic) or self.home(topic, 0)

    def owner(self, topic: str) -> str | None:
        """Where brokers share a store: the one that serves a topic, as far as we know."""
        found = self._owners.get(topic)
        return found if found in self._usable else None

    def learn_owner(self, topic: str, address: str) -> None:
        """A broker said who serves a topic; nobody, without an address."""
        found = next((one.id for one in self._members.values() if one.address == address), None)
        if found is None:
            self._owners.pop(topic, None)
        elif self._owners.get(topic) != found:
            if len(self._owners) >= _OWNERS_MAX:
                self._owners.clear()
            self._owners[topic] = found
            self.version += 1

    def pick(self, key: str, but: Iterable[str] = ()) -> str | None:
        """A broker for something that may go to any: always the same for the same key, while it can be used. None if
        there is none to be used."""
        return rendezvous(key, self._usable.difference(but))

    def home(self, topic: str, shard: int) -> str:
        """The broker of a shard of an ordered topic: one of all there are, whether it can be used now or not."""
        chosen = rendezvous(f"{topic}/{shard}", self._members)
        assert chosen is not None, "a fleet has at least the broker that told of it"
        return chosen


def rendezvous(key: str, brokers: Iterable[str]) -> str | None:
    """The broker, of these, that something belongs to: the same for everybody who asks."""
    return max(brokers, key=lambda broker: rank(key, broker), default=None)


def address_of(broker: BrokerState) -> tuple[str, int]:
    host, _, port = broker.address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
