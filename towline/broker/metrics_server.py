"""A small HTTP listener beside the broker: `/metrics` for Prometheus, `/health` for whoever restarts it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import time
from typing import Final

from towline.broker.access import Access, check_listen_address
from towline.broker.broker import Broker
from towline.broker.metrics import CONTENT_TYPE, exposition
from towline.errors import TowlineError, Unavailable

__all__ = ["MetricsServer"]

log = logging.getLogger("towline.metrics")

PATIENCE_S: Final = 5.0
LINE_MAX: Final = 8 << 10
LINES_MAX: Final = 100
AT_ONCE: Final = 16
FRESH_S: Final = 1.0
"""Metrics that are no older than this are told again, however many ask."""


class MetricsServer:
    def __init__(self, broker: Broker, access: Access) -> None:
        self._broker = broker
        self._access = access
        self._server: asyncio.Server | None = None
        self._open = 0
        self._reading = asyncio.Lock()
        self._known = (float("-inf"), b"")

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
        self._open += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self._open > AT_ONCE:
                    answer = _answer(503, b"too many at once\n")
                else:
                    answer = await self._answer(reader)
                writer.write(answer)
                await writer.drain()
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # It went away, or is none that speaks HTTP.
        except Exception:
            log.exception("metrics could not be told")
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        method, _, rest = (await reader.readline()).decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        authorization = ""
        for _ in range(LINES_MAX):
            name, _, value = (await reader.readline()).decode("latin-1").partition(":")
            if not name.strip():
                break
            if name.lower() == "authorization":
                authorization = value.strip()
        if method not in ("GET", "HEAD"):
            return _answer(405, b"GET only\n")
        status, body, kind = await self._look_up(path, authorization)
        return _answer(status, body, kind, silent=method == "HEAD")

    async def _look_up(self, path: str, authorization: str) -> tuple[int, bytes, str]:
        plain = "text/plain; charset=utf-8"
        if path == "/health":
            trouble = self._broker.trouble()
            return (503, f"{trouble}\n".encode(), plain) if trouble else (200, b"ok\n", plain)
        if path != "/metrics":
            return 404, b"look at /metrics or /health\n", plain
        if self._access.book is not None and not self._may(authorization):
            return 401, b"a token that may describe the cluster is needed: Authorization: Bearer NAME.SECRET\n", plain
        return 200, await self._metrics(), CONTENT_TYPE

    async def _metrics(self) -> bytes:
        async with self._reading:
            at_s, text = self._known
            if time.monotonic() - at_s > FRESH_S:
                text = await exposition(self._broker)
                self._known = (time.monotonic(), text)
        return text

    def _may(self, authorization: str) -> bool:
        """Tokens only: a password would have to be looked at for each scrape."""
        scheme, _, given = authorization.partition(" ")
        try:
            if scheme.lower() == "basic":
                name, _, secret = base64.b64decode(given, validate=True).decode().partition(":")
            else:
                name, _, secret = given.strip().rpartition(".")
            principal = self._access.admit(name, secret)
        except (TowlineError, binascii.Error, ValueError):
            return False
        return self._access.rights(principal).may("describe", "cluster", "")


_REASONS: Final = {
    200: "OK",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


def _answer(status: int, body: bytes, kind: str = "text/plain; charset=utf-8", *, silent: bool = False) -> bytes:
    challenge = 'WWW-Authenticate: Bearer realm="towline"\r\n' if status == 401 else ""
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{challenge}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if silent else body)
