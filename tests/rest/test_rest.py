"""The REST door as programs use it: over HTTP, against a real broker."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import towline
from tests.broker.access.secured import Secured, secured
from tests.broker.process import BrokerProcess
from tests.eventually import eventually
from tests.ports import free_port
from tests.rest.process import Http, rest_door
from tests.system.cluster.conftest import Brokers


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process
        assert "Traceback" not in process.errors, process.errors


@pytest.fixture(scope="module")
def http(broker: BrokerProcess) -> Iterator[Http]:
    with rest_door(f"towline://127.0.0.1:{broker.port}") as url, Http(url) as client:
        yield client


def test_what_is_sent_can_be_pulled_and_settled(http: Http) -> None:
    sent = http("POST", "/topics/orders/messages", {"body": "hällo", "key": "k", "headers": {"a": "b"}}, status=201)
    assert sent["id"] == "orders/middle/0"
    binary = base64.b64encode(bytes(range(256))).decode()
    many = http(
        "POST",
        "/topics/orders/messages/batch",
        {"messages": [{"body": "1"}, {"body": "2", "key": "x"}, {"body": binary, "encoding": "base64"}]},
        status=201,
    )
    assert [one["seq"] for one in many["sent"]] == [1, 2, 3]
    pulled = http("POST", "/topics/orders/groups/billing/pull", {"max_messages": 10, "wait_s": 20})["messages"]
    assert [one["body"] for one in pulled] == ["hällo", "1", "2", binary]
    assert [one["encoding"] for one in pulled] == ["utf-8", "utf-8", "utf-8", "base64"]
    assert (pulled[0]["key"], pulled[0]["headers"], pulled[0]["attempt"]) == ("k", {"a": "b"}, 1)
    receipts = [one["receipt"] for one in pulled]
    assert http("POST", "/ack", {"receipts": [receipts[0], receipts[0], "nonsense"]}) == {
        "settled": 1,
        "lost": [receipts[0], "nonsense"],
    }
    assert http("POST", "/nack", {"receipts": receipts[1:2], "reason": "try again", "delay": 0})["settled"] == 1
    assert http("POST", "/nack", {"receipts": receipts[2:3], "reason": "hopeless", "dead": True})["settled"] == 1
    again = http("POST", "/topics/orders/groups/billing/pull", {"wait_s": 20})["messages"]
    assert [(one["body"], one["attempt"]) for one in again] == [("1", 2)]
    assert http("POST", "/ack", {"receipts": [again[0]["receipt"], receipts[3]]})["settled"] == 2
    eventually(lambda: http("GET", "/topics/orders/groups/billing")["dead"])
    group = http("GET", "/topics/orders/groups/billing")
    assert (group["lag"], group["in_flight"], group["dead"]) == (0, 0, 1)


def test_a_lease_that_ends_gives_the_message_back(http: Http) -> None:
    http("POST", "/topics/leased/messages", {"body": "x"}, status=201)
    [first] = http("POST", "/topics/leased/groups/g/pull", {"wait_s": 20, "lease_s": 1})["messages"]
    [second] = http("POST", "/topics/leased/groups/g/pull", {"wait_s": 20})["messages"]
    assert second["attempt"] == 2
    assert http("POST", "/ack", {"receipts": [first["receipt"]]}) == {"settled": 0, "lost": [first["receipt"]]}
    assert http("POST", "/ack", {"receipts": [second["receipt"]]})["settled"] == 1


def test_looking_finding_and_tracing_change_nothing(http: Http) -> None:
    for number in range(5):
        http("POST", "/topics/seen/messages", {"body": f"{number}", "key": f"k{number}"}, status=201)
    page = http("GET", "/topics/seen/messages", max_messages=2, first=1)
    assert ([one["body"] for one in page["messages"]], page["next"], page["end"]) == (["1", "2"], 3, 5)
    assert http("GET", "/topics/seen/messages", lane="high")["messages"] == []
    found = http("GET", "/topics/seen/find", key="k3")["messages"]
    assert [one["id"] for one in found] == ["seen/middle/3"]
    assert http("GET", "/message", id="seen/middle/4")["body"] == "4"
    assert http("GET", "/message", id="seen/middle/5", status=404)["error"] == "not-found"
    [pulled] = http("POST", "/topics/seen/groups/g/pull", {"max_messages": 1})["messages"]
    http("POST", "/ack", {"receipts": [pulled["receipt"]]})
    trace = http("GET", "/trace", id="seen/middle/0")
    assert trace["groups"][0]["status"] == "SUCCESS"
    assert [step["what"] for step in trace["groups"][0]["steps"]][-2:] == ["pulled", "acked"]
    assert trace["delay_id"] is None


def test_a_delayed_message_is_found_in_its_lane_by_the_id_it_had(http: Http) -> None:
    sent = http("POST", "/topics/waited/messages", {"body": "x", "delay": 0.05}, status=201)
    assert sent["id"].startswith("waited/delay/")
    [pulled] = http("POST", "/topics/waited/groups/g/pull", {"wait_s": 20})["messages"]
    http("POST", "/ack", {"receipts": [pulled["receipt"]]})
    assert http("GET", "/message", id=sent["id"])["id"] == pulled["id"]
    trace = http("GET", "/trace", id=sent["id"])
    assert (trace["id"], trace["delay_id"], trace["groups"][0]["status"]) == (pulled["id"], sent["id"], "SUCCESS")
    still = http("POST", "/topics/waited/messages", {"body": "x", "delay": 3600}, status=201)
    assert "still waits" in http("GET", "/message", id=still["id"], status=404)["message"]


def test_topics_and_groups_are_administered(http: Http) -> None:
    http("POST", "/topics", {"name": "made", "retention_s": 60, "shards": 2}, status=201)
    assert http("POST", "/topics", {"name": "made"}, status=409)["error"] == "conflict"
    assert http("GET", "/topics/made")["shards"] == 2
    assert http("PATCH", "/topics/made", {"retention_s": 5})["retention_s"] == 5
    assert "made" in [one["name"] for one in http("GET", "/topics", contains="ad")["topics"]]
    page = http("GET", "/topics", limit=1)
    assert http("GET", "/topics", after=page["next"], limit=1)["topics"][0]["name"] > page["next"]
    group = http("PUT", "/topics/made/groups/g", {"max_attempts": 3, "retry_delays_s": [1, 2]})
    assert (group["max_attempts"], group["retry_delays_s"]) == (3, [1, 2])
    assert http("POST", "/topics/made/groups/g/pause", {"reason": "deploying"})["pause_reason"] == "deploying"
    assert not http("POST", "/topics/made/groups/g/resume")["paused"]
    moved = http("POST", "/topics/made/groups/g/seek", {"positions": {"0": 0}, "dry_run": True})
    assert moved["again"] == 0
    assert http("POST", "/topics/made/groups/g/seek", {"to": "latest", "positions": {"0": 0}}, status=400)
    assert [one["name"] for one in http("GET", "/topics/made/groups")["groups"]] == ["g"]
    assert http("POST", "/topics/made/purge", dry_run=True)["messages"] == 0
    http("DELETE", "/topics/made/groups/g")
    http("DELETE", "/topics/made")
    assert http("GET", "/topics/made", status=404)["message"] == "there is no topic made"


def test_dead_letters_are_mended_and_sent_again(http: Http) -> None:
    http("POST", "/topics/dying/messages/batch", {"messages": [{"body": "1"}, {"body": "2"}]}, status=201)
    pulled = http("POST", "/topics/dying/groups/g/pull", {"wait_s": 20})["messages"]
    receipts = [one["receipt"] for one in pulled]
    http("POST", "/nack", {"receipts": receipts, "reason": "no such customer", "dead": True})
    eventually(lambda: http("GET", "/topics/dying/groups/g")["dead"] == 2)
    letters = http("GET", "/topics/dying/groups/g/dead")["letters"]
    assert [(one["number"], one["body"], one["reason"]) for one in letters] == [
        (0, "1", "no such customer"),
        (1, "2", "no such customer"),
    ]
    http("POST", "/topics/dying/groups/g/dead/0/revise", {"body": "mended"})
    assert http("POST", "/topics/dying/groups/g/dead/resend", {"numbers": [1]})["count"] == 1
    bodies: list[str] = []
    while len(bodies) < 2:
        pulled = http("POST", "/topics/dying/groups/g/pull", {"wait_s": 20})["messages"]
        assert pulled
        bodies += [one["body"] for one in pulled]
    assert sorted(bodies) == ["2", "mended"]
    assert http("DELETE", "/topics/dying/groups/g/dead", before=2) == {"count": 0}


def test_delays_and_transactions(http: Http) -> None:
    sent = http("POST", "/topics/later/messages", {"body": "x", "delay": 3600, "key": "k"}, status=201)
    assert sent["lane"] == "delay"
    [waiting] = http("GET", "/delayed", topic="later")["messages"]
    assert waiting["id"] == sent["id"]
    assert http("POST", "/topics/later/delayed/reschedule", {"id": sent["id"], "delay": 7200})["count"] == 1
    assert http("POST", "/topics/later/delayed/cancel", {"key": "k"})["count"] == 1
    naive = http("POST", "/topics/later/messages", {"body": "x", "deliver_at": "2030-01-01T00:00:00"}, status=400)
    assert "time zone" in naive["message"]
    done = http(
        "POST",
        "/transactions",
        {"messages": [{"topic": "tx-a", "body": "1"}, {"topic": "tx-b", "body": "2", "priority": "high"}]},
        status=201,
    )
    assert [one["id"] for one in done["sent"]] == ["tx-a/middle/0", "tx-b/high/0"]
    http("POST", "/topics", {"name": "tx-ordered", "shards": 4}, status=201)
    ordered = {"topic": "tx-ordered", "body": "3", "shard_key": "k", "ttl": 60}
    [sent] = http("POST", "/transactions", {"messages": [ordered]}, status=201)["sent"]
    assert http("GET", "/trace", id=sent["id"])["id"] == sent["id"]
    assert http("GET", "/transactions")["transactions"] == []
    assert http("GET", "/transactions/none", status=404)["error"] == "not-found"


def test_the_broker_tells_its_figures(http: Http) -> None:
    [broker] = http("GET", "/brokers")["brokers"]
    assert (broker["name"], broker["state"], broker["connected"]) == ("towline", "alive", True)
    assert broker["figures"]["name"] == "towline"
    http("POST", "/topics/measured/messages", {"body": "x"}, status=201)
    measured = http("GET", "/measure")
    assert measured["broker"]["connections"] >= 1
    assert {"measured"} <= {one["topic"] for one in measured["topics"]}
    assert [one["messages_in"] for one in http("GET", "/measure", topic="measured")["topics"]] == [1]


def test_a_request_that_is_too_large_is_refused_before_it_is_read(http: Http) -> None:
    with socket.create_connection((http.base_url.host, http.base_url.port or 0), timeout=20) as raw:
        host = f"{http.base_url.host}:{http.base_url.port}".encode()
        head = b"POST /api/topics/big/messages HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 1000000000\r\n\r\n"
        raw.sendall(head)
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")

    def stream() -> Iterator[bytes]:
        for _ in range(30):
            yield bytes(1 << 20)

    answer = http.post("/topics/big/messages", content=stream())
    assert answer.status_code == 413, answer.text
    large = "x" * (17 << 20)
    assert http("POST", "/topics/big/messages", {"body": large}, status=413)["error"] == "too-large"


def test_without_a_broker_it_says_so() -> None:
    with rest_door(f"towline://127.0.0.1:{free_port()}") as url, Http(url) as client:
        assert client("GET", "/topics", status=503)["error"] == "unavailable"


# With security


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Secured, str]]:
    with secured(tmp_path_factory.mktemp("rest")) as broker, rest_door(broker.url) as url:
        yield broker, url


def test_the_broker_decides_what_a_caller_may(guarded: tuple[Secured, str]) -> None:
    broker, url = guarded
    secret = broker.admin.access.create_token("caller").secret
    with Http(url) as nobody:
        answer = nobody.get("/topics")
        assert answer.status_code == 401
        assert "Bearer" in answer.headers["WWW-Authenticate"]
        assert nobody("GET", "/me", status=401)["error"] == "not-let-in"
    with Http(url, "caller", "wrong") as liar:
        assert liar("GET", "/topics", status=401)
    basic = base64.b64encode(f"caller:{secret}".encode()).decode()
    with Http(url, "caller", secret) as http:
        assert http("GET", "/me")["name"] == "caller"
        assert http.get("/me", headers={"Authorization": f"Basic {basic}"}).json()["name"] == "caller"
        assert http("POST", "/topics/orders/messages", {"body": "x"}, status=403)["error"] == "refused"
        rule = broker.admin.access.allow("caller", "*", "topic", "orders")
        assert http("POST", "/topics/orders/messages", {"body": "x"}, status=201)["seq"] == 0
        assert http("POST", "/topics/orders/groups/g/pull", {}, status=403)
        broker.admin.access.allow("caller", "consume", "group", "g")
        [pulled] = http("POST", "/topics/orders/groups/g/pull", {"wait_s": 20})["messages"]
        assert pulled["token"] == "caller"
        with Http(url, "other", broker.admin.access.create_token("other", roles=["admin"]).secret) as other:
            assert other("POST", "/ack", {"receipts": [pulled["receipt"]]})["settled"] == 0, "not its receipt"
        assert http("POST", "/ack", {"receipts": [pulled["receipt"]]})["settled"] == 1
        broker.admin.access.drop_rule(rule)
        assert http("POST", "/topics/orders/messages", {"body": "x"}, status=403)
        broker.admin.access.revoke_token("caller")
        assert http("GET", "/topics", status=401)
        assert http("GET", "/topics", status=401)


def test_access_is_administered_over_rest(guarded: tuple[Secured, str]) -> None:
    broker, url = guarded
    with Http(url, "rest-admin", broker.admin.access.create_token("rest-admin", roles=["admin"]).secret) as http:
        http("POST", "/users", {"name": "carol", "password": "long enough", "roles": ["viewer"]}, status=201)
        [carol] = [one for one in http("GET", "/users")["users"] if one["name"] == "carol"]
        assert (carol["roles"], carol["has_password"]) == (["viewer"], True)
        http("PATCH", "/users/carol", {"quota": {"connections": 3}, "roles": []})
        scope = {"action": "send", "resource": "topic", "name": "c-*"}
        made = http("POST", "/tokens", {"name": "carol.1", "owner": "carol", "scopes": [scope]}, status=201)
        assert made["bearer"] == f"carol.1.{made['secret']}"
        number = http("POST", "/rules", {"subject": "carol", "effect": "allow", **scope}, status=201)["id"]
        assert number in [one["id"] for one in http("GET", "/rules", subject="carol")["rules"]]
        with Http(url, "carol.1", made["secret"]) as carol_http:
            assert carol_http("GET", "/me")["user"] == "carol"
            assert carol_http("GET", "/users", status=403)
            assert carol_http("GET", "/audit", status=403)
        assert http("POST", "/tokens/carol.1/rotate", {}, status=201)["secret"] != made["secret"]
        http("DELETE", f"/rules/{number}")
        http("DELETE", "/tokens/carol.1")
        http("DELETE", "/users/carol")
        entries = http("GET", "/audit", actor="rest-admin", limit=50)["entries"]
        assert {"PutUser", "CreateToken", "AddRule", "DeleteUser"} <= {one["what"] for one in entries}
        assert "long enough" not in str(entries)


def test_the_client_of_the_door_is_who_sends(guarded: tuple[Secured, str], tmp_path: Path) -> None:
    broker, url = guarded
    secret = broker.admin.access.create_token("sender", roles=["admin"]).secret
    with Http(url, "sender", secret) as http:
        http("POST", "/topics/signed/messages", {"body": "x"}, status=201)
    with towline.connect(broker.url, token="sender", secret=secret) as client:
        assert client.message("signed/middle/0").token == "sender"


def test_every_broker_of_a_cluster_is_listed(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, 2).start()
    try:
        with rest_door(brokers.url) as url, Http(url) as http:
            eventually(lambda: [one["state"] for one in http("GET", "/brokers")["brokers"]] == ["alive", "alive"])
            found = http("GET", "/brokers")["brokers"]
            assert {one["address"] for one in found} == {brokers.address(0), brokers.address(1)}
            assert [one["connected"] for one in found] == [True, False]
            assert [bool(one["figures"]) for one in found] == [True, False]
    finally:
        brokers.close()


def test_the_door_describes_itself_to_programs_and_to_people(http: Http) -> None:
    root = str(http.base_url).removesuffix("/api/")
    for path in ("/", "/api", "/api/"):
        document = httpx.get(root + path, follow_redirects=True, timeout=120).json()
        assert document["openapi"].startswith("3.")
    page = httpx.get(root + "/api", headers={"Accept": "text/html"}, follow_redirects=True, timeout=120)
    assert page.headers["content-type"].startswith("text/html")
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page.text
    assert "<script" not in page.text


def test_errors_have_one_shape(http: Http) -> None:
    root = str(http.base_url).rstrip("/")
    for method, path, status in (
        ("GET", "/no-such-thing", 404),
        ("GET", "/topics/none-such", 404),
        ("PATCH", "/topics", 405),
        ("POST", "/topics", 422),
        ("GET", "/topics/UPPER", 422),
        ("POST", "/ack", 422),
    ):
        answer = httpx.request(method, root + path, timeout=120)
        assert answer.status_code == status, (method, path, answer.text)
        assert sorted(answer.json()) == ["error", "message"], answer.text
    json = {"Content-Type": "application/json"}
    answer = httpx.post(root + "/ack", content=b"{no json", headers=json, timeout=120)
    assert (answer.status_code, sorted(answer.json())) == (422, ["error", "message"])


def test_alarm_rules_are_made_listed_changed_and_dropped(http: Http) -> None:
    hook = "https://hooks.example.com/a-secret"
    rule = {"what": "dead", "threshold": 1, "topic": "watched*", "emails": ["ops@example.com"], "webhooks": [hook]}
    assert http("PUT", "/alarms/dead", rule) == {"count": 1}
    (found,) = http("GET", "/alarms")["rules"]
    assert (found["name"], found["what"], found["topic"], found["repeat_s"]) == ("dead", "dead", "watched*", 14400)
    assert found["webhooks"] == ["https://hooks.example.com/…"], "its path often is its secret"
    changed = {name: value for name, value in found.items() if name != "name"} | {"threshold": 5, "enabled": False}
    http("PUT", "/alarms/dead", changed)
    (found,) = http("GET", "/alarms")["rules"]
    assert (found["threshold"], found["enabled"]) == (5, False)
    assert http("GET", "/alarms")["mail"] is False
    assert http("GET", "/alarms/active") == {"alarms": []}
    assert http("GET", "/alarms/notices") == {"notices": []}
    assert "no alarm" in http("POST", "/alarms/none/test", status=404)["message"]
    assert "no alarm" in http("POST", "/alarms/none/silence", {"for_s": 60, "reason": "x"}, status=404)["message"]
    assert "for how long" in http("POST", "/alarms/dead/silence", {"reason": "x"}, status=400)["message"]
    assert (
        "future"
        in http("POST", "/alarms/dead/silence", {"until": "2020-01-01T00:00:00Z", "reason": "x"}, status=400)["message"]
    )
    http("POST", "/alarms/dead/silence", {"for_s": 60}, status=422)
    assert "percentage" in http("PUT", "/alarms/disk", {"what": "disk", "threshold": 101}, status=400)["message"]
    http("PUT", "/alarms/often", {"what": "dead", "threshold": 1, "repeat_s": 1}, status=422)
    assert http("DELETE", "/alarms/dead") == {"count": 1}
    http("DELETE", "/alarms/dead", status=404)
    assert http("GET", "/alarms")["rules"] == []


def test_what_is_an_alarm_now_is_told(http: Http) -> None:
    http("POST", "/topics/late/messages", {"body": "x"}, status=201)
    http("PUT", "/topics/late/groups/billing", {})
    http("PUT", "/alarms/backlog", {"what": "backlog", "threshold": 1, "topic": "late"})

    def active() -> list[dict[str, Any]]:
        return [one for one in http("GET", "/alarms/active")["alarms"] if one["rule"] == "backlog"]

    eventually(active)  # the broker looks every few seconds
    (alarm,) = active()
    assert (alarm["rule"], alarm["topic"], alarm["group"], alarm["value"]) == ("backlog", "late", "billing", 1)
    assert alarm["since"] <= alarm["told_at"]
    assert alarm["silenced_until"] is None
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert http("POST", "/alarms/backlog/silence", {"until": until, "reason": "the warehouse moves"}) == {"count": 1}
    (silence,) = http("GET", "/alarms")["silences"]
    assert (silence["rule"], silence["reason"]) == ("backlog", "the warehouse moves")
    assert datetime.fromisoformat(silence["until"]) == datetime.fromisoformat(until)
    (alarm,) = active()
    assert (alarm["silenced_until"], alarm["silence_reason"]) == (silence["until"], "the warehouse moves")
    assert http("DELETE", "/alarms/backlog/silence") == {"count": 1}
    assert http("GET", "/alarms")["silences"] == []
    http("DELETE", "/alarms/backlog")


def test_pages_of_other_sites_reach_nothing(http: Http) -> None:
    """A browser lets any page post to this machine, and lead a name of its own to it."""
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = http.post("/topics/none/purge", headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (403, "refused")
        assert http.get("/openapi.json", headers=headers).status_code == 200
    assert http.get("/openapi.json", headers={"Host": "evil.example"}).status_code == 403
    assert http.get("/openapi.json", headers={"Host": "localhost"}).status_code == 200
