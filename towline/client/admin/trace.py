"""The life of a message: `Client.trace`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from towline.client import requests
from towline.client.admin.delayed import settled_id
from towline.client.consume.message import Message
from towline.client.link.connection import Call
from towline.client.link.flow import Flow
from towline.client.produce.encode import as_lane
from towline.errors import NotFound, ProtocolError
from towline.model import LANES, Priority, parse_message_id
from towline.protocol.access import Grant, Me, WhoAmI
from towline.protocol.messages import Trace as Request
from towline.protocol.messages import TraceCursor, Traced, TraceStep

__all__ = ["GroupTrace", "Step", "Trace", "trace"]

TRACE_STEPS_MAX = 100_000
ASKED_MAX = 999
"""Groups of a topic: as many as fit into one question."""


class Step(NamedTuple):
    """One event of a message in a group."""

    at_us: int
    what: str
    """pulled, acked, failed, gaveup, returned, released, buried, skipped, overrun, resent, started or moved; or, of the
    group while the message was not settled, paused or resumed."""
    consumer: str
    attempt: int
    reason: str
    due_us: int
    """Its next attempt (failed), or the deadline of the pull (pulled); 0 is none."""
    pull: int
    dead: int | None
    """The number of its dead letter (buried), or of the one that was sent again (resent)."""
    copy: bool
    """It concerns the copy that was sent again."""

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_us / 1e6, UTC)


class GroupTrace(NamedTuple):
    """The life of a message in one group."""

    group: str
    status: str
    """NEW, RUNNING, SUCCESS, FAIL, DEAD or GONE; BEFORE: it was there before the group began, and is not for it."""
    attempt: int
    due_us: int
    """The time of its next delivery, if any."""
    steps: list[Step]
    complete: bool
    """False if retention dropped some of the events, so that steps may be missing."""


class Trace(NamedTuple):
    id: str
    message: Message | None
    """None if it is not kept any more, or hidden."""
    groups: list[GroupTrace]
    """Those that the caller may see."""
    hidden: bool = False
    """The caller may describe the topic, but not consume it: the message's contents are not shown."""
    delay_id: str = ""
    """The id that it had while it was delayed, if that was asked for."""


def trace(message_id: str, group: str | None, *, whole: bool) -> Flow[Trace]:
    """The message as it was sent, then its life in each group of its topic, or in one."""
    asked, message_id = message_id, (yield from settled_id(message_id))
    topic, lane, seq = parse_message_id(message_id)
    priority: Priority | None = next((name for name in LANES if name == lane), None)
    place = int(lane) if priority is None else priority
    names, readable = yield from _sight(topic, group)
    message = None
    if readable:
        page = yield from requests.browse(topic, place, seq, 1, 1)
        end = page.end
        message = page[0] if page and page[0].seq == seq else None
    else:
        end = next((one.end for one in (yield from requests.topic(topic)).lanes if one.lane == lane), 0)
    if seq >= end:
        raise NotFound(f"there is no message {message_id} yet: its lane ends at {end}")
    groups: list[GroupTrace] = []
    for name in names:
        groups += [(yield from _group_trace(topic, name, as_lane(place), seq, whole=whole))]
    return Trace(message_id, message, groups, not readable, asked if asked != message_id else "")


def _sight(topic: str, group: str | None) -> Flow[tuple[list[str], bool]]:
    """The groups that the caller may see, and whether it may read the message. Permissions are asked for beforehand: a
    refusal would be in the audit log, though nobody tried."""
    names = [group] if group is not None else (yield from requests.topic(topic)).groups
    asked = names[:ASKED_MAX] if group is None else []
    may = [Grant("consume", "topic", topic), *(Grant("describe", "group", name) for name in asked)]
    me = yield Call(WhoAmI(may))
    if not isinstance(me, Me) or len(me.allowed) != len(may):
        raise ProtocolError(f"WhoAmI was answered by {type(me).__name__}")
    seen = [name for name, allowed in zip(asked, me.allowed[1:], strict=True) if allowed]
    return (names if group is not None else seen), me.allowed[0]


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
    """Only a pull names its consumer; later events name the pull."""
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
