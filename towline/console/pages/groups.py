"""Groups: the list; and one group with its lag, its members, its policy, and its actions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from nicegui import ui

from towline.console.layout import View, act, badge, button, console_page, facts, figures, go, head, panel
from towline.console.lists import group_columns, group_rows
from towline.console.number_format import many, number, span
from towline.console.widgets.charts import Chart
from towline.console.widgets.dialogs import confirm, form
from towline.console.widgets.table import Column, Query, Table
from towline.errors import BadRequest, TowlineError
from towline.model import RetryPolicy
from towline.protocol.groups import NEARLY_FULL
from towline.protocol.messages import GroupState

__all__ = ["group_page", "groups_list"]


@console_page("/groups", "Groups")
async def groups_list(view: View) -> None:
    chosen = {"search": view.asked("search"), "topic": view.asked("topic")}
    with head("Groups", "Consumers that share the work of a topic"):
        pass
    with panel():
        search = ui.input("Search", value=chosen["search"]).props("outlined dense clearable").classes("tl-search")

        async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
            return await group_rows(view, query, search=chosen["search"], topic=chosen["topic"])

        nothing = (
            "hub",
            "No groups",
            "A group is made when its first consumer comes: towline consume TOPIC --group NAME",
        )
        table = Table(group_columns(), fetch, nothing=nothing, sort="lag", descending=True)
        await table.load()

        async def look() -> None:
            chosen["search"] = search.value or ""
            await table.first()

        search.on_value_change(look)
    ui.timer(5.0, table.refresh)


class _Group:
    """The page of one group, and its actions."""

    def __init__(self, view: View, topic: str, name: str) -> None:
        self.view = view
        self.topic = topic
        self.name = name
        self.state: GroupState

    async def build(self) -> None:
        view = self.view
        self.state = state = await view.mq.group(self.topic, self.name)
        with head(self.name, f"on topic {self.topic}", crumb=("Groups", "/groups")):
            if state.unreadable:
                badge(f"waits: {state.unreadable}", "bad")
            if state.retry_load >= NEARLY_FULL:
                badge(f"retry queue {100 * state.retry_load:.0f} % full", "bad" if state.retry_load >= 1 else "warn")
            if state.expires_in_s >= 0 and not state.members:
                left = span(state.expires_in_s)
                badge(f"unused for {span(state.unused_s)}, removed in {left} if nobody uses it", "warn")
            if state.config.paused:
                badge("paused" + (f": {state.config.pause_reason}" if state.config.pause_reason else ""), "warn")
                button("Resume", icon="play_arrow", on_click=self._resume).classes("tl-main-act")
            else:
                button("Pause", icon="pause", on_click=self._pause).classes("tl-plain")
            button("Move …", icon="moving", on_click=self._seek).classes("tl-plain")
            with button(icon="more_vert").props('flat round dense aria-label="More"').classes("tl-icon"), ui.menu():
                ui.menu_item("Change the policy …", self._policy)
                ui.menu_item("Skip the backlog …", self._skip)
                ui.menu_item("Delete …", self._delete)
        self._shown = figures((name, "", "", "", target) for name, target in self._names())
        with ui.element("div").classes("tl-grid2"):
            with panel("Waiting"):
                self._lag = Chart(["waiting", "in flight"], label="Messages that wait, and in flight")
            with panel("Consumed a second"):
                self._out = Chart(["out", "failed in 5 min"], label="Messages consumed a second, and failures")
        with panel("Consumers"):
            self._members = self._members_table()
        with ui.element("div").classes("tl-grid2"):
            with panel("Positions"):
                self._positions = self._positions_table()
            with panel("Policy"):
                facts(self._facts())
        await self._refresh()
        ui.timer(3.0, self._refresh)

    def _names(self) -> list[tuple[str, str]]:
        dead = f"/dead?topic={self.topic}&group={self.name}"
        return [
            ("Waiting", ""),
            ("In flight", ""),
            ("To be tried again", ""),
            ("Dead letters", dead),
            ("Consumers", ""),
        ]

    async def _refresh(self) -> None:
        try:
            self.state = state = await self.view.mq.group(self.topic, self.name)
            pulse = await self.view.mq.pulse(self.topic, self.name)
            await self._members.load()
            await self._positions.load()
        except TowlineError as error:
            self._shown["Waiting"][1].text = str(error)[:80]
            return
        due = self.view.moment(state.next_retry_at_us) if state.next_retry_at_us else "none is due"
        values = {
            "Waiting": (number(state.lag), "not consumed yet", ""),
            "In flight": (number(state.in_flight), "at consumers", ""),
            "To be tried again": (number(state.retrying), due, "warn" if state.retrying else ""),
            "Dead letters": (number(state.dead), "not sent again", "bad" if state.dead else ""),
            "Consumers": (number(len(state.members)), f"{sum(m.waiting for m in state.members)} wait for work", ""),
        }
        for name, (value, small, tone) in values.items():
            shown = self._shown[name]
            shown[0].text, shown[1].text = value, small
            shown[2].classes(remove="bad warn", add=tone)
        self._lag.show(pulse.at_us, pulse.series, ("lag", "in_flight"))
        self._out.show(pulse.at_us, pulse.series, ("out", "failed"))

    def _members_table(self) -> Table:
        async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
            members = self.state.members
            rows = [
                {
                    "id": one.consumer,
                    "rank": str(rank),
                    "consumer": one.consumer,
                    "address": one.address,
                    "in_flight": number(one.in_flight),
                    "state": {"text": "waits" if one.waiting else "works", "tone": "" if one.waiting else "accent"},
                    "beat": f"{one.last_seen_s:.1f} s ago",
                }
                for rank, one in enumerate(members)
            ]
            return len(rows), rows[query.first : query.first + query.limit]

        columns = [
            Column("rank", "Rank", "number", wide=True),
            Column("consumer", "Consumer", "cut"),
            Column("address", "Address", "mono", wide=True),
            Column("in_flight", "In flight", "number"),
            Column("state", "State", "badge"),
            Column("beat", "Last beat", wide=True),
            Column("kick", "Kick", "button"),
        ]
        nothing = ("person_off", "No consumers", "Nobody consumes for this group at the moment.")
        table = Table(columns, fetch, nothing=nothing)
        table.table.on("kick", lambda event: self._kick(str(event.args)))
        return table

    def _positions_table(self) -> Table:
        async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
            rows = [
                {"id": lane, "lane": lane, "next": number(at), "end": number(end), "left": number(max(end - at, 0))}
                for lane, at, end in self.state.positions
            ]
            return len(rows), rows[query.first : query.first + query.limit]

        columns = [
            Column("lane", "Lane"),
            Column("next", "Next", "number"),
            Column("end", "End", "number"),
            Column("left", "Left", "number"),
        ]
        return Table(columns, fetch, nothing=("dns", "No lanes", ""))

    def _facts(self) -> list[tuple[str, str]]:
        config = self.state.config
        delays = ", ".join(span(one) for one in config.retry.delays_s[:6]) + (
            " …" if len(config.retry.delays_s) > 6 else ""
        )
        return [
            ("Attempts", number(config.retry.max_attempts)),
            ("Waits between them", delays),
            ("Time for a pull", span(config.timeout_s) if config.timeout_s else "no limit while it beats"),
            ("In flight, each", f"at most {config.max_in_flight:,}"),
            ("Dead letters are kept", span(config.dead_retention_s) if config.dead_retention_s else "as messages are"),
            ("Began at", config.start),
            ("Made", self.view.moment(config.created_at_us)),
        ]

    # Actions

    def _reload(self) -> None:
        go(f"/groups/{self.topic}/{self.name}")

    async def _kick(self, consumer: str) -> None:
        text = "What it holds goes to the others at once. It may come back by itself, and begins anew then."
        if await confirm(self.view, f"Kick {consumer}?", text, label="Kick", danger=False) and await act(
            self.view.mq.kick(self.topic, self.name, consumer), f"{consumer} was kicked out"
        ):
            await self._refresh()

    def _pause(self) -> None:
        async def save() -> bool:
            done = await act(self.view.mq.pause(self.topic, self.name, reason.value or ""), "It rests")
            if done:
                self._reload()
            return done

        with form(f"Pause {self.name}?", "Pause", save, about="Its consumers get nothing until it is resumed."):
            reason = ui.input("Why").props("outlined dense autofocus maxlength=500")

    async def _resume(self) -> None:
        if await act(self.view.mq.resume(self.topic, self.name), "It goes on"):
            self._reload()

    def _seek(self) -> None:
        result: dict[str, Any] = {}

        def target() -> Any:
            if where.value in ("earliest", "latest"):
                return where.value
            if where.value == "time":
                try:
                    time = datetime.fromisoformat((at.value or "").strip())
                except ValueError:
                    raise BadRequest("write the time as 2026-01-31 14:30") from None
                return time if time.tzinfo else time.replace(tzinfo=self.view.zone)
            lanes: dict[Any, int] = {}
            for word in (at.value or "").replace(",", " ").split():
                lane, sign, seq = word.partition("=")
                if not sign or not seq.isdigit():
                    raise BadRequest("write positions as middle=17 high=0")
                lanes[int(lane) if lane.isdigit() else lane] = int(seq)
            return lanes

        async def preview() -> None:
            try:
                would = await self.view.mq.seek(self.topic, self.name, target(), dry_run=True)
            except TowlineError as error:
                said.text = str(error)
                result.clear()
                return
            result["to"] = target()
            said.text = f"{many(would.again, 'message')} delivered again, {would.passed:,} passed over."

        async def save() -> bool:
            if "to" not in result or result["to"] != target():
                await preview()
                return False
            text = said.text
            if not await confirm(self.view, f"Move {self.name}?", text, label="Move"):
                return False
            done = await act(self.view.mq.seek(self.topic, self.name, result["to"]), "It was moved")
            if done:
                self._reload()
            return done

        with form(f"Move {self.name}", "Move", save, about="See first what it means, then move."):
            options = {"earliest": "To the oldest message", "latest": "Behind the newest", "time": "To a time",
                       "positions": "To sequence numbers"}  # fmt: skip
            where = ui.select(options, value="time", label="Where to").props("outlined dense")
            at = ui.input("Time (2026-01-31 14:30) or positions (middle=17)").props("outlined dense")
            button("See what it means", icon="visibility", on_click=preview).classes("tl-plain")
            said = ui.label("").classes("tl-sub").props('role="status"')

    async def _skip(self) -> None:
        would = await self.view.mq.seek(self.topic, self.name, "latest", dry_run=True)
        text = f"{many(would.passed, 'message')} passed over: this group never gets them."
        if await confirm(self.view, "Skip the backlog?", text, label="Skip", word=self.name) and await act(
            self.view.mq.seek(self.topic, self.name, "latest"), f"{many(would.passed, 'message')} skipped"
        ):
            self._reload()

    def _policy(self) -> None:
        config = self.state.config

        async def save() -> bool:
            waits = tuple(float(word) for word in (delays.value or "").replace(",", " ").split())
            changed = msgspec.structs.replace(
                config,
                retry=msgspec.structs.replace(config.retry, max_attempts=int(attempts.value or 1), delays_s=waits),
                timeout_s=float(timeout.value or 0),
                max_in_flight=int(in_flight.value or 1),
            )
            RetryPolicy(int(attempts.value or 1), waits)
            done = await act(self.view.mq.put_group(changed), "Saved")
            if done:
                self._reload()
            return done

        with form(f"Policy of {self.name}", "Save", save):
            attempts = ui.number("Attempts", value=config.retry.max_attempts, min=1, max=10_000).props("outlined dense")
            delays = ui.input("Waits in seconds", value=", ".join(f"{one:g}" for one in config.retry.delays_s))
            delays.props("outlined dense")
            timeout = ui.number("Seconds for a pull (0: no limit)", value=config.timeout_s, min=0).props(
                "outlined dense"
            )
            in_flight = ui.number("In flight, each", value=config.max_in_flight, min=1).props("outlined dense")

    async def _delete(self) -> None:
        text = "Its progress and its dead letters go with it. This cannot be undone."
        if await confirm(self.view, f"Delete {self.name}?", text, label="Delete", word=self.name) and await act(
            self.view.mq.delete_group(self.topic, self.name), f"Group {self.name} was deleted"
        ):
            go("/groups")


@console_page("/groups/{topic}/{group}", "Group")
async def group_page(view: View) -> None:
    await _Group(view, view.part("topic"), view.part("group")).build()
