"""Dead letters: list, find, revise, send again, drop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from towline.client import requests
from towline.client.consume.message import DeadLetter
from towline.client.link.flow import Flow, ask
from towline.client.produce.encode import Body, as_body, as_headers, as_key, as_time_us
from towline.errors import BadRequest, NotFound, TooLarge
from towline.model import check_group, check_topic
from towline.protocol.messages import DeadPurged, PurgeDead, Revised, ReviseDead

__all__ = ["find", "letter", "purge", "revise", "sought"]


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
    yield from ask(request, Revised)


def purge(topic: str, group: str, before: int) -> Flow[int]:
    return (yield from ask(PurgeDead(check_topic(topic), check_group(group), before), DeadPurged)).count
