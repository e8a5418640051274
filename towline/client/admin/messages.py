"""Single messages: browse, find, trace; delayed ones: list, cancel, reschedule."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Final

from towline.client import requests
from towline.client.admin import delayed as delays_of
from towline.client.admin.delayed import DelayedEntry, Time, settled_id
from towline.client.admin.topics import TopicsAndGroups
from towline.client.admin.trace import Trace, trace
from towline.client.cluster import ids
from towline.client.consume.message import Message
from towline.client.consume.message_block import MessageBlock
from towline.client.link.connection import Call
from towline.client.link.flow import Flow
from towline.client.operation import Errand, offered
from towline.client.produce.encode import as_sought_key, as_time_us
from towline.client.produce.sharding import ShardMap
from towline.client.results import Page
from towline.errors import BadRequest, NotFound, ProtocolError, TooLarge
from towline.frame.layout import unpacked_bytes
from towline.model import LANES, Priority, Receipt, check_topic, lane_names, parse_message_id
from towline.protocol import split_attachments
from towline.protocol.messages import Find, Found

__all__ = ["Messages", "find", "message"]


class Messages(TopicsAndGroups):
    # Delayed messages

    @offered
    def delayed(
        self,
        topic: str | None = None,
        *,
        after: DelayedEntry | Time | None = None,
        max_messages: int = 100,
        key: str | None = None,
        id: Receipt | str | int | None = None,  # noqa: A002 - it is what it is
        broker: str | None = None,
    ) -> Errand[list[DelayedEntry]]:
        """Delayed messages of a topic, or of all: soonest first, `after` a time or an entry. Of a topic, only those
        with this `key`, or the one with this `id`, if it still waits."""
        if id is not None:
            broker = ids.whose(id, broker) or None
        fleet = self._fleet
        if fleet is not None and fleet.shared and not topic:
            found = yield from self._outcomes(lambda: delays_of.delayed(None, after, max_messages))
            return ids.join_delayed(max_messages, mark=False)(found, fleet.label)
        label = fleet.label if fleet is not None else str
        make_flow = partial(delays_of.delayed, topic, after, max_messages, key=key, message=id)
        join = ids.join_delayed(max_messages)
        return (yield from self._consult(topic or "", broker, lambda at: make_flow(label(at)), join))

    @offered
    def cancel(
        self,
        topic: str,
        id: Receipt | str | int | None = None,  # noqa: A002 - it is what it is
        *,
        key: str | None = None,
        dry_run: bool = False,
        broker: str | None = None,
    ) -> Errand[int]:
        """Cancel a delayed message by its id or receipt, or all with this key: they will not be delivered. Returns how
        many. `Conflict` if the one with this id does not wait any more."""
        if id is not None:
            its = ids.whose(id, broker)
            return self._at_its_own(topic, its, f"the delayed message {id}", delays_of.cancel(topic, id, key, dry_run))
        return self._consult(topic, broker, lambda _: delays_of.cancel(topic, id, key, dry_run), ids.join_counts)

    @offered
    def reschedule(
        self,
        topic: str,
        id: Receipt | str | int | None = None,  # noqa: A002 - it is what it is
        *,
        key: str | None = None,
        delay: float | None = None,
        deliver_at: Time | None = None,
        delay_level: int | None = None,
        dry_run: bool = False,
        broker: str | None = None,
    ) -> Errand[int]:
        """Deliver a delayed message, or all with this key, at another time. Returns how many; they keep their ids.
        `Conflict` if the one with this id does not wait any more."""
        at_us = delays_of.as_new_time(delay, deliver_at, delay_level)
        if id is not None:
            its = ids.whose(id, broker)
            return self._at_its_own(
                topic, its, f"the delayed message {id}", delays_of.reschedule(topic, id, key, at_us, dry_run)
            )
        return self._consult(
            topic, broker, lambda _: delays_of.reschedule(topic, id, key, at_us, dry_run), ids.join_counts
        )

    # Messages

    @offered
    def browse(
        self,
        topic: str,
        lane: Priority | int = "middle",
        *,
        first: int = 0,
        max_messages: int = 100,
        max_bytes: int = 4 << 20,
        broker: str | None = None,
    ) -> Errand[Page[Message]]:
        """Read messages of a lane (a priority, or the number of a shard) without consuming them, from number `first`
        on. Where each broker keeps its own messages: those of one `broker` (its name, address or id), or the oldest of
        all, and `page.next` knows the next position at each."""
        return self._consult(
            topic,
            broker,
            lambda at: requests.browse(topic, lane, ids.number_at(first, at), max_messages, max_bytes),
            ids.join_messages(max_messages),
        )

    @offered
    def locate(
        self, topic: str, lane: Priority | int, time: datetime | float, *, broker: str | None = None
    ) -> Errand[int]:
        """The number of the first message of a lane that was appended at this time (or Unix time) or later."""
        at_us = as_time_us(time)
        return self._consult(topic, broker, lambda _: requests.locate(topic, lane, at_us), ids.join_places)

    @offered
    def message(self, message_id: str, *, broker: str | None = None) -> Errand[Message]:
        """The message with this id (`orders/middle/42`), consumed or not; `NotFound` if it is not kept. One that was
        delayed is also found by the id that it got then (`orders/delay/17`), once it is in its lane. `Conflict` if
        several brokers of a cluster have one: `orders/middle/42@b2` is that of broker `b2`."""
        plain, named = ids.split_broker(message_id)
        join = ids.join_message(plain)
        return self._consult(plain.partition("/")[0], broker or named, lambda _: message(plain), join)

    @offered
    def find(
        self,
        topic: str,
        *,
        key: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        priority: Priority | None = None,
        limit: int = 100,
        broker: str | None = None,
    ) -> Errand[list[Message]]:
        """Messages with exactly this key, sent since one time and before another: the oldest `limit` of them."""
        return self._consult(
            topic,
            broker,
            lambda _: find(topic, key=key, since=since, until=until, priority=priority, limit=limit),
            ids.join_found(limit),
        )

    @offered
    def trace(
        self, message_id: str, *, group: str | None = None, whole: bool = False, broker: str | None = None
    ) -> Errand[Trace]:
        """The life of a message (`orders/middle/42`): the message as it was sent, and its events in each group, or in
        one. It ends with the ack; with `whole`, it includes later deliveries in a group that was set back. The id that
        a message got when it was delayed (`orders/delay/17`) will do as well, once it is in its lane."""
        plain, named = ids.split_broker(message_id)
        join = ids.join_trace(plain)
        return self._consult(plain.partition("/")[0], broker or named, lambda _: trace(plain, group, whole=whole), join)


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
