"""The status of one message in a group, and the events of the pull log about it."""

from __future__ import annotations

from typing import NamedTuple

from towline.delivery.group.events import Event, Moved, Part, Resent, Started
from towline.delivery.group.group import Group
from towline.delivery.group.states import RULES, State
from towline.model import Span

__all__ = ["MessageStatus", "concerns", "dead_number", "standing", "state_after"]


class MessageStatus(NamedTuple):
    """The state of a message that is not settled."""

    state: State
    attempt: int = 0
    due_us: int = 0

    @property
    def status(self) -> str:
        return self.state.status_in(self.attempt)


def standing(group: Group, lane: int, seq: int) -> MessageStatus | None:
    """The status of a message; None if it is behind the group's position and in no list: then it is settled, and only
    the pull log knows how."""
    if seq >= group.next[lane]:
        return MessageStatus(State.WAITING if seq >= group.firsts[lane] else State.GONE)
    span = Span(lane, seq, 1)
    for lease in group.leases.values():
        for part in lease.open.within(span):
            return MessageStatus(State.LEASED, part.attempt, lease.deadline_us)
    dying = group.dying.find(lane, seq)
    if dying is not None:
        return MessageStatus(State.DYING, dying.attempt)
    retrying = group.retries.due_of(lane, seq)
    return None if retrying is None else MessageStatus(State.RETRYING, *retrying)


def concerns(event: Event, messages: set[tuple[int, int]], dead: set[int]) -> Part | None:
    """The part, of one message, by which an event concerns one of these messages, by (lane, number), or one of these
    dead letters; None if it does not. Of a dead letter the part's lane is -1."""
    if isinstance(event, Resent):
        found = next((n for n in dead for first, count in event.dead if first <= n < first + count), None)
        return None if found is None else Part(-1, found, 1, 0)
    if isinstance(event, Started):
        # The group began behind the message: it is not for this group, unless it is named.
        meant = {(lane, seq) for lane, seq in messages for part in event.open if _holds(part, lane, seq)}
        passed = next(((lane, seq) for lane, seq in messages - meant if seq < event.positions[lane]), None)
        return None if passed is None else Part(*passed, 1, 0)
    if isinstance(event, Moved):
        lanes = {lane for lane, _ in event.moves}
        moved = next(((lane, seq) for lane, seq in sorted(messages) if lane in lanes), None)
        return None if moved is None else Part(*moved, 1, 0)
    for lane, first, count, attempt in getattr(event, "parts", ()):
        for of, seq in messages:
            if of == lane and first <= seq < first + count:
                return Part(lane, seq, 1, attempt)
    return None


def _holds(part: Part, lane: int, seq: int) -> bool:
    return part.lane == lane and part.first <= seq < part.end


def dead_number(parts: tuple[Part, ...], dead_first: int, one: Part) -> int:
    """The number of a message among the dead letters, when these parts were buried in this order."""
    number = dead_first
    for part in parts:
        if part.lane == one.lane and part.first <= one.first < part.end:
            break
        number += part.count
    else:
        raise AssertionError(f"{one} is not among {parts}")
    return number + one.first - part.first


def state_after(event: type[Event]) -> State | None:
    """The state of a message after an event; None if it is not for this group."""
    return RULES[event].target if event in RULES else None
