"""The TCP server: listens, makes a session of each connection, and ends them in order."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Collection
from typing import cast

from towline.broker.access.authentication import Access, check_listen_address
from towline.broker.broker import Broker
from towline.broker.periodic import every
from towline.broker.server.connection import ServerState
from towline.broker.server.metrics_http import MetricsServer
from towline.broker.server.requests import TABLE
from towline.broker.server.session import Session
from towline.errors import Stopping, Unavailable

__all__ = ["Server"]

log = logging.getLogger("towline.server")

BACKLOG = 1024
LOOK_AGAIN_S = 0.02
ACCESS_REFRESH_S = 2.0


class Server:
    """Serves one broker. `start` listens on an address; a server that was just made serves single sockets only."""

    def __init__(self, broker: Broker, access: Access | None = None) -> None:
        self._broker = broker
        self._access = access or Access()
        self._line = ServerState(broker.settings, broker.answers)
        broker.registry.visitors = cast("Collection[Session]", self._line.connections)
        if (audit := self._access.audit) is not None:
            broker.group_expiry.on_removed = lambda topic, group, why: audit.note(
                "", "", "ExpireGroup", f"group {group} on topic {topic}", detail=why
            )
        self._listener: asyncio.Server | None = None
        settings = broker.settings
        limits = (1.0, settings.heartbeat_s / 10, settings.idle_s / 4, settings.handshake_s / 4)
        self._sweep_s = max(0.01, min(limits))
        self._sweep_soon()
        self._refresher: asyncio.Task[None] | None = None
        if self._access.book is not None and not settings.store.startswith(("memory:", "file:")):
            # Another broker on the same database may change permissions.
            what = "reading who may do what"
            work = every(ACCESS_REFRESH_S, what, self._access.refresh)
            self._refresher = self._line.loop.create_task(broker.lag.timed(what, work))

    @classmethod
    async def start(cls, broker: Broker, host: str, port: int, ssl: ssl.SSLContext | None = None) -> Server:
        access = await Access.open(broker.settings, broker.store, broker.clock)
        addresses = await _resolve(host, port)
        for address in addresses:
            check_listen_address(address, access, broker.settings)
        server = cls(broker, access)
        try:
            await server._listen(addresses, port, ssl)
        except OSError as error:
            server._sweeper.cancel()
            taken = "; choose another port, or port 0 for a free one" if error.errno == errno.EADDRINUSE else ""
            raise Unavailable(f"cannot listen on {host}:{port}: {_reason(error)}{taken}") from None
        broker.consumers.await_orphans()
        return server

    async def _listen(self, addresses: list[str], port: int, context: ssl.SSLContext | None) -> None:
        # With port 0 each address would get another port; the first address is enough then.
        self._listener = await self._line.loop.create_server(
            self._session,
            addresses if port else addresses[:1],
            port,
            ssl=context,
            backlog=BACKLOG,
            ssl_handshake_timeout=self._broker.settings.handshake_s if context else None,
        )

    @property
    def port(self) -> int:
        assert self._listener is not None, "this server does not listen"
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._line.connections)

    async def serve_socket(self, sock: socket.socket) -> None:
        """Serve a socket that is connected already. Returns at once; the session runs in the background."""
        sock.setblocking(False)
        await self._line.loop.connect_accepted_socket(self._session, sock)

    async def serve_metrics(self, host: str, port: int) -> MetricsServer:
        return await MetricsServer.start(self._broker, self._access, host, port)

    async def drain_and_close(self) -> None:
        """Stop listening, let running requests be answered and waiting pulls return empty, refuse all else, then close:
        all of it within `drain_s`."""
        loop, connections, drain_s = self._line.loop, self._line.connections, self._broker.settings.drain_s
        if self._listener is not None:
            self._listener.close()
        deadline_s = loop.time() + drain_s
        # First of all: connections that end now cost no consumer its lease.
        self._broker.release_waiters()
        for connection in list(connections):
            connection.end(Stopping(), within_s=drain_s)
        while connections and loop.time() < deadline_s:
            # Again and again, because a pull may begin to wait only now.
            self._broker.release_waiters()
            await asyncio.sleep(min(LOOK_AGAIN_S, max(0.0, deadline_s - loop.time())))
        if connections:
            log.warning("%d connections did not end within %g s and are broken off", len(connections), drain_s)
        for connection in list(connections):
            connection.abort()
        # The transports report their end in the next round of the loop.
        await asyncio.sleep(0)
        self._sweeper.cancel()
        if self._refresher is not None:
            self._refresher.cancel()
        await self._access.close()

    def _session(self) -> Session:
        return Session(self._line, self._broker, self._access, TABLE)

    def _sweep_soon(self) -> None:
        lag = self._broker.lag
        self._sweeper = self._line.loop.call_later(self._sweep_s, lag.called, "looking after connections", self._sweep)

    def _sweep(self) -> None:
        now_s = self._line.loop.time()
        self._line.answers.sweep(now_s)
        for connection in list(self._line.connections):
            connection.sweep(now_s)
        self._sweep_soon()


def _reason(error: OSError) -> str:
    # asyncio writes whole sentences into `strerror`; a resolver's errors have numbers of their own.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


async def _resolve(host: str, port: int) -> list[str]:
    """The numeric addresses to listen on, the first one first."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return list(dict.fromkeys(str(info[4][0]) for info in found))
