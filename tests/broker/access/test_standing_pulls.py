"""Pulls that stand, of clients that may do so much, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.access.secured import Secured
from tests.broker.raw_client import RawClient, open_pulled
from tests.inside.client import Quota
from tests.inside.protocol import Act, Failed, Pull, Pulled, decode_answer


def told(client: RawClient) -> tuple[list[bytes], bool]:
    envelope = client.read_envelope()
    assert envelope is not None
    answer = decode_answer(envelope)
    assert isinstance(answer, Pulled), answer
    return open_pulled(envelope)[1], answer.more


def consumer(broker: Secured, name: str, **options: Any) -> RawClient:
    secret = broker.admin.access.create_token(name, roles=["consumer"], **options).secret
    return RawClient.hello(broker.process.port, name, secret)


def stand(client: RawClient, topic: str) -> int:
    number = client.post(Pull(client.attach(topic), 100, 1 << 20, 300_000, answers=10))
    client.knock()
    return number


@pytest.mark.parametrize("quota", [Quota(), Quota(in_flight=10), Quota(bytes_per_s=1 << 20)], ids=str)
def test_who_has_a_quota_is_answered_once(broker: Secured, quota: Quota) -> None:
    name = f"q{quota.in_flight}-{quota.bytes_per_s}"
    broker.admin.create_topic(name)
    with consumer(broker, name, quota=quota) as client:
        stand(client, name)
        broker.admin.send(name, b"a")
        assert told(client) == ([b"a"], quota == Quota())


def test_an_act_that_is_refused_is_no_way_around_a_quota(broker: Secured) -> None:
    broker.admin.create_topic("greedy")
    for number in range(5):
        broker.admin.send("greedy", b"%d" % number)
    with consumer(broker, "greedy", quota=Quota(in_flight=2)) as client:
        client.post(Pull(client.attach("greedy"), 100, 1 << 20, 0, acts=[Act(0, 12345)]))
        got = client.read()
        assert got is not None
        assert isinstance(got[1], Pulled)
        assert [code for _, code, _ in got[1].refused] == ["lease-lost"]
        assert sum(part.count for part in got[1].parts) == 2


def test_a_right_that_is_taken_ends_it(broker: Secured) -> None:
    broker.admin.create_topic("taken")
    secret = broker.admin.access.create_token("loser").secret
    rights = [("consume", "topic", "taken"), ("consume", "group", "g")]
    for action, resource, name in rights:
        broker.admin.access.allow("loser", action, resource, name)
    with RawClient.hello(broker.process.port, "loser", secret) as client:
        number = stand(client, "taken")
        broker.admin.send("taken", b"a")
        assert told(client) == ([b"a"], True)
        broker.admin.access.deny("loser", *rights[0])
        got = client.read()
        assert got is not None
        assert got[0] == number
        assert isinstance(got[1], Failed)
        assert got[1].code == "refused"
        broker.admin.send("taken", b"b")
        client.knock()
