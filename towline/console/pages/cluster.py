"""The cluster: its brokers, the connected clients, the store of this broker, and its settings."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from towline.console.layout import View, act, console_page, empty, facts, figures, head, panel
from towline.console.number_format import number, plain, size, span
from towline.console.widgets.dialogs import confirm
from towline.console.widgets.table import Column, Query, Table
from towline.errors import TowlineError

__all__ = ["cluster_page"]

BROKERS = [
    Column("name", "Broker"),
    Column("state", "State", "badge"),
    Column("address", "Address", "mono"),
    Column("topics", "Topics", "number"),
    Column("connections", "Connections", "number", wide=True),
    Column("store", "Store", wide=True),
    Column("version", "Version", wide=True),
    Column("up", "Up for", wide=True),
    Column("epoch", "Start", "number", wide=True),
]
CLIENTS = [
    Column("address", "Address", "mono"),
    Column("kind", "Kind", "badge"),
    Column("token", "Token", "cut"),
    Column("topic", "Topic", "cut"),
    Column("group", "Group", "cut"),
    Column("rank", "Rank", "number", wide=True),
    Column("in_flight", "In flight", "number", wide=True),
    Column("seen", "Last seen", wide=True),
    Column("close", "Close", "button"),
]
SEGMENTS = [
    Column("name", "File", "mono"),
    Column("size", "Size", "number"),
    Column("last", "Last written"),
    Column("state", "State", "badge"),
]


@console_page("/cluster", "Cluster")
async def cluster_page(view: View) -> None:
    with head("Cluster", "Brokers, who is connected to them, and what they keep"):
        pass
    brokers = _brokers(view)
    await brokers.load()
    clients = _clients(view)
    await clients.load()
    await _storage(view)

    async def refresh() -> None:
        await brokers.refresh()
        await clients.refresh()

    ui.timer(5.0, refresh)


def _brokers(view: View) -> Table:
    async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
        found = await view.mq.brokers()
        rows = [
            {
                "id": one.id,
                "name": plain(one.name),
                "state": {"text": one.state, "tone": "good" if one.state == "alive" else "bad"},
                "address": one.address,
                "topics": number(one.topics),
                "connections": number(one.connections),
                "store": one.store + (" · TLS" if one.tls else ""),
                "version": plain(one.version),
                "up": span(one.uptime_s),
                "epoch": number(one.epoch),
            }
            for one in found
        ]
        return len(rows), rows[query.first : query.first + query.limit]

    with panel("Brokers"):
        return Table(BROKERS, fetch, nothing=("storage", "No brokers", ""))


def _clients(view: View) -> Table:
    async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
        found = await view.mq.clients()
        rows = [
            {
                "id": f"{place} {one.address}",
                "address": one.address,
                "kind": {"text": one.role, "tone": "accent" if one.role == "consumer" else ""},
                "token": plain(one.token),
                "topic": one.topic,
                "group": one.group,
                "rank": f"{one.rank} of {one.total}" if one.total else "",
                "in_flight": number(one.in_flight),
                "seen": f"{one.last_seen_s:.1f} s ago",
            }
            for place, one in enumerate(found[query.first : query.first + query.limit], query.first)
        ]
        return len(found), rows

    with panel("Clients", "producers and consumers that are connected to this broker"):
        table = Table(CLIENTS, fetch, nothing=("lan", "Nobody is connected", ""))

    async def close(row: str) -> None:
        _, _, address = row.partition(" ")
        text = "What it holds goes to others unless it returns within moments. To keep it out, revoke its token."
        if await confirm(
            view, f"Close the connections from {address}?", text, label="Close", danger=False
        ) and await act(view.mq.close_connection(address), f"The connections from {address} were closed"):
            await table.refresh()

    table.table.on("close", lambda event: close(str(event.args)))
    return table


async def _storage(view: View) -> None:
    try:
        stored = await view.mq.storage()
    except TowlineError as error:
        with panel("Storage"):
            empty("lock", "Not shown", str(error))
        return
    used = 100 - 100 * stored.free_bytes / stored.total_bytes if stored.total_bytes else 0
    figures(
        (
            ("Store", stored.store.partition(":")[0], stored.store, "", ""),
            ("Its size", size(stored.size_bytes), f"{len(stored.segments):,} segments", "", ""),
            ("Free", size(stored.free_bytes), f"of {size(stored.total_bytes)}", "bad" if used > 95 else "", ""),
            ("Disk used", f"{used:.0f} %", "by all", "warn" if used > 85 else "", ""),
        )
    )
    with ui.element("div").classes("tl-grid2"):
        with panel("Segments", "the files of the message log, newest first"):

            async def fetch(query: Query) -> tuple[int, list[dict[str, Any]]]:
                some = list(reversed(stored.segments))
                rows = [
                    {
                        "id": one.name,
                        "name": one.name,
                        "size": size(one.size_bytes),
                        "last": view.moment(one.last_at_us),
                        "state": {"text": "sealed", "tone": ""} if one.sealed else {"text": "open", "tone": "good"},
                    }
                    for one in some[query.first : query.first + query.limit]
                ]
                return len(some), rows

            table = Table(SEGMENTS, fetch, nothing=("inventory_2", "No segments", "This store keeps no files."))
            await table.load()
        with panel("Settings"):
            facts((name.replace("_", " "), _shown(value)) for name, value in sorted(stored.settings.items()))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return plain(str(value)) or "–"
