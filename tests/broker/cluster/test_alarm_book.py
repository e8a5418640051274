"""Alarm rules in a cluster of log stores: a broker that was away hears of all that was done meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import towline
from tests.eventually import eventually
from tests.inside.alarms import AlarmRule
from tests.system.cluster.conftest import Brokers

HOUR_S = 3600.0


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path, 2)
    try:
        yield made.start().wait_for()
    finally:
        made.close()


def rules_at(brokers: Brokers, number: int) -> dict[str, dict[str, object]]:
    """What one broker has on file, since clients are told what all of them have together."""
    document = brokers.folder / str(number) / "config" / "alarms.json"
    if not document.exists():
        return {}
    return {rule["name"]: rule for rule in msgspec.json.decode(document.read_bytes())["rules"]}


def test_a_broker_that_was_away_learns_what_was_silenced_made_changed_and_dropped(two: Brokers) -> None:
    hook = "https://hooks.example.com/T024/secret"
    with towline.connect(two.url) as mq:
        for name in ("late", "gone"):
            mq.put_alarm(AlarmRule(name, "backlog", 5))
        eventually(lambda: rules_at(two, 0).keys() == rules_at(two, 1).keys() == {"late", "gone"})
    two.kill(1)
    with towline.connect(f"towline://{two.address(0)}") as mq:
        eventually(lambda: len(two.alive(0)) == 1)
        mq.silence_alarm("late", "the warehouse moves", for_s=HOUR_S)
        mq.put_alarm(AlarmRule("made", "dead", 1, webhooks=(hook,)))
        mq.put_alarm(AlarmRule("late", "backlog", 7))
        mq.drop_alarm("gone")
    two.start(1)
    there = eventually(lambda: rules_at(two, 1), holds=lambda found: found.keys() == {"late", "made"})
    eventually(lambda: rules_at(two, 1) == rules_at(two, 0))
    there = rules_at(two, 1)
    assert (there["late"]["threshold"], there["late"]["silence_reason"]) == (7, "the warehouse moves")
    assert there["made"]["webhooks"] == [hook], "as it is, not as it is shown"

    # The other way round, and across a restart of the one that was told.
    two.kill(0)
    with towline.connect(f"towline://{two.address(1)}") as mq:
        (late, _) = mq.alarms().rules
        assert late.silence_reason == "the warehouse moves"
        eventually(lambda: len(two.alive(1)) == 1)
        mq.unsilence_alarm("late")
    two.start(0)
    eventually(lambda: rules_at(two, 0)["late"]["silenced_until_us"] == 0)


def test_a_broker_that_stood_still_learns_of_a_silence(two: Brokers) -> None:
    with towline.connect(two.url) as mq:
        mq.put_alarm(AlarmRule("late", "backlog", 5))
    eventually(lambda: rules_at(two, 0).keys() == rules_at(two, 1).keys() == {"late"})
    two.freeze(1)
    eventually(lambda: len(two.alive(0)) == 1)
    with towline.connect(f"towline://{two.address(0)}", timeout=10) as mq:
        mq.silence_alarm("late", "one of them hangs", for_s=HOUR_S)
    two.thaw(1)
    eventually(lambda: rules_at(two, 1)["late"]["silence_reason"] == "one of them hangs")
