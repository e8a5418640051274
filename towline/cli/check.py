"""`towline check`, for monitors: one line, and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from towline.cli.options import Connection
from towline.cli.output import Output, about, many, print_json, print_line, size, span
from towline.cli.times import Duration
from towline.errors import TowlineError
from towline.model import PRIVATE
from towline.protocol.access import GroupFigures, Measured
from towline.protocol.groups import NEARLY_FULL

__all__ = ["check"]

OK, WARNING, CRITICAL = range(3)
WORDS = ("OK", "WARNING", "CRITICAL")
SHOWN_MAX = 5
LAG_WARN_S = 1.0
SNAPSHOTS_MISSED = 10
SNAPSHOT_WARN_S = 300.0
"""Snapshots are far too old when so many in a row are missing, and for so long at least."""

Count = Annotated[int | None, Parameter(show_default=False)]


class Finding(NamedTuple):
    level: int
    text: str
    topic: str = ""
    group: str = ""


def check(
    *,
    topic: Annotated[str, Parameter(help="Only this topic.", show_default=False)] = "",
    group: Annotated[str, Parameter(help="Only groups of this name.", show_default=False)] = "",
    warn_lag: Annotated[Count, Parameter(help="Warn of a group with this many messages to go.")] = None,
    crit_lag: Annotated[Count, Parameter(help="The same is critical.")] = None,
    warn_age: Annotated[Duration | None, Parameter(help="Warn if the oldest message of a group waits so long.")] = None,
    crit_age: Annotated[Duration | None, Parameter(help="The same is critical.")] = None,
    warn_dead: Annotated[Count, Parameter(help="Warn of a group with this many dead letters.")] = None,
    crit_dead: Annotated[Count, Parameter(help="The same is critical.")] = None,
    need_consumers: Annotated[
        bool,
        Parameter(
            help="A group with messages to go and without a consumer is critical.", negative=(), show_default=False
        ),
    ] = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Look whether the broker answers, and whether groups keep up. One line on stdout says what was found.

    Exit codes: 0 all is well, 1 warning, 2 critical, which an unreachable broker is, too.

        towline check --warn-age 1m --crit-age 10m --crit-dead 1
    """
    measured: Measured | None = None
    try:
        with connection.connect() as client:
            measured = client.measure(topic)
    except TowlineError as error:
        findings = [Finding(CRITICAL, str(error))]
    else:
        groups = [one for one in measured.groups if group in ("", one.group)]
        limits = {
            "lag": (warn_lag, crit_lag),
            "age": (warn_age, crit_age),
            "dead": (warn_dead, crit_dead),
        }
        findings = [
            *_look_at_retention(measured.broker),
            *_look_at_lag(measured.broker),
            *_look_at_snapshots(measured.broker),
            *_look_at_dedup(measured.broker),
            *_look_at_remains(measured.broker),
        ]
        findings += [one for each in groups for one in _look(each, measured.at_us, limits, need_consumers)]
        findings += _look_at_broadcast(groups)
    level = max((one.level for one in findings), default=OK)
    if output == "json":
        print_json(_facts(level, findings, measured))
    else:
        print_line(f"{WORDS[level]} - {_summary(level, findings, measured)}")
    return level


def _look_at_retention(broker: dict[str, Any]) -> list[Finding]:
    """Open messages that hold retention back, from half of the time on for which it waits for them, or half of the
    bytes."""
    held_s, most_s = broker.get("retention_held_s", 0), broker.get("retention_held_max_s", 0)
    held_bytes, most_bytes = broker.get("retention_held_bytes", 0), broker.get("retention_held_max_bytes", 0)
    found = []
    if held_s and 2 * held_s >= most_s:
        left = span(round(max(most_s - held_s, 0)))
        text = f"open messages of {broker['retention_held_by']} hold retention back for {span(round(held_s))}"
        found.append(Finding(WARNING, f"{text}, and are dropped in {left}"))
    if held_bytes and 2 * held_bytes >= most_bytes:
        text = f"open messages of {broker['retention_held_by']} keep {size(held_bytes)} too many"
        found.append(Finding(WARNING, f"{text}, and are dropped at {size(most_bytes)}"))
    return found


def _look_at_lag(broker: dict[str, Any]) -> list[Finding]:
    """The broker stood still for everybody, in the last minutes."""
    lag_s = broker.get("loop_lag_s", 0.0)
    if lag_s < LAG_WARN_S:
        return []
    return [Finding(WARNING, f"nobody was answered for {lag_s:.2f} s of late, because of {broker['loop_lag_by']}")]


def _look_at_snapshots(broker: dict[str, Any]) -> list[Finding]:
    """The snapshots are old: a start would take long, and retention frees nothing behind them."""
    age_s, every_s = broker.get("snapshot_age_s", 0.0), broker.get("snapshot_every_s", 0.0)
    if age_s < max(SNAPSHOTS_MISSED * every_s, SNAPSHOT_WARN_S):
        return []
    text = f"the last snapshots were complete {span(round(age_s))} ago, and they are due every {every_s:g} s"
    return [Finding(WARNING, f"{text}: the disk or the database is slow, or the log says what failed")]


def _look_at_dedup(broker: dict[str, Any]) -> list[Finding]:
    """More dedup ids come than are remembered."""
    kept_s, window_s = broker.get("dedup_kept_s", 0.0), broker.get("dedup_window_s", 0.0)
    if kept_s >= window_s:
        return []
    text = f"dedup ids are forgotten after {kept_s:g} s instead of {window_s:g}"
    return [Finding(WARNING, f"{text}: raise --dedup-max-ids, {broker['dedup_max_ids']} are remembered")]


def _look_at_remains(broker: dict[str, Any]) -> list[Finding]:
    """Deleted topics and groups have left so many streams that soon no new ones are made."""
    gone, most = broker.get("gone_streams", 0), broker.get("gone_streams_max", 0)
    if gone < NEARLY_FULL * most or not gone:
        return []
    text = f"{gone:,} streams of deleted topics and groups are remembered, {most:,} at most"
    return [Finding(WARNING, f"{text}: use names again, or raise --max-gone-streams")]


def _look_at_broadcast(groups: Sequence[GroupFigures]) -> list[Finding]:
    """Named broadcast consumers that nobody uses any more: they come and go, and it is well to report it."""
    going = sorted(
        (one for one in groups if one.group.startswith(PRIVATE) and one.expires_in_s >= 0),
        key=lambda one: one.expires_in_s,
    )
    if not going:
        return []
    first = going[0]
    text = f"{many(len(going), 'broadcast consumer')} that nobody uses, removed from {about(first.expires_in_s)} on"
    return [Finding(OK, f"{text}: first {first.topic}/{first.group}", first.topic, first.group)]


def _look(one: GroupFigures, now_us: int, limits: dict[str, Any], need_consumers: bool) -> list[Finding]:
    age_s = (now_us - one.oldest_at_us) / 1e6 if one.oldest_at_us else 0.0
    values = {"lag": one.backlog, "age": age_s, "dead": one.dead}
    words = {
        "lag": f"{many(one.backlog, 'message')} to go",
        "age": f"the oldest message waits for {span(round(age_s))}",
        "dead": many(one.dead, "dead letter"),
    }
    found: list[Finding] = []
    for what, (warn, crit) in limits.items():
        level = CRITICAL if crit is not None and values[what] >= crit else OK
        level = level or (WARNING if warn is not None and values[what] >= warn else OK)
        if level:
            found.append(Finding(level, f"{one.topic}/{one.group}: {words[what]}", one.topic, one.group))
    if one.unreadable:
        found.append(Finding(CRITICAL, f"{one.topic}/{one.group} waits: {one.unreadable}", one.topic, one.group))
    if one.expires_in_s >= 0 and not one.group.startswith(PRIVATE):
        text = f"{one.topic}/{one.group}: nobody uses it, and it is removed in {about(one.expires_in_s)}"
        found.append(Finding(WARNING, text, one.topic, one.group))
    if one.retry_load >= NEARLY_FULL:
        full = one.retry_load >= 1
        text = f"{one.topic}/{one.group}: the retry queue is " + (
            "full, and nothing new is delivered" if full else f"{100 * one.retry_load:.0f} % full"
        )
        found.append(Finding(CRITICAL if full else WARNING, text, one.topic, one.group))
    if need_consumers and one.backlog and not one.members:
        text = f"{one.topic}/{one.group}: {many(one.backlog, 'message')} to go and no consumer"
        found.append(Finding(CRITICAL, text, one.topic, one.group))
    return found


def _summary(level: int, findings: list[Finding], measured: Measured | None) -> str:
    if level == OK and measured is not None:
        counts = f"{many(len(measured.topics), 'topic')}, {many(len(measured.groups), 'group')}"
        return "; ".join([counts, *(one.text for one in findings)])
    worst = [one.text for one in findings if one.level == level]
    rest = len(findings) - SHOWN_MAX
    return "; ".join(worst[:SHOWN_MAX]) + (f"; and {rest} more" if rest > 0 else "")


def _facts(level: int, findings: list[Finding], measured: Measured | None) -> dict[str, Any]:
    return {
        "status": WORDS[level],
        "findings": [
            {"level": WORDS[one.level], "topic": one.topic or None, "group": one.group or None, "text": one.text}
            for one in findings
        ],
        "topics": len(measured.topics) if measured is not None else None,
        "groups": len(measured.groups) if measured is not None else None,
    }
