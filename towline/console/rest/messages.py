"""Routes: send, pull, settle, browse, trace."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from towline.client.admin.trace import GroupTrace
from towline.console.rest.client_pool import Mq, Who
from towline.console.rest.held_leases import Pulls
from towline.console.rest.models import (
    GROUP,
    TOPIC,
    Acked,
    Delay,
    GroupName,
    Lane,
    MessageId,
    Outgoing,
    Page,
    Pulled,
    Sent,
    Shown,
    Strict,
    TopicName,
    body_of,
    facts,
    sent,
    shown,
    time,
)
from towline.console.search_turns import SearchTurns

__all__ = ["router"]

router = APIRouter(tags=["messages"])

Durability = Annotated[
    Literal["fsync", "os", "received"] | None, Query(description="What it survives; without it, as the broker is set.")
]
Moment = Annotated[datetime | None, Query(description="A time with its time zone.")]
Receipts = Annotated[list[Annotated[str, Field(max_length=50)]], Field(min_length=1, max_length=10_000)]


class Batch(Strict):
    """Messages that are sent together: up to 10,000, one after the other in this order."""

    messages: Annotated[list[Outgoing], Field(min_length=1, max_length=10_000)]


class SentMany(BaseModel):
    sent: list[Sent]


class Unit(Outgoing):
    topic: Annotated[str, Field(pattern=TOPIC)]


class Units(Strict):
    """Messages of any topics that are seen all at once, or not at all."""

    messages: Annotated[list[Unit], Field(min_length=1, max_length=10_000)]


class Asked(Strict):
    max_messages: Annotated[int, Field(ge=1, le=1_000)] = 10
    wait_s: Annotated[float, Field(ge=0, le=30)] = 0
    lease_s: Annotated[float, Field(ge=1, le=43_200)] = Field(
        60, description="What is not acknowledged after so many seconds is delivered again."
    )


class PulledMany(BaseModel):
    messages: list[Pulled]


class Ack(Strict):
    receipts: Receipts


class Nack(Ack):
    reason: Annotated[str, Field(max_length=1_000)] = ""
    delay: Annotated[Delay, Field(le=366 * 86400)] | None = Field(
        None, description="Deliver it again after so many seconds; without it, as the group's retry policy says."
    )
    dead: bool = Field(False, description="It can never succeed: straight to the dead letters.")


class Found(BaseModel):
    messages: list[Shown]


class Step(BaseModel):
    at: datetime | None
    what: str
    consumer: str
    attempt: int
    reason: str
    due_at: datetime | None
    dead: int | None


class Life(BaseModel):
    group: str
    status: str
    attempt: int
    due_at: datetime | None
    complete: bool
    steps: list[Step]


class Traced(BaseModel):
    """`message` is null if it is not kept any more, or `hidden`: to read it takes the right to consume the topic."""

    id: str
    message: Shown | None
    hidden: bool
    delay_id: str | None
    """The id that it had while it was delayed, if that is what was asked for."""
    groups: list[Life]


@router.post("/topics/{topic}/messages", status_code=201, summary="Send a message")
async def send(topic: TopicName, message: Outgoing, mq: Mq, durability: Durability = None) -> Sent:
    """It is stored, as durably as asked, when this answers."""
    return sent(await mq.send(topic, body_of(message), durability=durability, **message.options()))


@router.post("/topics/{topic}/messages/batch", status_code=201, summary="Send many messages")
async def send_many(topic: TopicName, batch: Batch, mq: Mq, durability: Durability = None) -> SentMany:
    """In their order. Neighbours that differ in their body, key, headers and shard key only are stored as one; if one
    fails, those before it are stored, and none behind it."""
    done: list[Sent] = []
    for run in _runs(batch.messages):
        if len(run) == 1:
            one = run[0]
            done.append(sent(await mq.send(topic, body_of(one), durability=durability, **one.options())))
            continue
        receipts = await mq.send_many(
            topic,
            [body_of(one) for one in run],
            keys=[one.key for one in run] if any(one.key for one in run) else None,
            headers=[one.headers for one in run] if any(one.headers for one in run) else None,
            shard_keys=[one.shard_key for one in run] if any(one.shard_key for one in run) else None,
            priority=run[0].priority,
            durability=durability,
        )
        done += map(sent, receipts)
    return SentMany(sent=done)


def _runs(messages: list[Outgoing]) -> list[list[Outgoing]]:
    """Neighbours that can go in one call; a message with a delay, limits or a dedup id goes alone."""
    runs: list[list[Outgoing]] = []
    plain_before = False
    for one in messages:
        own = (one.dedup_id, one.ttl, one.timeout, one.attempts, one.delay, one.deliver_at, one.delay_level)
        plain = not any(own)
        if plain and plain_before and runs[-1][-1].priority == one.priority:
            runs[-1].append(one)
        else:
            runs.append([one])
        plain_before = plain
    return runs


@router.post(
    "/transactions", status_code=201, summary="Send messages to any topics, all or none", tags=["transactions"]
)
async def send_transaction(units: Units, mq: Mq, durability: Durability = None) -> SentMany:
    async with mq.transaction(durability=durability) as transaction:
        for one in units.messages:
            await transaction.send(one.topic, body_of(one), **one.options())
    return SentMany(sent=[sent(receipt) for receipt in transaction.receipts])


@router.post("/topics/{topic}/groups/{group}/pull", summary="Pull messages")
async def pull(topic: TopicName, group: GroupName, asked: Asked, who: Who, request: Request) -> PulledMany:
    """Take messages for a group, which is made if need be; wait for up to `wait_s` seconds until there are some. Settle
    them by their receipts before their lease ends."""
    pulls: Pulls = request.app.state.pulls
    found = await pulls.pull(
        who, topic, group, max_messages=asked.max_messages, wait_s=asked.wait_s, lease_s=asked.lease_s
    )
    return PulledMany(messages=[Pulled(receipt=receipt, **facts(message)) for receipt, message in found])


@router.post("/ack", summary="Acknowledge messages")
async def ack(given: Ack, who: Who, request: Request) -> Acked:
    """They are consumed. Durable when this answers."""
    pulls: Pulls = request.app.state.pulls
    count, lost = await pulls.settle(who, given.receipts, ack=True)
    return Acked(settled=count, lost=lost)


@router.post("/nack", summary="Give messages back that failed")
async def nack(given: Nack, who: Who, request: Request) -> Acked:
    pulls: Pulls = request.app.state.pulls
    count, lost = await pulls.settle(
        who, given.receipts, ack=False, reason=given.reason, delay=given.delay, dead=given.dead
    )
    return Acked(settled=count, lost=lost)


@router.get("/topics/{topic}/messages", summary="Look at messages without consuming them")
async def peek(
    topic: TopicName,
    mq: Mq,
    *,
    lane: Lane = "middle",
    first: Annotated[int, Query(ge=0, le=(1 << 63) - 1)] = 0,
    since: Annotated[Moment, Query(description="Begin with the first message since this time.")] = None,
    max_messages: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> Page:
    place = _lane(lane)
    if since is not None:
        first = max(first, await mq.locate(topic, place, since))
    page = await mq.browse(topic, place, first=first, max_messages=max_messages)
    return Page(messages=[shown(one) for one in page], next=page.next, start=page.start, end=page.end)


def _lane(text: str) -> Literal["high", "middle", "low"] | int:
    return int(text) if text.isdigit() else text  # type: ignore[return-value]  # the pattern saw to it


@router.get("/topics/{topic}/find", summary="Find messages by key and time")
async def find(
    topic: TopicName,
    who: Who,
    request: Request,
    *,
    key: Annotated[str | None, Query(min_length=1, max_length=1000)] = None,
    since: Moment = None,
    until: Moment = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> Found:
    searches: SearchTurns = request.app.state.searches
    async with searches.turn(who.key):
        found = await who.client.find(topic, key=key, since=since, until=until, limit=limit)
        return Found(messages=[shown(one) for one in found])


@router.get("/message", summary="One message, by its id")
async def message(id: MessageId, mq: Mq) -> Shown:  # noqa: A002 - it is what it is
    return shown(await mq.message(id))


@router.get("/trace", summary="The life of a message")
async def trace(
    id: MessageId,  # noqa: A002 - it is what it is
    mq: Mq,
    group: Annotated[str | None, Query(pattern=GROUP)] = None,
    whole: bool = False,
) -> Traced:
    """Who sent it; and for each group its status, each pull, ack and nack, and why. What it holds is
    shown to whoever may consume the topic; all else to whoever may describe it."""
    found = await mq.trace(id, group=group, whole=whole)
    return Traced(
        id=found.id,
        message=None if found.message is None else shown(found.message),
        hidden=found.hidden,
        delay_id=found.delay_id or None,
        groups=[_life(one) for one in found.groups],
    )


def _life(one: GroupTrace) -> Life:
    steps = [
        Step(
            at=time(step.at_us),
            what=step.what,
            consumer=step.consumer,
            attempt=step.attempt,
            reason=step.reason,
            due_at=time(step.due_us),
            dead=step.dead,
        )
        for step in one.steps
    ]
    return Life(
        group=one.group,
        status=one.status,
        attempt=one.attempt,
        due_at=time(one.due_us),
        complete=one.complete,
        steps=steps,
    )
