"""Every request × every right it needs: allowed with all of them, refused without any one of them, and after they were
taken back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.access.secured import Secured
from tests.broker.raw_client import RawClient
from tests.inside.broker import ROLES
from tests.inside.protocol import Failed, Grant, Request, access, cluster, publications
from tests.inside.protocol import messages as m
from tests.inside.protocol import transactions as tx
from tests.unit.broker.permission_table import ORDERS, Need, cases
from towline.errors import Refused


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
    broker: Secured, caller: RawClient, request_: Request, needs: list[Need]
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
