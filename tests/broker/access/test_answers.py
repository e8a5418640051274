"""What is in the answers: every request of the protocol is asked by someone who may do much, but must not learn of one
topic, of one group and of the keys of another topic. Nothing that comes back names them, and no sum counts them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest

from tests.broker.access.secured import Secured, secured
from tests.broker.raw_client import RawClient
from tests.eventually import eventually
from tests.inside.alarms import AlarmRule
from tests.inside.client import Client
from tests.inside.protocol import (
    EditTopic,
    Failed,
    Pause,
    Purge,
    Request,
    Seek,
    ShardCount,
    access,
    backup,
    cluster,
    decode_answer,
    monitor,
    publications,
    scan,
)
from tests.inside.protocol import messages as m
from tests.inside.protocol import transactions as tx
from tests.rest.process import rest_door
from tests.unit.protocol import samples
from towline.errors import NotFound, Refused

SECRETS = ("payroll", "auditors", "order-4423", "someone")
"""A topic; a group of the topic `orders`; the key of a message of the topic `stock`; a consumer of that group."""
RIGHTS: list[tuple[str, str, str]] = [
    ("admin", "topic", "orders"),
    ("admin", "group", "billing"),
    ("describe", "topic", "stock"),
    ("describe", "cluster", "*"),
]
ASKED: dict[type[Request], list[Request]] = {
    m.TopicInfo: [m.TopicInfo("orders")],
    m.ListTopics: [m.ListTopics()],
    m.ListGroups: [m.ListGroups(), m.ListGroups("orders"), m.ListGroups("payroll")],
    m.GroupInfo: [m.GroupInfo("orders", "billing"), m.GroupInfo("orders", "auditors")],
    m.Stat: [m.Stat()],
    m.ListDelayed: [m.ListDelayed(), m.ListDelayed("stock"), m.ListDelayed("payroll"), m.ListDelayed("stock", key="k")],
    m.Browse: [m.Browse("orders"), m.Browse("orders", group="billing"), m.Browse("orders", group="auditors")],
    m.Find: [m.Find("orders", 1, "k"), m.Find("stock", 1, "k")],
    m.Trace: [m.Trace("orders", "billing", 1, 0), m.Trace("orders", "auditors", 1, 0)],
    m.Locate: [m.Locate("orders", 1, 0)],
    m.Template: [m.Template()],
    m.Attach: [m.Attach("orders", "billing", "c9"), m.Attach("*", "billing", "c9")],
    m.Detach: [m.Detach(1)],
    m.Beat: [m.Beat()],
    m.Resend: [m.Resend("orders", "billing", [77])],
    m.PurgeDead: [m.PurgeDead("orders", "billing", 0)],
    m.CancelDelayed: [
        m.CancelDelayed("orders", [2], dry_run=True),
        m.CancelDelayed("stock", key="order-0", dry_run=True),
    ],
    m.MoveDelayed: [m.MoveDelayed("orders", [1], "", 0, True), m.MoveDelayed("stock", [1], "", 0, True)],
    tx.ListTransactions: [tx.ListTransactions(), tx.ListTransactions("t-hidden")],
    tx.Decide: [tx.Decide("t-hidden", True), tx.Decide("t-hidden", False)],
    tx.AwaitChecks: [tx.AwaitChecks("hr")],
    ShardCount: [ShardCount("orders")],
    Seek: [Seek("orders", "billing", "latest", dry_run=True)],
    Purge: [Purge("orders", dry_run=True)],
    scan.Scan: [scan.Scan("lane/orders/middle", 0, 10, 1 << 16), scan.Scan("pull/orders/auditors", 0, 10)],
    scan.Survey: [scan.Survey(), scan.Survey("pull/orders/"), scan.Survey("lane/stock/")],
    scan.LocateIn: [scan.LocateIn("pull/orders/billing", 0), scan.LocateIn("pull/orders/auditors", 0)],
    publications.AskSink: [publications.AskSink("spark")],
    access.WhoAmI: [access.WhoAmI()],
    access.ListTokens: [access.ListTokens()],
    access.Measure: [access.Measure(), access.Measure("orders"), access.Measure("payroll")],
    cluster.ListBrokers: [cluster.ListBrokers()],
    cluster.ListClients: [cluster.ListClients(), cluster.ListClients("orders"), cluster.ListClients("orders", "none")],
    monitor.ListPage: [
        *(monitor.ListPage("topics", sort=sort) for sort in monitor.TOPIC_ORDERS),
        *(monitor.ListPage("groups", sort=sort) for sort in monitor.GROUP_ORDERS),
        monitor.ListPage("groups", topic="orders"),
        monitor.ListPage("topics", line="hr-line"),
    ],
    monitor.Pulse: [monitor.Pulse(), monitor.Pulse("orders", "billing"), monitor.Pulse("orders", "auditors")],
    monitor.Storage: [monitor.Storage()],
    monitor.ListAlarms: [monitor.ListAlarms()],
}
WATCHED = [
    ("open", "orders", "billing"),
    ("of-topic", "payroll", "*"),
    ("of-group", "orders", "auditors"),
    ("all-of-prefix", "*", "bill*"),
    ("some-of-prefix", "*", "audit*"),
    ("prefix-of-topic", "pay*", "*"),
    ("wider-prefix", "orders*", "*"),
]
"""Rules of alarms, which are no alarms: a name, the topic, the group."""
SILENT: set[type[Request]] = {
    m.Hello, m.Send, m.Pull, m.Settle, m.CreateTopic, m.DeleteTopic, m.PutGroup, m.DeleteGroup, m.PutTopic,
    m.ReviseDead, tx.Prepare, tx.Resolve, Pause, EditTopic, publications.Report, publications.Stage,
    publications.Publish, publications.Unstage, publications.MoveHold, cluster.HandBack, monitor.PutAlarm,
    monitor.DropAlarm, monitor.SilenceAlarm, monitor.TestAlarm, monitor.Kick,
}  # fmt: skip
"""They change what they name, and say that it is done: nothing of anything else."""
ADMINS: set[type[Request]] = {
    access.ListUsers, access.PutUser, access.DeleteUser, access.CreateToken, access.RevokeToken, access.ListRules,
    access.AddRule, access.DropRule, access.ListAudit, cluster.Meet, cluster.ForgetBroker,
    cluster.CloseConnection, backup.BeginBackup, backup.HoldBackup, monitor.AskAlarmBook,
}  # fmt: skip
"""They are about all there is, and for administrators (or one's own)."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("answers")
    settings = {"metrics": "127.0.0.1:0", "alarm_wait_s": 0.1}
    with secured(folder, store=f"file:{folder}/data", durability="os", **settings) as one, furnished(one.admin):
        yield one
        assert "Traceback" not in one.process.errors, one.process.errors


@contextmanager
def furnished(mq: Client) -> Iterator[None]:
    """Each group has a backlog and a dead letter, each topic a delayed message; a consumer of the group that is not to
    be seen holds a message, a transaction waits, and alarms have been told."""
    mq.create_topic("payroll", business_line="hr-line")
    for topic, group in (("orders", "billing"), ("orders", "auditors"), ("payroll", "hr"), ("stock", "counters")):
        mq.send(topic, b"x", key="k")
        mq.send(topic, b"y", key="order-4423" if topic == "stock" else "k", delay=86400)
        with mq.consumer(topic, group=group) as consumer:
            for message in consumer.pull(max_messages=1, wait=60):
                message.dead("no such customer")
            consumer.flush()
    transaction = mq.prepare("hr", "order-4423")
    transaction.send("payroll", b"x")
    transaction.store()
    with mq.consumer("orders", group="auditors", name="someone") as consumer:
        mq.send("orders", b"1")
        mq.send_many("stock", [b"2"] * 20)
        assert consumer.pull(max_messages=1, wait=60)
        mq.put_alarm(AlarmRule("many", "dead", 1))
        for name, topic, group in WATCHED:
            mq.put_alarm(AlarmRule(name, "backlog", 1_000_000, topic=topic, group=group))
        eventually(lambda: len(mq.alarms().active) >= 4 and mq.alarms().told)
        yield


def half_blind(broker: Secured, name: str, rights: list[tuple[str, str, str]]) -> str:
    """The secret of a new token that may do these."""
    secret = broker.admin.access.create_token(name).secret
    for right in rights:
        broker.admin.access.allow(name, *right)
    return secret


@pytest.fixture(scope="module")
def secret(broker: Secured) -> str:
    return half_blind(broker, "half", RIGHTS)


def leaked(data: bytes) -> list[str]:
    return [word for word in SECRETS if word.encode() in data]


def ask(client: RawClient, request: Request) -> tuple[m.Answer, bytes]:
    """The answer, and all its bytes."""
    number = client.post(request)
    envelope = client.read_envelope()
    assert envelope is not None, request
    assert envelope.number == number
    answer = decode_answer(envelope)
    return answer, msgspec.msgpack.encode(answer) + bytes(envelope.attachments)


def test_every_request_is_asked_or_said_to_be_silent() -> None:
    assert set(m.REQUESTS.values()) == set(ASKED) | SILENT | ADMINS
    assert not set(ASKED) & (SILENT | ADMINS)


@pytest.mark.parametrize("kind", ASKED, ids=lambda kind: kind.__name__)
def test_no_answer_names_what_the_caller_may_not_see(broker: Secured, secret: str, kind: type[Request]) -> None:
    with RawClient.hello(broker.process.port, "half", secret) as client:
        for request in ASKED[kind]:
            answer, data = ask(client, request)
            if isinstance(answer, Failed):  # it may say again what it was asked for
                data = answer.message.replace("payroll", "", 1).replace("auditors", "", 1).encode()
            assert not leaked(data), (request, answer)


def test_no_sum_counts_what_the_caller_may_not_see(broker: Secured, secret: str) -> None:
    mq = broker.admin
    [whole] = mq.survey("topics", search="orders").topics
    with broker.connect("half", secret) as client:
        seen = client.survey("topics", search="orders").topics[0]
        billing = client.group("orders", "billing")
        assert (seen.groups, seen.lag, seen.dead) == (1, billing.lag, billing.dead)
        assert (whole.groups, whole.members, whole.dead) == (2, seen.members + 1, 2)
        assert whole.lag == seen.lag + mq.group("orders", "auditors").lag
        assert client.topic("orders").groups == ["billing"]
        assert [one.lag for one in client.survey("topics", sort="lag").topics] == [0, seen.lag], "stock has more"
        assert sorted(one.topic for one in client.delayed()) == ["orders", "orders", "stock"]
        assert len(client.delayed("stock")) == 1


def test_a_count_of_delayed_messages_or_transactions_is_of_those_that_are_listed(broker: Secured, secret: str) -> None:
    with RawClient.hello(broker.process.port, "half", secret) as client:
        assert client.call(m.ListDelayed(), m.Delayed).count == 3
        assert client.call(m.ListDelayed(max_messages=1), m.Delayed).count == 3
        assert client.call(tx.ListTransactions(), tx.Transactions).total == 0
        assert client.call(monitor.ListPage("groups"), monitor.PageListed).total == 1
        assert client.call(monitor.ListPage("topics", line="hr-line"), monitor.PageListed).total == 0


def test_how_much_is_on_a_broker_is_for_those_who_may_describe_the_cluster(broker: Secured, secret: str) -> None:
    sender = half_blind(broker, "sender", [("send", "topic", "orders")])
    with broker.connect("sender", sender) as client, broker.connect("half", secret) as half:
        assert [(one.topics, one.connections > 0) for one in half.brokers()] == [(3, True)]
        assert [(one.topics, one.connections) for one in client.brokers()] == [(0, 0)]


def test_a_key_of_a_delayed_message_is_for_those_who_read_the_topic(broker: Secured) -> None:
    reader = half_blind(broker, "reader", [("consume", "topic", "stock")])
    looker = half_blind(broker, "looker", [("describe", "topic", "stock")])
    with broker.connect("reader", reader) as client:
        assert [one.key for one in client.delayed("stock")] == ["order-4423"]
        assert len(client.delayed("stock", key="order-4423")) == 1
    with broker.connect("looker", looker) as client:
        assert [one.key for one in client.delayed("stock")] == [None]
        with pytest.raises(Refused, match="may not consume topic stock"):
            client.delayed("stock", key="order-4423")


def test_a_rule_of_alarms_is_seen_by_those_who_may_describe_all_that_it_watches(broker: Secured) -> None:
    rights = [("describe", "topic", "orders"), ("describe", "group", "bill*"), ("describe", "cluster", "*")]
    secret = half_blind(broker, "watcher", rights)

    def seen() -> set[str]:
        return {rule.name for rule in client.alarms().rules}

    with broker.connect("watcher", secret) as client:
        assert seen() == {"many", "open", "all-of-prefix"}
        broker.admin.access.allow("watcher", "describe", "*")
        assert seen() == {"many", *(name for name, *_ in WATCHED)}
        broker.admin.access.deny("watcher", "describe", "topic", "payroll")
        assert seen() == {"many", *(name for name, *_ in WATCHED)} - {"of-topic", "prefix-of-topic"}
        broker.admin.access.deny("watcher", "describe", "group", "a*")
        assert seen() == {"many", "open", "all-of-prefix", "wider-prefix"}


def test_a_rule_of_alarms_is_made_and_changed_by_those_who_may_describe_all_that_it_watches(broker: Secured) -> None:
    """Its notices name groups and their figures, and go where the rule says."""
    rights = [("describe", "topic", "*"), ("describe", "group", "bill*"), ("alter", "cluster", "*")]
    secret = half_blind(broker, "maker", rights)
    broker.admin.access.deny("maker", "describe", "topic", "payroll")

    def put(client: Client, topic: str, group: str, name: str = "mine") -> None:
        client.put_alarm(AlarmRule(name, "dead", 9, topic=topic, group=group, webhooks=("http://192.0.2.1/mine",)))

    with broker.connect("maker", secret) as client:
        put(client, "orders*", "bill*")
        client.silence_alarm("mine", "for a while", for_s=60)
        client.drop_alarm("mine")
        client.put_alarm(AlarmRule("room", "disk", 5))
        client.drop_alarm("room")
        for topic, group in (("orders", "auditors"), ("orders", "*"), ("*", "billing"), ("pay*", "billing")):
            with pytest.raises(Refused, match="you may not describe all of"):
                put(client, topic, group)
        with pytest.raises(Refused, match="all of topic orders and group auditors, of which alarm of-group is"):
            put(client, "orders", "billing", "of-group")
        for name in ("of-group", "none"):
            missing = f"there is no alarm '{name}'"
            with pytest.raises(NotFound, match=missing):
                client.drop_alarm(name)
            with pytest.raises(NotFound, match=missing):
                client.silence_alarm(name, "hush", for_s=60)
            with pytest.raises(NotFound, match=missing):
                client.unsilence_alarm(name)
            with pytest.raises(NotFound, match=missing):
                client.test_alarm(name)


def test_metrics_tell_of_topics_and_groups_that_the_token_may_see(broker: Secured, secret: str) -> None:
    viewer = broker.admin.access.create_token("prometheus", roles=["viewer"]).secret
    address = metrics_address(broker)
    assert len(leaked(scrape(address, f"prometheus.{viewer}"))) == 2
    text = scrape(address, f"half.{secret}")
    assert not leaked(text)
    assert b'topic="orders",group="billing"' in text
    assert len(leaked(scrape(address, f"prometheus.{viewer}"))) == 2, "what one may see is not told to the next"


def metrics_address(broker: Secured) -> str:
    broker.process.wait_for_log("metrics on http")
    [line] = [line for line in broker.process.errors.splitlines() if "metrics on http" in line]
    return line.partition("metrics on ")[2]


def scrape(address: str, bearer: str) -> bytes:
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {bearer}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def test_no_route_tells_what_the_caller_may_not_see(broker: Secured, secret: str) -> None:
    """Every route that reads, as the OpenAPI document lists them."""
    values = {"topic": "orders", "group": "billing", "id": "orders/middle/0", "name": "none"}
    with (
        rest_door(broker.url) as door,
        httpx.Client(base_url=door, headers={"Authorization": f"Bearer half.{secret}"}, timeout=60) as http,
    ):
        paths = http.get("/openapi.json").json()["paths"]
        for path, methods in paths.items():
            if "get" not in methods or path in ("/users", "/tokens", "/rules", "/audit"):
                continue
            query = {"/find": "key=k", "/message": "id=orders/middle/0", "/trace": "id=orders/middle/0&group=billing"}
            found = next((query[end] for end in query if path.endswith(end)), "")
            answer = http.get(f"{path.format(**values)}?{found}")
            assert answer.status_code in (200, 403, 404), (path, answer.text)
            assert not leaked(answer.content), (path, answer.text)
        topics = http.get("/topics").json()
        assert "billing" in json.dumps(topics)


def as_named(request: Request, topic: str, group: str) -> Request:
    """The same request of another topic and group."""
    changes: dict[str, Any] = {}
    for field in request.__struct_fields__:
        value = getattr(request, field)
        if field == "topic":
            changes[field] = topic
        elif field == "group":
            changes[field] = group
        elif field == "config" and value is not None:
            named = {"topic": topic, "name": group} if hasattr(value, "topic") else {"name": topic}
            changes[field] = msgspec.structs.replace(value, **named)
        elif field == "frames":
            changes[field] = [m.FrameHead(topic, 1, 0)]
        elif field in ("stream", "prefix"):
            changes[field] = value.replace("orders", topic).replace("billing", group)
    return msgspec.structs.replace(request, **changes)


NAMING = [one for one in samples.REQUESTS if as_named(one, "x", "y") != one and not isinstance(one, m.Pull | m.Settle)]


@pytest.mark.parametrize("sample", NAMING, ids=lambda one: type(one).__name__)
def test_what_is_there_and_what_is_not_are_refused_alike(broker: Secured, sample: Request) -> None:
    name = f"stranger-{type(sample).__name__}"
    secret = broker.admin.access.create_token(name).secret
    said = []
    with RawClient.hello(broker.process.port, name, secret) as client:
        for topic, group in (("payroll", "hr"), ("nowhere", "nobody")):
            answer, _ = ask(client, as_named(sample, topic, group))
            said.append(repr(answer).replace(topic, "TOPIC").replace(group, "GROUP"))
    assert said[0] == said[1]


def test_a_transaction_of_another_token_is_not_told_by_its_topics(broker: Secured) -> None:
    """Not even to those who know its id."""
    [waiting] = broker.admin.transactions()
    stranger = half_blind(broker, "stranger", [])
    with RawClient.hello(broker.process.port, "stranger", stranger) as client:
        for commit in (True, False):
            answer, data = ask(client, tx.Decide(waiting.transaction, commit))
            assert isinstance(answer, Failed)
            assert not leaked(data), answer


def test_a_deny_hides_a_topic_from_those_who_see_all_others(broker: Secured) -> None:
    secret = broker.admin.access.create_token("nosy", roles=["viewer"]).secret
    with broker.connect("nosy", secret) as client:
        assert {one.topic for one in client.measure().topics} >= {"payroll", "orders"}
        rules = [
            broker.admin.access.deny("nosy", "describe", "topic", "payroll"),
            broker.admin.access.deny("nosy", "describe", "group", "auditors"),
        ]
        assert "payroll" not in {one.topic for one in client.measure().topics}
        assert {one.group for one in client.measure().groups} == {"billing", "counters"}
        assert {one.topic for one in client.alarms().active} == {"orders", "stock"}
        assert client.transactions() == []
        for rule in rules:
            broker.admin.access.drop_rule(rule)
