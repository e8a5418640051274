"""Fields of requests that change something: an unknown or misplaced one is refused.

Otherwise `{"dry_run": true}` in a body would be ignored by a route that takes it from the query, which would then do
what it was only to try.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from towline.errors import BadRequest

__all__ = ["body_model", "known_only", "query_names"]

_READ_ONLY: Final = {"GET", "HEAD", "OPTIONS"}
_SHOWN_MAX: Final = 10


async def known_only(request: Request) -> None:
    """A dependency of all routes."""
    if request.method in _READ_ONLY:
        return
    route: APIRoute = request.scope["route"]
    query, model = query_names(route), body_model(route)
    body = set(model.model_fields) if model is not None else set()
    said = [name for name, _ in request.query_params.multi_items()]
    faults = [
        *_faults(said, query, body, "query", "body"),
        *_faults(await _names(request), body, query, "body", "query"),
    ]
    if faults:
        raise BadRequest(f"{request.method} {route.path}: nothing was done: {'; '.join(faults[:_SHOWN_MAX])}")


def query_names(route: APIRoute) -> set[str]:
    return {field.alias for dependant in _flat(route.dependant) for field in dependant.query_params}


def body_model(route: APIRoute) -> type[BaseModel] | None:
    """The model of a route's body; None if it takes none."""
    if route.body_field is None:
        return None
    model: Any = route.body_field.field_info.annotation
    assert isinstance(model, type), f"{route.path}: a body is of one kind"
    assert issubclass(model, BaseModel), f"{route.path}: a body is an object whose fields are known"
    return model


def _flat(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for one in dependant.dependencies:
        yield from _flat(one)


async def _names(request: Request) -> list[str]:
    """The fields of the body, which is parsed once."""
    if not await request.body():
        return []
    try:
        content = await request.json()
    except (ValueError, RecursionError):
        raise BadRequest("body: this is no JSON") from None
    if content is None:
        return []
    if not isinstance(content, dict):
        raise BadRequest("body: give an object, such as {}")
    return list(content)


def _faults(said: Iterable[str], here: set[str], there: set[str], place: str, other: str) -> Iterator[str]:
    seen: set[str] = set()
    for name in said:
        shown = name[:100]
        if name in seen:
            yield f"{place}.{shown}: given twice"
        elif name in there and name not in here:
            yield f"{place}.{shown}: this field belongs into the {other}"
        elif name not in here:
            takes = f"takes {', '.join(sorted(here))}" if here else "takes nothing"
            yield f"{place}.{shown}: there is no such field, the {place} {takes}"
        seen.add(name)
