"""Snapshots of a group: `consumerOffset.json`, and the group restored from it; replay behind damage."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, cast

import msgspec

from towline.delivery.group.events import (
    Buried,
    Event,
    Moved,
    Overrun,
    Part,
    Paused,
    Pulled,
    Resent,
    Resumed,
    Returned,
    Skipped,
    Started,
)
from towline.delivery.group.group import Group
from towline.delivery.group.lease import Act, Lease
from towline.delivery.group.parts import Dying, PartSet, cut
from towline.delivery.group.ranges import Columns
from towline.delivery.group.retry import AT_ONCE, Kind, Retry
from towline.delivery.group.states import State
from towline.model import LANES, GroupConfig, Span, lane_name

__all__ = [
    "GroupSnapshot",
    "LeaseSnapshot",
    "OpenState",
    "Rest",
    "excerpt",
    "mend",
    "open_parts",
    "rest_in",
    "restore",
    "snapshot",
]


EXCERPT: Final = 1_000
"""Open parts that are shown where all of them are in a document of their own."""
_ENCODE = msgspec.msgpack.Encoder().encode

SETTLED_MAX: Final = 128
"""Settled pulls in a snapshot: an act that is sent again after a restart is one of the last, its answer was lost."""


NAMED: Final = ("pull", "consumer")
"""Fields of a lease that are always told."""


class LeaseSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    pull: int
    consumer: str
    deadline_us: int = 0
    timeout_us: int = 0
    open: list[Part] = []
    settled: dict[Act, list[Part]] = {}
    taken: bool = False
    gone: list[Part] = []
    why: str = ""


class GroupSnapshot(msgspec.Struct, frozen=True):
    topic: str
    group: str
    position: int
    """The position in the pull log: the events before it are included."""
    offsets: dict[str, int] | list[int]
    """The next sequence number of each lane, by its name: the topic's high, middle and low, or its shards, then the
    group's own. (A list, in the same order, in documents of earlier versions.)"""
    leases: list[LeaseSnapshot]
    retries: list[Retry]
    dying: list[tuple[Part, str]]
    resent: list[tuple[int, int]]
    counters: dict[str, int]
    settled: list[LeaseSnapshot] = []
    """The pulls settled last, so that an act that is sent again after a restart gets the same answer."""
    turns: int = 0
    """Pulls granted."""
    rest: str = ""
    """The document that holds all open parts, if only some of them are here: its name and checksum."""

    def places(self, shards: int) -> list[int] | None:
        """The offsets by number of the lane; None if they are of other lanes than a topic with so many shards has."""
        names = [lane_name(lane, shards) for lane in range((shards or len(LANES)) + len(LANES))]
        if isinstance(self.offsets, list):
            return list(self.offsets) if len(self.offsets) == len(names) else None
        return [self.offsets[name] for name in names] if self.offsets.keys() == set(names) else None


class Rest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The open parts of a group, compact: where they are very many, its snapshot shows only some of them."""

    leases: list[LeaseSnapshot]
    settled: list[LeaseSnapshot]
    dying: list[tuple[Part, str]]
    resent: list[tuple[int, int]]
    kinds: list[Kind]
    retries: list[tuple[int, Columns]]


def open_parts(group: Group) -> int:
    """The number of parts that a snapshot holds."""
    leases = [*group.leases.values(), *islice(reversed(group.settled.values()), SETTLED_MAX)]
    held = sum(len(lease.open) + lease.size for lease in leases)
    return held + group.retries.size + len(group.dying) + len(group.resent)


class OpenState:
    """The open messages of a group at one moment: very many, read out bit by bit while the group goes on. Until this is
    closed, the group says which leases are about to change."""

    def __init__(self, group: Group, set_us: int = 0) -> None:
        self._group = group
        self._set_us = set_us
        self._leases = dict(group.leases)
        """Those that are not read out yet, …"""
        self._kept: dict[int, LeaseSnapshot] = {}
        """… and how they were, if they have changed since."""
        last = islice(reversed(group.settled.values()), SETTLED_MAX)
        self._settled = [_lease_out(lease, set_us) for lease in last][::-1]
        self._dying = dict(group.dying)
        self._resent = group.resent.copy()
        self._kinds, self._retries = group.retries.shared()
        group.on_lease_change = self._keep

    def close(self) -> None:
        self._group.on_lease_change = None

    def _keep(self, lease: Lease) -> None:
        if lease.pull in self._leases and lease.pull not in self._kept:
            self._kept[lease.pull] = _lease_out(lease, self._set_us)

    def pieces(self) -> Iterator[bytes]:
        """The document of a `Rest`. Others may have their turn between any two pieces."""
        set_us = self._set_us
        kinds = ((attempt, due_us and due_us + set_us, wait_us) for attempt, due_us, wait_us in self._kinds)
        yield bytes([0x90 + len(Rest.__struct_fields__)])
        yield _list_of(len(self._leases))
        for pull, lease in list(self._leases.items()):
            yield from _lease_pieces(self._kept.pop(pull) if pull in self._kept else _lease_out(lease, set_us))
            del self._leases[pull]
        yield _list_of(len(self._settled))
        for settled in self._settled:
            yield from _lease_pieces(settled)
        yield from _pieces(len(self._dying), self._dying.items())
        yield from _pieces(len(self._resent), self._resent)
        yield from _pieces(len(self._kinds), kinds)
        yield from _pieces(len(self._retries), ((lane, block.columns()) for lane, block in self._retries), 10)


_RawRest = tuple[
    list[msgspec.Raw], list[msgspec.Raw], list[msgspec.Raw], list[tuple[int, int]], list[Kind], list[msgspec.Raw]
]


def rest_in(document: bytes) -> Generator[None, None, Rest]:
    """A document decoded bit by bit. Raises `MsgspecError` if it cannot be read."""
    leases, settled, dying, resent, kinds, retries = msgspec.msgpack.decode(document, type=_RawRest)
    yield
    rest = Rest([], [], [], resent, kinds, [])
    for raw, found, kind in (
        (leases, rest.leases, LeaseSnapshot),
        (settled, rest.settled, LeaseSnapshot),
        (dying, rest.dying, tuple[Part, str]),
        (retries, rest.retries, tuple[int, Columns]),
    ):
        decode, entries = msgspec.msgpack.Decoder(kind).decode, cast("list[Any]", found)
        for one in raw:
            entries.append(decode(one))
            yield
    return rest


def _list_of(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big")


def _pieces(count: int, entries: Iterable[Any], step: int = 500) -> Iterator[bytes]:
    """A MessagePack list, some entries at a time."""
    yield _list_of(count)
    rest = iter(entries)
    while some := list(islice(rest, step)):
        yield b"".join(map(_ENCODE, some))


def _lease_pieces(lease: LeaseSnapshot) -> Iterator[bytes]:
    """A lease as it is encoded as a whole, with its long lists bit by bit."""
    if len(lease.open) + len(lease.gone) + sum(map(len, lease.settled.values())) < EXCERPT:
        yield _ENCODE(lease)
        return
    fields = {name: value for name in lease.__struct_fields__ if (value := getattr(lease, name)) or name in NAMED}
    yield bytes([0x80 + len(fields)])
    for name, value in fields.items():
        yield _ENCODE(name)
        if isinstance(value, list):
            yield from _pieces(len(value), value)
        elif isinstance(value, dict):
            yield bytes([0x80 + len(value)])
            for key, parts in value.items():
                yield _ENCODE(key)
                yield from _pieces(len(parts), parts)
        else:
            yield _ENCODE(value)


def excerpt(group: Group, position: int, set_us: int = 0) -> GroupSnapshot:
    """The snapshot of a group whose rest is in a document of its own."""
    shown, room = list[LeaseSnapshot](), EXCERPT
    for lease in group.leases.values():
        if room <= 0:
            break
        some = _lease_out(lease, set_us, room)
        shown.append(msgspec.structs.replace(some, settled={}, gone=[]))
        room -= len(some.open) + 1
    shards = group.shards.count if group.shards is not None else 0
    retries = [one._replace(due_us=one.due_us and one.due_us + set_us) for one in group.retries.some(max(room, 0))]
    return GroupSnapshot(
        topic=group.config.topic,
        group=group.config.name,
        position=position,
        offsets={lane_name(lane, shards): at for lane, at in enumerate(group.next)},
        leases=shown,
        retries=retries,
        dying=list(islice(group.dying.items(), EXCERPT)),
        resent=[],
        counters={state.name: count for state, count in group.counters.items()},
        turns=group.turns,
    )


def snapshot(group: Group, position: int, set_us: int = 0) -> GroupSnapshot:
    """By a clock that is ahead by `set_us` of the one of the group."""
    shards = group.shards.count if group.shards is not None else 0
    last = islice(reversed(group.settled.values()), SETTLED_MAX)
    return GroupSnapshot(
        topic=group.config.topic,
        group=group.config.name,
        position=position,
        offsets={lane_name(lane, shards): at for lane, at in enumerate(group.next)},
        leases=[_lease_out(lease, set_us) for lease in group.leases.values()],
        retries=[one._replace(due_us=one.due_us and one.due_us + set_us) for one in group.retries.entries()],
        dying=list(group.dying.items()),
        resent=list(group.resent),
        counters={state.name: count for state, count in group.counters.items()},
        settled=[_lease_out(lease, set_us) for lease in last][::-1],
        turns=group.turns,
    )


def restore(
    config: GroupConfig, document: GroupSnapshot, shards: int = 0, rest: Rest | None = None
) -> Generator[None, None, Group]:
    """The group of a snapshot, in slices: it may have very many open parts."""
    group = Group(config, shards)
    places = document.places(shards)
    assert places is not None, (document.topic, document.group, document.offsets, shards)
    group.next = places
    opened: GroupSnapshot | Rest = document if rest is None else rest
    for lease in opened.leases:
        yield
        at_us = lease.deadline_us - lease.timeout_us
        group.grant(Pulled(at_us, lease.pull, lease.consumer, lease.deadline_us, tuple(lease.open)))
        _settled_in(group.leases[lease.pull], lease)
    if rest is None:
        for retry in document.retries:
            yield
            group.retries.add(*retry)
    else:
        for lane, columns in rest.retries:
            yield
            group.retries.add_columns(rest.kinds, lane, columns)
    group.dying = Dying(opened.dying)
    group.resent = list(opened.resent)
    group.resent_count = sum(count for _, count in group.resent)
    group.turns = document.turns
    group.counters = {State[name]: count for name, count in document.counters.items()}
    for lease in opened.settled:
        yield
        settled = Lease(lease.pull, lease.consumer, lease.deadline_us, (), lease.timeout_us)
        group.settled.remember(_settled_in(settled, lease))
    for lane in range(shards):
        yield
        group.refresh(lane)
    return group


def _lease_out(lease: Lease, set_us: int, most: int | None = None) -> LeaseSnapshot:
    return LeaseSnapshot(
        lease.pull,
        lease.consumer,
        lease.deadline_us and lease.deadline_us + set_us,
        lease.timeout_us,
        list(islice(lease.open, most)),
        {act: list(parts) for act, parts in lease.settled.items()},
        lease.taken,
        list(lease.gone),
        lease.why,
    )


def _settled_in(lease: Lease, document: LeaseSnapshot) -> Lease:
    lease.settled = {act: PartSet(parts) for act, parts in document.settled.items()}
    lease.taken, lease.gone, lease.why = document.taken, PartSet(document.gone), document.why
    return lease


UNKNOWN = ""
"""The consumer of a pull whose own event was lost."""


def mend(group: Group, event: Event) -> bool:
    """Apply an event although events before it may be lost; returns whether it had to be made to fit."""
    if isinstance(event, (Started, Resent, Moved, Paused, Resumed)) or _fits(group, event):
        group.apply(event)
        return False
    for part in event.parts:
        _take_out(group, part, event.at_us)
        _go_past(group, part)
    if isinstance(event, Overrun):
        group.counters[State.GONE] += sum(part.count for part in event.parts)
        for part in event.parts:
            group.refresh(part.lane)
        return True
    if isinstance(event, Pulled):
        for part in event.parts:
            group.retries.add(part, AT_ONCE)
    elif isinstance(event, Buried) or not event.pull:
        for part in event.parts:
            group.dying.add(part, "")
    else:
        _take_away(group, event.pull, event.at_us)
        group.grant(Pulled(event.at_us, event.pull, UNKNOWN, 0, event.parts))
    group.apply(event)
    for lane in range(group.topic_lanes):
        group.refresh(lane)
    return True


def _fits(group: Group, event: Event) -> bool:
    """Whether all messages of the event are in a state that it can take them from."""
    assert not isinstance(event, (Started, Resent, Moved, Paused, Resumed))
    if isinstance(event, (Pulled, Overrun)):
        while group.retries.ripen(event.at_us):
            pass
        return all(
            part.first == group.next[part.lane]
            or (isinstance(event, Pulled) and part.end <= group.next[part.lane] and group.retries.holds(part))
            for part in event.parts
        )
    if isinstance(event, Buried) or (isinstance(event, Skipped) and not event.pull):
        return all(map(group.dying.holds, event.parts))
    lease = group.leases.get(event.pull)
    return lease is not None and all(lease.open.within(_span(part)) == [part] for part in event.parts)


def _take_out(group: Group, part: Part, at_us: int) -> None:
    """Remove the messages of a part from every list, whatever their attempt."""
    for lease in list(group.leases.values()):
        held = lease.open.within(_span(part))
        if held:
            group.apply(Returned(at_us, lease.pull, tuple(held), taken=True))
    for other, _ in list(group.retries):
        piece = cut(other, part)
        if piece:
            group.retries.remove(piece)
    for piece in group.dying.within(_span(part)):
        group.dying.remove(piece)


def _go_past(group: Group, part: Part) -> None:
    """Move the position behind a part. The messages between were pulled by an event that is lost: they are retried."""
    at = group.next[part.lane]
    if at < part.first:
        group.retries.add(Part(part.lane, at, part.first - at, 1), AT_ONCE)
    group.next[part.lane] = max(at, part.end)


def _take_away(group: Group, pull: int, at_us: int) -> None:
    lease = group.leases.get(pull)
    if lease is not None:
        group.apply(Returned(at_us, pull, tuple(lease.open), taken=True))


def _span(part: Part) -> Span:
    return Span(part.lane, part.first, part.count)
