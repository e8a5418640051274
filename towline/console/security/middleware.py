"""Security middleware of the console: hosts, origins, headers, sessions.

Pages, and the websocket on which they live, are for whoever has a session. A websocket and everything that changes
something must come from a page of this console (`Origin`), and every request must name this console as its host, so
that a page from elsewhere cannot reach it through a name of its own that points here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from towline.console.security.csp import HEADER, policy
from towline.console.security.origin import ELSEWHERE, Hosts, comes_from_elsewhere
from towline.console.sessions import Sessions
from towline.errors import Refused, TowlineError

__all__ = ["COOKIE", "SecurityMiddleware", "session_key"]

COOKIE: Final = "towline_session"
OPEN: Final = frozenset({"/login", "/favicon.ico", "/api", "/healthz"})
OPEN_BELOW: Final = ("/_nicegui/", "/static/", "/api/")
"""Open paths: these, and those below: assets, the login, and the REST door, which asks by itself."""
HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
)


class SecurityMiddleware:
    def __init__(self, app: ASGIApp, *, sessions: Sessions, hosts: Iterable[str], any_host: bool, tls: bool) -> None:
        self._app = app
        self._sessions = sessions
        self._hosts = Hosts(hosts, any_host=any_host)
        self._tls = tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        problem = self._problem(scope, headers)
        if problem:
            await _refuse(scope, receive, send, problem)
            return
        path: str = scope["path"]
        if path not in OPEN and not path.startswith(OPEN_BELOW):
            try:
                session = await self._sessions.find(session_key(headers))
            except TowlineError as error:
                await PlainTextResponse(f"The broker cannot be reached: {error}\n", 503, {"Retry-After": "2"})(
                    scope, receive, send
                )
                return
            if session is None:
                await self._ask(scope, receive, send)
                return
            if _is_by_person(scope, headers):
                self._sessions.used(session)
            scope.setdefault("state", {})["session"] = session
        await self._app(scope, receive, self._dressed(send, path))

    def _problem(self, scope: Scope, headers: Headers) -> str:
        host = headers.get("host", "")
        problem = self._hosts.problem(host)
        if problem:
            return problem
        changes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD", "OPTIONS")
        live = scope["path"].startswith("/_nicegui_ws/")
        origin = headers.get("origin")
        if (changes or live) and not scope["path"].startswith("/api"):
            if origin is not None and origin != f"{'https' if self._tls else 'http'}://{host}":
                return ELSEWHERE
            if origin is None and scope["type"] == "websocket":
                return "a websocket says from which page it comes"
            if comes_from_elsewhere(headers):
                return ELSEWHERE
        return ""

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "log in"})
        elif scope["method"] == "GET" and not scope["path"].startswith("/_nicegui_ws/"):
            target = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            await RedirectResponse(f"/login?next={quote(target)}", 303)(scope, receive, send)
        else:
            await PlainTextResponse("log in\n", 401)(scope, receive, send)

    def _dressed(self, send: Send, path: str) -> Send:
        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS:
                    headers[name] = value
                headers.setdefault(HEADER, policy())
                if self._tls:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
                if not path.startswith(("/_nicegui/", "/static/", "/api")):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        return dressed


def _is_by_person(scope: Scope, headers: Headers) -> bool:
    """Whether a person opened a page or fetched a file; not a request of an open page, nor one that loads itself anew.
    (Browsers tell where they are reached by TLS or on this machine.)"""
    if scope["type"] != "http" or scope["path"].startswith("/_nicegui_ws/"):
        return False
    return headers.get("sec-fetch-user") == "?1" or "sec-fetch-mode" not in headers


def session_key(headers: Headers) -> str | None:
    return cookie_parser(headers.get("cookie", "")).get(COOKIE)


async def _refuse(scope: Scope, receive: Receive, send: Send, problem: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": problem[:100]})
    elif scope["path"].startswith("/api"):
        await JSONResponse({"error": Refused.code, "message": problem}, 403)(scope, receive, send)
    else:
        await PlainTextResponse(problem + "\n", 403)(scope, receive, send)
