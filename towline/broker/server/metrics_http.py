"""A small HTTP listener beside the broker: `/metrics` for Prometheus, `/health` for supervisors."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import logging
import socket
import time
from typing import Final

from towline.broker.access.authentication import Access, Principal, check_listen_address
from towline.broker.access.rules import May
from towline.broker.broker import Broker
from towline.broker.monitor.prometheus import CONTENT_TYPE, exposition
from towline.connection_limit import ConnectionLimit
from towline.errors import TowlineError, Unavailable
from towline.log_lines import harmless

__all__ = ["MetricsServer"]

log = logging.getLogger("towline.metrics")

PATIENCE_S: Final = 5.0
LINE_MAX: Final = 8 << 10
LINES_MAX: Final = 100
CONNECTIONS: Final = 500
AT_ONCE: Final = 16
"""Requests answered at a time; half ones do not count."""
FRESH_S: Final = 1.0
"""Metrics that are no older than this are answered again, however many ask."""


class _Scraper:
    """A connection, until its request is whole."""

    def __init__(self, writer: asyncio.StreamWriter, now_s: float) -> None:
        name = writer.get_extra_info("peername")
        self.host = str(name[0]) if isinstance(name, tuple) else "local"
        self.waits_since_s: float | None = now_s
        self.writer = writer


class MetricsServer:
    def __init__(self, broker: Broker, access: Access) -> None:
        self._broker = broker
        self._access = access
        self._server: asyncio.Server | None = None
        self._limit = ConnectionLimit[_Scraper](CONNECTIONS, broker.settings.http_connections_per_address)
        self._answering = 0
        settings = broker.settings
        given = [_name_of(one) for one in (settings.metrics, settings.advertise)]
        given += [_name_of(one) for one in settings.metrics_hosts.split(",")]
        self._hosts = {"localhost", _name_of(socket.gethostname()), *given} - {""}
        self._reading = asyncio.Lock()
        self._known: dict[str, tuple[float, bytes]] = {}
        """By principal, those who see all being one."""

    @classmethod
    async def start(cls, broker: Broker, access: Access, host: str, port: int) -> MetricsServer:
        metrics = cls(broker, access)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host or None, port)
            addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
            for address in addresses:
                check_listen_address(address, access, broker.settings)
            where = addresses if port else addresses[:1]
            metrics._server = await asyncio.start_server(metrics._serve, where, port, limit=LINE_MAX)
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port} for metrics: {error.strerror or error}") from None
        return metrics

    @property
    def port(self) -> int:
        assert self._server is not None, "it was started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scraper = _Scraper(writer, time.monotonic())
        status, going = self._limit.enter(scraper, time.monotonic())
        if going is not None:
            going.writer.transport.abort()
        try:
            async with asyncio.timeout(PATIENCE_S):
                writer.write(_answer(status, b"too many at once\n") if status else await self._answer(reader, scraper))
                await writer.drain()
        except TimeoutError:
            if scraper.waits_since_s is None:
                writer.transport.abort()  # it does not read its answer, and to close would wait for it
            else:
                writer.write(_answer(408, b"the request did not come in time\n"))
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # It went away, or does not speak HTTP.
        except Exception:
            log.exception("metrics could not be told")
        finally:
            self._limit.leave(scraper)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, scraper: _Scraper) -> bytes:
        method, _, rest = (await reader.readline()).decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        authorization, strange = "", ""
        for _ in range(LINES_MAX):
            name, _, value = (await reader.readline()).decode("latin-1").partition(":")
            if not name.strip():
                break
            if name.lower() == "authorization":
                authorization = value.strip()
            elif name.lower() == "host" and not self._is_ours(value.strip()):
                strange = value.strip()
        if method not in ("GET", "HEAD"):
            return _answer(405, b"GET only\n")
        scraper.waits_since_s = None
        if strange and self._access.book is None:
            said = f"this is not {harmless(strange[:100])}: name it with --metrics-hosts, or use the address\n"
            return _answer(403, said.encode())
        if self._answering >= AT_ONCE:
            return _answer(503, b"too many at once\n")
        self._answering += 1
        try:
            status, body, kind = await self._look_up(path, authorization)
        finally:
            self._answering -= 1
        return _answer(status, body, kind, silent=method == "HEAD")

    def _is_ours(self, host: str) -> bool:
        """Whether a request names this broker, by an address or one of its names. A foreign page whose name points here
        for a moment has that name in its requests."""
        name = _name_of(host)
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return name in self._hosts

    async def _look_up(self, path: str, authorization: str) -> tuple[int, bytes, str]:
        plain = "text/plain; charset=utf-8"
        if path == "/health":
            trouble = self._broker.trouble()
            return (503, f"{trouble}\n".encode(), plain) if trouble else (200, b"ok\n", plain)
        if path != "/metrics":
            return 404, b"look at /metrics or /health\n", plain
        if self._access.book is None:
            return 200, await self._metrics("", None), CONTENT_TYPE
        principal = self._principal(authorization)
        rights = self._access.rights(principal) if principal is not None else None
        if principal is None or rights is None or not rights.may("describe", "cluster", ""):
            return 401, b"a token that may describe the cluster is needed: Authorization: Bearer NAME.SECRET\n", plain
        may = rights.sight()
        return 200, await self._metrics("" if may is None else principal.name, may), CONTENT_TYPE

    async def _metrics(self, reader: str, may: May | None) -> bytes:
        async with self._reading:
            at_s, text = self._known.get(reader, (float("-inf"), b""))
            if time.monotonic() - at_s > FRESH_S:
                if len(self._known) >= AT_ONCE:
                    self._known.clear()
                text = await exposition(self._broker, may)
                self._known[reader] = (time.monotonic(), text)
        return text

    def _principal(self, authorization: str) -> Principal | None:
        """Tokens only: a password would have to be checked for each scrape."""
        scheme, _, given = authorization.partition(" ")
        try:
            if scheme.lower() == "basic":
                name, _, secret = base64.b64decode(given, validate=True).decode().partition(":")
            else:
                name, _, secret = given.strip().rpartition(".")
            return self._access.admit(name, secret)
        except (TowlineError, binascii.Error, ValueError):
            return None


def _name_of(host: str) -> str:
    """A host without its port, in the form in which names are compared."""
    name = host.strip().lower()
    before, sign, port = name.rpartition(":")
    return (before if sign and port.isdigit() else name).strip("[]").rstrip(".")


_REASONS: Final = {
    200: "OK",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    429: "Too Many Requests",
    503: "Service Unavailable",
}


def _answer(status: int, body: bytes, kind: str = "text/plain; charset=utf-8", *, silent: bool = False) -> bytes:
    challenge = 'WWW-Authenticate: Bearer realm="towline"\r\n' if status == 401 else ""
    retry = "Retry-After: 5\r\n" if status in (429, 503) else ""
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{challenge}{retry}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if silent else body)
