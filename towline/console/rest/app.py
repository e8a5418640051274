"""The REST application: mount it where you like (`/api`), or run it alone (`towline rest`).

    app.mount("/api", rest_app("towline://127.0.0.1:7400"))

The application that mounts it also enters `rest.state.lifespan()`, since a mounted application gets no start and stop
of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from towline import errors
from towline.console.rest import access, alarms, cluster, groups, messages, topics
from towline.console.rest.client_pool import Callers
from towline.console.rest.docs_page import page
from towline.console.rest.fields import known_only
from towline.console.rest.held_leases import TIDY_S, Pulls
from towline.console.rest.models import Problem
from towline.console.search_turns import SearchTurns
from towline.console.security.origin import OwnPagesOnly

__all__ = ["rest_app"]

FAULTS_MAX: Final = 10
BODY_MAX_BYTES: Final = 24 << 20
"""Of a request: a frame of the largest size, as base64."""

STATUS: Final[dict[type[errors.TowlineError], int]] = {
    errors.NotLetIn: 401,
    errors.Refused: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.LeaseLost: 409,
    errors.WrongShard: 409,
    errors.TooLarge: 413,
    errors.TooManyConnections: 503,
    errors.TooMany: 409,
    errors.BadRequest: 400,
    errors.DiskFull: 507,
    errors.QueueFull: 429,
    errors.Timeout: 504,
    errors.Unavailable: 503,
    errors.StoreFailed: 503,
    errors.Closed: 503,
}
_WORDS: Final = {
    400: "The request cannot be carried out as it stands.",
    401: "The broker asks who is calling.",
    403: "The caller may not do this.",
    404: "There is no such thing.",
    409: "It exists already, or is in another state than this needs.",
    413: "Larger than the limit.",
    422: "A field of the request is missing, or cannot be what it is.",
    429: "No room now: try again later.",
    500: "The broker failed.",
    503: "The broker cannot be reached.",
    504: "The broker did not answer in time.",
    507: "The broker's disk is full.",
}


def rest_app(url: str, **options: Any) -> FastAPI:
    """`options` are those of `towline.aio.connect`, but for the credentials: each caller brings its own."""
    callers, pulls = Callers(url, options), Pulls()

    @asynccontextmanager
    async def lifespan(_: Any = None) -> AsyncIterator[None]:
        tidying = asyncio.create_task(_tidy(callers, pulls))
        try:
            yield
        finally:
            tidying.cancel()
            await asyncio.wait([tidying])
            await pulls.close()
            await callers.close()

    app = FastAPI(
        title="Towline",
        description="A message queue over HTTP. Who is calling is said with `Authorization: Bearer NAME.SECRET` or "
        "HTTP Basic; what it may do, the broker decides.",
        version="1",
        openapi_url="/openapi.json",
        docs_url=None,  # its pages would come from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        dependencies=[Depends(known_only)],
        responses={status: {"model": Problem, "description": words} for status, words in _WORDS.items()},
    )
    app.state.callers, app.state.pulls, app.state.lifespan = callers, pulls, lifespan
    app.state.searches = SearchTurns()
    app.state.hosts = None
    """If given, the names by which callers of a broker without security must address this door."""
    app.add_exception_handler(errors.TowlineError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(Exception, _answer_bug)
    app.add_middleware(_Bounded)
    app.add_middleware(OwnPagesOnly)
    for part in (messages, topics, groups, cluster, alarms, access):
        app.include_router(part.router)

    @app.get("/", include_in_schema=False)
    async def description(request: Request) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "")
        return HTMLResponse(page(app.openapi())) if wants_page else JSONResponse(app.openapi())

    return app


async def _tidy(callers: Callers, pulls: Pulls) -> None:
    while True:
        await asyncio.sleep(TIDY_S)
        await pulls.tidy()
        await callers.tidy(pulls.busy)


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, errors.TowlineError), "it is registered for these only"
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    headers: dict[str, str] = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="towline", Basic realm="towline"'
    if error.retriable:
        headers["Retry-After"] = "1"
    if (isinstance(error, errors.Unavailable) or status == 401) and hasattr(request.state, "caller"):
        await request.app.state.callers.forget(request.state.caller)
    return JSONResponse({"error": error.code, "message": str(error)}, status, headers)


async def _answer_invalid(request: Request, error: Exception) -> JSONResponse:
    """The given values are not repeated: one may be a password."""
    assert isinstance(error, RequestValidationError), "it is registered for these only"
    faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:FAULTS_MAX]]
    return JSONResponse({"error": "bad-request", "message": "; ".join(faults)[:2000]}, 422)


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException), "it is registered for these only"
    if isinstance(error.__cause__, errors.TowlineError):
        return await _answer_error(request, error.__cause__)  # the body was not read to its end
    code = {404: errors.NotFound.code, 413: errors.TooLarge.code}.get(error.status_code, errors.BadRequest.code)
    return JSONResponse({"error": code, "message": str(error.detail)}, error.status_code, error.headers)


async def _answer_bug(request: Request, error: Exception) -> JSONResponse:
    """The operator finds the rest in its log."""
    return JSONResponse({"error": errors.TowlineError.code, "message": "internal error: see the console's log"}, 500)


class _Bounded:
    """Refuses a body that is too large, as soon as it is, and before it is parsed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > BODY_MAX_BYTES:
            await _too_large(scope, receive, send)
            return
        count = 0

        async def counted() -> Message:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > BODY_MAX_BYTES:
                raise errors.TooLarge(f"a request has at most {BODY_MAX_BYTES:,} bytes")
            return message

        await self._app(scope, counted, send)


async def _too_large(scope: Scope, receive: Receive, send: Send) -> None:
    answer = JSONResponse({"error": "too-large", "message": f"a request has at most {BODY_MAX_BYTES:,} bytes"}, 413)
    await answer(scope, receive, send)
