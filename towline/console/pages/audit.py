"""The audit log: actions, their principals, times, sources and outcomes. The newest first; nothing can be changed."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from towline.console.layout import View, button, console_page, empty, head, panel
from towline.console.number_format import plain
from towline.console.widgets.table import Column, Query, Table

__all__ = ["audit_page"]

PAGE = 50
COLUMNS = [
    Column("at", "When"),
    Column("actor", "Who", "cut"),
    Column("what", "What"),
    Column("target", "On", "cut"),
    Column("outcome", "Outcome", "badge"),
    Column("address", "From", "mono", wide=True),
    Column("detail", "Detail", "cut", wide=True),
]


@console_page("/audit", "Audit")
async def audit_page(view: View) -> None:
    asked: dict[str, str] = {"actor": "", "what": "", "outcome": ""}
    starts = [0]
    going_on = {"next": 0}
    with head("Audit", "Who did what, and what came of it"):
        pass
    if not view.session.secured:
        with panel():
            empty(
                "receipt_long",
                "No audit log",
                "A broker keeps one once it knows who is who:",
                "towline serve --security",
            )
        return

    async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
        found = await view.mq.access.audit(before=starts[-1], limit=PAGE, **asked)
        going_on["next"] = found.next
        rows = [
            {
                "id": str(one.number),
                "at": view.moment(one.at_us),
                "actor": plain(one.actor) or "–",
                "what": one.what,
                "target": plain(one.target),
                "outcome": {"text": one.outcome, "tone": "good" if one.outcome == "done" else "bad"},
                "address": one.address,
                "detail": plain(one.detail),
            }
            for one in found.entries
        ]
        return len(rows), rows

    with panel():
        with ui.element("div").classes("tl-row"):
            actor = ui.input("Who").props("outlined dense clearable").classes("tl-search")
            what = ui.input("What, for example DeleteTopic").props("outlined dense clearable")
            outcome = ui.input("Outcome: done, refused …").props("outlined dense clearable")

            async def look() -> None:
                asked.update(actor=actor.value or "", what=what.value or "", outcome=outcome.value or "")
                starts[:] = [0]
                await table.refresh()

            button("Look", icon="search", on_click=look).classes("tl-plain")
            for field in (actor, what, outcome):
                field.on("keydown.enter", look)
        nothing = ("receipt_long", "Nothing in the audit log", "Only brokers with security keep one.")
        table = Table(COLUMNS, fetch, nothing=nothing, limit=PAGE)
        table.table.props("hide-pagination")
        await table.load()

        async def turn(older: bool) -> None:
            if older and going_on["next"]:
                starts.append(going_on["next"])
            elif not older and len(starts) > 1:
                starts.pop()
            await table.refresh()

        with ui.element("div").classes("tl-row").style("justify-content:flex-end"):
            button("Newer", icon="chevron_left", on_click=lambda: turn(False)).classes("tl-plain")
            button("Older", icon="chevron_right", on_click=lambda: turn(True)).classes("tl-plain")
