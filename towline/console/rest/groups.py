"""Routes: groups, their dead letters, and delayed messages."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from towline.console.rest.client_pool import Mq
from towline.console.rest.models import (
    Body,
    Count,
    Delay,
    Encoding,
    GroupName,
    Letter,
    Strict,
    TopicName,
    body_of,
    letter,
)
from towline.errors import BadRequest, NotFound
from towline.model import GroupConfig
from towline.protocol.messages import GroupState

__all__ = ["router"]

router = APIRouter(tags=["groups"])

Number = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]


class Settings(Strict):
    """What is left out stays as it is, or is the default in a new group."""

    start: Literal["earliest", "latest"] | None = Field(None, description="Where a new group begins.")
    max_attempts: Annotated[int, Field(ge=1, le=10_000)] | None = None
    retry_delays_s: (
        Annotated[list[Annotated[float, Field(ge=0, le=366 * 86400)]], Field(min_length=1, max_length=100)] | None
    ) = None
    timeout_s: Annotated[float, Field(ge=0, le=1e9)] | None = None
    max_in_flight: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    dead_retention_s: Annotated[float, Field(ge=0, le=1e11)] | None = None


class Position(BaseModel):
    lane: str
    next: int
    end: int


class Member(BaseModel):
    consumer: str
    address: str
    in_flight: int
    waiting: bool
    last_seen_s: float


class Group(BaseModel):
    topic: str
    name: str
    lag: int
    in_flight: int
    retrying: int
    dead: int
    paused: bool
    pause_reason: str
    start: str
    max_attempts: int
    retry_delays_s: list[float]
    timeout_s: float
    max_in_flight: int
    positions: list[Position]
    members: list[Member]
    unused_s: float
    expires_in_s: float | None
    """In how long it is removed if nobody uses it; None is never."""


class Groups(BaseModel):
    groups: list[Group]


class Target(Strict):
    """One of these: an end, a time, or a number for each lane that is moved."""

    to: Literal["earliest", "latest"] | None = None
    time: datetime | None = None
    positions: Annotated[dict[str, Number], Field(min_length=1, max_length=1_024)] | None = None
    dry_run: bool = False


class Move(BaseModel):
    lane: str
    was: int
    now: int


class Sought(BaseModel):
    """How many messages are delivered again, and how many are passed over."""

    moves: list[Move]
    again: int
    passed: int


class Rest(Strict):
    reason: Annotated[str, Field(max_length=500)] = ""


class Letters(BaseModel):
    letters: list[Letter]
    next: int
    start: int
    end: int


class Chosen(Strict):
    numbers: Annotated[list[Number], Field(max_length=10_000)] | None = Field(None, description="Which; null is all.")


class Revision(Strict):
    """What is left out stays as it is."""

    body: str | None = None
    encoding: Encoding = "utf-8"
    key: Annotated[str, Field(max_length=1000)] | None = None
    headers: Annotated[dict[str, str], Field(max_length=100)] | None = None


class DelayedMessage(BaseModel):
    id: str
    topic: str
    lane: str
    priority: str
    deliver_at: datetime
    key: str | None
    size_bytes: int


class DelayedMessages(BaseModel):
    messages: list[DelayedMessage]


class Which(Strict):
    """A message by its id, or all with a key."""

    id: Annotated[str, Field(max_length=100)] | None = None
    key: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    dry_run: bool = False


class When(Which):
    delay: Delay | None = None
    deliver_at: datetime | None = None
    delay_level: Annotated[int, Field(ge=1, le=999)] | None = None


@router.get("/groups", summary="List the groups of all topics")
async def all_groups(mq: Mq) -> Groups:
    return Groups(groups=[_group(one) for one in await mq.groups()])


@router.get("/topics/{topic}/groups", summary="List the groups of a topic")
async def groups(topic: TopicName, mq: Mq) -> Groups:
    return Groups(groups=[_group(one) for one in await mq.groups(topic)])


@router.get("/topics/{topic}/groups/{group}", summary="One group")
async def info(topic: TopicName, group: GroupName, mq: Mq) -> Group:
    return _group(await mq.group(topic, group))


@router.put("/topics/{topic}/groups/{group}", summary="Make a group, or change its settings")
async def put(topic: TopicName, group: GroupName, settings: Settings, mq: Mq) -> Group:
    try:
        config = (await mq.group(topic, group)).config
    except NotFound:
        config = GroupConfig(topic, group)
    given = settings.model_dump(exclude_none=True)
    retry: dict[str, Any] = {}
    if "max_attempts" in given:
        retry["max_attempts"] = given.pop("max_attempts")
    if "retry_delays_s" in given:
        retry["delays_s"] = tuple(given.pop("retry_delays_s"))
    changed = msgspec.structs.replace(config, retry=msgspec.structs.replace(config.retry, **retry), **given)
    await mq.put_group(changed)
    return _group(await mq.group(topic, group))


@router.delete("/topics/{topic}/groups/{group}", summary="Forget a group, its progress and its dead letters")
async def delete(topic: TopicName, group: GroupName, mq: Mq) -> Count:
    await mq.delete_group(topic, group)
    return Count(count=1)


@router.post("/topics/{topic}/groups/{group}/seek", summary="Let a group go on elsewhere")
async def seek(topic: TopicName, group: GroupName, target: Target, mq: Mq) -> Sought:
    given = [one for one in (target.to, target.time, target.positions) if one is not None]
    if len(given) != 1:
        raise BadRequest("seek: give one of to, time and positions")
    if target.time is not None and target.time.tzinfo is None:
        raise BadRequest("seek: the time has no time zone: write 2026-05-01T12:00:00Z")
    to: Any = given[0]
    if target.positions is not None:
        to = {int(lane) if lane.isascii() and lane.isdigit() else lane: seq for lane, seq in target.positions.items()}
    done = await mq.seek(topic, group, to, dry_run=target.dry_run)
    moves = [Move(lane=lane, was=was, now=now) for lane, was, now in done.moves]
    return Sought(moves=moves, again=done.again, passed=done.passed)


@router.post("/topics/{topic}/groups/{group}/pause", summary="Let a group rest")
async def pause(topic: TopicName, group: GroupName, rest: Rest, mq: Mq) -> Group:
    await mq.pause(topic, group, rest.reason)
    return _group(await mq.group(topic, group))


@router.post("/topics/{topic}/groups/{group}/resume", summary="Let a group go on")
async def resume(topic: TopicName, group: GroupName, mq: Mq) -> Group:
    await mq.resume(topic, group)
    return _group(await mq.group(topic, group))


def _group(state: GroupState) -> Group:
    config = state.config
    return Group(
        topic=config.topic,
        name=config.name,
        lag=state.lag,
        in_flight=state.in_flight,
        retrying=state.retrying,
        dead=state.dead,
        paused=config.paused,
        pause_reason=config.pause_reason,
        start=config.start,
        max_attempts=config.retry.max_attempts,
        retry_delays_s=list(config.retry.delays_s),
        timeout_s=config.timeout_s,
        max_in_flight=config.max_in_flight,
        positions=[Position(lane=lane, next=at, end=end) for lane, at, end in state.positions],
        members=[
            Member(
                consumer=one.consumer,
                address=one.address,
                in_flight=one.in_flight,
                waiting=one.waiting,
                last_seen_s=one.last_seen_s,
            )
            for one in state.members
        ],
        unused_s=state.unused_s,
        expires_in_s=state.expires_in_s if state.expires_in_s >= 0 else None,
    )


# Dead letters


@router.get("/topics/{topic}/groups/{group}/dead", summary="Look at dead letters", tags=["dead letters"])
async def dead(
    topic: TopicName,
    group: GroupName,
    mq: Mq,
    first: Annotated[int, Query(ge=0, le=(1 << 63) - 1)] = 0,
    max_messages: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> Letters:
    page = await mq.dead_letters(topic, group, first=first, max_messages=max_messages)
    return Letters(letters=[letter(one) for one in page], next=page.next, start=page.start, end=page.end)


@router.post("/topics/{topic}/groups/{group}/dead/resend", summary="Deliver dead letters again", tags=["dead letters"])
async def resend(topic: TopicName, group: GroupName, chosen: Chosen, mq: Mq) -> Count:
    return Count(count=await mq.resend(topic, group, chosen.numbers))


@router.post(
    "/topics/{topic}/groups/{group}/dead/{number}/revise",
    summary="Deliver one dead letter again, changed",
    tags=["dead letters"],
)
async def revise(topic: TopicName, group: GroupName, number: Number, revision: Revision, mq: Mq) -> Count:
    body = None if revision.body is None else body_of(Body(body=revision.body, encoding=revision.encoding))
    await mq.revise(topic, group, number, body=body, key=revision.key, headers=revision.headers)
    return Count(count=1)


@router.delete("/topics/{topic}/groups/{group}/dead", summary="Drop dead letters for good", tags=["dead letters"])
async def purge_dead(
    topic: TopicName,
    group: GroupName,
    mq: Mq,
    before: Annotated[int, Query(ge=0, le=(1 << 63) - 1, description="Those before this number.")],
) -> Count:
    return Count(count=await mq.purge_dead(topic, group, before))


# Delayed messages


@router.get("/delayed", summary="Messages that wait for their time", tags=["delayed messages"])
async def delayed(
    mq: Mq,
    topic: Annotated[str | None, Query(pattern=r"^[a-z0-9][a-z0-9._-]{0,49}$")] = None,
    after: datetime | None = None,
    max_messages: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> DelayedMessages:
    """Soonest first."""
    if after is not None and after.tzinfo is None:
        raise BadRequest("after has no time zone: write 2026-05-01T12:00:00Z")
    found = await mq.delayed(topic, after=after, max_messages=max_messages)
    return DelayedMessages(
        messages=[
            DelayedMessage(
                id=one.id,
                topic=one.topic,
                lane=one.lane,
                priority=one.priority,
                deliver_at=one.deliver_at,
                key=one.key,
                size_bytes=one.size_bytes,
            )
            for one in found
        ]
    )


@router.post("/topics/{topic}/delayed/cancel", summary="Cancel delayed messages", tags=["delayed messages"])
async def cancel(topic: TopicName, which: Which, mq: Mq) -> Count:
    return Count(count=await mq.cancel(topic, which.id, key=which.key, dry_run=which.dry_run))


@router.post("/topics/{topic}/delayed/reschedule", summary="Deliver at another time", tags=["delayed messages"])
async def reschedule(topic: TopicName, when: When, mq: Mq) -> Count:
    if when.deliver_at is not None and when.deliver_at.tzinfo is None:
        raise BadRequest("deliver_at has no time zone: write 2026-05-01T12:00:00Z")
    count = await mq.reschedule(
        topic,
        when.id,
        key=when.key,
        delay=when.delay,
        deliver_at=when.deliver_at,
        delay_level=when.delay_level,
        dry_run=when.dry_run,
    )
    return Count(count=count)
