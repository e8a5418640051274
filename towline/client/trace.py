"""The life of a message: `Client.trace`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from towline.client import flows
from towline.client.connection import Call
from towline.client.message import Message
from towline.client.outgoing import as_lane
from towline.client.steps import Flow
from towline.errors import NotFound, ProtocolError
from towline.model import LANES, Priority, parse_message_id
from towline.protocol.messages import Trace as Request
from towline.protocol.messages import TraceCursor, Traced, TraceStep

__all__ = ["GroupTrace", "Step", "Trace", "trace"]

TRACE_STEPS_MAX = 100_000


class Step(NamedTuple):
    """One thing that happened to a message in a group."""

    at_us: int
    what: str
    """pulled, acked, failed, gaveup, returned, released, buried, skipped, overrun, resent, started or moved; or, of the
    group while it was not done with the message, paused or resumed."""
    consumer: str
    attempt: int
    reason: str
    due_us: int
    """When it is tried again (failed), or when it is taken from its consumer (pulled); 0 is none."""
    pull: int
    dead: int | None
    """The number of the dead letter that it became (buried), or that was sent again (resent)."""
    copy: bool
    """It happened to the copy that was sent again."""

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_us / 1e6, UTC)


class GroupTrace(NamedTuple):
    """What became of a message in one group."""

    group: str
    status: str
    """NEW, RUNNING, SUCCESS, FAIL, DEAD or GONE; BEFORE: it was there before the group began, and is not for it."""
    attempt: int
    due_us: int
    """If it is to be delivered again: when."""
    steps: list[Step]
    complete: bool
    """False if retention dropped some of the events, so that steps may be missing."""


class Trace(NamedTuple):
    id: str
    message: Message | None
    """None if it is not kept any more."""
    groups: list[GroupTrace]


def trace(message_id: str, group: str | None, *, whole: bool) -> Flow[Trace]:
    """The message as it was sent, then its life in each group of its topic, or in one."""
    topic, lane, seq = parse_message_id(message_id)
    priority: Priority | None = next((name for name in LANES if name == lane), None)
    place = int(lane) if priority is None else priority
    number = as_lane(place)
    page = yield from flows.browse(topic, place, seq, 1, 1)
    if seq >= page.end:
        raise NotFound(f"there is no message {message_id} yet: its lane ends at {page.end}")
    message = page[0] if page and page[0].seq == seq else None
    names = [group] if group is not None else (yield from flows.topic(topic)).groups
    groups: list[GroupTrace] = []
    for name in names:
        groups += [(yield from _group_trace(topic, name, number, seq, whole=whole))]
    return Trace(message_id, message, groups)


def _group_trace(topic: str, group: str, lane: int, seq: int, *, whole: bool) -> Flow[GroupTrace]:
    found: list[TraceStep] = []
    cursor: TraceCursor | None = None
    while True:
        request = Request(topic, group, lane, seq, whole, cursor)
        answer = yield Call(request)
        if not isinstance(answer, Traced):
            raise ProtocolError(f"Trace was answered by {type(answer).__name__}")
        found += answer.steps
        cursor = answer.cursor
        if cursor is None or len(found) >= TRACE_STEPS_MAX:
            break
    consumers = {step.pull: step.consumer for step in found if step.consumer}
    steps = [_step(step, consumers) for step in found]
    return GroupTrace(group, answer.status, answer.attempt, answer.due_us, steps, answer.whole)


def _step(step: TraceStep, consumers: dict[int, str]) -> Step:
    """Only a pull names its consumer; what follows names the pull."""
    return Step(
        step.at_us,
        step.what,
        step.consumer or consumers.get(step.pull, ""),
        step.attempt,
        step.reason,
        step.due_us,
        step.pull,
        step.dead if step.dead >= 0 else None,
        step.copy,
    )
