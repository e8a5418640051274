"""Lists of topics and groups, as the broker sorts and cuts them, of those that the user may see."""

from __future__ import annotations

from typing import Any

from towline.console.layout import View
from towline.console.number_format import number, per_second
from towline.console.widgets.table import Column, Query
from towline.protocol.monitor import GroupRow, PageListed

__all__ = ["group_columns", "group_rows", "topics_page"]


async def topics_page(view: View, query: Query, *, search: str, line: str) -> PageListed:
    return await view.mq.survey(
        "topics", search=search, line=line, sort=query.sort or "name", descending=query.descending,
        first=query.first, limit=query.limit,
    )  # fmt: skip


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
    found = await view.mq.survey(
        "groups", search=search, topic=topic, sort=query.sort or "name", descending=query.descending,
        first=query.first, limit=query.limit,
    )  # fmt: skip
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
