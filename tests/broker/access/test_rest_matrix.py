"""Every route of the REST door × every role and right. The table is written by hand; the routes are read off the
OpenAPI document, so that one without an entry fails."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import pytest

from tests.broker.access.expected import BILLING, CLUSTER, SEE_ALL, Need, furnish, granted, group, hold_against, topic
from tests.broker.access.secured import Secured, secured
from tests.rest.process import rest_door
from towline.broker.access.rules import ROLES
from towline.console.rest.app import rest_app


class Route(NamedTuple):
    path: str
    """As it is called: mostly for what does not exist, so that whoever may gets a 404 and changes nothing."""
    needs: list[Need]
    body: Any = None


ORDERS = topic("orders")
ADMIN: list[Need] = [("admin", CLUSTER)]
OWN: list[Need] = []
"""Anyone: it is about oneself, or holds what one may see."""


def of_group(action: str, name: str = "none") -> list[Need]:
    return [(action, group(name)), ("describe", ORDERS)]


ROUTES: dict[tuple[str, str], Route] = {
    ("POST", "/topics/{topic}/messages"): Route("/topics/orders/messages", [("send", ORDERS)], {"body": "x"}),
    ("GET", "/topics/{topic}/messages"): Route("/topics/orders/messages", [("consume", ORDERS)]),
    ("POST", "/topics/{topic}/messages/batch"): Route(
        "/topics/stock/messages/batch", [("send", topic("stock"))], {"messages": [{"body": "x"}]}
    ),
    ("POST", "/transactions"): Route(
        "/transactions",
        [("send", ORDERS), ("send", topic("stock"))],
        {"messages": [{"topic": "orders", "body": "x"}, {"topic": "stock", "body": "x"}]},
    ),
    ("GET", "/transactions"): Route("/transactions", [("describe", CLUSTER)]),
    ("GET", "/transactions/{id}"): Route("/transactions/none", [("describe", CLUSTER)]),
    ("POST", "/transactions/{id}/resolve"): Route(
        "/transactions/none/resolve", [("alter", CLUSTER)], {"verdict": "commit"}
    ),
    ("POST", "/topics/{topic}/groups/{group}/pull"): Route(
        "/topics/orders/groups/billing/pull",
        [("consume", ORDERS), ("consume", BILLING)],
        {"max_messages": 1, "wait_s": 0, "lease_s": 1},
    ),
    ("POST", "/ack"): Route("/ack", OWN, {"receipts": ["none"]}),
    ("POST", "/nack"): Route("/nack", OWN, {"receipts": ["none"]}),
    ("GET", "/topics/{topic}/find"): Route("/topics/orders/find?key=k", [("consume", ORDERS)]),
    ("GET", "/message"): Route("/message?id=orders/middle/0", [("consume", ORDERS)]),
    ("GET", "/trace"): Route("/trace?id=orders/middle/0&group=billing", [("describe", ORDERS), ("describe", BILLING)]),
    ("GET", "/topics"): Route("/topics", OWN),
    ("POST", "/topics"): Route("/topics", [("create", ORDERS)], {"name": "orders"}),
    ("GET", "/topics/{topic}"): Route("/topics/orders", [("describe", ORDERS)]),
    ("PATCH", "/topics/{topic}"): Route("/topics/orders", [("alter", ORDERS)], {"retention_s": 86400}),
    ("DELETE", "/topics/{topic}"): Route("/topics/nowhere", [("delete", topic("nowhere"))]),
    ("POST", "/topics/{topic}/purge"): Route("/topics/nowhere/purge", [("delete", topic("nowhere"))]),
    ("GET", "/groups"): Route("/groups", OWN),
    ("GET", "/topics/{topic}/groups"): Route("/topics/orders/groups", [("describe", ORDERS)]),
    ("GET", "/topics/{topic}/groups/{group}"): Route("/topics/orders/groups/billing", of_group("describe", "billing")),
    ("PUT", "/topics/{topic}/groups/{group}"): Route(
        "/topics/orders/groups/billing", of_group("alter", "billing"), {"max_attempts": 16}
    ),
    ("DELETE", "/topics/{topic}/groups/{group}"): Route("/topics/orders/groups/none", of_group("delete")),
    ("POST", "/topics/{topic}/groups/{group}/seek"): Route(
        "/topics/orders/groups/none/seek", of_group("alter"), {"to": "latest"}
    ),
    ("POST", "/topics/{topic}/groups/{group}/pause"): Route("/topics/orders/groups/none/pause", of_group("alter"), {}),
    ("POST", "/topics/{topic}/groups/{group}/resume"): Route("/topics/orders/groups/none/resume", of_group("alter")),
    ("GET", "/topics/{topic}/groups/{group}/dead"): Route(
        "/topics/orders/groups/billing/dead", [("consume", ORDERS), ("consume", BILLING)]
    ),
    ("DELETE", "/topics/{topic}/groups/{group}/dead"): Route(
        "/topics/orders/groups/none/dead?before=0", of_group("delete")
    ),
    ("POST", "/topics/{topic}/groups/{group}/dead/resend"): Route(
        "/topics/orders/groups/none/dead/resend", of_group("alter"), {"numbers": [0]}
    ),
    ("POST", "/topics/{topic}/groups/{group}/dead/{number}/revise"): Route(
        "/topics/orders/groups/none/dead/0/revise", [("alter", group("none")), ("send", ORDERS)], {"body": "y"}
    ),
    ("GET", "/delayed"): Route("/delayed?topic=orders", [("describe", ORDERS)]),
    ("POST", "/topics/{topic}/delayed/cancel"): Route(
        "/topics/orders/delayed/cancel", [("send", ORDERS)], {"id": "orders/delay/9"}
    ),
    ("POST", "/topics/{topic}/delayed/reschedule"): Route(
        "/topics/orders/delayed/reschedule", [("send", ORDERS)], {"id": "orders/delay/9", "delay": 60}
    ),
    ("GET", "/brokers"): Route("/brokers", OWN),
    ("GET", "/clients"): Route("/clients", [("describe", CLUSTER)]),
    ("DELETE", "/clients/{address}"): Route("/clients/none", ADMIN),
    ("GET", "/measure"): Route("/measure", [("describe", CLUSTER)]),
    ("GET", "/alarms"): Route("/alarms", [("describe", CLUSTER)]),
    ("GET", "/alarms/active"): Route("/alarms/active", [("describe", CLUSTER)]),
    ("GET", "/alarms/notices"): Route("/alarms/notices", [("describe", CLUSTER)]),
    ("PUT", "/alarms/{name}"): Route("/alarms/late", [("alter", CLUSTER), *SEE_ALL], {"what": "age", "threshold": 300}),
    ("DELETE", "/alarms/{name}"): Route("/alarms/none", [("alter", CLUSTER)]),
    ("POST", "/alarms/{name}/silence"): Route(
        "/alarms/none/silence", [("alter", CLUSTER)], {"for_s": 60, "reason": "x"}
    ),
    ("DELETE", "/alarms/{name}/silence"): Route("/alarms/none/silence", [("alter", CLUSTER)]),
    ("POST", "/alarms/{name}/test"): Route("/alarms/none/test", [("alter", CLUSTER)]),
    ("GET", "/me"): Route("/me", OWN),
    ("GET", "/users"): Route("/users", ADMIN),
    ("POST", "/users"): Route("/users", ADMIN, {"name": "root", "password": "a long password"}),
    ("PATCH", "/users/{name}"): Route("/users/none", ADMIN, {"disabled": True}),
    ("DELETE", "/users/{name}"): Route("/users/none", ADMIN),
    ("GET", "/tokens"): Route("/tokens?owner=root", ADMIN),
    ("POST", "/tokens"): Route("/tokens", ADMIN, {"name": "x" * 64, "owner": "none"}),
    ("POST", "/tokens/{name}/rotate"): Route("/tokens/none/rotate", ADMIN, {}),
    ("DELETE", "/tokens/{name}"): Route("/tokens/none", ADMIN),
    ("GET", "/rules"): Route("/rules", ADMIN),
    ("POST", "/rules"): Route(
        "/rules", ADMIN, {"subject": "none", "effect": "allow", "action": "send", "resource": "topic"}
    ),
    ("DELETE", "/rules/{id}"): Route("/rules/999999", ADMIN),
    ("GET", "/audit"): Route("/audit", ADMIN),
}
ROUTE_IDS = [" ".join(key) for key in ROUTES]


def test_every_route_is_in_the_table() -> None:
    document = rest_app("towline://127.0.0.1:1").openapi()
    assert set(ROUTES) == {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("rest-matrix")
    with secured(folder, store=f"file:{folder}/data", durability="os") as one:
        furnish(one)
        yield one
        assert "Traceback" not in one.process.errors, one.process.errors


@pytest.fixture(scope="module")
def door(broker: Secured) -> Iterator[str]:
    with rest_door(broker.url) as url:
        yield url


def caller(broker: Secured, door: str, name: str, roles: list[str]) -> httpx.Client:
    secret = broker.admin.access.create_token(name, roles=roles).secret
    return httpx.Client(base_url=door, headers={"Authorization": f"Bearer {name}.{secret}"}, timeout=30)


@pytest.fixture(scope="module")
def nobody(broker: Secured, door: str) -> Iterator[httpx.Client]:
    with caller(broker, door, "nobody", []) as http:
        yield http


def refused(http: httpx.Client, method: str, route: Route) -> bool:
    answer = http.request(method, route.path, json=route.body)
    assert answer.status_code not in (401, 422, 500), (method, route.path, answer.text)
    if answer.status_code == 403:
        assert answer.json()["error"] == "refused"
        assert " may not " in answer.json()["message"]
    return answer.status_code == 403


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=ROUTE_IDS)
def test_a_route_is_open_with_all_its_rights_and_closed_without_any_one(
    broker: Secured, nobody: httpx.Client, method: str, path: str
) -> None:
    route = ROUTES[method, path]
    hold_against(broker, "nobody", route.needs, lambda: refused(nobody, method, route))


def statuses(http: httpx.Client) -> list[int]:
    """Of some routes: a broker takes its time to refuse those whom it does not know."""

    def ask(key: tuple[str, str]) -> int:
        answer = http.request(key[0], ROUTES[key].path, json=ROUTES[key].body)
        assert sorted(answer.json()) == ["error", "message"]
        return answer.status_code

    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(ask, list(ROUTES)[::5]))


@pytest.mark.parametrize("role", [*ROLES, "no-role"])
def test_a_role_gets_through_where_its_grants_say_and_nowhere_else(broker: Secured, door: str, role: str) -> None:
    with caller(broker, door, f"rest-{role}", [role]) as http:
        for (method, path), route in ROUTES.items():
            assert refused(http, method, route) != granted(role, route.needs), (role, method, path)
        broker.admin.access.revoke_token(f"rest-{role}")
        while http.get("/me").status_code == 503:
            pass  # its connection has just been closed
        assert set(statuses(http)) <= {401, 429}  # who is wrong too often is not asked after any more


def test_without_a_token_nothing_is_open(door: str) -> None:
    with httpx.Client(base_url=door, timeout=30) as http:
        assert set(statuses(http)) == {401}
