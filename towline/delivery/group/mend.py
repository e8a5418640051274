"""Replay after damage: applying the events that follow lost ones.

An event that was lost leaves its messages where they were before, so a later event may find them elsewhere than it
expects. `mend` first brings them to where the event says they are, then applies it as ever. What a lost event may have
delivered is delivered again: messages come twice after damage to the pull log, but none is lost.
"""

from __future__ import annotations

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
from towline.delivery.group.parts import cut
from towline.delivery.group.retry import AT_ONCE
from towline.delivery.group.states import State
from towline.model import Span

__all__ = ["mend"]

UNKNOWN = ""
"""The consumer of a pull whose own event was lost."""


def mend(group: Group, event: Event) -> bool:
    """Apply an event although events before it may be lost; whether it had to be made to fit."""
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
        group.dying |= dict.fromkeys(event.parts, "")
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
        group.retries.ripen(event.at_us)
        return all(
            part.first == group.next[part.lane]
            or (isinstance(event, Pulled) and part.end <= group.next[part.lane] and group.retries.holds(part))
            for part in event.parts
        )
    if isinstance(event, Buried) or (isinstance(event, Skipped) and not event.pull):
        return all(any(cut(one, part) == part for one in group.dying) for part in event.parts)
    lease = group.leases.get(event.pull)
    return lease is not None and all(lease.open.within(_span(part)) == [part] for part in event.parts)


def _take_out(group: Group, part: Part, at_us: int) -> None:
    """Take the messages of a part out of every list, wherever they are and whatever their attempt."""
    for lease in list(group.leases.values()):
        held = lease.open.within(_span(part))
        if held:
            group.apply(Returned(at_us, lease.pull, tuple(held), taken=True))
    for other, _ in list(group.retries):
        piece = cut(other, part)
        if piece:
            group.retries.remove(piece)
    for other in list(group.dying):
        piece = cut(other, part)
        if piece:
            group.remove_dying(piece)


def _go_past(group: Group, part: Part) -> None:
    """Move the position behind a part. What lies between was pulled by an event that is lost: it is tried again."""
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
