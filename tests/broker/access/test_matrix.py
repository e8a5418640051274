"""Every request × every right it needs: allowed with all of them, refused without any one of them, and after they were
taken back. The table below is written by hand, and says again what `broker/server/requests.py` says: a request that is
missing in either makes a test fail."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from tests.broker.access.secured import Secured
from tests.broker.raw_client import RawClient
from tests.unit.protocol import samples
from towline.broker.access.rules import ROLES
from towline.broker.server.requests import TABLE
from towline.errors import Refused
from towline.protocol import access, backup, cluster, monitor, publications, scan
from towline.protocol import messages as m
from towline.protocol import transactions as tx
from towline.protocol.access import Grant
from towline.protocol.groups import Pause, Seek
from towline.protocol.messages import Failed, Request
from towline.protocol.topics import EditTopic, Purge, ShardCount

ORDERS, STOCK = ("topic", "orders"), ("topic", "stock")
NOWHERE, ELSEWHERE = ("topic", "nowhere"), ("topic", "elsewhere")
BILLING, CLUSTER = ("group", "billing"), ("cluster", "*")

NEEDS: dict[type[Request], list[tuple[str, tuple[str, str]]]] = {
    m.Hello: [],
    m.Beat: [],
    m.Send: [("send", ORDERS), ("send", STOCK)],
    m.Attach: [("consume", ORDERS), ("consume", BILLING)],
    m.Detach: [],
    m.CreateTopic: [("create", ORDERS)],
    m.ListTopics: [],
    m.TopicInfo: [("describe", ORDERS)],
    m.DeleteTopic: [("delete", ORDERS)],
    m.ListGroups: [("describe", ORDERS)],
    m.GroupInfo: [("describe", BILLING), ("describe", ORDERS)],
    m.PutGroup: [("alter", BILLING), ("describe", ORDERS)],
    m.DeleteGroup: [("delete", BILLING), ("describe", ORDERS)],
    m.Browse: [("consume", ORDERS), ("consume", BILLING)],
    m.Resend: [("alter", BILLING), ("describe", ORDERS)],
    m.Locate: [("describe", ORDERS)],
    m.Stat: [("describe", CLUSTER)],
    m.ListDelayed: [("consume", ORDERS)],
    m.CancelDelayed: [("send", ORDERS), ("consume", ORDERS)],
    m.MoveDelayed: [("send", ORDERS), ("consume", ORDERS)],
    tx.Prepare: [("send", ORDERS), ("send", STOCK)],
    tx.Decide: [],
    tx.AwaitChecks: [],
    tx.ListTransactions: [("describe", CLUSTER)],
    tx.Resolve: [("alter", CLUSTER)],
    m.PutTopic: [("alter", CLUSTER)],
    m.Template: [("describe", CLUSTER)],
    m.ReviseDead: [("alter", BILLING), ("send", ORDERS)],
    m.PurgeDead: [("delete", BILLING), ("describe", ORDERS)],
    m.Find: [("consume", ORDERS)],
    m.Trace: [("describe", BILLING), ("describe", ORDERS)],
    ShardCount: [("describe", ORDERS)],
    Seek: [("describe", BILLING), ("describe", ORDERS)],
    Pause: [("alter", BILLING), ("describe", ORDERS)],
    Purge: [("describe", ORDERS)],
    EditTopic: [("alter", ORDERS)],
    scan.Scan: [("consume", ORDERS)],
    scan.Survey: [],
    scan.LocateIn: [("describe", BILLING), ("describe", ORDERS)],
    access.WhoAmI: [],
    access.ListUsers: [("admin", CLUSTER)],
    access.PutUser: [("admin", CLUSTER)],
    access.DeleteUser: [("admin", CLUSTER)],
    access.ListTokens: [("admin", CLUSTER)],
    access.CreateToken: [("admin", CLUSTER)],
    access.RevokeToken: [("admin", CLUSTER)],
    access.ListRules: [("admin", CLUSTER)],
    access.AddRule: [("admin", CLUSTER)],
    access.DropRule: [("admin", CLUSTER)],
    access.ListAudit: [("admin", CLUSTER)],
    access.Measure: [("describe", ORDERS)],
    publications.Report: [("consume", ORDERS), ("consume", ("group", "spark"))],
    publications.Stage: [("send", ORDERS), ("send", STOCK)],
    publications.Publish: [],
    publications.Unstage: [],
    publications.AskSink: [],
    publications.MoveHold: [("alter", CLUSTER)],
    cluster.Meet: [("admin", CLUSTER)],
    cluster.ListBrokers: [],
    cluster.ListClients: [("describe", BILLING), ("describe", ORDERS)],
    cluster.ForgetBroker: [("admin", CLUSTER)],
    cluster.CloseConnection: [("admin", CLUSTER)],
    backup.BeginBackup: [("admin", CLUSTER)],
    backup.HoldBackup: [("admin", CLUSTER)],
    cluster.HandBack: [("consume", ORDERS), ("consume", BILLING)],
    monitor.ListPage: [("describe", ORDERS)],
    monitor.Pulse: [("describe", BILLING), ("describe", ORDERS)],
    monitor.Storage: [("describe", CLUSTER)],
    monitor.ListAlarms: [("describe", CLUSTER)],
    monitor.PutAlarm: [("alter", CLUSTER), ("describe", ("topic", "orders.*")), ("describe", BILLING)],
    monitor.DropAlarm: [("alter", CLUSTER)],
    monitor.SilenceAlarm: [("alter", CLUSTER)],
    monitor.TestAlarm: [("alter", CLUSTER)],
    monitor.AskAlarmBook: [("admin", CLUSTER)],
    monitor.Kick: [("alter", BILLING), ("describe", ORDERS)],
}
"""Of the samples, which are sent as they stand. (Those of pulls and settlements depend on a subscription, and have a
test of their own.)"""

SUBSCRIBED: set[type[Request]] = {m.Pull, m.Settle}
VARIANTS: list[tuple[Request, list[tuple[str, tuple[str, str]]]]] = [
    (m.Browse("orders"), [("consume", ORDERS)]),
    (m.PutTopic(samples.TOPIC), [("alter", ORDERS)]),
    (Seek("orders", "billing", "latest"), [("alter", BILLING), ("describe", ORDERS)]),
    (Purge("orders"), [("delete", ORDERS)]),
    (m.ListDelayed(), [("describe", CLUSTER)]),
    (m.ListDelayed("orders"), [("describe", ORDERS)]),
    (m.CancelDelayed("orders", [12], dry_run=True), [("send", ORDERS)]),
    (m.CancelDelayed("orders", key="order-4423"), [("send", ORDERS)]),
    (m.MoveDelayed("orders", [12], "", 0, True), [("send", ORDERS)]),
    (m.MoveDelayed("orders", [], "order-4423", -30_000_000), [("send", ORDERS)]),
    (access.Measure(), [("describe", CLUSTER)]),
    (monitor.ListPage("topics", topic="orders"), []),
    (m.ListGroups(), []),
    (monitor.ListPage("groups"), []),
    (monitor.Pulse(), [("describe", CLUSTER)]),
    (cluster.ListClients(), [("describe", CLUSTER)]),
    (cluster.ListClients("orders"), [("describe", ORDERS)]),
    (m.Attach("nowhere", "billing", "c1"), [("consume", NOWHERE), ("consume", BILLING), ("create", NOWHERE)]),
    (m.Send([m.FrameHead("elsewhere", 1, 0)]), [("send", ELSEWHERE), ("create", ELSEWHERE)]),
    (scan.Scan("dead/orders/billing", 0, 10), [("consume", ORDERS), ("consume", BILLING)]),
    (scan.Scan("prepared", 0, 10), [("admin", CLUSTER)]),
    (scan.Survey("lane/orders/"), [("describe", ORDERS)]),
]


def cases() -> Iterator[tuple[Request, list[tuple[str, tuple[str, str]]]]]:
    for request in samples.REQUESTS:
        if type(request) in NEEDS:
            sample = msgspec.structs.replace(request, wait_ms=0) if isinstance(request, tx.AwaitChecks) else request
            yield sample, NEEDS[type(request)]
    yield from VARIANTS


def test_every_request_is_in_the_table() -> None:
    assert {request.kind for request in [*NEEDS, *SUBSCRIBED]} == set(m.REQUESTS) == {one.kind for one in TABLE}


@pytest.fixture(scope="module")
def caller(broker: Secured) -> Iterator[RawClient]:
    secret = broker.admin.access.create_token("caller").secret
    with RawClient.hello(broker.process.port, "caller", secret) as client:
        yield client


@pytest.fixture(autouse=True)
def _there(broker: Secured) -> None:
    """What the samples speak of, whatever the test before did to it."""
    for topic in ("orders", "stock"):
        broker.admin.send(topic, b"x")
    with broker.admin.consumer("orders", group="billing"):
        pass


def is_refused(client: RawClient, request: Request) -> bool:
    attachments = b""
    if isinstance(request, m.Send | tx.Prepare | publications.Stage):
        attachments = bytes(sum(head.length for head in request.frames))
    number = client.post(request, attachments)
    got = client.read()
    assert got is not None, f"{request} ended the connection"
    assert got[0] == number, got
    return isinstance(got[1], Failed) and got[1].code == "refused"


@pytest.mark.parametrize(("request_", "needs"), [pytest.param(*case, id=repr(case[0])[:40]) for case in cases()])
def test_a_request_is_allowed_with_all_its_rights_and_refused_without_any_one(
    broker: Secured, caller: RawClient, request_: Request, needs: list[tuple[str, tuple[str, str]]]
) -> None:
    admin = broker.admin.access
    assert is_refused(caller, request_) == bool(needs), "without any rights"
    for left_out in range(len(needs)):
        rules = [
            admin.allow("caller", action, *resource) for n, (action, resource) in enumerate(needs) if n != left_out
        ]
        assert is_refused(caller, request_), f"without {needs[left_out]}"
        for rule in rules:
            admin.drop_rule(rule)
    rules = [admin.allow("caller", action, *resource) for action, resource in needs]
    if needs:
        denied = admin.deny("caller", needs[0][0], *needs[0][1])
        assert is_refused(caller, request_), "a deny beats an allow"
        admin.drop_rule(denied)
    assert not is_refused(caller, request_), "with all of them"
    for rule in rules:
        admin.drop_rule(rule)
    assert is_refused(caller, request_) == bool(needs), "after they were taken back"


@pytest.mark.parametrize("role", [*ROLES, "nobody"])
def test_a_role_may_do_what_its_grants_say_and_nothing_else(broker: Secured, role: str) -> None:
    secret = broker.admin.access.create_token(f"of-{role}", roles=[role]).secret
    with RawClient.hello(broker.process.port, f"of-{role}", secret) as client:
        for request, needs in cases():
            if isinstance(request, m.DeleteTopic | m.DeleteGroup | access.AddRule | m.Attach | cluster.Meet):
                continue  # they change what the others meet
            expected = all(_granted(ROLES.get(role, []), action, kind) for action, (kind, _) in needs)
            assert is_refused(client, request) != expected, (role, request)


def _granted(grants: list[Grant], action: str, kind: str) -> bool:
    """As the documents say it, without regard to names: the built-in roles have none."""
    return any(
        (grant.action in ("*", action) or action == "describe") and grant.resource in ("*", kind) for grant in grants
    )


def test_lists_hold_what_the_caller_may_see(broker: Secured) -> None:
    with broker.token("half-blind") as client:
        assert client.topics() == []
        assert client.groups() == []
        rules = [broker.admin.access.allow("half-blind", "describe", "topic", "or*")]
        assert [one.config.name for one in client.topics()] == ["orders"]
        assert client.groups() == []
        rules.append(broker.admin.access.allow("half-blind", "consume", "group", "billing"))
        assert [one.config.name for one in client.groups()] == ["billing"]
        assert [one.config.name for one in client.survey("topics").topics] == ["orders"]
        assert [(one.topic, one.group) for one in client.survey("groups").groups] == [("orders", "billing")]
        assert client.survey("topics", search="stock").total == 0
        for rule in rules:
            broker.admin.access.drop_rule(rule)
        assert client.topics() == []
        assert client.survey("topics").total == 0


def test_a_consumer_whose_right_is_revoked_gets_nothing_more_and_is_told_at_once(broker: Secured) -> None:
    admin = broker.admin.access
    rules = [admin.allow("puller", "consume", kind, name) for kind, name in (ORDERS, ("group", "shipping"))]
    secret = admin.create_token("puller").secret
    with RawClient.hello(broker.process.port, "puller", secret) as client:
        subscription = client.attach("orders", "shipping", "p1")
        assert client.pull(subscription)
        number = client.post(m.Pull(subscription, 10, 1 << 20, 60_000))
        admin.drop_rule(rules[1])
        got = client.read()
        assert got is not None
        assert got[0] == number
        assert isinstance(got[1], Failed)
        assert got[1].code == "refused"
        for request in (m.Pull(subscription, 10, 1 << 20, 0), m.Settle(subscription, [m.Act(0, 1)])):
            assert is_refused(client, request)
        members = [one.consumer for one in broker.admin.group("orders", "shipping").members]
        assert "p1" not in members
    admin.drop_rule(rules[0])


def test_a_prepared_transaction_is_committed_only_while_its_topics_may_be_sent_to(broker: Secured) -> None:
    rule = broker.admin.access.allow("preparer", "send", "topic", "orders")
    with broker.token("preparer") as client:
        transaction = client.prepare("shop", "order-1")
        transaction.send("orders", b"x")
        transaction.store()
        broker.admin.access.drop_rule(rule)
        with pytest.raises(Refused, match="may not send topic orders"):
            transaction.commit()
        transaction.rollback()
