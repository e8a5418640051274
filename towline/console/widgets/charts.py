"""Charts of figures over time. Their colours suit light and dark alike; their times are the browser's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nicegui import ui

__all__ = ["Chart"]

COLOURS: Final = ("#1f8fb8", "#e39a2d", "#d6505c", "#7a6ff0")
_TEXT: Final = "#788594"
_LINE: Final = "rgba(130, 145, 160, .22)"


class Chart:
    def __init__(self, names: Sequence[str], *, unit: str = "", filled: bool = True, label: str = "") -> None:
        self._names = names
        series: list[dict[str, Any]] = [
            {
                "name": name,
                "type": "line",
                "showSymbol": False,
                "smooth": 0.15,
                "lineStyle": {"width": 1.8},
                "areaStyle": {"opacity": 0.10} if filled else None,
                "data": [],
            }
            for name in names
        ]
        options: dict[str, Any] = {
            "color": list(COLOURS),
            "animation": False,
            "grid": {"left": 8, "right": 26, "top": 30 if len(names) > 1 else 14, "bottom": 4, "containLabel": True},
            "legend": {"show": len(names) > 1, "left": 2, "top": 0, "icon": "roundRect", "itemWidth": 10,
                       "itemHeight": 4, "textStyle": {"color": _TEXT, "fontSize": 12}},
            "tooltip": {"trigger": "axis", "confine": True},
            "xAxis": {"type": "time", "axisLine": {"lineStyle": {"color": _LINE}}, "axisTick": {"show": False},
                      "axisLabel": {"color": _TEXT, "fontSize": 11, "hideOverlap": True}, "splitLine": {"show": False}},
            "yAxis": {"type": "value", "min": 0, "minInterval": 1, "name": unit, "nameTextStyle": {"color": _TEXT},
                      "axisLabel": {"color": _TEXT, "fontSize": 11}, "splitLine": {"lineStyle": {"color": _LINE}}},
            "series": series,
        }  # fmt: skip
        self._chart = (
            ui.echart(options).classes("tl-chart").props(f'role="img" aria-label="{label or ", ".join(names)}"')
        )

    def show(self, at_us: Sequence[int], series: Mapping[str, Sequence[float]], keys: Sequence[str]) -> None:
        for place, key in enumerate(keys):
            values = series.get(key, ())
            self._chart.options["series"][place]["data"] = [
                [at // 1000, round(value, 2)] for at, value in zip(at_us, values, strict=False)
            ]
        self._chart.update()
