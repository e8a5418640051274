"""Messages: browse by time or number, find by id or key, follow live. Nothing of it changes any delivery."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from nicegui import ui

from towline.client.consume.message import Message
from towline.console.layout import View, button, console_page, empty, go, head, panel
from towline.console.number_format import plain, size
from towline.console.widgets.body_view import preview
from towline.console.widgets.table import Column, Query, Table
from towline.errors import BadRequest, TowlineError
from towline.model import parse_message_id

__all__ = ["messages_page"]

FOUND_MAX = 200
KEY_SHOWN = 1_000
PAGE_BYTES = 2 << 20

COLUMNS = [
    Column("message", "Message", "link"),
    Column("key", "Key", "cut"),
    Column("body", "Body", "cut"),
    Column("size", "Size", "number", wide=True),
    Column("at", "Appended", wide=True),
    Column("from", "From", "cut", wide=True),
]


def message_row(view: View, one: Message) -> dict[str, Any]:
    return {
        "id": one.id,
        "message": {"text": f"{one.lane}/{one.seq}", "href": f"/message/{one.id}"},
        "key": plain((one.key or "")[:KEY_SHOWN]),
        "body": preview(one.body),
        "size": size(len(one.body)),
        "at": view.moment(one.appended_at_us, exact=True),
        "from": plain(one.token or one.source),
    }


class _Browser:
    def __init__(self, view: View, topic: str) -> None:
        self.view = view
        self.topic = topic
        self.lane: Any = "middle"
        self.first = 0
        self.found: list[dict[str, Any]] | None = None
        """Rows of what was looked for, instead of the messages of a lane: their bodies are not kept."""
        self.following = False

    async def build(self) -> None:
        state = await self.view.mq.topic(self.topic)
        lanes = [lane.lane for lane in state.lanes]
        shards = state.config.shards
        fullest = max(state.lanes, key=lambda lane: lane.end - lane.first).lane
        asked = self.view.asked("lane")
        name = asked if asked in lanes else ("middle" if not shards and fullest == "middle" else fullest)
        self.lane = int(name) if shards else name
        self.bounds = {lane.lane: (lane.first, lane.end) for lane in state.lanes}
        self.first = max(self.bounds[name][1] - 25, self.bounds[name][0])
        with panel():
            with ui.element("div").classes("tl-row"):
                lane = ui.select(lanes, value=name, label="Shard" if shards else "Priority").props("outlined dense")
                where = ui.input("From number or time").props("outlined dense").classes("tl-grow")
                key = ui.input("Key").props("outlined dense clearable").classes("tl-grow")
                button("Look", icon="search", on_click=lambda: self._look(lane.value, where.value, key.value)).classes(
                    "tl-main-act"
                )
                self._follow = ui.switch("Live", on_change=lambda event: self._live(event.value))
            for field in (where, key):
                field.on("keydown.enter", lambda: self._look(lane.value, where.value, key.value))
            lane.on_value_change(lambda: self._look(lane.value, "", ""))
            nothing = ("mail_outline", "No messages here", "Nothing was found. Try another lane, time or key.")
            self._table = Table(COLUMNS, self._fetch, nothing=nothing)
            self._table.table.props("hide-pagination")
            with ui.element("div").classes("tl-row"):
                self._said = ui.label("").classes("tl-sub tl-grow")
                button("Older", icon="chevron_left", on_click=lambda: self._turn(-25)).classes("tl-plain")
                button("Newer", icon="chevron_right", on_click=lambda: self._turn(25)).classes("tl-plain")
        asked_key = self.view.asked("key")
        if asked_key:
            key.value = asked_key
            await self._look(name, "", asked_key)
        else:
            await self._table.load()
        self._timer = ui.timer(1.0, self._tail, active=False)

    async def _fetch(self, query: Query) -> tuple[int, list[dict[str, Any]]]:
        if self.found is not None:
            rows = self.found[:25]
            self._said.text = f"{len(self.found):,} found" + (", the oldest are shown" if len(self.found) > 25 else "")
        else:
            page = await self.view.mq.browse(
                self.topic, self.lane, first=self.first, max_messages=25, max_bytes=PAGE_BYTES
            )
            shown = list(page)
            self.bounds[str(self.lane)] = (page.start, page.end)
            last = shown[-1].seq if shown else self.first
            self._said.text = f"{self.first:,} to {last:,} of {page.start:,} to {max(page.end - 1, page.start):,}"
            rows = [message_row(self.view, one) for one in shown]
        return len(rows), rows[::-1]

    async def _look(self, lane: str, where: str | None, key: str | None) -> None:
        self.lane = int(lane) if lane.isdigit() else lane
        start, end = self.bounds.get(lane, (0, 0))
        self.found = None
        try:
            at = (where or "").strip()
            if key:
                priority = self.lane if isinstance(self.lane, str) else None
                async with self.view.sessions.searches.turn(self.view.session.key):
                    found = await self.view.mq.find(
                        self.topic, key=key, since=self._time(at) if at and not at.isdigit() else None,
                        priority=priority, limit=FOUND_MAX,  # type: ignore[arg-type]
                    )  # fmt: skip
                    self.found = [message_row(self.view, one) for one in found]
            elif at.isdigit():
                self.first = int(at)
            elif at:
                self.first = await self.view.mq.locate(self.topic, self.lane, self._time(at))
            else:
                self.first = max(end - 25, start)
        except TowlineError as error:
            ui.notify(plain(str(error))[:300], type="negative")
            return
        await self._table.refresh()

    def _time(self, text: str) -> datetime:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise BadRequest("give a number, or a time as 2026-01-31 14:30") from None
        return time if time.tzinfo else time.replace(tzinfo=self.view.zone)

    async def _turn(self, by: int) -> None:
        start, end = self.bounds.get(str(self.lane), (0, 0))
        self.found = None
        self.first = max(min(self.first + by, max(end - 1, start)), start)
        await self._table.refresh()

    def _live(self, on: bool) -> None:
        self.found = None
        self._timer.active = on

    async def _tail(self) -> None:
        state = await self.view.mq.topic(self.topic)
        lane = next(one for one in state.lanes if one.lane == str(self.lane))
        if lane.end - 25 != self.first or lane.end < 25:
            self.first = max(lane.end - 25, lane.first)
            await self._table.refresh()


@console_page("/messages", "Messages")
async def messages_page(view: View) -> None:
    topic = view.asked("topic")
    with head("Messages", "Looking changes nothing: no message is taken from any group"):
        pass
    with panel():
        with ui.element("div").classes("tl-row"):
            names = (
                [one.config.name for one in (await view.mq.survey("topics", limit=1000)).topics]
                if not topic
                else [topic]
            )
            name = (
                ui.input("Topic", value=topic, autocomplete=names).props("outlined dense").classes("tl-grow tl-search")
            )
            by_id = ui.input("Or a message's id: topic/lane/number").props("outlined dense").classes("tl-grow tl-mono")
            button("Open", on_click=lambda: _open(name.value, by_id.value)).classes("tl-plain")
        for field in (name, by_id):
            field.on("keydown.enter", lambda: _open(name.value, by_id.value))
    if topic:
        await _Browser(view, topic).build()
    else:
        with panel():
            empty("mail_outline", "Which topic?", "Type its name above, or the id of a message.")


def _open(topic: str | None, message_id: str | None) -> None:
    if message_id:
        try:
            parse_message_id(message_id.strip())
        except TowlineError as error:
            ui.notify(plain(str(error)), type="negative")
            return
        go(f"/message/{message_id.strip()}")
    elif topic:
        go(f"/messages?topic={topic.strip()}")
