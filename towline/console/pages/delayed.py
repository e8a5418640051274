"""Delayed messages: list, cancel, reschedule."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from nicegui import ui

from towline.client.admin.delayed import DelayedEntry
from towline.clock import SYSTEM
from towline.console.layout import View, button, console_page, head, panel, say
from towline.console.number_format import many, number, plain, size, span
from towline.console.widgets.dialogs import confirm, form
from towline.console.widgets.table import Column, Query, Table
from towline.errors import BadRequest, TowlineError

__all__ = ["delayed_page"]

COLUMNS = [
    Column("number", "Id", "mono"),
    Column("topic", "Topic", "cut"),
    Column("due", "Due"),
    Column("in", "In"),
    Column("key", "Key", "cut", wide=True),
    Column("lane", "Lane", wide=True),
    Column("size", "Size", "number", wide=True),
]
PAGE = 50


class _Delayed:
    def __init__(self, view: View) -> None:
        self.view = view
        self.topic = view.asked("topic")
        self.starts: list[DelayedEntry | None] = [None]
        """The entry behind which each visited page begins."""
        self.shown: dict[str, DelayedEntry] = {}

    async def build(self) -> None:
        with head("Delayed", "Messages that wait for their time, the next ones first"):
            self._cancel = button("Cancel selected …", icon="event_busy", on_click=self._cancel_them).classes(
                "tl-danger"
            )
            self._move = button("Move selected …", icon="update", on_click=self._move_them).classes("tl-plain")
            self._enable([])
        with panel():
            with ui.element("div").classes("tl-row"):
                topic = ui.input("Topic", value=self.topic).props("outlined dense clearable").classes("tl-search")

                async def look() -> None:
                    self.topic, self.starts = (topic.value or "").strip(), [None]
                    await self.table.refresh()

                topic.on("keydown.enter", look)
                button("Look", icon="search", on_click=look).classes("tl-plain")
            nothing = ("schedule", "Nothing is delayed", "Send a message with a delay, and it waits here for its time.")
            self.table = Table(COLUMNS, self._fetch, nothing=nothing, select=True, on_select=self._enable, limit=PAGE)
            self.table.table.props("hide-pagination")
            await self.table.load()
            with ui.element("div").classes("tl-row").style("justify-content:flex-end"):
                button("Sooner", icon="chevron_left", on_click=lambda: self._turn(-1)).classes("tl-plain")
                button("Later", icon="chevron_right", on_click=lambda: self._turn(1)).classes("tl-plain")
        ui.timer(5.0, self._refresh)

    def _enable(self, ids: list[str]) -> None:
        self._cancel.set_enabled(bool(ids))
        self._move.set_enabled(bool(ids))

    async def _refresh(self) -> None:
        if not self.table.selected:
            await self.table.refresh()

    async def _turn(self, by: int) -> None:
        if by > 0 and len(self.shown) == PAGE:
            self.starts.append(list(self.shown.values())[-1])
        elif by < 0 and len(self.starts) > 1:
            self.starts.pop()
        await self.table.refresh()

    async def _fetch(self, query: Query) -> tuple[int, list[dict[str, Any]]]:
        found = await self.view.mq.delayed(self.topic or None, after=self.starts[-1], max_messages=PAGE)
        self.shown = {one.id: one for one in found}
        now_us = SYSTEM.now_us()
        rows = [
            {
                "id": one.id,
                "number": number(one.number).replace(",", ""),
                "topic": one.topic,
                "due": self.view.moment(one.deliver_at_us),
                "in": span((one.deliver_at_us - now_us) / 1e6),
                "key": plain(one.key or ""),
                "lane": one.lane,
                "size": size(one.size_bytes),
            }
            for one in found
        ]
        return len(rows), rows

    def _chosen(self) -> list[DelayedEntry]:
        return [self.shown[one] for one in self.table.selected if one in self.shown]

    async def _cancel_them(self) -> None:
        chosen = self._chosen()
        text = f"{many(len(chosen), 'message')} will never be delivered. This cannot be undone."
        if not await confirm(self.view, "Cancel them?", text, label="Cancel them"):
            return
        done, failed = 0, ""
        for one in chosen:
            try:
                done += await self.view.mq.cancel(one.topic, one.id)
            except TowlineError as error:
                failed = str(error)
        await self._told(f"{done:,} cancelled", failed)

    def _move_them(self) -> None:
        chosen = self._chosen()

        async def save() -> bool:
            try:
                time = datetime.fromisoformat((when.value or "").strip())
            except ValueError:
                raise BadRequest("write the time as 2026-01-31 14:30") from None
            at = time if time.tzinfo else time.replace(tzinfo=self.view.zone)
            done, failed = 0, ""
            for one in chosen:
                try:
                    done += await self.view.mq.reschedule(one.topic, one.id, deliver_at=at)
                except TowlineError as error:
                    failed = str(error)
            await self._told(f"{done:,} moved", failed)
            return True

        with form("Deliver them at another time", "Move", save):
            when = ui.input("Time, as 2026-01-31 14:30", value=self.view.moment(SYSTEM.now_us())).props(
                "outlined dense autofocus"
            )

    async def _told(self, done: str, failed: str) -> None:
        say(f"{done}; {failed}" if failed else done, bad=bool(failed))
        self.table.table.selected = []
        self._enable([])
        await self.table.refresh()


@console_page("/delayed", "Delayed")
async def delayed_page(view: View) -> None:
    await _Delayed(view).build()
