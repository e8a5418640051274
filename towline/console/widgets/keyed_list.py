"""Lists that are shown anew again and again, without remaking equal rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nicegui import ui

from towline.console.layout import empty

__all__ = ["KeyedList"]

T = TypeVar("T")
Change = Callable[[T], None]
Build = Callable[[T], "Change[T] | None"]


@dataclass
class _Row(Generic[T]):
    one: T
    box: Any
    change: Change[T] | None


class KeyedList(Generic[T]):
    """A row with the same key stays, and if nothing of it changed, it is not touched: an open menu, the focus and a
    selection of text are not taken away under somebody's hand.

    `build` makes a row; it may return a function that brings the row up to date in place. Without one, a row that
    changed is made anew.
    """

    def __init__(self, key: Callable[[T], Hashable], build: Build[T], *, nothing: tuple[str, ...] = ()) -> None:
        self._key = key
        self._build = build
        self._rows: dict[Hashable, _Row[T]] = {}
        self._box = _through()
        with ui.element("div").style("width:100%") as self._empty:
            if nothing:
                empty(*nothing)

    def show(self, some: Iterable[T]) -> None:
        wanted = {self._key(one): one for one in some}
        for key in [key for key in self._rows if key not in wanted]:
            self._rows.pop(key).box.delete()
        for place, (key, one) in enumerate(wanted.items()):
            row = self._rows.get(key)
            if row is None:
                with self._box:
                    row = self._rows[key] = self._filled(_through(), one)
            elif row.one != one:
                self._change(key, row, one)
            if self._box.default_slot.children[place] is not row.box:
                row.box.move(target_index=place)
        self._empty.set_visibility(not wanted)

    def _change(self, key: Hashable, row: _Row[T], one: T) -> None:
        if row.change is None:
            row.box.clear()
            self._rows[key] = self._filled(row.box, one)
        else:
            row.one = one
            row.change(one)

    def _filled(self, box: ui.element, one: T) -> _Row[T]:
        with box:
            return _Row(one, box, self._build(one))


def _through() -> ui.element:
    """Groups other elements, and is not seen itself."""
    return ui.element("div").style("display:contents")
