"""A notice in words: the subject and text of a mail, and the JSON of a webhook."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from towline.alarms.rule import UNITS
from towline.alarms.watch import Change, Notice

__all__ = ["as_json", "subject", "text"]


def subject(notice: Notice, broker: str) -> str:
    count = len(notice.changes) + notice.more
    first = notice.changes[0]
    if count == 1:
        return f"[{broker}] {_state(first)}: {first.rule.name} {_place(first)}".rstrip()
    cleared = all(change.state == "cleared" for change in notice.changes)
    return f"[{broker}] {count} alarms {'are over' if cleared else 'need a look'}: {first.rule.name} …"


def text(notice: Notice, broker: str) -> str:
    lines = [f"Broker {broker} reports:", ""]
    for change in notice.changes:
        alarm, rule = change.alarm, change.rule
        since = datetime.fromtimestamp(alarm.since_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        sign = "below" if rule.what == "disk" else "from"
        lines.append(f"- {_state(change)}: {rule.name} {_place(change)}".rstrip())
        lines.append(
            f"  {alarm.value:,.6g} {UNITS[rule.what]}; an alarm {sign} {rule.threshold:,.6g} on; since {since}"
        )
    if notice.more:
        lines.append(f"- and {notice.more:,} more: see the broker's console, or `towline alarm ls`")
    return "\n".join(lines) + "\n"


def as_json(notice: Notice, broker: str, now_us: int) -> dict[str, Any]:
    return {
        "broker": broker,
        "at_us": now_us,
        "text": subject(notice, broker),
        "alarms": [
            {
                "state": change.state,
                "rule": change.rule.name,
                "what": change.rule.what,
                "topic": change.alarm.topic,
                "group": change.alarm.group,
                "value": change.alarm.value,
                "threshold": change.rule.threshold,
                "since_us": change.alarm.since_us,
            }
            for change in notice.changes
        ],
        "more": notice.more,
    }


def _state(change: Change) -> str:
    return {"begun": "alarm", "goes on": "still an alarm", "cleared": "cleared"}[change.state]


def _place(change: Change) -> str:
    alarm = change.alarm
    return (
        f"on topic {alarm.topic}, group {alarm.group}" if alarm.group else f"on topic {alarm.topic}" * bool(alarm.topic)
    )
