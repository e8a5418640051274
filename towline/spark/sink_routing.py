"""Routing of a sink's rows: to a broker, or in a cluster to the broker of each row.

A row's broker must be the same whenever the row is written again, in whatever order and by whatever task: else what one
attempt has published would be published again elsewhere. So it follows from the row and the sink alone:

- **One broker**: that one.
- **Brokers with stores of their own**: of an ordered topic, the home of the shard; with a column `dedup_id`, the home
  of the topic's dedup ids; else the *seat* of the sink.
- **Brokers that share a database**: the one that serves the topic, whoever that is.

The seat is chosen among all brokers by the sink's name, and then kept: should the cluster have grown, the broker that
has heard of the sink stays its seat. An epoch is published at each broker by itself, at the seat last; so if the seat
has published it, all of it is there, and a commit that was cut short is finished by the next.

The brokers among which an epoch is spread belong to it: each home that publishes its part notes them, and an attempt
to finish it finds them there. Of a home that was forgotten since, the part goes to the next broker in line, as a part
of its own: what that one has published as a home says nothing about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, Literal, NamedTuple

import msgspec

from towline.client._sync.client import Client
from towline.client.bulk.nodes import is_shared, node_of, nodes_of
from towline.client.bulk.publish import Addressed, Publisher
from towline.client.cluster.brokers import DEDUP, rendezvous
from towline.client.requests import HEAD_ROOM
from towline.errors import Conflict, Unavailable

__all__ = ["Records", "SinkRouting", "members_of", "publish", "unstage"]

REQUEST_BYTES: Final = 8 << 20
"""Frames are staged and sent about so much at a time."""
WAITING_BYTES: Final = 4 * REQUEST_BYTES
"""Bytes that wait at most, for all brokers and topics together."""
FRAMES_MAX: Final = 500

Kind = Literal["seat", "home", "topic"]


class Key(NamedTuple):
    """The key of an outlet: the seat of a sink, the home of shards and dedup ids, or the owner of a topic."""

    kind: Kind
    name: str
    """A broker's id (empty where there is one broker only), or the topic."""
    instead: str = ""
    """The names of the forgotten homes whose place this one takes."""

    def sink(self, name: str) -> str:
        """Each has epochs of its own."""
        if self.kind == "home":
            return f"{name}:home:{self.instead}" if self.instead else f"{name}:home"
        return name if self.kind == "seat" else f"{name}:{self.name}"


class Records(msgspec.Struct, frozen=True):
    """The records that one task has staged at one outlet, in order."""

    kind: Kind
    name: str
    instead: str
    records: list[int]


def members_of(client: Client) -> list[str]:
    """The brokers among which rows are spread: the driver's view, for all tasks alike."""
    return [node.id for node in nodes_of(client)]


class _Outlet:
    def __init__(self, publisher: Publisher, done: bool) -> None:
        self.publisher = publisher
        self.done = done
        """It has published an epoch of this number before."""
        self.frames: list[Addressed] = []
        self.bytes = 0


class SinkRouting:
    """The routing of one task: frames are staged, or with `direct` sent at once."""

    def __init__(  # noqa: PLR0917 all of it says where
        self,
        client: Client,
        durability: int,
        sink: str,
        epoch: int,
        direct: bool,
        members: Sequence[str] = (),
        *,
        topic: str = "",
        spread: Sequence[str] = (),
        seat_of: str = "",
        request_bytes: int = REQUEST_BYTES,
    ) -> None:
        """`members` are the present brokers, as the driver knows them. A sink that has a `topic` is another one than
        that of the same name with another topic. `spread` are the brokers of the epoch, and `seat_of` names the sink
        whose seat is its own, if that was decided before."""
        self._client, self._durability, self._epoch = client, durability, epoch
        self._direct = direct
        self._shared = is_shared(client)
        # Brokers that share a store have a sink for each topic anyway.
        self._named_apart = bool(topic) and not self._shared
        self._plain = sink
        self.sink = f"{sink}@{topic}" if self._named_apart else sink
        self._members = list(members) or members_of(client)
        self._asking = Publisher(client, link=client._one_link() if self._shared else None)
        self._counts: dict[str, int] = {}
        self._outlets: dict[Key, _Outlet] = {}
        self._waiting = 0
        self.max_request_bytes = self._asking.max_request_bytes - HEAD_ROOM
        self._limit = min(request_bytes, self.max_request_bytes)
        self.spread = list(spread)
        """The brokers among which the epoch is spread; none as long as no row goes to a home."""
        self._seat: Key | None = None
        if not self._shared:
            self._seat = Key("seat", self._next_in_line(seat_of)[0] if seat_of else self._find_seat())

    @property
    def done(self) -> bool:
        """Whether all of an epoch of this number is published already."""
        return self._seat is not None and self._outlet(self._seat).done

    def shards(self, topic: str) -> int:
        if self._shared or self._client._cluster is None:
            return self._asking.shards(topic)
        if topic not in self._counts:
            # The broker at hand may not know a topic that others have.
            self._counts[topic] = self._client._count_shards(topic)
        return self._counts[topic]

    def _find_seat(self) -> str:
        home = rendezvous(self._plain, self._members)
        assert home is not None, "a cluster has at least the broker that told of it"
        if len(self._members) == 1 or self._epoch_at(home) >= 0:
            return home
        others = [one for one in self._members if one != home]
        epochs = {one: self._epoch_at(one) for one in others}
        last = max(others, key=lambda one: (epochs[one], one))
        return last if epochs[last] >= 0 else home

    def _epoch_at(self, broker: str) -> int:
        publisher = _publisher(self._client, -1, Key("seat", broker))
        return max(publisher.sink(name).epoch for name in {self.sink, self._plain})

    def _find_spread(self) -> list[str]:
        """The brokers of an attempt that was published in part; else the members. A broker that is away is not
        asked."""
        if self._client._cluster is not None:
            for node in nodes_of(self._client):
                key = Key("home", node.id)
                if node.alive and node.id in self._members:
                    state = _publisher(self._client, -1, key).sink(key.sink(self.sink))
                    if state.epoch == self._epoch and state.members:
                        return state.members
        return self._members

    def _outlet(self, key: Key) -> _Outlet:
        found = self._outlets.get(key)
        if found is None:
            publisher = _publisher(self._client, self._durability, key)
            found = self._outlets[key] = _Outlet(publisher, self._is_done(publisher, key))
        return found

    def _is_done(self, publisher: Publisher, key: Key) -> bool:
        epoch = publisher.sink(key.sink(self.sink)).epoch
        if epoch >= 0 or not self._named_apart:
            return epoch >= self._epoch
        # Older versions knew a sink without its topic, and its epochs by their numbers.
        last = publisher.sink(key.sink(self._plain)).epoch
        if last > self._epoch:
            what = f"what was in epoch {self._epoch} is not remembered"
            raise Conflict(f"sink {self._plain} has published epoch {last} already; {what}")
        return last == self._epoch

    def _key(self, frame: Addressed, dedup: bool) -> Key:
        if self._seat is None:
            return Key("topic", frame.topic)
        if not (frame.shards or dedup):
            return self._seat
        if not self.spread:
            self.spread = self._find_spread()
        if len(self.spread) == 1:
            return self._seat
        return Key("home", *self._next_in_line(f"{frame.topic}/{frame.lane if frame.shards else DEDUP}"))

    def _next_in_line(self, what: str) -> tuple[str, str]:
        """The broker that a key belongs to, and the names of those that were before it in line and are forgotten."""
        line, gone = list(self.spread), []
        while (home := rendezvous(what, line)) not in self._members and len(line) > 1:
            assert home is not None, "there are several"
            line.remove(home)
            gone.append(home)
        assert home is not None, "there is one left"
        return home, blake2b("|".join(gone).encode(), digest_size=8).hexdigest() if gone else ""

    def add(self, frame: Addressed, *, dedup: bool = False) -> None:
        """Add rows; they may be sent later, together with others. `dedup`: rows of its topic have dedup ids."""
        outlet = self._outlet(self._key(frame, dedup))
        if outlet.done:
            return
        size = len(frame.frame)
        if outlet.frames and (outlet.bytes + size > self._limit or len(outlet.frames) >= FRAMES_MAX):
            self._flush(outlet)
        outlet.frames.append(frame)
        outlet.bytes += size
        self._waiting += size
        if self._waiting > WAITING_BYTES:
            self.flush()

    def _flush(self, outlet: _Outlet) -> None:
        if outlet.frames:
            (outlet.publisher.send if self._direct else outlet.publisher.stage)(outlet.frames)
            self._waiting -= outlet.bytes
            outlet.frames, outlet.bytes = [], 0

    def flush(self) -> None:
        for outlet in self._outlets.values():
            self._flush(outlet)

    def settle(self) -> list[Records]:
        """Wait until all of it is durable. Returns the records staged at each outlet, also if there are none; the seat
        is always named, and last."""
        self.flush()
        for outlet in self._outlets.values():
            outlet.publisher.settle()
        if self._seat is not None:
            self._outlet(self._seat)
        return [Records(*key, self._outlets[key].publisher.records) for key in sorted(self._outlets, key=_seat_last)]


def publish(  # noqa: PLR0917 all of it is the epoch
    client: Client,
    durability: int,
    sink: str,
    epoch: int,
    staged: Sequence[Records],
    digest: bytes = b"",
    spread: Sequence[str] = (),
) -> None:
    """Publish the records that all tasks have staged, in their order, as one epoch. A part that was published before
    must have the same digest."""
    for key, records in _joined(staged):
        _publisher(client, durability, key).publish(key.sink(sink), epoch, records, digest, spread)


def unstage(client: Client, staged: Sequence[Records]) -> None:
    for key, records in _joined(staged):
        _publisher(client, -1, key).unstage(records)


def _joined(staged: Sequence[Records]) -> list[tuple[Key, list[int]]]:
    found: dict[Key, list[int]] = {}
    for one in staged:
        found.setdefault(Key(one.kind, one.name, one.instead), []).extend(one.records)
    return [(key, found[key]) for key in sorted(found, key=_seat_last)]


def _seat_last(key: Key) -> tuple[bool, Key]:
    return key.kind == "seat", key


def _publisher(client: Client, durability: int, key: Key) -> Publisher:
    if key.kind != "topic":
        return Publisher(client, durability, node_of(client, key.name).link)
    if client._cluster is None:
        raise Unavailable("the brokers shared a store when the rows were written, and do not any more")
    return Publisher(client, durability, client._cluster.following_link(), key.name)
