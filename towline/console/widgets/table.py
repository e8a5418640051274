"""Lists by pages: the broker sorts and cuts them, the browser shows what it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from nicegui import events, ui

from towline.console.layout import empty, say
from towline.errors import TowlineError

__all__ = ["Column", "Query", "Table"]

Kind = Literal["text", "link", "number", "badge", "mono", "cut", "button"]
FEW = 25
"""A list that is no longer needs no pages."""
_CLASSES = {"number": "num", "cut": "cut", "mono": "mono"}


class Column(NamedTuple):
    name: str
    label: str
    kind: Kind = "text"
    sort: bool = False
    wide: bool = False
    """Left out on narrow screens."""

    def as_dict(self) -> dict[str, Any]:
        """A button's label stands on it, not above it; it is heard as an event of the column's name."""
        classes = f"{_CLASSES.get(self.kind, '')} {'tl-wide' if self.wide else ''}".strip()
        return {
            "name": self.name,
            "kind": self.kind,
            "label": "" if self.kind == "button" else self.label,
            "press": self.label,
            "field": self.name,
            "align": "right" if self.kind in ("number", "button") else "left",
            "sortable": self.sort,
            "classes": classes,
            "headerClasses": classes,
        }


class Query(NamedTuple):
    sort: str
    descending: bool
    first: int
    limit: int


class _Grid(ui.table, component="grid.js"):
    """Shows cells by their kind, and keeps them when a page is fetched anew."""


Fetch = Callable[[Query], Awaitable[tuple[int, list[dict[str, Any]]]]]


class Table:
    """`fetch` returns the number of all rows, and those of one page. Each row has an `id`."""

    def __init__(
        self,
        columns: list[Column],
        fetch: Fetch,
        *,
        nothing: tuple[str, str, str],
        sort: str = "",
        descending: bool = False,
        limit: int = 25,
        select: bool = False,
        on_select: Callable[[list[str]], None] | None = None,
    ) -> None:
        self._fetch = fetch
        self._page: dict[str, Any] = {
            "sortBy": sort, "descending": descending, "page": 1, "rowsPerPage": limit, "rowsNumber": 0,
        }  # fmt: skip
        self._on_select = on_select
        self.table = _Grid(
            columns=[column.as_dict() for column in columns],
            rows=[],
            row_key="id",
            pagination=dict(self._page),
            selection="multiple" if select else None,
            on_select=self._selected,
        )
        self.table.classes("tl-table").props('flat :rows-per-page-options="[25, 50, 100]" binary-state-sort')
        self.table.on("request", self._requested, args=["pagination"])
        with ui.element("div").style("width:100%") as self._empty:
            empty(*nothing)
        self._empty.set_visibility(False)

    @property
    def selected(self) -> list[str]:
        return [str(row["id"]) for row in self.table.selected]

    def _selected(self, _: events.TableSelectionEventArguments) -> None:
        if self._on_select is not None:
            self._on_select(self.selected)

    async def _requested(self, event: events.GenericEventArguments) -> None:
        asked = event.args["pagination"] if isinstance(event.args, dict) else event.args[0]
        self._page.update(
            sortBy=str(asked.get("sortBy") or ""),
            descending=bool(asked.get("descending")),
            page=max(int(asked.get("page") or 1), 1),
            rowsPerPage=min(max(int(asked.get("rowsPerPage") or 25), 1), 100),
        )
        await self.refresh()

    async def first(self) -> None:
        """Begin at the first page: the query has changed."""
        self._page["page"] = 1
        await self.refresh()

    async def refresh(self) -> None:
        """Fetch the page anew; an error is shown."""
        try:
            await self.load()
        except TowlineError as error:
            say(str(error), bad=True)

    async def load(self) -> None:
        page, limit = int(self._page["page"]), int(self._page["rowsPerPage"])
        query = Query(str(self._page["sortBy"]), bool(self._page["descending"]), (page - 1) * limit, limit)
        total, rows = await self._fetch(query)
        if not rows and total and page > 1:
            self._page["page"] = max((total + limit - 1) // limit, 1)
            await self.load()
            return
        self._page["rowsNumber"] = total
        self.table.rows = rows
        self.table.pagination = dict(self._page)
        self.table.set_visibility(bool(total))
        few = total <= limit <= FEW
        self.table.props(add="hide-bottom" if few else "", remove="" if few else "hide-bottom")
        self._empty.set_visibility(not total)
        kept = {row["id"] for row in rows}
        if self.table.selected and any(row["id"] not in kept for row in self.table.selected):
            self.table.selected = [row for row in self.table.selected if row["id"] in kept]
        self.table.update()
