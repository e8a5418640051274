"""Single messages: browse, find, trace."""

from __future__ import annotations

from datetime import datetime

from towline.client import requests
from towline.client.admin._async.router import Noun
from towline.client.admin.messages import find, message
from towline.client.admin.trace import Trace, trace
from towline.client.cluster import ids
from towline.client.consume.message import Message
from towline.client.produce.encode import as_time_us
from towline.client.results import Page
from towline.model import Priority

__all__ = ["Messages"]


class Messages(Noun):
    async def browse(
        self,
        topic: str,
        lane: Priority | int = "middle",
        *,
        first: int = 0,
        max_messages: int = 100,
        max_bytes: int = 4 << 20,
        broker: str | None = None,
    ) -> Page[Message]:
        """Read messages of a lane (a priority, or the number of a shard) without consuming them, from number `first`
        on. Where each broker keeps its own messages: those of one `broker` (its name, address or id), or the oldest of
        all, and `page.next` knows the next position at each."""
        return await self._router.consult(
            topic,
            broker,
            lambda at: requests.browse(topic, lane, ids.number_at(first, at), max_messages, max_bytes),
            ids.join_messages(max_messages),
        )

    async def locate(
        self, topic: str, lane: Priority | int, time: datetime | float, *, broker: str | None = None
    ) -> int:
        """The number of the first message of a lane that was appended at this time (or Unix time) or later."""
        at_us = as_time_us(time)
        return await self._router.consult(topic, broker, lambda _: requests.locate(topic, lane, at_us), ids.join_places)

    async def message(self, message_id: str, *, broker: str | None = None) -> Message:
        """The message with this id (`orders/middle/42`), consumed or not; `NotFound` if it is not kept. One that was
        delayed is also found by the id that it got then (`orders/delay/17`), once it is in its lane. `Conflict` if
        several brokers of a cluster have one: `orders/middle/42@b2` is that of broker `b2`."""
        plain, named = ids.split_broker(message_id)
        join = ids.join_message(plain)
        return await self._router.consult(plain.partition("/")[0], broker or named, lambda _: message(plain), join)

    async def find(
        self,
        topic: str,
        *,
        key: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        priority: Priority | None = None,
        limit: int = 100,
        broker: str | None = None,
    ) -> list[Message]:
        """Messages with exactly this key, sent since one time and before another: the oldest `limit` of them."""
        return await self._router.consult(
            topic,
            broker,
            lambda _: find(topic, key=key, since=since, until=until, priority=priority, limit=limit),
            ids.join_found(limit),
        )

    async def trace(
        self, message_id: str, *, group: str | None = None, whole: bool = False, broker: str | None = None
    ) -> Trace:
        """The life of a message (`orders/middle/42`): the message as it was sent, and its events in each group, or in
        one. It ends with the ack; with `whole`, it includes later deliveries in a group that was set back. The id that
        a message got when it was delayed (`orders/delay/17`) will do as well, once it is in its lane."""
        plain, named = ids.split_broker(message_id)
        join = ids.join_trace(plain)
        return await self._router.consult(
            plain.partition("/")[0], broker or named, lambda _: trace(plain, group, whole=whole), join
        )
