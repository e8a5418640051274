"""Routes of the REST door × roles and rights: a sample, for it brings its caller's token and decides nothing;
test_matrix has every request. Without a token every route is closed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import pytest

from tests.broker.access.expected import BILLING, CLUSTER, SEE_ALL, Need, furnish, granted, group, hold_against, topic
from tests.broker.access.secured import Secured, secured
from tests.inside.broker import ROLES
from tests.inside.console import rest_app
from tests.rest.process import rest_door


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
    ("POST", "/transactions"): Route(
        "/transactions",
        [("send", ORDERS), ("send", topic("stock"))],
        {"messages": [{"topic": "orders", "body": "x"}, {"topic": "stock", "body": "x"}]},
    ),
    ("POST", "/topics/{topic}/groups/{group}/pull"): Route(
        "/topics/orders/groups/billing/pull",
        [("consume", ORDERS), ("consume", BILLING)],
        {"max_messages": 1, "wait_s": 0, "lease_s": 1},
    ),
    ("GET", "/trace"): Route("/trace?id=orders/middle/0&group=billing", [("describe", ORDERS), ("describe", BILLING)]),
    ("GET", "/topics"): Route("/topics", OWN),
    ("POST", "/topics"): Route("/topics", [("create", ORDERS)], {"name": "orders"}),
    ("DELETE", "/topics/{topic}"): Route("/topics/nowhere", [("delete", topic("nowhere"))]),
    ("PUT", "/topics/{topic}/groups/{group}"): Route(
        "/topics/orders/groups/billing", of_group("alter", "billing"), {"max_attempts": 16}
    ),
    ("POST", "/topics/{topic}/groups/{group}/dead/{number}/revise"): Route(
        "/topics/orders/groups/none/dead/0/revise", [("alter", group("none")), ("send", ORDERS)], {"body": "y"}
    ),
    ("PUT", "/alarms/{name}"): Route("/alarms/late", [("alter", CLUSTER), *SEE_ALL], {"what": "age", "threshold": 300}),
    ("POST", "/users"): Route("/users", ADMIN, {"name": "root", "password": "a long password"}),
}
ROUTE_IDS = [" ".join(key) for key in ROUTES]


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


def statuses(http: httpx.Client, routes: Iterable[tuple[str, str, Any]]) -> set[int]:
    """Of all at once: a broker takes its time to refuse those whom it does not know."""

    def ask(route: tuple[str, str, Any]) -> int:
        answer = http.request(route[0], route[1], json=route[2])
        assert sorted(answer.json()) == ["error", "message"]
        return answer.status_code

    with ThreadPoolExecutor(16) as threads:
        return set(threads.map(ask, routes))


@pytest.mark.parametrize("role", [*ROLES, "no-role"])
def test_a_role_gets_through_where_its_grants_say_and_nowhere_else(broker: Secured, door: str, role: str) -> None:
    with caller(broker, door, f"rest-{role}", [role]) as http:
        for (method, path), route in ROUTES.items():
            assert refused(http, method, route) != granted(role, route.needs), (role, method, path)
        broker.admin.access.revoke_token(f"rest-{role}")
        while http.get("/me").status_code == 503:
            pass  # its connection has just been closed
        sample = [(method, route.path, route.body) for (method, _), route in ROUTES.items()]
        assert statuses(http, sample) <= {401, 429}  # who is wrong too often is not asked after any more


def test_without_a_token_nothing_is_open(door: str) -> None:
    paths = rest_app("towline://127.0.0.1:1").openapi()["paths"]
    routes: list[tuple[str, str, Any]] = [
        (method.upper(), re.sub(r"{\w+}", "1", path), {}) for path, methods in paths.items() for method in methods
    ]
    assert len(routes) > 50
    with httpx.Client(base_url=door, timeout=30) as http:
        assert statuses(http, routes) == {401}
