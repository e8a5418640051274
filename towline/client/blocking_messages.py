"""Single messages, as a blocking client looks at them, finds and follows them, and changes when they are delivered: the
counterpart of `aio_messages`."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

from towline.client import delays as delays_of
from towline.client import flows, search
from towline.client.delays import DelayedEntry, Time
from towline.client.link import Link
from towline.client.message import Message, Page
from towline.client.outgoing import as_time_us
from towline.client.steps import Flow
from towline.client.trace import Trace, trace
from towline.model import Priority, Receipt

__all__ = ["Looking"]

T = TypeVar("T")


class Looking:
    _link: Link

    def _run(self, topic: str, flow: Flow[T]) -> T:
        raise NotImplementedError

    # Delayed messages

    def delayed(
        self, topic: str | None = None, *, after: DelayedEntry | Time | None = None, max_messages: int = 100
    ) -> list[DelayedEntry]:
        """The messages of a topic, or of all, that wait for their time: soonest first, `after` a time or an entry."""
        return self._link.run(delays_of.delayed(topic, after, max_messages))

    def cancel(
        self,
        topic: str,
        id: Receipt | str | int | None = None,  # noqa: A002 - it is what it is
        *,
        key: str | None = None,
        dry_run: bool = False,
    ) -> int:
        """Cancel a delayed message by its id or receipt, or all with this key. How many it were: they will not be
        delivered. `Conflict` if the one with this id does not wait any more."""
        return self._run(topic, delays_of.cancel(topic, id, key, dry_run))

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
    ) -> int:
        """Deliver a delayed message, or all with this key, at another time. How many it were; they keep their ids.
        `Conflict` if the one with this id does not wait any more."""
        at_us = delays_of.as_new_time(delay, deliver_at, delay_level)
        return self._run(topic, delays_of.reschedule(topic, id, key, at_us, dry_run))

    # Looking

    def browse(
        self,
        topic: str,
        lane: Priority | int = "middle",
        *,
        first: int = 0,
        max_messages: int = 100,
        max_bytes: int = 4 << 20,
    ) -> Page[Message]:
        """Read messages of a lane (a priority, or the number of a shard) without consuming them, from number `first`
        on."""
        return self._run(topic, flows.browse(topic, lane, first, max_messages, max_bytes))

    def locate(self, topic: str, lane: Priority | int, time: datetime | float) -> int:
        """The number of the first message of a lane that was appended at this time (or Unix time) or later."""
        return self._run(topic, flows.locate(topic, lane, as_time_us(time)))

    def message(self, message_id: str) -> Message:
        """The message with this id (`orders/middle/42`), consumed or not; `NotFound` if it is not kept."""
        return self._link.run(search.message(message_id))

    def find(
        self,
        topic: str,
        *,
        key: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        priority: Priority | None = None,
        limit: int = 100,
    ) -> list[Message]:
        """Messages with exactly this key, sent since one time and before another: the oldest `limit` of them."""
        found = search.find(topic, key=key, since=since, until=until, priority=priority, limit=limit)
        return self._run(topic, found)

    def trace(self, message_id: str, *, group: str | None = None, whole: bool = False) -> Trace:
        """The life of a message (`orders/middle/42`): as it was sent, and what became of it in each group, or in one.
        It is told up to the ack; with `whole`, also what came behind it in a group that was set back."""
        return self._link.run(trace(message_id, group, whole=whole))
