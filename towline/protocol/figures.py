"""Figures of several brokers, or of the realms of one, as those of one: of each limit those of whoever is nearest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

__all__ = ["AWAY", "NEAREST", "nearest"]

Figures = Mapping[str, Any]

AWAY: Final = "away"
"""Of brokers together: those that did not answer, and of which nothing is in the figures."""
NEAREST: Final = "nearest"
"""Of brokers together: by limit, the one whose figures these are."""


def _of(value: str, most: str) -> Callable[[Figures], float]:
    return lambda figures: figures.get(value, 0.0) / max(figures.get(most, 0.0), 1e-9)


def _either(values: str) -> Callable[[Figures], float]:
    """By time or by bytes."""
    loads = [_of(f"{values}_{unit}", f"{values}_max_{unit}") for unit in ("s", "bytes")]
    return lambda figures: max(load(figures) for load in loads)


def _retention(values: str) -> tuple[Callable[[Figures], float], Sequence[str]]:
    return _either(values), [f"{values}_{name}" for name in ("s", "max_s", "bytes", "max_bytes", "by")]


_LIMITS: Final[Mapping[str, tuple[Callable[[Figures], float], Sequence[str]]]] = {
    "retention": _retention("retention_held"),
    "holds": _retention("retention_hold"),
    "dedup": (_of("dedup_window_s", "dedup_kept_s"), ("dedup_kept_s", "dedup_window_s", "dedup_max_ids")),
    "lag": (_of("loop_lag_s", ""), ("loop_lag_s", "loop_lag_by")),
    "snapshots": (_of("snapshot_age_s", "snapshot_every_s"), ("snapshot_s", "snapshot_age_s", "snapshot_every_s")),
    "remains": (_of("gone_streams", "gone_streams_max"), ("gone_streams", "gone_streams_max")),
}
"""What goes together, and how near to the limit it is. Numbers of several brokers, added up, say nothing of it."""


def nearest(found: Sequence[Figures]) -> tuple[dict[str, Any], dict[str, int]]:
    """The figures of each limit, of the one that is nearest to it; and by limit, the number of that one."""
    figures: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    for limit, (load, names) in _LIMITS.items() if found else ():
        # One of a version that does not tell of a limit comes after those that do.
        loads = [(names[0] in one, load(one)) for one in found]
        number = numbers[limit] = loads.index(max(loads))
        figures |= {name: found[number][name] for name in names if name in found[number]}
    return figures, numbers
