"""Logging in and out: plain forms, without the rest of the console."""

from __future__ import annotations

import hmac
import html
import secrets
from string import Template
from typing import Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from towline.console.security.middleware import COOKIE, session_key
from towline.console.sessions import Sessions
from towline.errors import Refused, TooMany, TowlineError

__all__ = ["login_routes"]

CSRF: Final = "towline_csrf"
FORM_MAX: Final = 8192
PAGE: Final = Template(
    """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Log in · Towline</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<link rel="stylesheet" href="/static/theme.css"></head><body class="tl-login"><main>
<div class="tl-brand"><span class="tl-mark"></span>Towline</div>
<form method="post" action="/login" autocomplete="on">
<p class="tl-sub">Log in with a user and its password, or with a token and its secret.</p>
<p class="tl-wrong" role="alert">$wrong</p>
<label>Name<input name="name" autocomplete="username" required maxlength="64" autofocus value="$name"></label>
<label>Password or secret<input name="secret" type="password" autocomplete="current-password" required maxlength="512">
</label><input type="hidden" name="csrf" value="$csrf"><input type="hidden" name="next" value="$next">
<button type="submit">Log in</button></form></main></body></html>"""
)


def login_routes(sessions: Sessions, *, tls: bool) -> APIRouter:
    router = APIRouter()

    def page(request: Request, wrong: str = "", name: str = "", status: int = 200, where: str = "/") -> Response:
        token = request.cookies.get(CSRF) or secrets.token_urlsafe(32)
        body = PAGE.substitute(
            wrong=html.escape(wrong), name=html.escape(name[:64]), csrf=html.escape(token), next=html.escape(where)
        )
        answer = HTMLResponse(body, status)
        answer.set_cookie(CSRF, token, httponly=True, samesite="strict", secure=tls, path="/login")
        return answer

    @router.get("/login", include_in_schema=False)
    async def ask(request: Request) -> Response:
        where = _local(request.query_params.get("next", "/"))
        try:
            found = await sessions.find(session_key(request.headers))
        except TowlineError as error:
            return page(request, f"The broker cannot be reached: {error}", status=503, where=where)
        return page(request, where=where) if found is None else RedirectResponse(where, 303)

    @router.post("/login", include_in_schema=False)
    async def enter(request: Request) -> Response:
        form = await _form(request)
        name, where = form.get("name", ""), _local(form.get("next", "/"))
        if not hmac.compare_digest(form.get("csrf", "").encode(), request.cookies.get(CSRF, "-").encode()):
            return page(request, "The form was too old: try again.", name, 403, where)
        address = request.client.host if request.client else ""
        try:
            session = await sessions.login(address, name, form.get("secret", ""))
        except TooMany as error:
            return page(request, str(error), name, 429, where)
        except Refused:
            return page(request, "The name is not known, or the password is wrong.", name, 401, where)
        except TowlineError as error:
            return page(request, f"The broker cannot be reached: {error}", name, 503, where)
        answer = RedirectResponse(where, 303)
        answer.set_cookie(COOKIE, session.key, httponly=True, samesite="strict", secure=tls, path="/")
        return answer

    @router.post("/active", include_in_schema=False)
    async def active(request: Request) -> Response:
        """The user types, clicks or scrolls in an open page."""
        sessions.used(request.scope["state"]["session"])
        return Response(status_code=204)

    @router.post("/logout", include_in_schema=False)
    async def leave(request: Request) -> Response:
        session = request.scope["state"]["session"]
        form = await _form(request)
        if session.secured and hmac.compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
            await sessions.end(session)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, path="/")
        return answer

    return router


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_MAX:
            return {}
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace"), max_num_fields=20).items()}


def _local(where: str) -> str:
    """Only to pages of our own."""
    return where if where.startswith("/") and not where.startswith(("//", "/\\")) and where.isprintable() else "/"
