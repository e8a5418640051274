"""Topics: the list, making and changing them; and one topic with its lanes, groups and a message to try it with."""

from __future__ import annotations

from typing import Any

import msgspec
from nicegui import ui

from towline.console.layout import View, act, button, console_page, facts, figures, go, head, panel
from towline.console.lists import group_columns, group_rows, topics_page
from towline.console.number_format import many, number, per_second, size, span
from towline.console.widgets.dialogs import confirm, form
from towline.console.widgets.table import Column, Query, Table
from towline.model import LANES, TopicConfig
from towline.protocol.messages import TopicState

__all__ = ["topic_page", "topics_list"]

COLUMNS = [
    Column("name", "Topic", "link", sort=True),
    Column("line", "Business line", sort=True, wide=True),
    Column("author", "Author", sort=True, wide=True),
    Column("in", "In", "number", sort=True),
    Column("out", "Out", "number", sort=True, wide=True),
    Column("messages", "Messages", "number", sort=True),
    Column("size", "Size", "number", sort=True, wide=True),
    Column("lag", "Backlog", "number", sort=True),
    Column("dead", "Dead", "number", sort=True, wide=True),
    Column("groups", "Groups", "number", sort=True, wide=True),
]


@console_page("/topics", "Topics")
async def topics_list(view: View) -> None:
    chosen = {"search": view.asked("search"), "line": view.asked("line")}
    with head("Topics", "Named flows of messages"):
        button(
            "New topic", icon="add", on_click=lambda: edit_topic(view, None, lambda name: go(f"/topics/{name}"))
        ).classes("tl-main-act")
    first = await topics_page(view, Query("name", False, 0, 1), **chosen)
    with panel():
        with ui.element("div").classes("tl-row"):
            search = ui.input("Search", value=chosen["search"]).props("outlined dense clearable").classes("tl-search")
            line = ui.select(
                {"": "All business lines", **{one: one for one in first.lines}}, value=chosen["line"] or ""
            )
            line.props("outlined dense").style("min-width:180px").set_visibility(bool(first.lines))

        async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
            found = await topics_page(view, query, **chosen)
            rows = [
                {
                    "id": one.config.name,
                    "name": {"text": one.config.name, "href": f"/topics/{one.config.name}"},
                    "line": one.config.business_line,
                    "author": one.config.author,
                    "in": per_second(one.in_per_s),
                    "out": per_second(one.out_per_s),
                    "messages": number(one.messages),
                    "size": size(one.size_bytes),
                    "lag": number(one.lag),
                    "dead": number(one.dead),
                    "groups": number(one.groups),
                }
                for one in found.topics
            ]
            return found.total, rows

        nothing = ("dns", "No topics", "A topic is made by the first message sent to it, or with the button above.")
        table = Table(COLUMNS, fetch, nothing=nothing, sort="name")
        await table.load()

        async def look() -> None:
            chosen.update(search=search.value or "", line=line.value or "")
            await table.first()

        search.on_value_change(look)
        line.on_value_change(look)
    ui.timer(5.0, table.refresh)


def edit_topic(view: View, state: TopicState | None, then: Any) -> None:
    config = state.config if state is not None else None

    async def save() -> bool:
        emails = tuple((mails.value or "").replace(",", " ").split())
        kept = (kept_for.value or "").strip()
        kept_s = None if not kept else float(kept) * 86400
        about = {"business_line": line.value or "", "author": author.value or "", "alarm_emails": emails}
        if config is None:
            chosen = (name.value or "").strip()
            made = view.mq.create_topic(
                chosen,
                retention_s=kept_s,
                shards=int(shards.value or 0),
                **about,  # type: ignore[arg-type]
            )
            if not await act(made, f"Topic {chosen} was made"):
                return False
            then(chosen)
            return True
        changed = msgspec.structs.replace(config, retention_s=kept_s, **about)
        if not await act(view.mq.put_topic(changed), "Saved"):
            return False
        then(config.name)
        return True

    days = "" if config is None or config.retention_s is None else f"{config.retention_s / 86400:g}"
    with form("New topic" if config is None else f"Topic {config.name}", "Make it" if config is None else "Save", save):
        if config is None:
            name = ui.input("Name").props("outlined dense autofocus maxlength=50")
            shards = ui.number("Shards (0: shared, with priorities)", value=0, min=0, max=1024, precision=0)
            shards.props("outlined dense")
        kept_for = ui.input("Keep messages for so many days (0: for ever; empty: as the broker)", value=days)
        kept_for.props("outlined dense")
        old = config or TopicConfig("x")
        line = ui.input("Business line", value=old.business_line).props("outlined dense maxlength=64")
        author = ui.input("Author", value=old.author).props("outlined dense maxlength=64")
        mails = ui.input("Alarm e-mails", value=", ".join(old.alarm_emails)).props("outlined dense")


@console_page("/topics/{topic}", "Topic")
async def topic_page(view: View) -> None:
    name = view.part("topic")
    state = await view.mq.topic(name)
    page = await topics_page(view, Query("name", False, 0, 100), search=name, line="")
    row = next((one for one in page.topics if one.config.name == name), None)
    with head(name, _about(state), crumb=("Topics", "/topics")):
        button("Messages", icon="mail_outline", on_click=lambda: go(f"/messages?topic={name}")).classes("tl-plain")
        button("Send", icon="send", on_click=lambda: _send(view, state)).classes("tl-main-act")
        with button(icon="more_vert").props('flat round dense aria-label="More"').classes("tl-icon"), ui.menu():
            ui.menu_item("Edit …", lambda: edit_topic(view, state, lambda _: go(f"/topics/{name}")))
            ui.menu_item("Purge …", lambda: _purge(view, name))
            ui.menu_item("Delete …", lambda: _delete(view, state))
    messages = sum(lane.end - lane.first for lane in state.lanes)
    figures(
        (
            ("In", per_second(row.in_per_s if row else 0), "messages", "", ""),
            ("Out", per_second(row.out_per_s if row else 0), "all groups together", "", ""),
            (
                "Messages",
                number(messages),
                size(sum(lane.size_bytes for lane in state.lanes)),
                "",
                f"/messages?topic={name}",
            ),
            ("Backlog", number(row.lag if row else 0), "of all groups", "", ""),
            (
                "Dead letters",
                number(row.dead if row else 0),
                "",
                "bad" if row and row.dead else "",
                f"/dead?topic={name}",
            ),
            ("Delayed", number(state.delayed), "wait for their time", "", f"/delayed?topic={name}"),
        )
    )
    with panel("Groups"):
        await _groups(view, name)
    with ui.element("div").classes("tl-grid2"):
        with panel("Lanes"):
            _lanes(state)
        with panel("Settings"):
            facts(_settings(view, state))


def _about(state: TopicState) -> str:
    shards = state.config.shards
    return f"Ordered, {shards} shard{'s' * (shards > 1)}" if shards else "Shared, with three priorities"


def _settings(view: View, state: TopicState) -> list[tuple[str, str]]:
    config = state.config
    kept = (
        "as the broker"
        if config.retention_s is None
        else span(config.retention_s)
        if config.retention_s
        else "for ever"
    )
    return [
        ("Business line", config.business_line or "–"),
        ("Author", config.author or "–"),
        ("Alarm e-mails", ", ".join(config.alarm_emails) or "–"),
        ("Messages are kept", kept),
        ("Made", view.moment(config.created_at_us)),
    ]


def _lanes(state: TopicState) -> None:
    with (
        ui.element("div").classes("q-table__container tl-table"),
        ui.element("table").classes("q-table").style("width:100%"),
    ):
        with ui.element("thead"), ui.element("tr"):
            for title, kind in (
                ("Lane", ""),
                ("First", "num tl-wide"),
                ("End", "num"),
                ("Messages", "num"),
                ("Size", "num"),
            ):
                with ui.element("th").classes(kind).style("" if kind else "text-align:left"):
                    ui.label(title)
        with ui.element("tbody"):
            for lane in state.lanes[:100]:
                with ui.element("tr"):
                    cells = (
                        lane.lane,
                        number(lane.first),
                        number(lane.end),
                        number(lane.end - lane.first),
                        size(lane.size_bytes),
                    )
                    for text, kind in zip(cells, ("", "num tl-wide", "num", "num", "num"), strict=True):
                        with ui.element("td").classes(kind):
                            ui.label(text)
    if len(state.lanes) > 100:
        ui.label(f"and {len(state.lanes) - 100:,} more").classes("tl-sub")


async def _groups(view: View, topic: str) -> None:
    async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
        return await group_rows(view, query, search="", topic=topic)

    nothing = ("hub", "No groups", "A group is made when its first consumer comes.")
    table = Table(group_columns(of_topic=True), fetch, nothing=nothing, sort="name")
    await table.load()
    ui.timer(5.0, table.refresh)


def _send(view: View, state: TopicState) -> None:
    name, ordered = state.config.name, bool(state.config.shards)

    async def save() -> bool:
        headers = dict(line.split("=", 1) for line in (headers_of.value or "").splitlines() if "=" in line)
        given: dict[str, Any] = {"key": key.value or None, "headers": headers or None}
        if ordered:
            given["shard_key"] = key.value or None
        else:
            given["priority"] = priority.value
            given["delay"] = float(delay.value) if delay.value else None
        try:
            receipt = await view.mq.send(name, (body.value or "").encode(), **given)
        except ValueError as error:
            raise ValueError(f"that cannot be sent: {error}") from None
        ui.notify(f"Sent as {receipt.id}", type="positive")
        if receipt.lane != "delay":
            go(f"/message/{receipt.id}")
        return True

    with form(f"Send to {name}", "Send", save):
        body = ui.textarea("Body").props("outlined dense autogrow autofocus").classes("tl-mono")
        key = ui.input("Key").props("outlined dense")
        headers_of = ui.textarea("Headers, one a line: name=value").props("outlined dense rows=2").classes("tl-mono")
        if not ordered:
            with ui.element("div").classes("tl-row"):
                priority = (
                    ui.select(list(LANES), value="middle", label="Priority").props("outlined dense").classes("tl-grow")
                )
                delay = ui.number("Delay in seconds", min=0).props("outlined dense").classes("tl-grow")


async def _purge(view: View, name: str) -> None:
    would = await view.mq.purge(name, dry_run=True)
    text = f"{would.messages:,} messages ({size(would.size_bytes)}) are dropped. Groups go on with what comes then."
    if await confirm(view, f"Purge {name}?", text, label="Purge", word=name) and await act(
        view.mq.purge(name), f"{many(would.messages, 'message')} dropped"
    ):
        go(f"/topics/{name}")


async def _delete(view: View, state: TopicState) -> None:
    name, count = state.config.name, sum(lane.end - lane.first for lane in state.lanes)
    what = f"{many(count, 'message')}, {many(len(state.groups), 'group')}"
    text = f"{what} and their dead letters go with it. This cannot be undone."
    if await confirm(view, f"Delete {name}?", text, label="Delete", word=name) and await act(
        view.mq.delete_topic(name), f"Topic {name} was deleted"
    ):
        go("/topics")
