"""Figures of the last while, for charts: of the broker, and of the groups in which something happens."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from towline.broker.census import TopicFacts, Totals

__all__ = ["History"]

POINTS: Final = 360
GROUPS_MAX: Final = 200
"""Groups whose figures are kept; the ones that were idle longest are let go."""

BROKER: Final = ("in", "out", "failed", "backlog", "dead", "delayed", "in_flight")
GROUP: Final = ("lag", "out", "failed", "in_flight", "retrying")

BETWEEN_US: Final = 4_000_000
"""The last point is always now; those before it are this far apart."""

Points = deque[tuple[float, ...]]


class History:
    def __init__(self) -> None:
        self._broker: Points = deque(maxlen=POINTS)
        self._groups: OrderedDict[tuple[str, str], Points] = OrderedDict()

    def note(self, now_us: int, totals: Totals, delayed: int, topics: Iterable[TopicFacts]) -> None:
        _append(
            self._broker,
            (
                now_us,
                totals.in_per_s,
                totals.out_per_s,
                totals.failed,
                totals.backlog,
                totals.dead,
                delayed,
                totals.in_flight,
            ),
        )
        for topic in topics:
            for one in topic.groups.values():
                key = (one.topic, one.group)
                known = self._groups.get(key)
                if known is None:
                    if not (one.lag or one.out_per_s):
                        continue
                    known = self._groups[key] = deque(maxlen=POINTS)
                    if len(self._groups) > GROUPS_MAX:
                        self._groups.popitem(last=False)
                elif one.lag or one.out_per_s:
                    self._groups.move_to_end(key)
                _append(known, (now_us, one.lag, one.out_per_s, one.failed, one.in_flight, one.retrying))

    def of_broker(self) -> tuple[list[int], dict[str, list[float]]]:
        return _columns(self._broker, BROKER)

    def of_group(self, topic: str, group: str) -> tuple[list[int], dict[str, list[float]]]:
        return _columns(self._groups.get((topic, group), deque()), GROUP)


def _append(points: Points, point: tuple[float, ...]) -> None:
    if len(points) > 1 and points[-1][0] - points[-2][0] < BETWEEN_US:
        points[-1] = point
    else:
        points.append(point)


def _columns(points: Points, names: tuple[str, ...]) -> tuple[list[int], dict[str, list[float]]]:
    columns = list(zip(*points, strict=True)) or [()] * (len(names) + 1)
    return [int(at) for at in columns[0]], {name: list(columns[n]) for n, name in enumerate(names, 1)}
