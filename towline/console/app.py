"""The console as one ASGI application: pages, login, downloads, the REST door at /api, and the security middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from fastapi.staticfiles import StaticFiles
from nicegui import app as toolkit
from nicegui import ui
from starlette.types import ASGIApp

from towline.console.downloads import download_routes
from towline.console.layout import use_sessions
from towline.console.pages import (
    access,
    alarms,
    audit,
    cluster,
    dead_letters,
    delayed,
    groups,
    message,
    messages,
    overview,
    topics,
    transactions,
)
from towline.console.rest.app import rest_app
from towline.console.rest.process import to_description
from towline.console.security.csp import ContentPolicy
from towline.console.security.login import login_routes
from towline.console.security.middleware import SecurityMiddleware
from towline.console.sessions import Sessions

__all__ = ["PAGES", "console_app"]

PAGES = (
    overview,
    topics,
    groups,
    messages,
    message,
    dead_letters,
    delayed,
    transactions,
    cluster,
    alarms,
    access,
    audit,
)
FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 22 22"><rect width="22" height="22" rx="6" fill="#0b6a8f"/>'
    '<path d="M15.5 8a5.4 5.4 0 1 0 0 6" fill="none" stroke="#fff" stroke-width="2"/></svg>'
)


def console_app(
    url: str, *, hosts: Iterable[str] = (), any_host: bool = False, tls: bool = False, **options: Any
) -> ASGIApp:
    """`options` are those of `towline.aio.connect`, but for the credentials."""
    sessions = Sessions(url, options)
    use_sessions(sessions)
    rest = rest_app(url, **options)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tidying = asyncio.create_task(sessions.tidy())
        try:
            async with rest.state.lifespan():
                yield
        finally:
            tidying.cancel()
            await sessions.close()

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_api_route("/api", to_description, include_in_schema=False)
    app.mount("/api", rest)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    app.include_router(login_routes(sessions, tls=tls))
    app.include_router(download_routes())

    @app.get("/healthz", include_in_schema=False)
    async def healthy() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    toolkit.add_middleware(ContentPolicy)
    ui.run_with(
        app,
        title="Towline",
        favicon=FAVICON,
        dark=None,
        tailwind=False,
        reconnect_timeout=10.0,
        binding_refresh_interval=None,
        show_welcome_message=False,
    )
    app.add_middleware(SecurityMiddleware, sessions=sessions, hosts=list(hosts), any_host=any_host, tls=tls)
    return app
