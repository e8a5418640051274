"""Charts as inline SVG: lines, areas and bars that take their colours from the page, and need no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple

__all__ = ["Line", "bar", "bytes_text", "count_text", "span_text", "time_chart", "time_text"]

WIDTH: Final = 640
WIDE: Final = 1340
HEIGHT: Final = 220
LEFT: Final = 58
RIGHT: Final = 10
TOP: Final = 10
BOTTOM: Final = 26
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 7 * _DAY, 30 * _DAY),
)


_SPANS_US: Final = (1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 60e6, 600e6, 3600e6, 36e9, 86.4e9, 864e9, 8640e9)


class Line(NamedTuple):
    name: str
    colour: str
    """A custom property of the page: `--blue`."""
    points: Sequence[tuple[int, float | None]]
    """By time in microseconds; None is a gap."""
    area: bool = False


def count_text(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:.3g} {unit}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2g}"


def bytes_text(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def span_text(us: float | None) -> str:
    """A length of time, with as many digits as people read."""
    if us is None:
        return "–"
    for size, unit in ((86_400e6, "d"), (3_600e6, "h"), (60e6, "min"), (1e6, "s"), (1e3, "ms")):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.0f} µs"


def time_text(us: int, step_us: int) -> str:
    moment = datetime.fromtimestamp(us / 1e6, UTC)
    if step_us >= 86_400_000_000:
        return moment.strftime("%d %b")
    return moment.strftime("%H:%M:%S" if step_us < 60_000_000 else "%H:%M")


def time_chart(
    lines: Sequence[Line],
    bounds: tuple[int, int],
    show: Callable[[float], str],
    *,
    title: str,
    log: bool = False,
    wide: bool = False,
) -> str:
    """A chart over time. With `log` the scale is logarithmic, for lengths of time, which span orders of magnitude."""
    width = WIDE if wide else WIDTH
    first, last = bounds
    last = max(last, first + 1)
    values = [value for line in lines for _, value in line.points if value is not None]
    low, high, ticks = _log_scale(values) if log else _scale(max(values, default=0))

    def x(at: float) -> float:
        return LEFT + (at - first) / (last - first) * (width - LEFT - RIGHT)

    def y(value: float) -> float:
        if log:
            share = (math.log10(max(value, low)) - math.log10(low)) / (math.log10(high) - math.log10(low))
        else:
            share = (value - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *(
            f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text class="tick" x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{escape(show(tick))}</text>'
            for tick in ticks
        ),
        *(
            f'<text class="tick" x="{x(at):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{time_text(at, gap)}</text>'
            for at, gap in _time_ticks(first, last)
        ),
    ]
    parts += [_drawn(line, x, y, show) for line in lines]
    parts.append("</svg>")
    return "".join(parts)


def _drawn(line: Line, x: Callable[[float], float], y: Callable[[float], float], show: Callable[[float], str]) -> str:
    runs: list[list[tuple[float, float]]] = [[]]
    dots = []
    for at, value in line.points:
        if value is None:
            runs.append([])
            continue
        place = x(at), y(value)
        runs[-1].append(place)
        label = f"{time_text(at, 1)} · {line.name}: {show(value)}"
        dots.append(f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="7"><title>{escape(label)}</title></circle>')
    style = f'style="--c:var({line.colour})"'
    parts = []
    for run in runs:
        if not run:
            continue
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in run)
        if line.area:
            floor = HEIGHT - BOTTOM
            parts.append(f'<polygon class="area" points="{run[0][0]:.1f},{floor} {path} {run[-1][0]:.1f},{floor}"/>')
        if len(run) == 1:
            parts.append(f'<circle class="dot" cx="{run[0][0]:.1f}" cy="{run[0][1]:.1f}" r="3"/>')
        else:
            parts.append(f'<polyline class="line" points="{path}"/>')
    return f'<g {style}>{"".join(parts)}<g class="hover">{"".join(dots)}</g></g>'


def _scale(most: float) -> tuple[float, float, list[float]]:
    """From 0 to a round number, with ticks at round numbers."""
    if most <= 0:
        return 0, 1, [0, 1]
    raw = most / 4
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
    step = max(1.0, math.ceil(step))
    count = math.ceil(most / step)
    return 0, step * count, [step * number for number in range(count + 1)]


def _log_scale(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Between two lengths of time that people have a name for."""
    known = [value for value in values if value > 0] or [1]
    low = max((tick for tick in _SPANS_US if tick <= min(known)), default=_SPANS_US[0])
    high = min((tick for tick in _SPANS_US if tick >= max(*known, low + 1)), default=max(known))
    return low, high, [tick for tick in _SPANS_US if low <= tick <= high]


def _time_ticks(first: int, last: int) -> list[tuple[int, int]]:
    """Round moments within the bounds, and how far apart they are."""
    step = next((s for s in _STEPS_S if (last - first) / (s * 1_000_000) <= 7), _STEPS_S[-1]) * 1_000_000
    at = -(-first // step) * step
    return [(moment, step) for moment in range(at, last + 1, step)] or [(first, step)]


def bar(share: float, colour: str, title: str) -> str:
    """A horizontal bar for a table's cell."""
    width = max(0.0, min(1.0, share)) * 100
    inner = f'<span style="width:{width:.1f}%;background:var({colour})"></span>'
    return f'<span class="bar" title="{escape(title)}">{inner}</span>'
