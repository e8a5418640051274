"""`towline top`: live figures of a broker."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from towline.cli.options import Connection, Usage
from towline.cli.output import Output, many, print_json, size, span
from towline.cli.times import Duration
from towline.log_lines import harmless
from towline.protocol.access import Measured

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["top"]

Order = Literal["lag", "age", "in", "out", "dead", "name"]


class Row(NamedTuple):
    """A group, or a topic without one, with its rates."""

    topic: str
    group: str
    in_per_s: float
    out_per_s: float
    lag: int
    age_s: float
    in_flight: int
    retrying: int
    dead: int
    delayed: int
    consumers: int


def top(
    *,
    every: Annotated[Duration, Parameter(help="How often to look.", show_default="2s")] = 2.0,
    count: Annotated[
        int | None, Parameter(name=("--count", "-n"), help="Look so many times, then end; without it, until Ctrl-C.")
    ] = None,
    rows: Annotated[int, Parameter(help="How many groups to show.")] = 20,
    order: Annotated[Order, Parameter(help="What comes first.")] = "lag",
    topic: Annotated[str, Parameter(help="Only this topic.")] = "",
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Show rates, lag, and the age of the oldest message, live: one line for each group."""
    if not 0.1 <= every <= 3600 or rows < 1 or (count is not None and count < 1):
        raise Usage("--every is between 0.1 s and an hour, --rows and --count are 1 or more")
    looks = _looks(connection, topic, every, count)
    if output == "json":
        for before, now in looks:
            print_json(_facts(before, now, _sorted(_rows(before, now), order)))
        return
    if not sys.stdout.isatty():
        from rich.console import Console

        console = Console(file=sys.stdout, width=160)
        for before, now in looks:
            console.print(_view(before, now, _sorted(_rows(before, now), order)[:rows]))
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:
        try:
            for before, now in looks:
                live.update(_view(before, now, _sorted(_rows(before, now), order)[:rows]), refresh=True)
        except KeyboardInterrupt:
            pass


def _looks(connection: Connection, topic: str, every: float, count: int | None) -> Iterator[tuple[Measured, Measured]]:
    """The present figures and those before; the first time the two are taken shortly after one another."""
    with connection.connect() as client:
        before = client.measure(topic)
        pause_s = min(every, 0.5)
        done = 0
        while count is None or done < count:
            time.sleep(pause_s)
            now = client.measure(topic)
            yield before, now
            before, pause_s = now, every
            done += 1


def _rows(before: Measured, now: Measured) -> list[Row]:
    seconds = max((now.at_us - before.at_us) / 1e6, 1e-6)
    were_in = {one.topic: one.messages_in for one in before.topics}
    were_out = {(one.topic, one.group): one.messages_out for one in before.groups}
    rates = {one.topic: (one.messages_in - were_in.get(one.topic, one.messages_in)) / seconds for one in now.topics}
    delayed = {one.topic: one.delayed for one in now.topics}
    rows = [
        Row(
            one.topic,
            one.group,
            rates.get(one.topic, 0.0),
            max(one.messages_out - were_out.get((one.topic, one.group), one.messages_out), 0) / seconds,
            one.backlog,
            max(now.at_us - one.oldest_at_us, 0) / 1e6 if one.oldest_at_us else 0.0,
            one.in_flight,
            one.retrying,
            one.dead,
            delayed.get(one.topic, 0),
            one.members,
        )
        for one in now.groups
    ]
    lonely = {one.topic for one in now.topics} - {one.topic for one in now.groups}
    rows += [Row(name, "", rates[name], 0.0, 0, 0.0, 0, 0, 0, delayed[name], 0) for name in sorted(lonely)]
    return rows


def _sorted(rows: list[Row], order: Order) -> list[Row]:
    keys: dict[str, Any] = {
        "lag": lambda row: -row.lag,
        "age": lambda row: -row.age_s,
        "in": lambda row: -row.in_per_s,
        "out": lambda row: -row.out_per_s,
        "dead": lambda row: -row.dead,
        "name": lambda row: 0,
    }
    return sorted(rows, key=lambda row: (keys[order](row), row.topic, row.group))


def _view(before: Measured, now: Measured, rows: list[Row]) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    titles = (
        "TOPIC",
        "GROUP",
        "IN/S",
        "OUT/S",
        "LAG",
        "OLDEST",
        "IN FLIGHT",
        "RETRYING",
        "DEAD",
        "DELAYED",
        "CONSUMERS",
    )
    for title in titles:
        table.add_column(title, justify="left" if title in ("TOPIC", "GROUP") else "right")
    for row in rows:
        late = "red" if row.lag and not row.consumers else ""
        table.add_row(
            Text(harmless(row.topic)),
            Text(harmless(row.group)),
            f"{row.in_per_s:,.0f}",
            f"{row.out_per_s:,.0f}",
            Text(f"{row.lag:,}", style=late),
            span(round(row.age_s)) if row.lag else "",
            f"{row.in_flight:,}",
            f"{row.retrying:,}",
            Text(f"{row.dead:,}", style="yellow" if row.dead else ""),
            f"{row.delayed:,}",
            f"{row.consumers:,}",
        )
    return Group(Text(_headline(before, now), style="bold"), table)


def _headline(before: Measured, now: Measured) -> str:
    if not now.broker:
        return ""
    seconds = max((now.at_us - before.at_us) / 1e6, 1e-6)
    rates = {
        name: max(now.broker[name] - before.broker.get(name, 0), 0) / seconds
        for name in ("messages_in", "bytes_in", "messages_out")
    }
    return harmless(
        f"{now.broker['name']}  up {span(int(now.broker['uptime_s']))}  "
        f"{many(now.broker['connections'], 'connection')}  {many(now.broker['topics'], 'topic')}  "
        f"in {rates['messages_in']:,.0f}/s ({size(round(rates['bytes_in']))}/s)  "
        f"out {rates['messages_out']:,.0f}/s"
    )


def _facts(before: Measured, now: Measured, rows: list[Row]) -> dict[str, Any]:
    return {"at_us": now.at_us, "broker": now.broker, "rows": [row._asdict() for row in rows]}
