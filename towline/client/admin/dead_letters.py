"""Dead letters: list, find, revise, send again, drop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from towline.client import requests
from towline.client.admin.topics import TopicsAndGroups
from towline.client.cluster import ids
from towline.client.consume.message import DeadLetter
from towline.client.link.connection import Call
from towline.client.link.flow import Flow
from towline.client.operation import Errand, offered
from towline.client.produce.encode import Body, as_body, as_headers, as_key, as_time_us
from towline.client.results import Page
from towline.errors import BadRequest, NotFound, ProtocolError, TooLarge
from towline.model import check_group, check_topic
from towline.protocol.messages import DeadPurged, PurgeDead, Revised, ReviseDead

__all__ = ["DeadLetters", "find", "letter", "purge", "revise", "sought"]


PAGE: Final = 1_000
MAX_BYTES: Final = 4 << 20
FOUND_BYTES: Final = 64 << 20
"""All that is found fits into this: it is in memory at once."""


def letter(topic: str, group: str, number: int) -> Flow[DeadLetter]:
    page = yield from requests.dead_letters(topic, group, number, 1, 1)
    if not page or page[0].number != number:
        known = f"they are numbered {page.start} to {page.end - 1}" if page.start < page.end else "it has none"
        raise NotFound(f"group {group} on topic {topic} has no dead letter {number}: {known}")
    return page[0]


def find(
    topic: str,
    group: str,
    *,
    reason: str,
    key: str | None,
    since: datetime | float | None,
    until: datetime | float | None,
    resent: bool,
    first: int,
    limit: int,
) -> Flow[list[DeadLetter]]:
    if limit < 1:
        raise BadRequest(f"a limit of {limit}: give 1 or more")
    fits = sought(reason=reason, key=key, since=since, until=until, resent=resent)
    found: list[DeadLetter] = []
    size = 0
    while True:
        page = yield from requests.dead_letters(topic, group, first, PAGE, MAX_BYTES)
        for one in filter(fits, page):
            size += one.size_bytes
            if found and size > FOUND_BYTES:
                raise TooLarge(
                    f"more than {FOUND_BYTES:,} bytes of dead letters of group {group} on topic {topic} were found, "
                    "which is too much at once: give a lower limit, or go through them by pages (dead_letters)"
                )
            found.append(one)
            if len(found) == limit:
                return found
        if page.next <= first or page.next >= page.end:
            return found
        first = page.next


def sought(
    *,
    reason: str = "",
    key: str | None = None,
    since: datetime | float | None = None,
    until: datetime | float | None = None,
    resent: bool = False,
) -> Callable[[DeadLetter], bool]:
    """Whether a dead letter is one of those that are looked for."""
    since_us, until_us = (0 if time is None else as_time_us(time) for time in (since, until))

    def fits(one: DeadLetter) -> bool:
        return (
            (resent or not one.resent)
            and reason in one.reason
            and key in (None, one.key)
            and since_us <= one.died_at_us
            and (not until_us or one.died_at_us < until_us)
        )

    return fits


def revise(
    topic: str,
    group: str,
    number: int,
    *,
    body: Body | None,
    key: str | None,
    headers: Mapping[str, str] | None,
) -> Flow[None]:
    request = ReviseDead(
        check_topic(topic),
        check_group(group),
        number,
        None if body is None else as_body(body),
        None if key is None else as_key(key) or "",
        None if headers is None else dict(as_headers(headers) or {}),
    )
    answer = yield Call(request)
    if not isinstance(answer, Revised):
        raise ProtocolError(f"ReviseDead was answered by {type(answer).__name__}")


def purge(topic: str, group: str, before: int) -> Flow[int]:
    answer = yield Call(PurgeDead(check_topic(topic), check_group(group), before))
    if not isinstance(answer, DeadPurged):
        raise ProtocolError(f"PurgeDead was answered by {type(answer).__name__}")
    return answer.count


class DeadLetters(TopicsAndGroups):
    @offered
    def dead_letters(
        self,
        topic: str,
        group: str,
        *,
        first: int = 0,
        max_messages: int = 100,
        max_bytes: int = 4 << 20,
        broker: str | None = None,
    ) -> Errand[Page[DeadLetter]]:
        """The messages that a group gave up. Where each broker keeps its own: those of one `broker`, or of all; their
        numbers know where they are."""
        return self._consult(
            topic,
            broker,
            lambda at: requests.dead_letters(topic, group, ids.number_at(first, at), max_messages, max_bytes),
            ids.join_dead(max_messages),
        )

    @offered
    def dead_letter(self, topic: str, group: str, number: int, *, broker: str | None = None) -> Errand[DeadLetter]:
        """One dead letter of a group, by its number."""
        its = ids.whose(number, broker)
        if not its:
            return self._at_its_own(topic, "", f"dead letter {number}", letter(topic, group, number))
        return self._consult(topic, its, lambda _: letter(topic, group, int(number)), ids.join_letter)

    @offered
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
    ) -> Errand[list[DeadLetter]]:
        """Dead letters whose reason contains `reason`, with this key, that died since one time and before another;
        those that were sent again only with `resent`. The oldest `limit` of them, from number `first` on."""
        return self._consult(
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

    @offered
    def resend(
        self, topic: str, group: str, dead: Sequence[int] | None = None, *, broker: str | None = None
    ) -> Errand[int]:
        """Deliver dead letters to their group again: those with these numbers, or all. How many it were."""
        if dead is None:
            make_flow = partial(requests.resend, topic, group, None)
            return (yield from self._consult(topic, broker, lambda _: make_flow(), ids.join_counts))
        count = 0
        for its, numbers in ids.by_broker(dead, broker).items():
            flow = requests.resend(topic, group, numbers)
            count += yield from self._at_its_own(topic, its, f"dead letters {numbers[:5]}", flow)
        return count

    @offered
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
    ) -> Errand[None]:
        """Deliver one dead letter to its group again, with another body, key or headers; what is None stays."""
        flow = revise(topic, group, int(number), body=body, key=key, headers=headers)
        yield from self._at_its_own(topic, ids.whose(number, broker), f"dead letter {number}", flow)

    @offered
    def purge_dead(self, topic: str, group: str, before: int, *, broker: str | None = None) -> Errand[int]:
        """Drop the dead letters before this number for good. How many of them had not been sent again. Where each
        broker keeps its own: at the one that is named, or that the number knows; at all, given `end` of a page."""
        its = ids.whose(before, broker)
        if its or not isinstance(before, ids.Cursor):
            flow = purge(topic, group, int(before))
            return self._at_its_own(topic, its, f"the dead letters before {before}", flow)
        return self._consult(topic, None, lambda at: purge(topic, group, ids.number_at(before, at)), ids.join_counts)
