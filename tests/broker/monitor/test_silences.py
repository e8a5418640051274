"""Silences end to end: nobody is told while one lasts, everybody sees it, and what still is an alarm is told after."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import towline
from tests.broker.monitor.conftest import PATIENCE_S, Mailbox
from tests.cli.conftest import Cli
from tests.eventually import eventually
from tests.inside.alarms import AlarmRule
from tests.inside.load import BrokerProcess

DAY_S = 86400.0
Hook = tuple[str, "queue.Queue[dict[str, Any]]"]


@pytest.fixture
def broker(mailbox: tuple[Mailbox, int], tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "smtp": f"127.0.0.1:{mailbox[1]}",
        "smtp_tls": "none",
        "alarm_wait_s": 0,
        "webhook_allow": "127.0.0.1",
        "durability": "os",
    }
    with BrokerProcess(f"file:{tmp_path}/data", log_level="error", name="harbour", **settings) as process:
        yield process


def leave_waiting(mq: towline.Client, topic: str, count: int) -> None:
    mq.send_many(topic, [b"x"] * count)
    mq.put_group(towline.GroupConfig(topic, "billing", start="earliest"))


def ringing(mq: towline.Client) -> set[str]:
    """Rules that are broken; to ask for figures makes the broker take them anew."""
    mq.pulse()
    return {one.rule for one in mq.alarms().active}


def silence_briefly(mq: towline.Client, rule: str) -> float:
    """Until when; if the broker hears of it too late, until later."""
    for seconds in (2, 8, 32):
        until_s = time.time() + seconds
        try:
            mq.silence_alarm(rule, "a moment", until=until_s)
        except towline.BadRequest:
            continue
        return until_s
    raise AssertionError("the broker is too slow to be silenced for half a minute")


def test_nobody_is_told_while_a_rule_is_silenced_not_even_after_a_restart(
    broker: BrokerProcess, mailbox: tuple[Mailbox, int], hook: Hook
) -> None:
    url, heard = hook
    with towline.connect(broker.url) as mq:
        mq.put_alarm(AlarmRule("quiet", "backlog", 1, emails=("ops@example.com",), webhooks=(url,), enabled=False))
        mq.silence_alarm("quiet", "the warehouse moves", for_s=DAY_S)
        mq.put_alarm(AlarmRule("quiet", "backlog", 1, emails=("ops@example.com",), webhooks=(url,)))
        mq.put_alarm(AlarmRule("loud", "backlog", 1, emails=("mia@example.com",)))
        (loud, quiet) = mq.alarms().rules
        assert (quiet.silence_reason, loud.silenced_until_us) == ("the warehouse moves", 0), "a change leaves it alone"
        leave_waiting(mq, "orders", 3)
        eventually(lambda: ringing(mq) == {"quiet", "loud"})
    assert mailbox[0].next()["X-Rcpt"] == "mia@example.com"

    broker.kill()
    broker.start()
    with towline.connect(broker.url) as mq:
        assert mq.alarms().rules[1] == quiet
        eventually(lambda: ringing(mq) == {"quiet", "loud"})
        mq.put_alarm(AlarmRule("after", "backlog", 1, emails=("mia@example.com",)))
        # What is found later is told later: had the other been told, its mail would have come first.
        assert mailbox[0].next()["Subject"] == "[harbour] alarm: after on topic orders, group billing"
        assert heard.empty()

        mq.unsilence_alarm("quiet")
        mail = mailbox[0].next()
        assert (mail["X-Rcpt"], mail["Subject"]) == (
            "ops@example.com", "[harbour] alarm: quiet on topic orders, group billing",
        )  # fmt: skip
        assert heard.get(timeout=PATIENCE_S)["alarms"][0]["rule"] == "quiet"
        assert mq.alarms().rules[2].silenced_until_us == 0
    assert mailbox[0].mails.empty()


def test_when_a_silence_ends_by_itself_what_still_is_an_alarm_is_told(broker: BrokerProcess, hook: Hook) -> None:
    url, heard = hook
    with towline.connect(broker.url) as mq:
        leave_waiting(mq, "orders", 3)
        mq.put_alarm(AlarmRule("brief", "backlog", 1, webhooks=(url,), enabled=False))
        until_s = silence_briefly(mq, "brief")
        mq.put_alarm(AlarmRule("brief", "backlog", 1, webhooks=(url,)))
        said = heard.get(timeout=PATIENCE_S)
        assert said["alarms"][0]["state"] == "begun"
        assert said["at_us"] >= until_s * 1e6
        assert mq.alarms().rules[0].silenced_until_us == 0


def test_a_silence_needs_a_reason_and_an_end_that_is_not_far_off(broker: BrokerProcess) -> None:
    with towline.connect(broker.url) as mq:
        mq.put_alarm(AlarmRule("late", "age", 300))
        for reason, times, message in (
            ("", {"for_s": 60}, "say why"),
            (" ", {"for_s": 60}, "say why"),
            ("x" * 501, {"for_s": 60}, "500 characters"),
            ("x", {}, "one of for_s and until"),
            ("x", {"for_s": 60, "until": 1e9}, "one of for_s and until"),
            ("x", {"for_s": -1}, "ends in the future"),
            ("x", {"until": 1e9}, "ends in the future"),
            ("x", {"for_s": 367 * DAY_S}, "within 366 days"),
            ("x", {"for_s": 1e12}, "before the year 10000"),
            ("x", {"for_s": float("inf")}, "ends some day"),
        ):
            with pytest.raises(towline.BadRequest, match=message):
                mq.silence_alarm("late", reason, **times)
        with pytest.raises(towline.NotFound, match="there is no alarm"):
            mq.silence_alarm("none", "x", for_s=60)
        with pytest.raises(towline.NotFound, match="there is no alarm"):
            mq.unsilence_alarm("none")
        assert mq.alarms().rules[0].silenced_until_us == 0


def test_the_command_line_silences_lists_and_ends_it(broker: BrokerProcess, tmp_path: Path) -> None:
    cli = Cli(broker.url, tmp_path)
    cli("alarm", "add", "late", "backlog", "1")
    with towline.connect(broker.url) as mq:
        leave_waiting(mq, "orders", 3)
        eventually(lambda: ringing(mq) == {"late"})
    said = cli("alarm", "silence", "late", "--for", "2h", "--reason", "the warehouse moves", "-o", "json").line
    assert (said["alarm"], said["silence_reason"]) == ("late", "the warehouse moves")
    for show in ("rules", "active"):
        row = cli("alarm", "ls", "--show", show, "-o", "json").line
        assert (row["silenced_until"], row["silence_reason"]) == (said["silenced_until"], "the warehouse moves")
        shown = cli("alarm", "ls", "--show", show).text
        assert f"silenced until {said['silenced_until']}: the warehouse moves" in shown
    assert "silenced until 2" in cli("alarm", "silence", "late", "--until", said["silenced_until"], "--reason", "x").err
    assert "--for or --until" in cli("alarm", "silence", "late", "--reason", "x", code=2).err
    assert cli("alarm", "unsilence", "late", "-o", "json").line == {"alarm": "late", "silenced_until": None}
    assert cli("alarm", "ls", "-o", "json").line["silenced_until"] is None
    assert "there is no alarm" in cli("alarm", "silence", "none", "--for", "1h", "--reason", "x", code=1).err
