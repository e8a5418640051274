"""Recent figures for charts: of the broker, and of the active groups."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from towline.broker.monitor.stats import GroupFacts, Totals

__all__ = ["TimeSeries"]

POINTS: Final = 360
GROUPS_MAX: Final = 200
"""Groups whose figures are kept; the longest idle ones are dropped."""

BROKER: Final = ("in", "out", "failed", "backlog", "dead", "delayed", "in_flight")
GROUP: Final = ("lag", "out", "failed", "in_flight", "retrying")

BETWEEN_US: Final = 4_000_000
"""The last point is always now; those before it are this far apart."""

IDLE_US: Final = 60_000_000
"""A group that was idle for so long makes room for another."""


class _Points:
    """So many points of a few figures each, the first of which is the time: plain numbers, without an object each."""

    __slots__ = ("_values", "_width", "active_us")

    def __init__(self, names: Sequence[str]) -> None:
        self._values = array("d")
        self._width = len(names) + 1
        self.active_us = 0

    def append(self, point: Sequence[float]) -> None:
        values, width = self._values, self._width
        while values and values[-width] > point[0]:
            del values[-width:]  # the clock was ahead
        if len(values) > width and values[-width] - values[-2 * width] < BETWEEN_US:
            del values[-width:]
        values.extend(point)
        if len(values) > POINTS * width:
            del values[:width]

    def columns(self, names: Sequence[str]) -> tuple[list[int], dict[str, list[float]]]:
        values, width = self._values, self._width
        return [int(at) for at in values[::width]], {name: list(values[n::width]) for n, name in enumerate(names, 1)}


class TimeSeries:
    def __init__(self) -> None:
        self._broker = _Points(BROKER)
        self._groups: OrderedDict[tuple[str, str], _Points] = OrderedDict()

    def note(self, now_us: int, totals: Totals, delayed: int) -> None:
        self._broker.append(
            (
                now_us,
                totals.in_per_s,
                totals.out_per_s,
                totals.failed,
                totals.backlog,
                totals.dead,
                delayed,
                totals.in_flight,
            )
        )

    def note_group(self, now_us: int, one: GroupFacts) -> None:
        key = (one.topic, one.group)
        known = self._groups.get(key)
        if one.lag or one.out_per_s:
            known = known or self._admit(key, now_us)
            if known is not None:
                known.active_us = now_us
                self._groups.move_to_end(key)
        if known is not None:
            known.append((now_us, one.lag, one.out_per_s, one.failed, one.in_flight, one.retrying))

    def _admit(self, key: tuple[str, str], now_us: int) -> _Points | None:
        """In the place of the longest idle group. If all are busy, none is dropped: more groups than there are places
        would have one point each."""
        if len(self._groups) >= GROUPS_MAX:
            if now_us - IDLE_US < next(iter(self._groups.values())).active_us <= now_us:
                return None
            self._groups.popitem(last=False)
        points = self._groups[key] = _Points(GROUP)
        return points

    def of_broker(self) -> tuple[list[int], dict[str, list[float]]]:
        return self._broker.columns(BROKER)

    def of_group(self, topic: str, group: str) -> tuple[list[int], dict[str, list[float]]]:
        return self._groups.get((topic, group), _Points(GROUP)).columns(GROUP)
