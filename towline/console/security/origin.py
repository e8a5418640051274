"""Origin checks: whether a request names this server, and whether a page of another site sent it.

A browser lets any page send simple requests anywhere, with the reader's credentials; and a page from elsewhere can
reach this machine under a name of its own that points here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from towline.errors import Refused

__all__ = ["ELSEWHERE", "Hosts", "OwnPagesOnly", "comes_from_elsewhere"]

ELSEWHERE: Final = "the request comes from a page of another site"
_HARMLESS: Final = ("GET", "HEAD", "OPTIONS")


class Hosts:
    """The names by which this server is reached: those it is given, `localhost`, and loopback addresses, or all."""

    def __init__(self, names: Iterable[str], *, any_host: bool = False, any_address: bool = False) -> None:
        self._names = {name.lower() for name in names}
        self._any = any_host
        self._any_address = any_address

    def problem(self, host: str) -> str:
        """Empty, if there is none."""
        if self._any or self._known(host):
            return ""
        return f"this is not {host[:100]!r}: start it with --host-name, or use the address it listens on"

    def _known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").lower()
        if name == "localhost" or name in self._names:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback or self._any_address
        except ValueError:
            return False


def comes_from_elsewhere(headers: Headers) -> bool:
    """Whether the browser's headers tell so; programs have none."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    try:
        return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    except ValueError:
        return True


class OwnPagesOnly:
    """Refuses changes sent by a page of another site; and if `hosts` are given, requests that name another server."""

    def __init__(self, app: ASGIApp, hosts: Hosts | None = None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = ""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if self._hosts is not None:
                problem = self._hosts.problem(headers.get("host", ""))
            if scope["method"] not in _HARMLESS and comes_from_elsewhere(headers):
                problem = problem or ELSEWHERE
        if problem:
            await JSONResponse({"error": Refused.code, "message": problem}, 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)
