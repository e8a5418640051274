"""A report as one page: no script, nothing to load, in light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any

from towline.spark.jobs.analysis.report import Report, Rows
from towline.spark.jobs.analysis.report_charts import Line, bar, bytes_text, count_text, span_text, time_chart

__all__ = ["render"]

GROUPS_MAX = 40
"""With more charts than that a page is not read."""


def render(report: Report, title: str = "Towline report") -> str:
    style = files("towline.spark.jobs.analysis").joinpath("report.css").read_text(encoding="utf-8")
    shown = sorted(report.groups, key=lambda group: -group["messages"])[:GROUPS_MAX]
    topics = sorted({group["topic"] for group in shown})
    body = [
        f"<header><h1>{escape(title)}</h1><p>{_moment(report.from_us)} – {_moment(report.to_us)} UTC</p></header>",
        _overview(report),
        *(_topic(report, topic, [group for group in shown if group["topic"] == topic]) for topic in topics),
        _footer(report, len(shown)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _moment(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%d %b %Y, %H:%M:%S")


def _footer(report: Report, shown: int) -> str:
    left = len(report.groups) - shown
    more = f" {left} more groups are in the tables." if left > 0 else ""
    made = f"From an archive of {_moment(report.made_at_us)} UTC. " if report.made_at_us else ""
    return f"<footer>{made}A point of a chart stands for {span_text(report.step_us)}.{more}</footer>"


# At the top


def _overview(report: Report) -> str:
    messages = sum(topic["messages"] for topic in report.topics)
    size = sum(topic["bytes"] for topic in report.topics)
    due = sum(group["messages"] for group in report.groups)
    done = sum(group["success"] for group in report.groups)
    dead = sum(group["dead"] for group in report.groups)
    gone = sum(group["gone"] + group["unknown"] for group in report.groups)
    waiting = sum(group["new"] + group["running"] + group["fail"] for group in report.groups)
    seconds = max((report.to_us - report.from_us) / 1e6, 1e-6)
    share = done / due if due else 0.0
    tiles = [
        _tile(count_text(messages), "messages sent", f"{count_text(messages / seconds)} a second"),
        _tile(bytes_text(size), "of bodies", f"{bytes_text(size / messages)} each" if messages else ""),
        _tile(f"{share:.2%}" if share < 1 else "100 %", "handled", f"of {count_text(due)} deliveries", _mood(share)),
        _tile(count_text(waiting), "not settled yet", "waiting, in work, or to be retried"),
        _tile(count_text(dead), "dead letters", "given up by their groups", "bad" if dead else "good"),
        _tile(count_text(gone), "lost", "dropped, damaged or passed over", "bad" if gone else "good"),
    ]
    lines = [
        Line(topic["topic"], colour, _filled(report, _at(report.volume, topic["topic"]), "messages", 0), area=True)
        for topic, colour in zip(
            sorted(report.topics, key=lambda topic: -topic["messages"]),
            ("--blue", "--teal", "--amber", "--red"),
            strict=False,
        )
    ]
    chart = _card(
        "Messages sent",
        f"a point each {span_text(report.step_us)}" + (", of the largest topics" if len(report.topics) > 4 else ""),
        lines,
        report,
        count_text,
        wide=True,
    )
    return f'<div class="tiles">{"".join(tiles)}</div><div class="cards">{chart}</div>'


def _mood(share: float) -> str:
    return "good" if share >= 0.9999 else ""


def _tile(value: str, what: str, more: str = "", mood: str = "") -> str:
    small = f"<small>{escape(more)}</small>" if more else ""
    return f'<div class="tile {mood}"><b>{escape(value)}</b><span>{escape(what)}</span>{small}</div>'


# A topic and its groups


def _topic(report: Report, topic: str, groups: Rows) -> str:
    return "".join(_group(report, topic, group) for group in groups)


def _group(report: Report, topic: str, group: dict[str, Any]) -> str:
    name = group["group"]
    series = [row for row in report.series if (row["topic"], row["group"]) == (topic, name)]
    handled = group["success"] / group["messages"] if group["messages"] else 0
    about = (
        f"{count_text(group['messages'])} messages, {handled:.2%} handled, "
        f"half of them within {span_text(group['total_p50_us'])}, 99 % within {span_text(group['total_p99_us'])}; "
        f"{count_text(group['retried'])} were tried again, {count_text(group['dead'])} died"
    )
    flow = [
        Line("sent", "--faint", _filled(report, series, "messages", 0), area=True),
        Line("settled", "--teal", _filled(report, series, "settled", 0)),
    ]
    backlog = [Line("backlog", "--amber", _filled(report, series, "backlog", None, carry=True), area=True)]
    cards = [
        _card("Sent and settled", f"messages each {span_text(report.step_us)}", flow, report, count_text),
        _card("Backlog", "messages sent and not settled", backlog, report, count_text),
        _card(
            "From sent to settled",
            "by when a message was sent",
            _latency(report, series, "total"),
            report,
            span_text,
            log=True,
        ),
        _card(
            "Processing",
            "from the last pull to its end",
            _latency(report, series, "processing"),
            report,
            span_text,
            log=True,
        ),
        _reasons([row for row in report.failures if (row["topic"], row["group"]) == (topic, name)]),
        _statuses(group),
        _consumers([row for row in report.consumers if (row["topic"], row["group"]) == (topic, name)]),
        _keys([row for row in report.keys if (row["topic"], row["group"]) == (topic, name)]),
    ]
    return (
        f"<section><h2>{escape(topic)} <span class=pill>{escape(name)}</span></h2>"
        f'<p class="about">{escape(about)}</p><div class="cards">{"".join(cards)}</div></section>'
    )


def _latency(report: Report, series: Rows, what: str) -> list[Line]:
    return [
        Line(place, f"--{place}", _filled(report, series, f"{what}_{place}_us", None))
        for place in ("p99", "p95", "p50")
    ]


def _at(rows: Rows, topic: str) -> Rows:
    return [row for row in rows if row["topic"] == topic]


def _filled(
    report: Report, rows: Rows, column: str, nothing: float | None, *, carry: bool = False
) -> list[tuple[int, float | None]]:
    """A point for every step, also where nothing happened."""
    step = report.step_us
    known = {row["at"]: row.get(column) for row in rows}
    points: list[tuple[int, float | None]] = []
    value: float | None = 0 if carry else nothing
    for at in range(report.from_us - report.from_us % step, report.to_us + 1, step):
        value = known.get(at, value if carry else nothing)
        points.append((at, value))
    return points


def _card(
    title: str,
    about: str,
    lines: Sequence[Line],
    report: Report,
    show: Callable[[float], str],
    *,
    log: bool = False,
    wide: bool = False,
) -> str:
    legend = ""
    if len(lines) > 1 or wide:
        names = (f'<span><i style="background:var({line.colour})"></i>{escape(line.name)}</span>' for line in lines)
        legend = f'<div class="legend">{"".join(names)}</div>'
    bounds = report.from_us - report.from_us % report.step_us, report.to_us
    empty = not any(value is not None for line in lines for _, value in line.points)
    chart = (
        '<p class="none">Nothing was settled.</p>'
        if empty
        else time_chart(lines, bounds, show, title=title, log=log, wide=wide)
    )
    style = "card wide" if wide else "card"
    return f'<div class="{style}"><h3>{escape(title)}</h3><p>{escape(about)}</p>{legend}{chart}</div>'


# Tables


def _table(title: str, about: str, heads: Sequence[str], rows: Iterable[Sequence[str]], none: str) -> str:
    """Cells are HTML; a head that begins with `#` is of numbers, and one that is empty of bars."""
    lines = list(rows)
    if not lines:
        return (
            f'<div class="card"><h3>{escape(title)}</h3><p>{escape(about)}</p><p class="none">{escape(none)}</p></div>'
        )
    kinds = ["n" if head.startswith("#") else "w" if not head else "t" for head in heads]
    head = "".join(
        f'<th class="{kind}">{escape(text.lstrip("#"))}</th>' for kind, text in zip(kinds, heads, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds, line, strict=True)) + "</tr>"
        for line in lines
    )
    return (
        f'<div class="card"><h3>{escape(title)}</h3><p>{escape(about)}</p><div class="scroll"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
    )


def _reasons(rows: Rows) -> str:
    most = max((row["messages"] for row in rows), default=1)
    return _table(
        "Why messages failed",
        "by the last reason of each",
        ("reason", "", "#messages", "#of them dead"),
        (
            (
                escape(row["reason"]),
                bar(row["messages"] / most, "--red", f"{row['messages']:,} messages"),
                count_text(row["messages"]),
                count_text(row["dead"]),
            )
            for row in rows[:8]
        ),
        "No message failed.",
    )


def _consumers(rows: Rows) -> str:
    most = max((row["processing_p95_us"] or 0 for row in rows), default=0) or 1
    return _table(
        "Consumers, slowest first",
        "processing time of what each was given last",
        ("consumer", "", "#p95", "#p50", "#messages", "#failures"),
        (
            (
                escape(row["consumer"]),
                bar((row["processing_p95_us"] or 0) / most, "--blue", span_text(row["processing_p95_us"])),
                span_text(row["processing_p95_us"]),
                span_text(row["processing_p50_us"]),
                count_text(row["messages"]),
                count_text(row["failures"]),
            )
            for row in rows[:8]
        ),
        "Nobody was given any message.",
    )


def _keys(rows: Rows) -> str:
    most = max((row["worst_us"] for row in rows), default=1) or 1
    return _table(
        "Slowest keys",
        "by the slowest message of each, from sent to settled",
        ("key", "", "#slowest", "#mean", "#messages"),
        (
            (
                escape(row["key"][:80]),
                bar(row["worst_us"] / most, "--amber", span_text(row["worst_us"])),
                span_text(row["worst_us"]),
                span_text(row["mean_us"]),
                count_text(row["messages"]),
            )
            for row in rows[:8]
        ),
        "No message that was settled has a key.",
    )


_COLOURS = {
    "success": ("--teal", "handled"),
    "new": ("--faint", "not delivered yet"),
    "running": ("--blue", "in work"),
    "fail": ("--amber", "to be tried again"),
    "dead": ("--red", "dead"),
    "gone": ("--red", "lost: dropped, damaged or passed over"),
    "unknown": ("--faint", "delivered, but the events that say how are gone"),
}


def _statuses(group: dict[str, Any]) -> str:
    whole = max(1, group["messages"])
    return _table(
        "Where they stand",
        "at the end of the archive",
        ("status", "", "#messages", "#share"),
        (
            (
                escape(text),
                bar(group[status] / whole, colour, f"{group[status]:,}"),
                f"{group[status]:,}",
                f"{group[status] / whole:.2%}",
            )
            for status, (colour, text) in _COLOURS.items()
            if group[status]
        ),
        "",
    )
