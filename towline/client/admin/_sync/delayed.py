# Generated from towline/client/admin/_async/delayed.py by scripts/unasync.py: change it there.
"""Delayed messages: list, cancel, move."""

from __future__ import annotations

from functools import partial

from towline.client.admin._sync.router import Noun
from towline.client.admin.delayed import DelayedEntry, Time, as_new_time, cancel, delayed, reschedule
from towline.client.cluster import ids
from towline.model import Receipt

__all__ = ["Delayed"]


class Delayed(Noun):
    def delayed(
        self,
        topic: str | None = None,
        *,
        after: DelayedEntry | Time | None = None,
        max_messages: int = 100,
        key: str | None = None,
        id: Receipt | str | int | None = None,  # noqa: A002 - it is what it is
        broker: str | None = None,
    ) -> list[DelayedEntry]:
        """Delayed messages of a topic, or of all: soonest first, `after` a time or an entry. Of a topic, only those
        with this `key`, or the one with this `id`, if it still waits."""
        if id is not None:
            broker = ids.whose(id, broker) or None
        fleet = self._router.fleet
        if fleet is not None and fleet.shared and not topic:
            found = self._router.outcomes(lambda: delayed(None, after, max_messages))
            return ids.join_delayed(max_messages, mark=False)(found, fleet.label)
        label = fleet.label if fleet is not None else str
        make_flow = partial(delayed, topic, after, max_messages, key=key, message=id)
        join = ids.join_delayed(max_messages)
        return self._router.consult(topic or "", broker, lambda at: make_flow(label(at)), join)

    def cancel(
        self,
        topic: str,
        id: Receipt | str | int | None = None,  # noqa: A002 - it is what it is
        *,
        key: str | None = None,
        dry_run: bool = False,
        broker: str | None = None,
    ) -> int:
        """Cancel a delayed message by its id or receipt, or all with this key: they will not be delivered. Returns how
        many. `Conflict` if the one with this id does not wait any more."""
        if id is not None:
            its = ids.whose(id, broker)
            return self._router.at_its_own(topic, its, f"the delayed message {id}", cancel(topic, id, key, dry_run))
        return self._router.consult(topic, broker, lambda _: cancel(topic, id, key, dry_run), ids.join_counts)

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
    ) -> int:
        """Deliver a delayed message, or all with this key, at another time. Returns how many; they keep their ids.
        `Conflict` if the one with this id does not wait any more."""
        at_us = as_new_time(delay, deliver_at, delay_level)
        if id is not None:
            its = ids.whose(id, broker)
            return self._router.at_its_own(
                topic, its, f"the delayed message {id}", reschedule(topic, id, key, at_us, dry_run)
            )
        return self._router.consult(
            topic, broker, lambda _: reschedule(topic, id, key, at_us, dry_run), ids.join_counts
        )
