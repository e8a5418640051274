"""Fields that a request must not have: no route that changes something passes over one."""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from tests.broker.process import BrokerProcess
from tests.inside.console import access, alarms, body_model, cluster, groups, messages, query_names, rest_app, topics
from tests.rest.process import Http, rest_door

APP = rest_app("towline://127.0.0.1:1", timeout=0.2)
READ_ONLY = {"GET", "HEAD", "OPTIONS"}
OPERATIONS = [
    (method.upper(), path)
    for path, methods in APP.openapi()["paths"].items()
    for method in methods
    if method.upper() not in READ_ONLY
]
ROUTES: dict[tuple[str, str], Any] = {
    (method, route.path): route
    for part in (messages, topics, groups, cluster, alarms, access)
    for route in part.router.routes
    for method in route.methods
    if method not in READ_ONLY
}


def ask(method: str, path: str, **content: Any) -> httpx.Response:
    """Without a broker: what gets as far as to look for one was not refused."""

    async def main() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://test") as client:
            return await client.request(method, path.replace("{", "").replace("}", ""), **content)

    return asyncio.run(main())


def refused(method: str, path: str, field: str, **content: Any) -> str:
    answer = ask(method, path, **content)
    assert answer.status_code == 400, (method, path, answer.text)
    message: str = answer.json()["message"]
    assert field in message, message
    return message


def test_all_routes_are_looked_at() -> None:
    assert sorted(OPERATIONS) == sorted(ROUTES)
    assert len(OPERATIONS) > 25


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_field_that_a_route_does_not_know_is_refused(method: str, path: str) -> None:
    refused(method, path, "query.no_such", params={"no_such": "1"})
    refused(method, path, "body.no_such", json={"no_such": 1})
    refused(method, path, "body", json=["no_such"])


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_field_in_the_wrong_place_is_refused_and_the_right_one_is_named(method: str, path: str) -> None:
    route = ROUTES[method, path]
    query, model = query_names(route), body_model(route)
    body = set(model.model_fields) if model is not None else set()
    assert not query & body, "a name is a field of the query or of the body"
    for name in query:
        assert "belongs into the query" in refused(method, path, f"body.{name}", json={name: "1"})
        assert "twice" in refused(method, path, f"query.{name}", params=[(name, "0"), (name, "1")])
    for name in body:
        assert "belongs into the body" in refused(method, path, f"query.{name}", params={name: "1"})


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_objects_within_a_body_take_no_unknown_fields_either(method: str, path: str) -> None:
    for model in models(body_model(ROUTES[method, path])):
        assert model.model_config.get("extra") == "forbid", model


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models(field.annotation)
    for argument in typing.get_args(annotation):
        yield from models(argument)


def test_a_dry_run_that_is_asked_for_in_the_wrong_place_purges_nothing() -> None:
    with BrokerProcess() as broker, rest_door(f"towline://127.0.0.1:{broker.port}") as url, Http(url) as http:
        http("POST", "/topics/orders/messages", {"body": "a"}, status=201)
        told = http("POST", "/topics/orders/purge", {"dry_run": True}, status=400)
        assert "body.dry_run: this field belongs into the query" in told["message"]
        assert http("POST", "/topics/orders/purge", {}, dry_run=True)["messages"] == 1
        assert http("POST", "/topics/orders/purge")["messages"] == 1, "it was still there"
