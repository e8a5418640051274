"""Seek: a group moved to another position of its lanes.

Backwards: the messages from the new position on are waiting again, whatever their state was; those before it are left
as they are. Forwards: all up to the new position is skipped, including leased, retrying and dying messages. A consumer
that holds any of the messages loses the whole pull.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from towline.delivery.group.events import Moved, Part
from towline.delivery.group.retry import AT_ONCE
from towline.delivery.group.states import State

if TYPE_CHECKING:
    from towline.delivery.group.group import Group
    from towline.delivery.group.lease import Lease

__all__ = ["Weight", "apply_moved", "pulls_in_the_way", "weigh", "within_bounds"]


class Weight(NamedTuple):
    """The effect of a move, in messages."""

    again: int
    """Delivered again, or for the first time after all."""
    passed: int
    """Never delivered, or not delivered again."""


def within_bounds(group: Group, moves: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The position, cut to the bounds of the lanes."""
    return tuple((lane, min(max(to, group.firsts[lane]), group.ends[lane])) for lane, to in moves)


def weigh(group: Group, moves: Iterable[tuple[int, int]]) -> Weight:
    again = passed = 0
    pending = _pending(group)
    for lane, to in moves:
        at = max(group.next[lane], group.firsts[lane])
        if to < group.next[lane]:
            again += group.next[lane] - to
        else:
            passed += max(to - at, 0) + pending[lane]
    return Weight(again, passed)


def _pending(group: Group) -> Counter[int]:
    """By lane, the messages that were delivered, or are about to be, and are neither done nor dead."""
    pending = Counter(group.retries.counts())
    pending.update(group.dying.counts())
    for lease in group.leases.values():
        pending.update(lease.open.counts())
    return pending


def pulls_in_the_way(group: Group, moves: Iterable[tuple[int, int]]) -> list[int]:
    """The pulls that their consumers lose by a move."""
    firsts = _firsts(group, moves)
    return [lease.pull for lease in group.leases.values() if _is_in_the_way(lease, firsts)]


def _firsts(group: Group, moves: Iterable[tuple[int, int]]) -> dict[int, int]:
    """By lane, from where on messages are moved."""
    return {lane: to if to < group.next[lane] else 0 for lane, to in moves}


def _is_in_the_way(lease: Lease, firsts: Mapping[int, int]) -> bool:
    return any(lane in firsts and end > firsts[lane] for lane, end in lease.open.ends().items())


def apply_moved(group: Group, event: Moved) -> None:
    firsts = _firsts(group, event.moves)
    taken = Counter[int]()
    for lease in [one for one in group.leases.values() if _is_in_the_way(one, firsts)]:
        _end(group, lease, firsts, taken)
    for lane, to in event.moves:
        at = group.next[lane]
        gone = taken[lane] + group.retries.drop(lane, firsts[lane]) + group.dying.drop(lane, firsts[lane])
        if to >= at:
            group.counters[State.GONE] += to - at + gone
        group.next[lane] = to


def _end(group: Group, lease: Lease, firsts: Mapping[int, int], taken: Counter[int]) -> None:
    """A pull is taken away whole, so that its consumer cannot settle it as if nothing had happened: its messages that
    are not moved are delivered again at once."""
    for part in list(lease.open):
        group.take_from(lease, part)
        first = firsts.get(part.lane, part.end)
        if part.first < first:
            before = Part(part.lane, part.first, min(part.end, first) - part.first, part.attempt)
            group.retries.add(before, AT_ONCE)
        taken[part.lane] += max(part.end - max(part.first, first), 0)
    group.close_if_settled(lease.pull)
