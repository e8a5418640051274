"""Requests and answers about a cluster: its brokers and clients, and messages handed to another broker."""

from __future__ import annotations

from typing import Annotated

import msgspec
from crc32c import crc32c

from towline.model import GroupConfig, is_pattern
from towline.protocol.base import Newer
from towline.protocol.messages import ANSWERS, REQUESTS, Answer, Request

__all__ = [
    "BROKERS_MAX",
    "Backlog",
    "BrokerState",
    "Brokers",
    "ClientState",
    "Clients",
    "CloseConnection",
    "ForgetBroker",
    "HandBack",
    "HandedBack",
    "ListBrokers",
    "ListClients",
    "Meet",
    "Met",
    "RealmState",
    "realm_of",
]

BROKERS_MAX = 100
REALMS_MAX = 64

_Name = Annotated[str, msgspec.Meta(max_length=100)]
_Address = Annotated[str, msgspec.Meta(max_length=300)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class BrokerState(msgspec.Struct, frozen=True, array_like=True):
    """One broker of a cluster, as another one (or itself) knows it."""

    id: _Name
    """Kept in its store: a broker that returns is recognised by it."""
    name: _Name
    address: _Address
    """`host:port` by which clients and other brokers reach it."""
    epoch: int = 0
    """Grows with every start."""
    state: str = "alive"
    """`alive`, `silent` (not heard of for three beats), `gone` (for much longer), or `leaving` (it said so)."""
    last_seen_s: float = 0.0
    store: _Name = ""
    """The kind of its store: `file`, `memory`, `mysql`, …"""
    tls: bool = False
    connections: int = 0
    topics: int = 0
    uptime_s: float = 0.0
    replaced: _Name = ""
    """The id of the broker with a disk that had this address before, and was forgotten."""
    software: _Name = ""
    """Its version of Towline; empty for one that does not send it."""
    protocol: int = 1
    """The highest version of the protocol that it knows."""
    format: int = 1
    """The highest number of the format that it knows."""

    @property
    def version(self) -> str:
        """For people."""
        return self.software or f"protocol {self.protocol}"


class Meet(Request, frozen=True, array_like=True):
    """From broker to broker, with every beat: its own state, and the brokers that it knows."""

    kind = 80
    me: BrokerState
    known: Annotated[list[BrokerState], msgspec.Meta(max_length=BROKERS_MAX)] = msgspec.field(default_factory=list)


class Backlog(msgspec.Struct, frozen=True, array_like=True):
    """The rest of an ordered topic at a broker: of the shards whose home is, or may become, the broker that asks."""

    topic: _Name
    kept: list[int]
    """Shards of which it has messages."""
    pending: list[int] = msgspec.field(default_factory=list)
    """Shards for which it has prepared transactions."""
    groups: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """By group, shards with messages that are not settled."""


class Met(Answer, frozen=True, array_like=True):
    kind = 208
    me: BrokerState
    known: list[BrokerState] = msgspec.field(default_factory=list)
    alarms: _Name = ""
    """A digest of its alarm rules, where each broker keeps its own: one with other rules asks for them
    (`AskAlarmBook`)."""
    backlog: list[Backlog] | None = None
    """Its backlog of our shards, where each broker keeps its own messages."""


class ListBrokers(Request, frozen=True, array_like=True):
    """List the brokers. Where they share a store, the answer may wait until there is something new."""

    kind = 81
    mark: int = 0
    """The `mark` of the last answer: while nothing has changed since, the answer waits for up to `wait_ms`."""
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0


class RealmState(msgspec.Struct, frozen=True, array_like=True):
    """The owner of a realm of a shared store."""

    address: _Address = ""
    """Empty if it has no owner at present."""
    epoch: _Natural = 0
    """Grows with every owner: of two that differ, the higher one is later."""


def realm_of(topic: str, realms: int) -> int:
    """The number of the realm that a topic is in, of so many; requests about no single topic belong to the first."""
    return 0 if not topic or is_pattern(topic) else crc32c(topic.encode()) % realms


class Brokers(Answer, frozen=True, array_like=True):
    kind = 209
    me: str
    """The id of the broker that answers; it is the first of the list."""
    brokers: list[BrokerState]
    clustered: bool = False
    """Whether it is one of a cluster, though it may be alone at the moment."""
    shared: bool = False
    """Whether the brokers share one store, so that each topic is served by one of them at a time."""
    realms: Annotated[list[RealmState], msgspec.Meta(max_length=REALMS_MAX)] = msgspec.field(default_factory=list)
    """Where they do: the owner of each realm. A topic is in the realm `realm_of(topic, len(realms))`."""
    mark: int = 0
    """A mark of this answer, without times and figures (see `ListBrokers`)."""


class ClientState(msgspec.Struct, frozen=True, array_like=True):
    """One consumer on a connection, or a connection without consumers."""

    address: str
    role: str
    """`consumer`, `producer` (it has sent something), `broker` or `client`."""
    token: str = ""
    software: str = ""
    connected_s: float = 0.0
    last_seen_s: float = 0.0
    sends: int = 0
    """Requests by which it sent messages."""
    topic: str = ""
    group: str = ""
    consumer: str = ""
    rank: int = -1
    """Its rank among the consumers of its group, by name, from 0 on."""
    total: int = 0
    """How many consumers its group has."""
    in_flight: int = 0
    waiting: bool = False
    broker: str = ""
    """The broker that it is connected to, where a client has asked all of a cluster: its name, or its address if others
    have that name too."""


class ListClients(Request, frozen=True, array_like=True):
    """List the clients of this broker. Of one topic or group only, if they are named."""

    kind = 82
    topic: _Name = ""
    group: _Name = ""


class Clients(Answer, frozen=True, array_like=True):
    kind = 210
    clients: list[ClientState]


class ForgetBroker(Request, frozen=True, array_like=True):
    """Do not expect this broker back. Answered by `Done`."""

    kind = 83
    id: _Name


class CloseConnection(Request, frozen=True, array_like=True):
    """Close the connections from this address, as `Clients` has it. Their clients are told why; they may connect again.
    Answered by `Done`."""

    kind = 104
    newer = Newer(2, "close a connection")
    address: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class HandBack(Request, frozen=True, array_like=True):
    """A consumer failed with messages of another broker, which cannot be reached: here they are, whole, in the frame
    behind this. They go to the group's own lane, to be retried when they are due."""

    kind = 84
    topic: _Name
    group: _Name
    config: GroupConfig | None
    """The settings of the group, if it is not here yet."""
    lane: Annotated[int, msgspec.Meta(ge=0, le=2)]
    """The priority of the messages."""
    attempt: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    """The attempt that failed."""
    reason: Annotated[str, msgspec.Meta(max_length=8192)] = ""
    delay_s: float | None = None
    dead: bool = False
    """Do not retry."""


class HandedBack(Answer, frozen=True, array_like=True):
    kind = 212
    first: _Natural
    repeated: bool = False


REQUESTS.update({cls.kind: cls for cls in (Meet, ListBrokers, ListClients, ForgetBroker, CloseConnection, HandBack)})
ANSWERS.update({cls.kind: cls for cls in (Met, Brokers, Clients, HandedBack)})
