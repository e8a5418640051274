"""Overview: rates, backlog, failures; the brokers; the groups that lag most."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from towline.clock import SYSTEM
from towline.console.layout import View, badge, console_page, empty, figures, head, panel
from towline.console.number_format import age, many, number, per_second, size, span
from towline.console.widgets.charts import Chart
from towline.console.widgets.table import Column, Query, Table
from towline.errors import Refused, TowlineError
from towline.protocol.monitor import Pulsed

__all__ = ["overview"]

LAGGARDS = 8


@console_page("/", "Overview")
async def overview(view: View) -> None:
    try:
        pulse = await view.mq.pulse()
    except Refused:
        await _in_part(view)
        return
    with head("Overview", f"{pulse.now.get('name', 'broker')}, up for {span(pulse.now.get('uptime_s', 0))}"):
        badge("live", "good")
    await _alarms(view)
    shown = figures((name, "", "", "", target) for name, target in _NAMES)
    with ui.element("div").classes("tl-grid2"):
        with panel("Messages a second"):
            rates = Chart(["in", "out"], label="Messages in and out a second")
        with panel("Backlog"):
            backlog = Chart(["waiting", "delayed", "dead"], label="Messages that wait, are delayed, or dead")
    with ui.element("div").classes("tl-grid2"):
        with panel("Groups that lag most"):
            table = _laggards(view)
            await table.load()
        with panel("Brokers"):
            await _brokers(view)

    def show(pulse: Pulsed) -> None:
        for name, (value, small, tone) in _figures(pulse.now).items():
            labels = shown[name]
            labels[0].text, labels[1].text = value, small
            labels[2].classes(remove="bad warn", add=tone)
        rates.show(pulse.at_us, pulse.series, ("in", "out"))
        backlog.show(pulse.at_us, pulse.series, ("backlog", "delayed", "dead"))

    async def refresh() -> None:
        try:
            show(await view.mq.pulse())
            await table.load()
        except TowlineError:
            shown["Messages in"][1].text = "the broker does not answer"

    show(pulse)
    ui.timer(3.0, refresh)


async def _in_part(view: View) -> None:
    """For users who may see some topics, but not the broker's figures."""
    with head("Overview", "The groups that you may see; figures of the whole broker need the right to describe it"):
        pass
    with panel("Groups that lag most"):
        table = _laggards(view)
        await table.load()
    ui.timer(5.0, table.refresh)


_NAMES = (
    ("Messages in", "/topics"),
    ("Messages out", "/groups"),
    ("Backlog", "/groups"),
    ("Oldest waits", "/groups"),
    ("Failed, 5 min", "/groups"),
    ("Dead letters", "/dead"),
    ("Delayed", "/delayed"),
    ("Topics", "/topics"),
)


def _figures(now: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    waits = age(now.get("oldest_us", 0), SYSTEM.now_us())
    return {
        "Messages in": (per_second(now["in_per_s"]), f"{number(now.get('messages_in', 0))} in all", ""),
        "Messages out": (per_second(now["out_per_s"]), f"{number(now.get('messages_out', 0))} in all", ""),
        "Backlog": (number(now["backlog"]), f"{number(now['in_flight'])} in flight", ""),
        "Oldest waits": (waits, f"{number(now['retrying'])} to retry", ""),
        "Failed, 5 min": (number(now["failed"]), "deliveries", "warn" if now["failed"] else ""),
        "Dead letters": (number(now["dead"]), "not sent again", "bad" if now["dead"] else ""),
        "Delayed": (number(now.get("delayed", 0)), f"{number(now.get('prepared', 0))} in transactions", ""),
        "Topics": (
            number(now.get("topics", 0)),
            f"{number(now.get('groups', 0))} groups",
            "",
        ),
    }


async def _alarms(view: View) -> None:
    try:
        found = await view.mq.alarms()
    except TowlineError:
        return
    quiet = {rule.name for rule in found.rules if rule.silenced_until_us}
    active = [one for one in found.active if one.rule not in quiet]
    silenced = len(found.active) - len(active)
    if silenced and not active:
        with ui.element("div").classes("tl-note"), ui.element("div").classes("tl-row"):
            ui.icon("notifications_off")
            ui.label(f"{many(silenced, 'alarm')}, silenced")
            ui.link("Look at alarms", "/alarms")
    if active:
        with ui.element("div").classes("tl-note bad").props('role="alert"'), ui.element("div").classes("tl-row"):
            ui.icon("warning_amber")
            first = active[0]
            more = f" and {len(active) - 1:,} more" if len(active) > 1 else ""
            more += f", and {silenced:,} silenced" if silenced else ""
            ui.label(f"{first.rule}: {first.topic or 'the broker'} {first.group}{more}")
            ui.link("Look at alarms", "/alarms")


def _laggards(view: View) -> Table:
    async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
        found = (await view.mq.survey("groups", sort="lag", descending=True, limit=LAGGARDS)).groups
        rows = [
            {
                "id": f"{one.topic}/{one.group}",
                "group": {"text": one.group, "href": f"/groups/{one.topic}/{one.group}"},
                "topic": one.topic,
                "lag": number(one.lag),
                "oldest": view.age(one.oldest_us),
                "members": number(one.members),
            }
            for one in found
            if one.lag
        ]
        return len(rows), rows

    columns = [
        Column("group", "Group", "link"),
        Column("topic", "Topic", "cut"),
        Column("lag", "Waiting", "number"),
        Column("oldest", "Oldest"),
        Column("members", "Consumers", "number", wide=True),
    ]
    table = Table(columns, fetch, nothing=("done_all", "Nothing waits", "All groups have consumed what was sent."))
    table.table.props("hide-bottom")
    return table


async def _brokers(view: View) -> None:
    try:
        brokers = await view.mq.brokers()
    except TowlineError as error:
        empty("cloud_off", "The brokers are not known", str(error))
        return
    for one in brokers:
        with ui.element("div").classes("tl-row"):
            badge(one.state, "good" if one.state == "alive" else "bad")
            ui.label(one.name).style("font-weight:600")
            ui.label(one.address).classes("tl-sub tl-mono")
            ui.element("div").classes("tl-grow")
            ui.label(f"{many(one.topics, 'topic')} · {many(one.connections, 'connection')}").classes("tl-sub")
    try:
        stored = await view.mq.storage()
    except TowlineError:
        return
    used = 1 - stored.free_bytes / stored.total_bytes if stored.total_bytes else 0.0
    with ui.element("div").classes("tl-row"):
        ui.label("Disk" if stored.store.startswith("file") else "Room").style("font-weight:600")
        ui.label(f"{size(stored.free_bytes)} free of {size(stored.total_bytes)}").classes("tl-sub")
    with ui.element("div").classes(f"tl-bar {'bad' if used > 0.95 else 'warn' if used > 0.85 else ''}"):
        ui.element("i").style(f"width:{used * 100:.1f}%")
