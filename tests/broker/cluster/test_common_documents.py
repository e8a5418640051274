"""Two brokers on one database: users, tokens, rules, alarms and the template are the same at both, and stay."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import towline
from tests.broker.access.declared import access_file
from tests.broker.process import BrokerProcess
from tests.inside.alarms import AlarmRule
from tests.inside.client import Client, Quota
from tests.store.sql.server import new_database
from tests.system.cluster.conftest import Brokers, eventually
from towline.errors import NotLetIn, Refused, TowlineError
from towline.model import TopicConfig

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """With security; nobody may administer access yet."""
    folder = tmp_path_factory.mktemp("common")
    tokens = access_file(folder, (), cluster="a-word-between-us")
    (folder / "secret").write_text("a-word-between-us\n")
    (folder / "secret").chmod(0o600)
    flags = ["--security", "--realms", "4", "--setup-file", str(folder / "setup")]
    flags += ["--audit-file", str(folder / "audit-{n}.jsonl"), "--access-file", str(tokens)]
    flags += ["--cluster-token", "cluster", "--cluster-secret-file", str(folder / "secret")]
    made = Brokers(folder, 2, *flags, stores=[new_database()] * 2)
    made.credentials = {"token": "root", "secret": PASSWORD}
    try:
        made.start(0)
        made.start(1)
        yield made
    finally:
        made.close()


@pytest.fixture
def brokers(fresh: Brokers) -> Brokers:
    """Both run, know each other and have an administrator, whichever test is the first."""
    if (fresh.folder / "setup").exists():
        _make_first_administrator(fresh)
    dead = [number for number, process in enumerate(fresh.processes) if process is None]
    return (fresh.start(*dead) if dead else fresh).wait_for()


def _make_first_administrator(fresh: Brokers) -> None:
    setup = fresh.folder / "setup"
    secret = setup.read_text().strip()
    assert lets_in(fresh, 0, "setup", secret)
    # Both brokers keep it in the same place, so that both know it.
    with at(fresh, 1, "setup", secret) as first:
        first.access.create_user("root", PASSWORD, roles=["admin"])
    eventually(lambda: lets_in(fresh, 0, "root", PASSWORD))
    assert not setup.exists()
    eventually(lambda: not lets_in(fresh, 0, "setup", secret))
    with at(fresh, 0) as admin:
        admin.access.allow("cluster", "admin", "cluster")


def at(brokers: Brokers, number: int, token: str = "root", secret: str = PASSWORD, **options: Any) -> Client:
    return towline.connect(f"towline://{brokers.address(number)}", token=token, secret=secret, timeout=20, **options)


def lets_in(brokers: Brokers, number: int, token: str, secret: str) -> bool:
    try:
        at(brokers, number, token, secret).close()
    except NotLetIn:
        return False
    return True


def is_out(client: Client) -> bool:
    try:
        client.access.who_am_i()
    except NotLetIn:
        return True
    return False


def test_the_first_administrator_is_one_everywhere_and_stays(brokers: Brokers) -> None:
    for number in (0, 1):
        brokers.terminate(number)
        brokers.start(number)
    brokers.wait_for()
    assert not (brokers.folder / "setup").exists()
    for number in (0, 1):
        with at(brokers, number) as admin:
            assert [one.name for one in admin.access.users()] == ["root"]


def test_what_is_revoked_at_one_broker_ends_at_the_other(brokers: Brokers) -> None:
    with at(brokers, 0) as admin:
        made = admin.access.create_token("shop", roles=["producer"])
        rule = admin.access.allow("shop", "consume", "topic")
        admin.access.allow("shop", "consume", "group")
        eventually(lambda: lets_in(brokers, 1, "shop", made.secret))
        with at(brokers, 1, "shop", made.secret) as shop:
            eventually(lambda: _may(shop, "consume", "topic", "orders"))
            admin.access.drop_rule(rule)
            eventually(lambda: not _may(shop, "consume", "topic", "orders"))
            admin.access.revoke_token("shop")
            eventually(lambda: is_out(shop))
        assert not lets_in(brokers, 1, "shop", made.secret)


def _may(client: Client, *what: str) -> bool:
    return client.access.who_am_i([what]).allowed == [True]  # type: ignore[list-item]


def test_changes_at_two_brokers_at_once_are_all_there(brokers: Brokers) -> None:
    errors: list[TowlineError] = []

    def make(number: int) -> None:
        with at(brokers, number) as admin:
            for each in range(10):
                try:
                    admin.access.create_token(f"t{number}-{each}", quota=Quota(connections=number + 1))
                except TowlineError as error:
                    errors.append(error)

    threads = [threading.Thread(target=make, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    wanted = {f"t{number}-{each}": number + 1 for number in (0, 1) for each in range(10)}

    def seen(number: int) -> bool:
        with at(brokers, number) as admin:
            return {one.name: one.quota.connections for one in admin.access.tokens() if one.name in wanted} == wanted

    for number in (0, 1):
        eventually(partial(seen, number))


def test_whoever_may_send_but_not_make_topics_finds_the_right_broker(brokers: Brokers) -> None:
    topics = [f"made-{number}" for number in range(6)]
    with at(brokers, 0) as admin:
        for topic in topics:
            admin.create_topic(topic)
        secret = admin.access.create_token("sender").secret
        admin.access.allow("sender", "send", "topic", "made-*")
    eventually(lambda: lets_in(brokers, 1, "sender", secret))
    for number in (0, 1):
        with at(brokers, number, "sender", secret) as sender:
            eventually(partial(_may, sender, "send", "topic", "made-1"))
            for topic in topics:
                sender.send(topic, b"x")
            with pytest.raises(Refused):
                sender.send("not-made", b"x")


def test_alarm_rules_and_the_template_are_those_of_all_realms(brokers: Brokers) -> None:
    topics = [f"alarm-{number}" for number in range(6)]
    with at(brokers, 0) as one, at(brokers, 1) as other:
        one.put_alarm(AlarmRule("slow", "backlog", 10))
        one.put_topic(TopicConfig("template", retention_s=777.0), template=True)
        # Whoever makes a topic looks what the template is now: nobody has to wait until all brokers have heard of it.
        for topic in topics:
            other.send_many(topic, [b"x"] * 20)
            other.put_group(towline.GroupConfig(topic, "g", start="earliest"))
            assert other.topic(topic).config.retention_s == 777.0
        with other.consumer("alarm-7", group="g"):
            assert other.topic("alarm-7").config.retention_s == 777.0
        eventually(lambda: [rule.name for rule in other.alarms().rules] == ["slow"])
        eventually(lambda: other.template().retention_s == 777.0)
        eventually(lambda: {alarm.topic for mq in (one, other) for alarm in mq.alarms().active} == set(topics))
        one.silence_alarm("slow", "they are known", for_s=3600)
        eventually(lambda: [rule.silence_reason for rule in other.alarms().rules] == ["they are known"])
        eventually(lambda: {alarm.topic for mq in (one, other) for alarm in mq.alarms().active} == set(topics))
        other.unsilence_alarm("slow")
        eventually(lambda: [rule.silenced_until_us for rule in one.alarms().rules] == [0])
        other.drop_alarm("slow")
        for mq in (one, other):
            eventually(partial(_is_quiet, mq))


def _is_quiet(mq: Client) -> bool:
    found = mq.alarms()
    return not found.rules and not found.active


def test_a_broker_alone_goes_on_with_the_same_book(brokers: Brokers) -> None:
    with at(brokers, 0) as admin:
        admin.access.create_token("doomed")
        admin.put_topic(TopicConfig("template", retention_s=888.0), template=True)
    # Either may own the realm that one alone serves: the other one learns of it when it stops, if not before.
    for number in (0, 1):
        brokers.terminate(number)
    folder = brokers.folder
    with BrokerProcess(
        store=brokers.stores[0], security=True, setup_file=str(folder / "setup"), audit_file=str(folder / "alone.jsonl")
    ) as alone:
        url = f"towline://127.0.0.1:{alone.port}"
        with towline.connect(url, token="root", secret=PASSWORD, timeout=20) as admin:
            assert "doomed" in {one.name for one in admin.access.tokens()}
            admin.access.revoke_token("doomed")
            assert admin.template().retention_s == 888.0
        alone.stop()
        alone.wait()
    brokers.start(0)
    with at(brokers, 0) as admin:
        assert "doomed" not in {one.name for one in admin.access.tokens()}


def test_a_transaction_is_committed_only_while_its_topics_may_be_sent_to(tmp_path: Path) -> None:
    """On a shared database the broker that is asked is not the one that keeps the transaction."""
    secret = "a-word-between-us"
    flags = ["--security", "--access-file", str(access_file(tmp_path, root=secret)), "--audit-file"]
    brokers = Brokers(tmp_path, 1, *flags, str(tmp_path / "audit.jsonl"), stores=[new_database()])
    brokers.credentials = {"token": "root", "secret": secret}
    try:
        brokers.start(0)
        with at(brokers, 0, "root", secret) as root:
            root.send("orders", b"first")
            made = root.access.create_token("preparer")
            rule = root.access.allow("preparer", "send", "topic", "orders")
            with at(brokers, 0, "preparer", made.secret) as preparer:
                transaction = preparer.prepare("shop", "order-1")
                transaction.send("orders", b"x")
                transaction.store()
                root.access.drop_rule(rule)
                with pytest.raises(Refused, match="may not send topic orders"):
                    transaction.commit()
                transaction.rollback()
    finally:
        brokers.close()
