"""Lists of topics and groups. Whoever may see only some of them is given those by the broker, all at once; then the
pages are cut here."""

from __future__ import annotations

from typing import Any

from towline.console.frame import View
from towline.console.table import Column, Query
from towline.console.words import number, per_second
from towline.errors import Refused
from towline.protocol.survey import GroupRow, PageListed, TopicRow

__all__ = ["group_columns", "group_rows", "topics_page"]


async def topics_page(view: View, query: Query, *, search: str, line: str) -> PageListed:
    try:
        return await view.mq.survey(
            "topics", search=search, line=line, sort=query.sort or "name", descending=query.descending,
            first=query.first, limit=query.limit,
        )  # fmt: skip
    except Refused:
        states = [one for one in await view.mq.topics() if search.lower() in one.config.name]
        states = [one for one in states if not line or one.config.business_line == line]
        states.sort(key=lambda one: one.config.name, reverse=query.descending)
        rows = [
            TopicRow(
                one.config,
                sum(lane.end - lane.first for lane in one.lanes),
                sum(lane.size_bytes for lane in one.lanes),
                len(one.groups), 0, 0, 0, one.delayed, 0.0, 0.0,
            )
            for one in states[query.first : query.first + query.limit]
        ]  # fmt: skip
        lines = sorted({one.config.business_line for one in states} - {""})
        return PageListed(len(states), rows, [], lines)


async def _groups_page(view: View, query: Query, search: str, topic: str) -> PageListed:
    try:
        return await view.mq.survey(
            "groups", search=search, topic=topic, sort=query.sort or "name", descending=query.descending,
            first=query.first, limit=query.limit,
        )  # fmt: skip
    except Refused:
        states = [one for one in await view.mq.groups(topic) if search.lower() in one.config.name.lower()]
        states.sort(key=lambda one: one.lag if query.sort == "lag" else 0, reverse=query.descending)
        rows = [
            GroupRow(
                one.config.topic, one.config.name, one.config.paused, len(one.members), one.lag, 0, one.in_flight,
                one.retrying, one.dead, 0.0, 0, 0,
            )
            for one in states[query.first : query.first + query.limit]
        ]  # fmt: skip
        return PageListed(len(states), [], rows, [])


def group_columns(*, of_topic: bool = False) -> list[Column]:
    return [
        Column("name", "Group", "link", sort=True),
        *([] if of_topic else [Column("topic", "Topic", "cut", sort=True)]),
        Column("state", "State", "badge"),
        Column("lag", "Waiting", "number", sort=True),
        Column("oldest", "Oldest", sort=True),
        Column("members", "Consumers", "number", sort=True, wide=True),
        Column("in_flight", "In flight", "number", sort=True, wide=True),
        Column("retrying", "To retry", "number", sort=True, wide=True),
        Column("dead", "Dead", "number", sort=True),
        Column("out", "Out", "number", sort=True, wide=True),
        Column("failed", "Failed, 5 min", "number", sort=True, wide=True),
    ]


async def group_rows(view: View, query: Query, *, search: str, topic: str) -> tuple[int, list[dict[str, Any]]]:
    found = await _groups_page(view, query, search, topic)
    rows = [
        {
            "id": f"{one.topic}/{one.group}",
            "name": {"text": one.group, "href": f"/groups/{one.topic}/{one.group}"},
            "topic": one.topic,
            "state": _state(one),
            "lag": number(one.lag),
            "oldest": view.age(one.oldest_us),
            "members": number(one.members),
            "in_flight": number(one.in_flight),
            "retrying": number(one.retrying),
            "dead": number(one.dead),
            "out": per_second(one.out_per_s),
            "failed": number(one.failed),
        }
        for one in found.groups
    ]
    return found.total, rows


def _state(one: GroupRow) -> dict[str, str]:
    if one.paused:
        return {"text": "paused", "tone": "warn"}
    if not one.members:
        return {"text": "no consumer", "tone": "bad" if one.lag else ""}
    return {"text": "consuming", "tone": "good"}
