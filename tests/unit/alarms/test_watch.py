"""Rules and readings in, notices out."""

from __future__ import annotations

import msgspec
import pytest

from towline.alarms.notice import subject, text
from towline.alarms.rule import AlarmRule
from towline.alarms.watch import Alarm, Notice, Reading, Watch, hold_back
from towline.errors import BadName, BadRequest

S = 1_000_000
OPS = ("ops@example.com",)


def rules(*some: AlarmRule) -> dict[str, AlarmRule]:
    return {rule.name: rule for rule in some}


def states(notices: list[Notice]) -> list[tuple[str, str, str]]:
    return [(change.state, change.alarm.topic, change.alarm.group) for one in notices for change in one.changes]


def test_an_alarm_is_told_once_repeated_sparingly_and_cleared() -> None:
    watch, known = Watch(), rules(AlarmRule("dead", "dead", 3, emails=OPS, repeat_s=600))
    many, few = [Reading("dead", 5, "orders", "billing")], [Reading("dead", 2, "orders", "billing")]
    assert states(watch.look(known, few, 0)) == []
    assert states(watch.look(known, many, 1 * S)) == [("begun", "orders", "billing")]
    assert states(watch.look(known, many, 5 * S)) == []
    assert states(watch.look(known, many, 601 * S)) == [("goes on", "orders", "billing")]
    assert states(watch.look(known, many, 700 * S)) == []
    assert states(watch.look(known, few, 701 * S)) == [("cleared", "orders", "billing")]
    assert states(watch.look(known, few, 702 * S)) == []


def test_it_must_last_before_it_is_told_and_what_was_not_told_is_not_cleared() -> None:
    watch, known = Watch(), rules(AlarmRule("slow", "age", 10, emails=OPS, for_s=60))
    late = [Reading("age", 11, "orders", "billing")]
    assert watch.look(known, late, 1 * S) == []
    assert watch.look(known, [], 30 * S) == []
    assert watch.look(known, late, 31 * S) == []
    assert states(watch.look(known, late, 91 * S)) == [("begun", "orders", "billing")]


def test_a_clock_that_was_ahead_and_is_set_right_delays_no_alarm() -> None:
    watch, known = Watch(), rules(AlarmRule("slow", "backlog", 10, emails=OPS, for_s=60, repeat_s=600))
    many = [Reading("backlog", 11, "orders", "billing")]
    assert watch.look(known, many, 7200 * S) == []
    assert watch.look(known, many, 1 * S) == []
    assert states(watch.look(known, many, 61 * S)) == [("begun", "orders", "billing")]
    assert watch.look(known, many, 7200 * S) != []
    assert watch.look(known, many, 62 * S) == []
    assert states(watch.look(known, many, 662 * S)) == [("goes on", "orders", "billing")]


def test_what_the_same_people_are_told_goes_into_one_notice() -> None:
    watch = Watch()
    known = rules(
        AlarmRule("dead", "dead", 1, emails=OPS),
        AlarmRule("hook", "backlog", 1, webhooks=("https://x.example/secret",), topic_emails=False),
    )
    readings = [Reading("dead", 1, f"t{n}", "g", ("mia@example.com",) if n == 7 else ()) for n in range(1000)]
    found = watch.look(known, [*readings, Reading("backlog", 9, "t1", "g")], S)
    assert [(one.emails, one.webhooks, len(one.changes), one.more) for one in found] == [
        (OPS, (), 200, 799),
        (("mia@example.com", "ops@example.com"), (), 1, 0),
        ((), ("https://x.example/secret",), 1, 0),
    ]
    assert "and 799 more" in text(found[0], "b1")
    assert subject(found[1], "b1") == "[b1] alarm: dead on topic t7, group g"


def test_rules_are_for_the_topics_and_groups_that_they_name() -> None:
    known = rules(AlarmRule("late", "age", 1, topic="orders.*", group="billing", emails=OPS))
    readings = [Reading("age", 2, topic, group) for topic in ("orders.eu", "stock") for group in ("billing", "mail")]
    assert states(Watch().look(known, readings, S)) == [("begun", "orders.eu", "billing")]
    assert Watch().look(rules(AlarmRule("off", "age", 1, emails=OPS, enabled=False)), readings, S) == []


def test_a_disk_is_an_alarm_below_its_threshold() -> None:
    known = rules(AlarmRule("disk", "disk", 10, emails=OPS))
    assert Watch().look(known, [Reading("disk", 10.0)], S) == []
    assert states(Watch().look(known, [Reading("disk", 9.9)], S)) == [("begun", "", "")]


def test_a_restarted_broker_does_not_take_a_lonely_group_for_one_that_has_a_consumer_again() -> None:
    known = rules(AlarmRule("gone", "offline", 60, emails=OPS))
    watch = Watch([Alarm("gone", "orders", "billing", 500, S, 2 * S)])
    assert watch.look(known, [Reading("offline", 1, "orders", "billing")], 3 * S) == []
    assert states(watch.look(known, [], 4 * S)) == [("cleared", "orders", "billing")]


def silenced(rule: AlarmRule, until_s: int) -> dict[str, AlarmRule]:
    return rules(msgspec.structs.replace(rule, silenced_until_us=until_s * S))


def test_what_begins_while_its_rule_is_silenced_is_listed_and_told_when_that_is_over() -> None:
    watch, rule = Watch(), AlarmRule("slow", "age", 10, emails=OPS, for_s=5)
    late = [Reading("age", 11, "orders", "billing")]
    assert watch.look(silenced(rule, 100), late, 1 * S) == []
    assert watch.firing(rules(rule)) == [], "it has not lasted long enough"
    assert watch.look(silenced(rule, 100), late, 99 * S) == []
    assert [one.since_us for one in watch.firing(rules(rule))] == [1 * S]
    assert states(watch.look(silenced(rule, 100), late, 100 * S)) == [("begun", "orders", "billing")]
    assert watch.look(silenced(rule, 100), late, 101 * S) == []


def test_a_silence_that_a_clock_has_begun_that_was_ahead_keeps_nothing_back() -> None:
    watch, rule = Watch(), AlarmRule("slow", "backlog", 10, emails=OPS)
    late, year_s = [Reading("backlog", 11, "orders", "billing")], 366 * 86_400
    assert watch.look(silenced(rule, year_s), late, 1 * S) == []
    assert states(watch.look(silenced(rule, 20 * year_s), late, 2 * S)) == [("begun", "orders", "billing")]


def test_what_was_told_before_the_silence_is_not_repeated_in_it_but_after_it() -> None:
    watch, rule = Watch(), AlarmRule("dead", "dead", 1, emails=OPS, repeat_s=600)
    dead = [Reading("dead", 1, "orders", "billing")]
    assert states(watch.look(rules(rule), dead, 1 * S)) == [("begun", "orders", "billing")]
    assert watch.look(silenced(rule, 1000), dead, 700 * S) == []
    # Lifted early: whoever waited for the end of the silence hears of it at once.
    assert states(watch.look(rules(rule), dead, 701 * S)) == [("goes on", "orders", "billing")]
    assert watch.look(rules(rule), dead, 1300 * S) == []
    assert states(watch.look(rules(rule), dead, 1301 * S)) == [("goes on", "orders", "billing")]


def test_what_is_over_while_its_rule_is_silenced_is_not_told_at_all() -> None:
    watch, rule = Watch(), AlarmRule("dead", "dead", 1, emails=OPS)
    known = [Reading("dead", 1, "orders", "billing")]
    assert len(watch.look(rules(rule), known, 1 * S)) == 1
    assert watch.look(silenced(rule, 100), [*known, Reading("dead", 1, "stock", "count")], 2 * S) == []
    assert watch.look(silenced(rule, 100), [], 3 * S) == []
    assert watch.look(rules(rule), [], 4 * S) == []
    assert watch.active == {}


def test_a_notice_that_waits_while_a_rule_is_silenced_is_held_back() -> None:
    watch, rule, other = Watch(), AlarmRule("dead", "dead", 1, emails=OPS), AlarmRule("late", "age", 1, emails=OPS)
    readings = [Reading("dead", 1, "orders", "billing"), Reading("age", 2, "orders", "billing")]
    (notice,) = watch.look(rules(rule, other), readings, 1 * S)
    now = silenced(rule, 100) | rules(other)
    left = hold_back(notice, now, 2 * S)
    assert left is not None
    assert [change.rule.name for change in left.changes] == ["late"]
    assert hold_back(left, silenced(other, 100), 2 * S) is None
    assert {one.rule for one in watch.firing(now)} == {"dead", "late"}
    assert states(watch.look(rules(rule, other), readings, 3 * S)) == [("begun", "orders", "billing")] * 2


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": "../x"}, BadName),
        ({"topic": "a b"}, BadName),
        ({"emails": ("nobody",)}, BadRequest),
        ({"emails": ("a@b\r\nBcc: c@d",)}, BadRequest),
        ({"webhooks": ("file:///etc/passwd",)}, BadRequest),
        ({"webhooks": ("https://",)}, BadRequest),
        ({"what": "disk", "threshold": 101}, BadRequest),
    ],
)
def test_a_rule_that_cannot_be_is_refused(changes: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        AlarmRule(**({"name": "x", "what": "dead", "threshold": 1} | changes))  # type: ignore[arg-type]
