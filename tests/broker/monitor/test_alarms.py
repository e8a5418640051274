"""Alarms end to end: a real broker, a real mail server, a real webhook, the command line."""

from __future__ import annotations

import queue
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
from towline.model import RetryPolicy


@pytest.fixture(scope="module")
def broker(mailbox: tuple[Mailbox, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    store = tmp_path_factory.mktemp("alarms") / "data"
    settings = {
        "smtp": f"127.0.0.1:{mailbox[1]}",
        "smtp_tls": "none",
        "alarm_wait_s": 0,
        "webhook_allow": "127.0.0.1",
        "durability": "os",
    }
    with BrokerProcess(f"file:{store}", log_level="error", name="harbour", **settings) as process:
        yield process


@pytest.fixture
def mq(broker: BrokerProcess) -> Iterator[towline.Client]:
    with towline.connect(broker.url) as client:
        yield client


@pytest.fixture
def cli(broker: BrokerProcess, tmp_path: Path) -> Cli:
    return Cli(broker.url, tmp_path)


def bury(mq: towline.Client, topic: str, count: int = 1) -> None:
    """Send messages, and give them up."""
    mq.send_many(topic, [b"x"] * count)
    with mq.consumer(topic, group="billing", retry=RetryPolicy(1, (0,))) as consumer:
        left = count
        while left:
            batch = consumer.pull(max_messages=count, wait=PATIENCE_S)
            for message in batch:
                message.dead("no such customer")
                left -= 1
        consumer.flush()
    eventually(lambda: mq.group(topic, "billing").dead == count)


def look(mq: towline.Client) -> None:
    """Ask for the figures, which makes the broker take them anew."""
    mq.pulse()


def test_dead_letters_are_mailed_to_the_rule_and_to_the_topic_and_cleared(
    mq: towline.Client, mailbox: tuple[Mailbox, int]
) -> None:
    mq.create_topic("orders", business_line="shop", author="mia", alarm_emails=["mia@example.com"])
    mq.put_alarm(AlarmRule("dead", "dead", 2, topic="orders", emails=("ops@example.com",)))
    bury(mq, "orders", 2)
    look(mq)
    mail = mailbox[0].next()
    assert mail["X-Rcpt"] == "mia@example.com,ops@example.com"
    assert mail["Subject"] == "[harbour] alarm: dead on topic orders, group billing"
    assert "2 dead letters" in mail.get_content()
    (active,) = mq.alarms().active
    assert (active.rule, active.topic, active.group, active.value) == ("dead", "orders", "billing", 2)

    mq.resend("orders", "billing")
    eventually(lambda: not mq.pulse().now["dead"] and not mq.alarms().active)
    assert mailbox[0].next()["Subject"] == "[harbour] cleared: dead on topic orders, group billing"
    eventually(lambda: len(mq.alarms().told) == 2)
    assert [(one.subject.split("]")[1].split(":")[0].strip(), one.error) for one in mq.alarms().told[:2]] == [
        ("cleared", ""),
        ("alarm", ""),
    ]
    mq.drop_alarm("dead")


def test_backlog_age_failures_and_lonely_groups_reach_a_webhook_whose_path_nobody_sees(
    mq: towline.Client, hook: tuple[str, queue.Queue[dict[str, Any]]]
) -> None:
    url, heard = hook[0] + "/a-secret", hook[1]
    mq.send_many("stock", [b"x"] * 10)
    with mq.consumer("stock", group="count", retry=RetryPolicy(5, (3600,))) as consumer:
        for message in consumer.pull(max_messages=3, wait=PATIENCE_S):
            message.nack("try later")
        consumer.flush()
    for what, threshold in (("backlog", 10), ("age", 0.01), ("failures", 3), ("offline", 0.01)):
        mq.put_alarm(AlarmRule(f"stock-{what}", what, threshold, topic="stock", webhooks=(url,)))  # type: ignore[arg-type]
    assert {one for rule in mq.alarms().rules for one in rule.webhooks} == {hook[0] + "/…"}
    seen: dict[str, float] = {}

    def all_four() -> bool:
        look(mq)
        while not heard.empty():
            said = heard.get()
            assert said["broker"] == "harbour"
            seen.update({one["what"]: one["value"] for one in said["alarms"] if one["state"] == "begun"})
        return len(seen) == 4

    eventually(all_four)
    assert seen["backlog"] == 10
    assert seen["failures"] == 3
    assert 0 < seen["age"] < 600
    # What was listed can be given back: the address stays.
    listed = next(rule for rule in mq.alarms().rules if rule.name == "stock-age")
    mq.put_alarm(listed)
    mq.test_alarm("stock-age")
    assert heard.get(timeout=PATIENCE_S)["text"].startswith("[harbour] alarm: stock-age")
    for rule in mq.alarms().rules:
        mq.drop_alarm(rule.name)


def test_a_webhook_that_sends_us_elsewhere_is_not_followed(
    mq: towline.Client, hook: tuple[str, queue.Queue[dict[str, Any]]]
) -> None:
    mq.put_alarm(AlarmRule("moved", "dead", 1, webhooks=(hook[0] + "/moved",)))
    with pytest.raises(towline.BadRequest, match="302"):
        mq.test_alarm("moved")
    hook[1].get(timeout=PATIENCE_S)
    assert hook[1].empty()
    mq.drop_alarm("moved")


def test_the_command_line_makes_lists_tests_and_removes_rules(cli: Cli, mailbox: tuple[Mailbox, int]) -> None:
    cli("alarm", "add", "late", "age", "300", "--topic", "orders.*", "--email", "ops@example.com", "--repeat", "1h")
    rule = cli("alarm", "ls", "-o", "json").line
    assert (rule["name"], rule["what"], rule["threshold"], rule["repeat_s"]) == ("late", "age", 300.0, 3600.0)
    assert "late" in cli("alarm", "ls").text
    cli("alarm", "test", "late")
    assert mailbox[0].next()["Subject"].startswith("test: [harbour] alarm: late")
    assert "test: [harbour]" in cli("alarm", "ls", "--show", "notices").text
    assert cli("alarm", "add", "x", "disk", "101", code=1).err.startswith("error: alarm x: the threshold of a disk")
    assert "there is no alarm" in cli("alarm", "test", "nope", code=1).err
    cli("alarm", "rm", "late", "--yes")
    assert cli("alarm", "ls", "-o", "json").lines == []


def test_rules_outlive_the_broker(broker: BrokerProcess) -> None:
    with towline.connect(broker.url) as mq:
        mq.put_alarm(AlarmRule("disk", "disk", 1.5))
    broker.kill()
    broker.start()
    with towline.connect(broker.url) as mq:
        assert [(rule.name, rule.threshold) for rule in mq.alarms().rules] == [("disk", 1.5)]
