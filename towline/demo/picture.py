"""The report at the end: the timeline, how late the delayed orders were, and which promises were kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from towline.demo.consumer import TOPIC
from towline.demo.story import GROUPS

if TYPE_CHECKING:
    from rich.table import Table

    from towline.demo.story import Story

__all__ = ["report"]

STEP_S = 0.25
"""A column of the timeline."""
BLOCKS = " ▁▂▃▄▅▆▇█"
BAR = 30
LATE_MS = (5, 10, 20, 50, 100, 1_000)


def report(story: Story) -> None:
    story.console.print()
    _timeline(story)
    _lateness(story)
    story.console.print(_groups(story))
    for what, kept in story.promises:
        story.console.print(f"  [green]✓[/green] {what}" if kept else f"  [bold red]✗ not true:[/bold red] {what}")
    if not story.faults:
        story.console.print(
            "\n[bold green]Nothing was lost.[/bold green] Twice means: handled, but killed before the ack."
        )


def _timeline(story: Story) -> None:
    """Orders a second, and the events meanwhile: the gaps are the kills."""
    rows = {"sent": story.shop.at_s}
    for group in GROUPS:
        rows[group] = [told.at_s for each in story.consumers if each.group == group for told in each.handled]
    end_s = max(at_s for times in (*rows.values(), [at_s for at_s, _ in story.marks]) for at_s in times)
    columns = int((end_s - story.begin_s) / STEP_S) + 1
    for name, times in rows.items():
        counts = Counter(int((at_s - story.begin_s) / STEP_S) for at_s in times)
        most = max(counts.values(), default=1)
        bars = "".join(BLOCKS[-(-8 * counts[at] // most)] for at in range(columns))
        story.console.print(f"  {name:<9}[cyan]{bars}[/cyan]  up to {most / STEP_S:.0f} a second", highlight=False)
    axis = "".join("┬" if at % round(5 / STEP_S) == 0 else "─" for at in range(columns))
    story.console.print(f"  {'':<9}[dim]{axis}  5 s from ┬ to ┬[/dim]", highlight=False)
    line = [" "] * columns
    legend = []
    for number, (at_s, what) in enumerate(story.marks):
        letter, at = chr(ord("a") + number), min(int((at_s - story.begin_s) / STEP_S), columns - 1)
        while at < columns - 1 and line[at] != " ":
            at += 1
        line[at] = letter
        legend.append(f"[yellow]{letter}[/yellow] {what}")
    story.console.print(f"  {'':<9}[yellow]{''.join(line)}[/yellow]", highlight=False)
    for some in (legend[:5], legend[5:]):
        story.console.print(f"  {'':<9}{'   '.join(some)}", highlight=False)
    story.console.print()


def _lateness(story: Story) -> None:
    first: dict[int, float] = {}
    for each in story.consumers:
        for told in each.handled:
            first[told.order] = min(told.at_s, first.get(told.order, told.at_s))
    late_ms = [(first[order] - due_s) * 1000 for order, due_s in story.due_s.items() if order in first]
    story.console.print(f"  how late {len(late_ms)} orders for later were handled", highlight=False)
    begin = 0
    for end in LATE_MS:
        count = sum(begin <= one < end for one in late_ms)
        if count:
            _bar(story, f"{begin} to {end} ms", count, len(late_ms))
        begin = end
    _outside(story, late_ms)


def _outside(story: Story, late_ms: Iterable[float]) -> None:
    early, later = sum(one < 0 for one in late_ms), sum(one >= LATE_MS[-1] for one in late_ms)
    if early:
        story.console.print(f"  [bold red]{early} came early[/bold red]")
    if later:
        story.console.print(
            f"  {later} more than a second late: the killed consumer held them, or the broker was down", highlight=False
        )


def _bar(story: Story, name: str, count: int, total: int) -> None:
    story.console.print(f"  {name:>15} [magenta]{'█' * -(-BAR * count // total)}[/magenta] {count}", highlight=False)


def _groups(story: Story) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        "group", "orders handled", "of them twice", "failed attempts", "still dead", "lag", box=box.SIMPLE_HEAD
    )
    for group in GROUPS:
        handled, state = story.handled(group), story.mq.group(TOPIC, group)
        failed = sum(told.failed for each in story.consumers if each.group == group for told in each.told)
        twice = sum(count > 1 for count in handled.values())
        table.add_row(group, f"{len(handled):,}", str(twice), str(failed), str(state.dead), str(state.lag))
    return table
