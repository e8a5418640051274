# Generated from towline/client/admin/_async/dead_letters.py by scripts/unasync.py: change it there.
"""Dead letters of a group: list, find, revise, send again, drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

from towline.client import requests
from towline.client.admin._sync.router import Noun
from towline.client.admin.dead_letters import find, letter, purge, revise
from towline.client.cluster import ids
from towline.client.consume.message import DeadLetter
from towline.client.produce.encode import Body
from towline.client.results import Page

__all__ = ["DeadLetters"]


class DeadLetters(Noun):
    def dead_letters(
        self,
        topic: str,
        group: str,
        *,
        first: int = 0,
        max_messages: int = 100,
        max_bytes: int = 4 << 20,
        broker: str | None = None,
    ) -> Page[DeadLetter]:
        """The dead letters of a group. Where each broker keeps its own: those of one `broker`, or of all; their numbers
        know their broker."""
        return self._router.consult(
            topic,
            broker,
            lambda at: requests.dead_letters(topic, group, ids.number_at(first, at), max_messages, max_bytes),
            ids.join_dead(max_messages),
        )

    def dead_letter(self, topic: str, group: str, number: int, *, broker: str | None = None) -> DeadLetter:
        """One dead letter of a group, by its number."""
        its = ids.whose(number, broker)
        if not its:
            return self._router.at_its_own(topic, "", f"dead letter {number}", letter(topic, group, number))
        return self._router.consult(topic, its, lambda _: letter(topic, group, int(number)), ids.join_letter)

    def find_dead(
        self,
        topic: str,
        group: str,
        *,
        reason: str = "",
        key: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        resent: bool = False,
        first: int = 0,
        limit: int = 1000,
        broker: str | None = None,
    ) -> list[DeadLetter]:
        """Dead letters whose reason contains `reason`, with this key, that died since one time and before another;
        those that were sent again only with `resent`. The oldest `limit` of them, from number `first` on."""
        return self._router.consult(
            topic,
            broker,
            lambda at: find(
                topic,
                group,
                reason=reason,
                key=key,
                since=since,
                until=until,
                resent=resent,
                first=ids.number_at(first, at),
                limit=limit,
            ),
            ids.join_dead_found(limit),
        )

    def resend(self, topic: str, group: str, dead: Sequence[int] | None = None, *, broker: str | None = None) -> int:
        """Deliver dead letters to their group again: those with these numbers, or all. Returns how many."""
        if dead is None:
            make_flow = partial(requests.resend, topic, group, None)
            return self._router.consult(topic, broker, lambda _: make_flow(), ids.join_counts)
        count = 0
        for its, numbers in ids.by_broker(dead, broker).items():
            flow = requests.resend(topic, group, numbers)
            count += self._router.at_its_own(topic, its, f"dead letters {numbers[:5]}", flow)
        return count

    def revise(
        self,
        topic: str,
        group: str,
        number: int,
        *,
        body: Body | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        broker: str | None = None,
    ) -> None:
        """Deliver one dead letter to its group again, with another body, key or headers; None keeps the field."""
        flow = revise(topic, group, int(number), body=body, key=key, headers=headers)
        self._router.at_its_own(topic, ids.whose(number, broker), f"dead letter {number}", flow)

    def purge_dead(self, topic: str, group: str, before: int, *, broker: str | None = None) -> int:
        """Drop the dead letters before this number for good. Returns how many of them had not been sent again. Where
        each broker keeps its own: at the one that is named, or that the number knows; at all, given `end` of a page."""
        its = ids.whose(before, broker)
        if its or not isinstance(before, ids.Cursor):
            flow = purge(topic, group, int(before))
            return self._router.at_its_own(topic, its, f"the dead letters before {before}", flow)
        return self._router.consult(
            topic, None, lambda at: purge(topic, group, ids.number_at(before, at)), ids.join_counts
        )
