"""What a benchmark found out: a figure, what it should be, and how it compares."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

__all__ = ["Figure", "print_figures", "spread"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured number. `limit` names the machine's limit that it is held against, and `share` is its part of it."""

    scenario: str
    name: str
    value: float
    unit: str
    target: float | None = None
    less_is_better: bool = False
    limit: str = ""
    share: float | None = None
    note: str = ""
    turns: tuple[float, ...] = ()
    """The same by tenths of the run."""

    @property
    def ratio(self) -> float | None:
        """How the value compares with its target: 1 or more is met."""
        if self.target is None or not self.value:
            return None
        return self.target / self.value if self.less_is_better else self.value / self.target

    def as_json(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self) | {"ratio": self.ratio}


def spread(values: Sequence[float], unit: str = "") -> str:
    """How far repeated measurements lie apart, for the note."""
    if len(values) < 2:
        return ""
    return f"; median of {len(values)}: {shown(min(values))} to {shown(max(values))}{unit}"


def middle(values: Sequence[float]) -> float:
    return median(values)


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def print_figures(figures: Sequence[Figure]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in ("scenario", "figure"):
        table.add_column(title)
    for title in ("value", "unit", "target", "ratio", "of machine"):
        table.add_column(title, justify="left" if title == "unit" else "right", no_wrap=True)
    table.add_column("note", style="dim")
    scenario = ""
    for figure in figures:
        if scenario and figure.scenario != scenario:
            table.add_section()
        table.add_row(
            figure.scenario if figure.scenario != scenario else "",
            figure.name,
            shown(figure.value),
            figure.unit,
            _target(figure),
            _ratio(figure),
            "" if figure.share is None else f"{figure.share:.2f} of {figure.limit}",
            Text(figure.note),
        )
        scenario = figure.scenario
    console = Console()
    Console(width=max(console.width, 150) if not console.is_terminal else None).print(table)


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'≤' if figure.less_is_better else '≥'} {shown(figure.target)}"


def _ratio(figure: Figure) -> Any:
    from rich.text import Text

    if figure.ratio is None:
        return ""
    return Text(f"{figure.ratio:.2f}", style="green" if figure.ratio >= 1 else "bold red")
