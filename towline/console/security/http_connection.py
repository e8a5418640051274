"""Connections of the console and the REST door: limits of their number, and of the time that one may keep us waiting.

    head ──► body ──► answering ──► head …       a websocket leaves this, and keeps its place

The head of a request has a time limit. Its body may take long, but must not stand still, and neither may an answer that
is not taken. A client over a limit is told so, if nothing was answered yet: 408, 413, 429, 431 or 503.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from towline.clock import Patience
from towline.connection_limit import ConnectionLimit, allow_files

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _HttpProtocol
else:
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as _HttpProtocol

__all__ = ["CONNECTIONS", "CONNECTIONS_OF_ADDRESS", "PROXIES", "HttpConnection", "HttpServer"]

log = logging.getLogger("towline.serve")

CONNECTIONS: Final = 1_000
CONNECTIONS_OF_ADDRESS: Final = 200
HEAD_S: Final = 10.0
BODY_S: Final = 20.0
"""A body of which less than 64 KiB comes within this time stands still."""
ANSWER_S: Final = 60.0
UNREAD_MAX_BYTES: Final = 256 << 20
"""Of answers that nobody has taken yet, of all connections together: beyond it the oldest of them are cut."""
HANDSHAKE_S: Final = 10.0
KEEP_ALIVE_S: Final = 5
HEAD_MAX_BYTES: Final = 64 << 10
BODY_MAX_BYTES: Final = 25 << 20
PROXIES: Final = "127.0.0.1,::1"
"""Proxies whose `X-Forwarded-For` is believed, so that wrong passwords count for that address."""
SWEEP_S: Final = 0.5
LINGER_S: Final = 0.5
LINGERING_MAX: Final = 100
"""So many refused ones are told why; the others are just closed."""
RETRY_S: Final = {429: 5, 503: 5}
REASONS: Final = {
    408: "Request Timeout",
    413: "Content Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class HttpConnection(_HttpProtocol):
    def __init__(self, server: HttpServer, **options: Any) -> None:
        super().__init__(**options)
        self._server = server
        self._since_s: float | None = None
        """When the awaited head began; None if none has."""
        self._heard_s = 0.0
        self._head_bytes = 0
        self._body_bytes = 0
        self._reading = Patience()
        self._unread = (0, 0.0)
        """Bytes that the client had not taken, and since when they have been as many."""
        self.unread_since_s = 0.0
        """Since when there have been any."""
        self._upgraded = False
        self._over = False

    @property
    def host(self) -> str:
        return self.client[0] if self.client else "local"

    @property
    def unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def waits_since_s(self) -> float | None:
        return None if self._upgraded or self._over or self._answers else self._heard_s

    @property
    def _request(self) -> Any:
        """The request whose head came last; None before the first."""
        return self.cycle

    @property
    def _answers(self) -> bool:
        """A request is whole and being answered."""
        request = self._request
        return request is not None and not request.response_complete and not request.more_body

    @property
    def _in_body(self) -> bool:
        request = self._request
        return request is not None and request.more_body

    # Called by the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._server.came(self)
        self._since_s = self._heard_s = self.loop.time()
        status, going = self._server.limit.enter(self, self._heard_s)
        if going is not None:
            going.refuse(408, "there is no room left, and nothing of this request has come for a while")
        if status:
            self.refuse(status, self._server.limit_text(status))

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._heard_s = self.loop.time()
        if self._answers or self._in_body:
            self._body_bytes += len(data)
        else:
            self._since_s = self._since_s or self._heard_s
            self._head_bytes += len(data)
        super().data_received(data)
        if self._upgraded or self.transport.is_closing():
            return
        if self._answers or self._in_body:
            if self._head_bytes:
                self._since_s, self._head_bytes, self._body_bytes = None, 0, 0
        elif self._head_bytes > HEAD_MAX_BYTES:
            self.refuse(431, f"the head of a request has at most {HEAD_MAX_BYTES:,} bytes")
        if self._body_bytes > BODY_MAX_BYTES:
            self.refuse(413, f"a request has at most {BODY_MAX_BYTES:,} bytes")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since_s = None  # how long it may be idle is uvicorn's business
        self._heard_s = self.loop.time()

    def handle_websocket_upgrade(self, *event: Any) -> None:
        self._upgraded = True
        super().handle_websocket_upgrade(*event)

    # Time

    def sweep(self, now_s: float) -> None:
        unread = self.unread_bytes
        if not self._unread[0]:
            self.unread_since_s = now_s
        if unread != self._unread[0]:
            self._unread = unread, now_s
        if self._upgraded:
            if self.transport.is_closing():
                self._server.left(self)
            return
        in_body = self._in_body and not self.flow.read_paused
        if self._over or self.transport.is_closing():
            return
        if unread and now_s - self._unread[1] > ANSWER_S:
            self.transport.abort()
        elif self._reading.is_over(now_s, BODY_S, self._body_bytes if in_body else None):
            self.refuse(408, f"the rest of the body did not come within {BODY_S:g} s")
        elif not (in_body or self._answers) and self._since_s is not None and now_s - self._since_s > HEAD_S:
            self.refuse(408, f"the head of the request did not come within {HEAD_S:g} s")

    def refuse(self, status: int, text: str) -> None:
        """Send the reason, if nothing else is being sent, and close. Further input is dropped meanwhile: to close with
        unread bytes would make the kernel throw the answer away."""
        self._over = True
        self._server.left(self)
        request = self._request
        answered = request is not None and request.response_started and not request.response_complete
        if request is not None:
            request.disconnected = True
            request.message_event.set()
        self.flow.resume_reading()
        if answered or self._server.lingering >= LINGERING_MAX or self.transport.is_closing():
            self.transport.abort()
            return
        retry = f"Retry-After: {RETRY_S[status]}\r\n" if status in RETRY_S else ""
        body = text + "\n"
        self.transport.write(
            f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n{body}".encode()
        )
        if self.transport.can_write_eof():
            with suppress(OSError):  # it is gone already
                self.transport.write_eof()
        self._server.lingering += 1
        self.loop.call_later(LINGER_S, self._end)

    def _end(self) -> None:
        self._server.lingering -= 1
        self.transport.abort()


class HttpServer(uvicorn.Server):
    """Uvicorn's, with connections that are bounded."""

    def __init__(self, config: uvicorn.Config, limit: ConnectionLimit[HttpConnection]) -> None:
        super().__init__(config)
        self.limit = limit
        self.lingering = 0
        self._connections: set[HttpConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    def limit_text(self, status: int) -> str:
        if status == 429:
            return f"your address has {self.limit.of_address} connections already: close some, or try again later"
        return f"there are {self.limit.most} connections already: try again later"

    async def startup(self, sockets: Any = None) -> None:
        """As uvicorn's on sockets that are given, but with our connections."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(uvicorn.config.STARTUP_FAILURE)
        allow_files(self.limit.most + 512)
        loop, context = asyncio.get_running_loop(), self.config.ssl
        self.servers = [
            await loop.create_server(
                self._connection,
                sock=sock,
                ssl=context,
                backlog=self.config.backlog,
                ssl_handshake_timeout=HANDSHAKE_S if context else None,
            )
            for sock in sockets
        ]
        self._sweep()
        self.started = True

    async def shutdown(self, sockets: Any = None) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await super().shutdown(sockets)

    def came(self, connection: HttpConnection) -> None:
        self._connections.add(connection)

    def left(self, connection: HttpConnection) -> None:
        self.limit.leave(connection)
        self._connections.discard(connection)

    def _connection(self) -> HttpConnection:
        return HttpConnection(self, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(SWEEP_S, self._sweep)
        now_s = loop.time()
        for connection in list(self._connections):
            connection.sweep(now_s)
        self._cut()

    def _cut(self) -> None:
        """Answers that nobody takes are in memory: who has left theirs for longest goes."""
        unread = {one: one.unread_bytes for one in self._connections if not one.transport.is_closing()}
        over = sum(unread.values()) - UNREAD_MAX_BYTES
        for connection in sorted(filter(unread.get, unread), key=lambda one: one.unread_since_s):
            if over <= 0:
                break
            log.warning(
                "answers of more than %d bytes wait to be read: the connection from %s, which has %d of them, is cut",
                UNREAD_MAX_BYTES, connection.host, unread[connection],
            )  # fmt: skip
            over -= unread[connection]
            connection.transport.abort()
