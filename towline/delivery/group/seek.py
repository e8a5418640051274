"""Seek: a group moved to another position of its lanes.

Backwards: the messages from the new position on are waiting again, whatever their state was; those before it are left
as they are. Forwards: all up to the new position is skipped, including leased, retrying and dying messages. A consumer
that holds any of the messages loses the whole pull.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from towline.delivery.group.events import Moved, Part
from towline.delivery.group.parts import cut
from towline.delivery.group.retry import AT_ONCE
from towline.delivery.group.states import State
from towline.model import Span

if TYPE_CHECKING:
    from towline.delivery.group.group import Group
    from towline.delivery.group.lease import Lease

__all__ = ["Weight", "apply_moved", "weigh", "within_bounds"]

FOREVER = 1 << 62


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
    for lane, to in moves:
        at = max(group.next[lane], group.firsts[lane])
        if to < group.next[lane]:
            again += group.next[lane] - to
        else:
            passed += max(to - at, 0) + _pending(group, lane)
    return Weight(again, passed)


def _pending(group: Group, lane: int) -> int:
    """The messages of a lane that were delivered, or are about to be, and are neither done nor dead."""
    parts = [part for part, _ in group.retries if part.lane == lane]
    parts += [part for part in group.dying if part.lane == lane]
    parts += [part for lease in group.leases.values() for part in lease.open.within(Span(lane, 0, FOREVER))]
    return sum(part.count for part in parts)


def apply_moved(group: Group, event: Moved) -> None:
    for lane, to in event.moves:
        at = group.next[lane]
        if to < at:
            _forget(group, Span(lane, to, FOREVER))
        else:
            group.counters[State.GONE] += to - at + _forget(group, Span(lane, 0, FOREVER))
        group.next[lane] = to


def _forget(group: Group, span: Span) -> int:
    """Remove messages from all lists; returns how many there were."""
    count = group.retries.drop(span.lane, span.first)
    for part in [one for one in group.dying if one.lane == span.lane]:
        piece = cut(part, span)
        if piece:
            group.remove_dying(piece)
            count += piece.count
    for lease in list(group.leases.values()):
        held = lease.open.within(span)
        if held:
            count += sum(part.count for part in held)
            _end(group, lease, held)
    return count


def _end(group: Group, lease: Lease, held: list[Part]) -> None:
    """A pull is taken away whole, so that its consumer cannot settle it as if nothing had happened: its messages that
    are not moved are delivered again at once."""
    for part in held:
        group.take_from(lease, part)
    for part in list(lease.open):
        group.take_from(lease, part)
        group.retries.add(part, AT_ONCE)
    group.close_if_settled(lease.pull)
