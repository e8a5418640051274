"""A group's state as a document, and back: what `consumerOffset.json` holds."""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from towline.delivery.events import Part, Pulled
from towline.delivery.group import Group
from towline.delivery.lease import Act, Lease
from towline.delivery.parts import PartSet
from towline.delivery.retry import Retry
from towline.delivery.states import State
from towline.model import LANES, GroupConfig, lane_name

__all__ = ["GroupSnapshot", "LeaseSnapshot", "restore", "snapshot"]

SETTLED_MAX: Final = 128
"""Settled pulls in a snapshot: an act that is sent again after a restart is one of the last, its answer was lost."""


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
    """The events of the pull log before this one are in here."""
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
    """How many pulls were granted."""

    def places(self, shards: int) -> list[int] | None:
        """The offsets by number of the lane; None if they are of other lanes than a topic with so many shards has."""
        names = [lane_name(lane, shards) for lane in range((shards or len(LANES)) + len(LANES))]
        if isinstance(self.offsets, list):
            return list(self.offsets) if len(self.offsets) == len(names) else None
        return [self.offsets[name] for name in names] if self.offsets.keys() == set(names) else None


def snapshot(group: Group, position: int, set_us: int = 0) -> GroupSnapshot:
    """By a clock that is ahead by `set_us` of the one that the group goes by."""
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


def restore(config: GroupConfig, document: GroupSnapshot, shards: int = 0) -> Group:
    group = Group(config, shards)
    places = document.places(shards)
    assert places is not None, (document.topic, document.group, document.offsets, shards)
    group.next = places
    for lease in document.leases:
        at_us = lease.deadline_us - lease.timeout_us
        group.grant(Pulled(at_us, lease.pull, lease.consumer, lease.deadline_us, tuple(lease.open)))
        _settled_in(group.leases[lease.pull], lease)
    for retry in document.retries:
        group.retries.add(*retry)
    group.dying = dict(document.dying)
    group.resent = list(document.resent)
    group.resent_count = sum(count for _, count in group.resent)
    group.turns = document.turns
    group.counters = {State[name]: count for name, count in document.counters.items()}
    for lease in document.settled:
        settled = Lease(lease.pull, lease.consumer, lease.deadline_us, (), lease.timeout_us)
        group.settled.remember(_settled_in(settled, lease))
    for lane in range(shards):
        group.refresh(lane)
    return group


def _lease_out(lease: Lease, set_us: int) -> LeaseSnapshot:
    return LeaseSnapshot(
        lease.pull,
        lease.consumer,
        lease.deadline_us and lease.deadline_us + set_us,
        lease.timeout_us,
        list(lease.open),
        {act: list(parts) for act, parts in lease.settled.items()},
        lease.taken,
        list(lease.gone),
        lease.why,
    )


def _settled_in(lease: Lease, document: LeaseSnapshot) -> Lease:
    lease.settled = {act: PartSet(parts) for act, parts in document.settled.items()}
    lease.taken, lease.gone, lease.why = document.taken, PartSet(document.gone), document.why
    return lease
