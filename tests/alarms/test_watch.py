"""Rules and readings in, notices out."""

from __future__ import annotations

import pytest

from towline.alarms.notice import subject, text
from towline.alarms.rule import AlarmRule
from towline.alarms.watch import Alarm, Notice, Reading, Watch
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
