"""Lists by pages, read off the last walk of the statistics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from towline.broker.access.rules import May
from towline.broker.monitor.stats import GroupFacts, Stats, TopicFacts
from towline.clock import in_slices
from towline.errors import BadRequest
from towline.protocol.monitor import GROUP_ORDERS, TOPIC_ORDERS, GroupRow, ListPage, PageListed, Pulse, Pulsed, TopicRow

__all__ = ["Listing", "split_lines"]


def split_lines(setting: str) -> tuple[str, ...]:
    """The business lines of the setting `business_lines`, each once."""
    return tuple(dict.fromkeys(line.strip() for line in setting.split(",") if line.strip()))


class Listing:
    """Sorts once a walk: one who pages through ten thousand topics has them sorted once."""

    def __init__(self, stats: Stats, lines: Sequence[str] = ()) -> None:
        """`lines` are business lines in the order in which they are shown; others follow by name."""
        self._stats = stats
        self._places = {line: place for place, line in enumerate(lines)}
        self._walk = -1
        self._sorted: dict[tuple[str, str, bool], list[Any]] = {}

    async def survey(self, request: ListPage, may: May | None = None) -> PageListed:
        """A page of what `may` allows to describe; without it, of all."""
        await self._stats.refresh()
        search = request.search.strip().lower()
        if request.of == "groups":
            return await self._groups(request, search, may)
        seen = self._in_order(request) if may is None else await self._seen(request, may)
        return self._topics(request, search, seen)

    async def _seen(self, request: ListPage, may: May) -> list[TopicFacts]:
        """The topics that one may describe, summed up over the groups that one may describe, and sorted by these sums:
        other sums would give away the hidden groups."""
        topics = in_slices(list(self._stats.topics.values()))
        seen = [one.seen_by(may) async for one in topics if may("describe", "topic", one.config.name)]
        return self._in_order_of(seen, request)

    def _topics(self, request: ListPage, search: str, seen: list[TopicFacts]) -> PageListed:
        rows = [
            one
            for one in seen
            if (not search or search in one.config.name)
            and (not request.line or request.line == one.config.business_line)
        ]
        page = rows[request.first : request.first + request.limit]
        lines = sorted({one.config.business_line for one in seen} - {""}, key=self._place)
        return PageListed(len(rows), [_topic_row(one) for one in page], [], lines)

    async def _groups(self, request: ListPage, search: str, may: May | None) -> PageListed:
        rows: list[GroupFacts] = [
            one
            async for one in in_slices(self._in_order(request))
            if (not search or search in one.group.lower() or search in one.topic)
            and (not request.topic or request.topic == one.topic)
            and (may is None or (may("describe", "group", one.group) and may("describe", "topic", one.topic)))
        ]
        page = rows[request.first : request.first + request.limit]
        return PageListed(len(rows), [], [_group_row(one) for one in page], [])

    def _place(self, line: str) -> tuple[int, str]:
        return self._places.get(line, len(self._places)) if line else -1, line

    def _in_order(self, request: ListPage) -> list[Any]:
        if self._walk != self._stats.walks:
            self._walk = self._stats.walks
            self._sorted.clear()
        key = (request.of, request.sort, request.descending)
        found = self._sorted.get(key)
        if found is None:
            found = self._sorted[key] = self._sort(request)
        return found

    def _sort(self, request: ListPage) -> list[Any]:
        facts = self._stats.topics.values()
        rows: list[Any] = list(facts) if request.of == "topics" else [one for t in facts for one in t.groups.values()]
        return self._in_order_of(rows, request)

    def _in_order_of(self, rows: list[Any], request: ListPage) -> list[Any]:
        keys = TOPIC_ORDERS if request.of == "topics" else GROUP_ORDERS
        if request.sort not in keys:
            raise BadRequest(f"{request.of} cannot be sorted by {request.sort!r}: give one of {', '.join(keys)}")
        rows.sort(key=keys["name"])
        if request.sort == "line":
            rows.sort(key=lambda one: self._place(one.config.business_line), reverse=request.descending)
        elif request.sort != "name" or request.descending:
            rows.sort(key=keys[request.sort], reverse=request.descending)
        return rows

    async def pulse(self, request: Pulse, figures: Callable[[], Awaitable[dict[str, Any]]]) -> Pulsed:
        await self._stats.refresh()
        if request.topic:
            at_us, series = self._stats.history.of_group(request.topic, request.group)
            return Pulsed({}, at_us, series)
        totals = self._stats.totals
        now = {name: getattr(totals, name) for name in totals.__slots__}
        at_us, series = self._stats.history.of_broker()
        return Pulsed(await figures() | now, at_us, series)


def _topic_row(one: TopicFacts) -> TopicRow:
    return TopicRow(
        one.config, one.messages, one.size_bytes, one.group_count, one.members, one.lag, one.dead, one.delayed,
        round(one.in_per_s, 3), round(one.out_per_s, 3),
    )  # fmt: skip


def _group_row(one: GroupFacts) -> GroupRow:
    return GroupRow(
        one.topic, one.group, one.paused, one.members, one.lag, one.oldest_us, one.in_flight, one.retrying, one.dead,
        round(one.out_per_s, 3), one.failed, one.alone_since_us,
    )  # fmt: skip
