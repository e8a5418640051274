"""Prepared transactions: the undecided ones, and deciding them by hand."""

from __future__ import annotations

from typing import Any, Literal

from nicegui import ui

from towline.console.layout import View, act, button, console_page, head, panel, say
from towline.console.number_format import many, number, plain, size
from towline.console.widgets.dialogs import confirm
from towline.console.widgets.table import Column, Query, Table

__all__ = ["transactions_page"]

LISTED = 1_000
COLUMNS = [
    Column("name", "Name", "cut"),
    Column("state", "State", "badge"),
    Column("group", "Producer group", "cut"),
    Column("messages", "Messages", "number"),
    Column("topics", "Topics", "cut", wide=True),
    Column("prepared", "Prepared", wide=True),
    Column("waits", "Waits"),
    Column("checks", "Asked", "number", wide=True),
]


@console_page("/transactions", "Transactions")
async def transactions_page(view: View) -> None:
    chosen = {"parked": False}
    with head("Transactions", "Prepared, and not yet committed or rolled back"):
        commit = button("Commit …", icon="check", on_click=lambda: decide("commit")).classes("tl-plain")
        rollback = button("Roll back …", icon="undo", on_click=lambda: decide("rollback")).classes("tl-danger")

    def enable(ids: list[str]) -> None:
        commit.set_enabled(bool(ids))
        rollback.set_enabled(bool(ids))

    async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
        found = await view.mq.transactions(parked=chosen["parked"], limit=LISTED)
        rows = [
            {
                "id": one.transaction,
                "name": plain(one.name or one.transaction),
                "state": {"text": one.state, "tone": "bad" if one.state == "parked" else "accent"},
                "group": one.producer_group,
                "messages": f"{number(one.messages)} ({size(one.size_bytes)})",
                "topics": ", ".join(one.topics),
                "prepared": view.moment(one.prepared_at_us),
                "waits": view.age(one.prepared_at_us),
                "checks": number(one.checks),
            }
            for one in found[query.first : query.first + query.limit]
        ]
        return len(found), rows

    async def decide(verdict: Literal["commit", "rollback"]) -> None:
        ids = table.selected
        what = "become visible to consumers" if verdict == "commit" else "are dropped for good"
        text = f"The messages of {many(len(ids), 'transaction')} {what}, whatever their producers would say."
        if not await confirm(view, "Decide in place of the producers?", text, label=verdict.capitalize()):
            return
        done = [await act(view.mq.resolve_transaction(one, verdict, reason="by hand, in the console")) for one in ids]
        say(f"{sum(done):,} of {len(ids):,} decided", bad=not all(done))
        table.table.selected = []
        enable([])
        await table.refresh()

    with panel():

        async def only(event: Any) -> None:
            chosen["parked"] = bool(event.value)
            await table.first()

        ui.switch("Only those that nobody could tell about", on_change=only)
        nothing = ("sync_alt", "No transactions wait", "All that were prepared have been committed or rolled back.")
        table = Table(COLUMNS, fetch, nothing=nothing, select=True, on_select=enable)
        enable([])
        await table.load()

    async def refresh() -> None:
        if not table.selected:
            await table.refresh()

    ui.timer(5.0, refresh)
