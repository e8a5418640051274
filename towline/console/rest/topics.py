"""Routes: topics."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from towline.client._async.client import Client
from towline.console.rest.client_pool import Mq
from towline.console.rest.models import TOPIC, Count, Created, Strict, TopicName, time
from towline.protocol.messages import TopicState

__all__ = ["router"]

router = APIRouter(tags=["topics"])

Retention = Annotated[float, Field(ge=0, le=1e11)]


class NewTopic(Strict):
    name: Annotated[str, Field(pattern=TOPIC)]
    retention_s: Retention | None = Field(None, description="How long messages are kept: 0 is for ever, null as set.")
    shards: Annotated[int, Field(ge=0, le=1_024)] = Field(0, description="More than 0: an ordered topic.")


class Changes(Strict):
    retention_s: Retention | None


class LaneInfo(BaseModel):
    lane: str
    first: int
    end: int
    size_bytes: int


class Topic(BaseModel):
    name: str
    created_at: datetime | None
    retention_s: float | None
    shards: int
    lanes: list[LaneInfo]
    groups: list[str]
    delayed: int


class Topics(BaseModel):
    """`next` is the `after` to go on with; null if there are no more."""

    topics: list[Topic]
    next: str | None


class PurgedGroup(BaseModel):
    group: str
    messages: int


class Purged(BaseModel):
    messages: int
    size_bytes: int
    groups: list[PurgedGroup]


@router.get("/topics", summary="List topics")
async def topics(
    mq: Mq,
    contains: Annotated[str, Query(max_length=50)] = "",
    after: Annotated[str, Query(max_length=50)] = "",
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> Topics:
    """Those that the caller may see, by name."""
    found = [one for one in await mq.topics() if contains in one.config.name and one.config.name > after]
    return Topics(
        topics=[_topic(one) for one in found[:limit]],
        next=found[limit - 1].config.name if len(found) > limit else None,
    )


@router.post("/topics", status_code=201, summary="Make a topic")
async def create(topic: NewTopic, mq: Mq) -> Created:
    await mq.create_topic(topic.name, retention_s=topic.retention_s, shards=topic.shards)
    return Created(created=topic.name)


@router.get("/topics/{topic}", summary="One topic")
async def info(topic: TopicName, mq: Mq) -> Topic:
    return await _info(mq, topic)


@router.patch("/topics/{topic}", summary="Change a topic")
async def change(topic: TopicName, changes: Changes, mq: Mq) -> Topic:
    await mq.edit_topic(topic, retention_s=changes.retention_s)
    return await _info(mq, topic)


@router.delete("/topics/{topic}", summary="Delete a topic with all that is in it")
async def delete(topic: TopicName, mq: Mq) -> Count:
    await mq.delete_topic(topic)
    return Count(count=1)


@router.post("/topics/{topic}/purge", summary="Drop all messages of a topic")
async def purge(topic: TopicName, mq: Mq, dry_run: bool = False) -> Purged:
    done = await mq.purge(topic, dry_run=dry_run)
    return Purged(
        messages=done.messages,
        size_bytes=done.size_bytes,
        groups=[PurgedGroup(group=group, messages=count) for group, count in done.groups],
    )


async def _info(mq: Client, name: str) -> Topic:
    return _topic(await mq.topic(name))


def _topic(state: TopicState) -> Topic:
    return Topic(
        name=state.config.name,
        created_at=time(state.config.created_at_us),
        retention_s=state.config.retention_s,
        shards=state.config.shards,
        lanes=[
            LaneInfo(lane=lane.lane, first=lane.first, end=lane.end, size_bytes=lane.size_bytes) for lane in state.lanes
        ],
        groups=state.groups,
        delayed=state.delayed,
    )
