"""Comparison of readings with rules: readings in, notices out. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from towline.alarms.rule import OF_BROKER, AlarmRule

__all__ = ["ACTIVE_MAX", "Alarm", "Change", "Look", "Notice", "Reading", "State", "Watch", "hold_back"]

State = Literal["begun", "goes on", "cleared"]
ACTIVE_MAX: Final = 10_000
CHANGES_MAX: Final = 200
"""Alarms that one notice lists by name; of the rest it gives the number."""
_SECOND_US: Final = 1_000_000


class Reading(NamedTuple):
    """A measured value of one kind, of a group of a topic (both empty: of the broker)."""

    what: str
    value: float
    topic: str = ""
    group: str = ""
    emails: tuple[str, ...] = ()
    """The alarm e-mails of the topic."""


class Alarm(msgspec.Struct, array_like=True):
    """One rule that is broken in one place."""

    rule: str
    topic: str
    group: str
    value: float
    since_us: int
    told_at_us: int = 0
    """When it was notified last; 0 is not yet."""
    emails: tuple[str, ...] = ()
    held: bool = False
    """It has held while its rule was silenced: it is notified when that is over, if it still holds."""


class Change(NamedTuple):
    state: State
    rule: AlarmRule
    alarm: Alarm


class Notice(NamedTuple):
    """A notice to one set of recipients."""

    emails: tuple[str, ...]
    webhooks: tuple[str, ...]
    changes: tuple[Change, ...]
    more: int = 0


class Watch:
    """The alarms at the moment. `look` compares them with new readings."""

    def __init__(self, active: Iterable[Alarm] = ()) -> None:
        self.active: dict[tuple[str, str, str], Alarm] = {(one.rule, one.topic, one.group): one for one in active}

    def look(self, rules: Mapping[str, AlarmRule], readings: Iterable[Reading], now_us: int) -> list[Notice]:
        look = Look(self, rules, now_us)
        for reading in readings:
            look.note(reading)
        return look.end(rules)

    def exceeded(self, rule: AlarmRule, reading: Reading, now_us: int) -> list[Change]:
        """A rule is exceeded in one place."""
        key = (rule.name, reading.topic, reading.group)
        alarm = self.active.get(key)
        if alarm is None:
            if len(self.active) >= ACTIVE_MAX:
                return []
            alarm = self.active[key] = Alarm(*key, reading.value, now_us)
        alarm.value, alarm.emails = reading.value, reading.emails
        # The clock may have been ahead then: nobody waits for that time to come again.
        alarm.since_us, alarm.told_at_us = min(alarm.since_us, now_us), min(alarm.told_at_us, now_us)
        if now_us - alarm.since_us < rule.for_s * _SECOND_US:
            return []
        if rule.silenced(now_us):
            alarm.held = True
            return []
        state: State = "goes on" if alarm.told_at_us else "begun"
        if alarm.told_at_us and not alarm.held and now_us - alarm.told_at_us < rule.repeat_s * _SECOND_US:
            return []
        alarm.told_at_us, alarm.held = now_us, False
        return [Change(state, rule, alarm)]

    def firing(self, rules: Mapping[str, AlarmRule]) -> list[Alarm]:
        """The alarms that were notified, or would have been if their rule were not silenced."""
        return [one for one in self.active.values() if (one.told_at_us or one.held) and one.rule in rules]


class Look:
    """One comparison with all readings, which may be very many: reading by reading."""

    def __init__(self, watch: Watch, rules: Mapping[str, AlarmRule], now_us: int) -> None:
        self._watch = watch
        self._now_us = now_us
        self._by_kind: dict[str, list[AlarmRule]] = {}
        for rule in rules.values():
            if rule.enabled:
                self._by_kind.setdefault(rule.what, []).append(rule)
        self._seen: set[tuple[str, str, str]] = set()
        self._changes: list[Change] = []

    def note(self, reading: Reading) -> None:
        active = self._watch.active
        for rule in self._by_kind.get(reading.what, ()):
            key = (rule.name, reading.topic, reading.group)
            if not (rule.what in OF_BROKER or rule.concerns(reading.topic, reading.group)):
                continue
            # A restarted broker counts anew how long a group has been alone; it still is.
            if rule.exceeded(reading.value) or (rule.what == "offline" and key in active):
                self._seen.add(key)
                self._changes += self._watch.exceeded(rule, reading, self._now_us)

    def end(self, rules: Mapping[str, AlarmRule]) -> list[Notice]:
        """The notices due; by the rules as they are now: none of those dropped meanwhile."""
        active, now_us = self._watch.active, self._now_us
        for key in [key for key in active if key not in self._seen or key[0] not in rules]:
            alarm = active.pop(key)
            known = rules.get(alarm.rule)
            if alarm.told_at_us and known is not None and known.enabled and not known.silenced(now_us):
                self._changes.append(Change("cleared", known, alarm))
        return _notices([change for change in self._changes if change.rule.name in rules])


def hold_back(notice: Notice, rules: Mapping[str, AlarmRule], now_us: int) -> Notice | None:
    """The rest of a notice that waited while rules were silenced, if any. What still is an alarm when that is over is
    notified then."""
    left = []
    for change in notice.changes:
        rule = rules.get(change.rule.name)
        if rule is None or not rule.silenced(now_us):
            left.append(change)
        elif change.state != "cleared":
            change.alarm.held = True
            if change.state == "begun":
                change.alarm.told_at_us = 0
    return notice._replace(changes=tuple(left)) if left else None


def _notices(changes: Iterable[Change]) -> list[Notice]:
    """One notice for each set of recipients: a broker in trouble sends one mail, not a thousand."""
    grouped: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Change]] = {}
    for change in changes:
        emails = {*change.rule.emails, *(change.alarm.emails if change.rule.topic_emails else ())}
        if emails:
            grouped.setdefault((tuple(sorted(emails)), ()), []).append(change)
        if change.rule.webhooks:
            grouped.setdefault(((), change.rule.webhooks), []).append(change)
        if not emails and not change.rule.webhooks:
            grouped.setdefault(((), ()), []).append(change)
    return [
        Notice(emails, webhooks, tuple(some[:CHANGES_MAX]), max(len(some) - CHANGES_MAX, 0))
        for (emails, webhooks), some in grouped.items()
    ]
