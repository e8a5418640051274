"""Single messages: by id, and by key and time."""

from __future__ import annotations

from datetime import datetime
from operator import attrgetter
from typing import Final

from towline.client import requests
from towline.client.admin.delayed import settled_id
from towline.client.consume.message import Message
from towline.client.consume.message_block import MessageBlock
from towline.client.link.connection import Call
from towline.client.link.flow import Flow
from towline.client.produce.encode import as_sought_key, as_time_us
from towline.client.produce.sharding import ShardMap
from towline.errors import BadRequest, NotFound, ProtocolError, TooLarge
from towline.frame.layout import unpacked_bytes
from towline.model import LANES, Priority, check_topic, lane_names, parse_message_id
from towline.protocol import split_attachments
from towline.protocol.messages import Find, Found

__all__ = ["find", "message"]


MAX_BYTES: Final = 4 << 20
FOUND_BYTES: Final = 64 << 20
"""All messages found fit into this, unpacked: they are in memory at once."""


def message(message_id: str) -> Flow[Message]:
    message_id = yield from settled_id(message_id)
    topic, lane, seq = parse_message_id(message_id)
    priority: Priority | None = next((name for name in LANES if name == lane), None)
    place = int(lane) if priority is None else priority
    page = yield from requests.browse(topic, place, seq, 1, 1)
    if not page or page[0].seq != seq:
        state = "is not there yet" if seq >= page.end else "is not kept any more"
        raise NotFound(f"message {message_id} {state}: lane {lane} of topic {topic} has {page.start} to {page.end - 1}")
    return page[0]


def find(
    topic: str,
    *,
    key: str | None,
    since: datetime | float | None,
    until: datetime | float | None,
    priority: Priority | None,
    limit: int,
) -> Flow[list[Message]]:
    """Lane by lane, each up to the limit; then the oldest of all."""
    check_topic(topic)
    if limit < 1:
        raise BadRequest(f"a limit of {limit}: give 1 or more")
    wanted = as_sought_key(key)
    since_us, until_us = (0 if time is None else as_time_us(time) for time in (since, until))
    found: list[Message] = []
    size = 0
    shards = yield from ShardMap().look_up(topic)
    if shards and priority is not None:
        raise BadRequest(f"topic {topic} is ordered, with {shards} shards: there is no priority {priority!r} in it")
    for number, lane in enumerate(lane_names(shards)):
        if priority in (None, lane):
            request = Find(topic, number, wanted, 0, since_us, until_us, limit, MAX_BYTES)
            size += yield from _find_in(request, shards, found, size)
    found.sort(key=attrgetter("appended_at_us"))
    return found[:limit]


def _find_in(request: Find, shards: int, found: list[Message], before: int) -> Flow[int]:
    """Add messages of one lane; returns how many bytes they are. So many were found `before`."""
    first, room, size = 0, len(found) + request.max_messages, 0
    while True:
        asked = Find(
            request.topic,
            request.lane,
            request.key,
            first,
            request.since_us,
            request.until_us,
            min(room - len(found), 100_000),
            request.max_bytes,
        )
        call = Call(asked)
        answer = yield call
        if not isinstance(answer, Found):
            raise ProtocolError(f"Find was answered by {type(answer).__name__}")
        assert call.attachments is not None, "an answered call has its attachments, maybe empty"
        frames = split_attachments(call.attachments, [part.length for part in answer.parts])
        size += sum(map(unpacked_bytes, frames))
        if found and before + size > FOUND_BYTES:
            raise TooLarge(
                f"more than {FOUND_BYTES:,} bytes were found in topic {request.topic}, which is too much at once: give "
                "a lower limit, or times that lie closer together"
            )
        for part, data in zip(answer.parts, frames, strict=True):
            found += MessageBlock(request.topic, part, data, shards=shards).messages()
        if answer.next >= answer.end or answer.next <= first or len(found) >= room:
            del found[room:]
            return size
        first = answer.next
