"""The brokers of a cluster as a client knows them, sans I/O: which exist, which are usable, and which to choose.

Whether a broker is usable has two sources: the brokers' reports about each other, and our own failures. The second is a
circuit breaker: a broker that failed us is left alone for a second, for two when it fails again, and so on up to half a
minute; it is trusted again as soon as it is heard of.

Brokers are chosen by rendezvous hashing, so that everybody comes to the same answer without asking, and one that comes
or goes moves only its own topics. Where brokers share a store, they report the owners of topics: there a broker that
only gives no answer is not suspected, because it may be busy; that it is deposed is learned from the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from towline.client.link.connection import Call, Connection, State
from towline.errors import NotFound
from towline.model import rank
from towline.protocol.cluster import Brokers, BrokerState, RealmState, realm_of

__all__ = ["DEDUP", "LATE_S", "NEWS_S", "ClusterBrokers", "Liveness", "address_of", "next_look", "rendezvous"]

NEWS_S: Final = 1.0
"""Where brokers share a store, one that has no news for a client answers after so long."""
LATE_S: Final = 0.5
"""A broker that owes us an answer and is silent for so long is sent a beat."""
_HANGS_S: Final = 1.0
"""One that does not answer it either counts as away after so long."""
_BREAKS_S: Final = 0.05
_ASK_EVERY_S: Final = 1.0
_HOLD_S: Final = 1.0
_HOLD_MAX_S: Final = 30.0
_OWNERS_MAX: Final = 10_000
DEDUP: Final = -1
"""In place of a shard: the messages of a topic that have dedup ids."""


class _Breaker:
    __slots__ = ("failures", "open_until")

    def __init__(self) -> None:
        self.failures = 0
        self.open_until = 0.0


class _Link(Protocol):
    connection: Connection
    last_received: float

    @property
    def at(self) -> str: ...

    def ask_for_sign(self) -> None: ...


class Liveness:
    """Whether a broker that owes us answers is alive."""

    __slots__ = ("_fleet", "_since", "_told_at")

    def __init__(self, since: float | None = None, fleet: ClusterBrokers | None = None) -> None:
        self._since = since
        self._fleet = fleet
        """While it reports the owners of topics, others decide whether a broker is to be left whose connection
        stands."""
        self._told_at = 0.0

    def is_away(self, now: float, link: _Link, *, waiting: bool = True) -> bool:
        if not waiting:
            self._since = None
            return False
        ready = link.connection.ready
        if self._since is None or (ready and link.last_received > self._since):
            self._since = now
        silent_s = now - self._since
        if not ready:
            # One that is just greeted is given time: it may be busy.
            return silent_s > (_BREAKS_S if link.connection.state is State.DOWN else LATE_S)
        if self._fleet is not None and self._fleet.tells_owners:
            self._told_at = now
            return False
        silent_s = min(silent_s, now - self._told_at)  # it has all its time, if they say so no more
        if silent_s <= LATE_S:
            return False
        link.ask_for_sign()
        return silent_s > _HANGS_S


class ClusterBrokers:
    def __init__(self, brokers: Brokers, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._breakers: dict[str, _Breaker] = {}
        self._members: dict[str, BrokerState] = {}
        self._usable: frozenset[str] = frozenset()
        self._shut: frozenset[str] = frozenset()
        self._by_address: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        self._realms: list[RealmState] = []
        self.shared = brokers.shared
        self.mark = 0
        """Of the last report (see `ListBrokers`)."""
        self.version = 0
        """Grows whenever something may have to go elsewhere."""
        self.update(brokers)

    def __repr__(self) -> str:
        return f"<ClusterBrokers of {len(self._members)} brokers, {len(self._usable)} usable>"

    @property
    def members(self) -> list[BrokerState]:
        return list(self._members.values())

    def get(self, broker: str) -> BrokerState | None:
        return self._members.get(broker)

    def label(self, broker: str) -> str:
        """The name of a broker for people, or its address where others have that name too."""
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
        """Take over a broker's membership list."""
        with self._lock:
            members = {state.id: state for state in brokers.brokers if state.address}
            if members.keys() != self._members.keys() or any(
                state.address != self._members[key].address for key, state in members.items()
            ):
                self.version += 1
            self._members = members
            self._by_address = {state.address: key for key, state in members.items()}
            self.mark = brokers.mark
            self._update_realms(brokers.realms)
            self._breakers = {key: one for key, one in self._breakers.items() if key in members}
            self._review()

    def _update_realms(self, told: list[RealmState]) -> None:
        if len(told) == len(self._realms):
            told = [_later(old, new) for old, new in zip(self._realms, told, strict=True)]
        if told != self._realms:
            self._realms = told
            self.version += 1

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
        if usable != self._usable or shut != self._shut:
            self._usable, self._shut = usable, frozenset(shut)
            self.version += 1

    # Choice

    def route(self, salt: str, topic: str) -> str:
        """The broker that a sender, known by its salt, sends a topic to."""
        return self.owner(topic) or self.pick(salt + topic) or self.home(topic, 0)

    @property
    def tells_owners(self) -> bool:
        """The brokers report the owners of topics."""
        return bool(self._realms)

    def owner(self, topic: str) -> str | None:
        """Where brokers share a store: the one that serves a topic, as far as we know; unless it has failed us."""
        realms = self._realms
        if not realms:
            found = self._owners.get(topic)
            return found if found in self._usable else None
        found = self._by_address.get(realms[realm_of(topic, len(realms))].address)
        return None if found in self._shut else found

    def learn_owner(self, topic: str, address: str) -> None:
        """A broker reported the owner of a topic; none, without an address."""
        with self._lock:
            realms = self._realms
            if realms:
                number = realm_of(topic, len(realms))
                if realms[number].address != address:
                    told = RealmState(address, realms[number].epoch)
                    self._realms = [*realms[:number], told, *realms[number + 1 :]]
                    self.version += 1
                return
            found = self._by_address.get(address)
            if found is None:
                self._owners.pop(topic, None)
            elif self._owners.get(topic) != found:
                if len(self._owners) >= _OWNERS_MAX:
                    self._owners.clear()
                self._owners[topic] = found
                self.version += 1

    def is_deposed(self, broker: str) -> bool:
        """Where brokers share a store: whether others have all topics."""
        state = self._members.get(broker)
        return bool(self._realms) and not any(
            state is not None and state.address == one.address for one in self._realms
        )

    def is_late(self, link: _Link, liveness: Liveness, now: float) -> bool:
        """Whether the requests of a link may have to go elsewhere (see `better_place`). A broker that is reached under
        a name that is not its own may be the right one: it is sent a beat."""
        owes = link.connection.unanswered > 0
        if link.at not in self._by_address:
            return liveness.is_away(now, link, waiting=owes)
        return not link.connection.ready or (owes and now - link.last_received > LATE_S)

    def better_place(self, topic: str | None, address: str) -> str | None:
        """Where brokers share a store: where to send the unanswered requests of this address; None if that may be the
        right place. Requests about no topic go to any broker that is there."""
        if topic is not None:
            owner = self.owner(topic) if self._realms else None
        else:
            here = self._by_address.get(address)
            owner = None if here in self._usable else self.pick("")
        found = None if owner is None else self._members.get(owner)
        return None if found is None or found.address == address else found.address

    def pick(self, key: str, but: Iterable[str] = ()) -> str | None:
        """A usable broker for something that may go to any: always the same for the same key. None if there is none."""
        return rendezvous(key, self._usable.difference(but))

    def home(self, topic: str, shard: int) -> str:
        """The broker of a shard of an ordered topic: one of all there are, whether it is usable now or not."""
        chosen = rendezvous(f"{topic}/{shard}", self._members)
        assert chosen is not None, "a fleet has at least the broker that told of it"
        return chosen


def rendezvous(key: str, brokers: Iterable[str]) -> str | None:
    """The broker, of these, that a key belongs to: the same for everybody who asks."""
    return max(brokers, key=lambda broker: rank(key, broker), default=None)


def _later(known: RealmState, told: RealmState) -> RealmState:
    """The later of two reports. A broker may be behind the times; and that a realm has no owner counts from its owner
    only."""
    return told if told.epoch > known.epoch or (told.epoch == known.epoch and told.address) else known


def next_look(fleet: ClusterBrokers, call: Call, asked_at: float, now: float) -> float:
    """When to list the brokers again, after this answer: at once, if the broker waits until it has news."""
    waits = fleet.shared and call.error is None
    if waits and (call.answer.mark != fleet.mark or now - asked_at >= NEWS_S):
        return now
    return asked_at + _ASK_EVERY_S


def address_of(broker: BrokerState) -> tuple[str, int]:
    host, _, port = broker.address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
