"""Answers of several brokers merged into one; sans I/O. Topics and groups are merged in `routing`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from towline.client.cluster.routing import Outcome, merge_figures, merge_outcomes
from towline.errors import Conflict
from towline.model import TopicConfig
from towline.protocol.access import Measured
from towline.protocol.cluster import ClientState
from towline.protocol.monitor import (
    GROUP_ORDERS,
    TOPIC_ORDERS,
    Alarms,
    ListPage,
    PageListed,
    Pulsed,
    Stored,
)

__all__ = [
    "join_alarms",
    "join_clients",
    "join_figures",
    "join_pages",
    "join_pulses",
    "join_storage",
    "join_templates",
]

T = TypeVar("T", bound=msgspec.Struct)

TOLD_MAX: Final = 100
_NOT_SUMMED: Final = ("oldest_us", "oldest_at_us", "alone_since_us", "paused", "created_at_us")


def join_pages(request: ListPage, outcomes: Sequence[Outcome[PageListed]]) -> PageListed:
    pages = merge_outcomes(outcomes, "asking", catch_up=True)
    topics = _summed((one for page in pages for one in page.topics), lambda one: one.config.name, same=("groups",))
    groups = _summed((one for page in pages for one in page.groups), lambda one: (one.topic, one.group))
    topics.sort(key=TOPIC_ORDERS["name"])
    groups.sort(key=GROUP_ORDERS["name"])
    lines = _ordered(page.lines for page in pages)
    if request.of == "topics":
        places = {line: place for place, line in enumerate(lines)}
        by_line = request.sort == "line"
        key = (lambda row: places.get(row.config.business_line, -1)) if by_line else TOPIC_ORDERS[request.sort]
        topics.sort(key=key, reverse=request.descending)
    else:
        groups.sort(key=GROUP_ORDERS[request.sort], reverse=request.descending)
    cut = slice(request.first, request.first + request.limit)
    return PageListed(len(topics) + len(groups), topics[cut], groups[cut], lines)


def _ordered(lists: Iterable[Sequence[str]]) -> list[str]:
    """Business lines in the order in which brokers show them: by name, or as they were sent. One that only one broker
    has stands behind the one before it there."""
    found: list[str] = []
    some = [list(lines) for lines in lists]
    if all(lines == sorted(lines) for lines in some):
        return sorted({line for lines in some for line in lines})
    for lines in some:
        at = 0
        for line in lines:
            if line in found:
                at = found.index(line) + 1
            else:
                found.insert(at, line)
                at += 1
    return found


def _summed(rows: Iterable[T], key: Callable[[T], Any], same: Sequence[str] = ()) -> list[T]:
    """Rows of the same thing, added up: numbers are summed, times are the earliest, and of the rest the first
    counts."""
    found: dict[Any, T] = {}
    for row in rows:
        name = key(row)
        known = found.get(name)
        if known is None:
            found[name] = row
            continue
        changes: dict[str, Any] = {}
        for field in row.__struct_fields__:
            mine, other = getattr(known, field), getattr(row, field)
            if field in same:
                changes[field] = max(mine, other)
            elif field == "alone_since_us":
                # A group with a consumer at one broker is not alone.
                changes[field] = 0 if not mine or not other else min(mine, other)
            elif field in _NOT_SUMMED:
                changes[field] = (
                    mine or other if isinstance(mine, bool) else min(filter(None, (mine, other)), default=0)
                )
            elif isinstance(mine, int | float) and not isinstance(mine, bool):
                changes[field] = mine + other
        found[name] = msgspec.structs.replace(known, **changes)
    return list(found.values())


def join_pulses(outcomes: Sequence[Outcome[Pulsed]]) -> Pulsed:
    """Figures added up; charts by the times of the first broker, each with the others' latest figures at that time."""
    first, *others = merge_outcomes(outcomes, "asking", catch_up=True)
    if not others:
        return first
    now = merge_figures([first.now, *(one.now for one in others)])
    for name in ("backlog", "dead", "failed", "in_per_s", "out_per_s", "size_bytes"):
        if name in first.now:
            now[name] = sum(one.now.get(name, 0) for one in (first, *others))
    if "oldest_us" in first.now:
        now["oldest_us"] = min(
            (one.now["oldest_us"] for one in (first, *others) if one.now.get("oldest_us")), default=0
        )
    series = {name: list(values) for name, values in first.series.items()}
    for other in others:
        for name, values in other.series.items():
            mine = series.setdefault(name, [0.0] * len(first.at_us))
            for place, at_us in enumerate(first.at_us):
                known = bisect_right(other.at_us, at_us)
                mine[place] += values[known - 1] if known else 0.0
    return Pulsed(now, first.at_us, series)


def join_figures(outcomes: Sequence[Outcome[Measured]]) -> Measured:
    found = merge_outcomes(outcomes, "asking", catch_up=True)
    return Measured(
        max(one.at_us for one in found),
        merge_figures([one.broker for one in found]) if found[0].broker else {},
        _summed((row for one in found for row in one.topics), lambda row: row.topic),
        _summed((row for one in found for row in one.groups), lambda row: (row.topic, row.group)),
    )


def join_alarms(outcomes: Sequence[Outcome[Alarms]]) -> Alarms:
    found = merge_outcomes(outcomes, "asking", catch_up=True)
    rules = {rule.name: rule for one in found for rule in one.rules}
    told = sorted((one for each in found for one in each.told), key=lambda one: -one.at_us)
    return Alarms(
        [rules[name] for name in sorted(rules)],
        [one for each in found for one in each.active],
        told[:TOLD_MAX],
        any(one.mail for one in found),
    )


def join_clients(outcomes: Sequence[Outcome[list[ClientState]]], label: Callable[[str], str]) -> list[ClientState]:
    """The clients of all brokers."""
    merge_outcomes(outcomes, "asking", catch_up=True)
    found = [
        msgspec.structs.replace(one, broker=label(outcome.broker.id))
        for outcome in outcomes
        for one in outcome.result or ()
    ]
    return sorted(found, key=lambda one: (one.topic, one.group, one.rank, one.broker, one.address))


def join_templates(outcomes: Sequence[Outcome[TopicConfig]], label: Callable[[str], str]) -> TopicConfig:
    """The one that all have. A broker that was away when it was changed has another."""
    first, *others = merge_outcomes(outcomes, "asking", catch_up=True)
    if any(one != first for one in others):
        shown = "; ".join(f"{label(one.broker.id)}: {_about(one.result)}" for one in outcomes if one.result is not None)
        raise Conflict(
            f"the brokers of this cluster have different templates for new topics ({shown}): set it once more, which "
            "reaches all, or ask for that of one (broker=…)"
        )
    return first


def _about(template: TopicConfig) -> str:
    facts = msgspec.to_builtins(template)
    said = [f"{name} {value}" for name, value in facts.items() if value and name not in ("name", "created_at_us")]
    return ", ".join(said) or "as a broker is made"


def join_storage(outcomes: Sequence[Outcome[Stored]], label: Callable[[str], str]) -> Stored:
    """Storage of all brokers, added up; segments with their broker's name, and settings that differ by broker."""
    merge_outcomes(outcomes, "asking", catch_up=True)
    found = sorted(
        ((label(one.broker.id), one.result) for one in outcomes if one.result is not None), key=lambda one: one[0]
    )
    if len(found) == 1:
        return found[0][1]
    settings: dict[str, Any] = {}
    for name in sorted({name for _, one in found for name in one.settings}):
        values = [(at, one.settings.get(name)) for at, one in found]
        same = all(value == values[0][1] for _, value in values)
        settings[name] = values[0][1] if same else ", ".join(f"{at}: {value}" for at, value in values)
    segments = [
        msgspec.structs.replace(segment, name=f"{segment.name}@{at}") for at, one in found for segment in one.segments
    ]
    return Stored(
        ", ".join(dict.fromkeys(one.store for _, one in found)),
        sum(one.size_bytes for _, one in found),
        sum(one.free_bytes for _, one in found),
        sum(one.total_bytes for _, one in found),
        sorted(segments, key=lambda segment: segment.last_at_us),
        settings,
    )
