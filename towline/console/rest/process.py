"""The REST door as a process of its own."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import RedirectResponse

from towline.connection_limit import ConnectionLimit
from towline.console.rest.app import rest_app
from towline.console.security.http_connection import (
    CONNECTIONS,
    CONNECTIONS_OF_ADDRESS,
    KEEP_ALIVE_S,
    PROXIES,
    HttpConnection,
    HttpServer,
)
from towline.console.security.origin import Hosts, OwnPagesOnly
from towline.errors import BadRequest, Unavailable
from towline.log_lines import LineFormatter, log_to_stderr

__all__ = ["Server", "listen_on", "serve", "to_description"]


def serve(
    url: str,
    listen: str,
    *,
    tls_cert: str,
    tls_key: str,
    allow_remote: bool,
    host_names: tuple[str, ...] = (),
    max_connections: int = CONNECTIONS,
    max_connections_per_address: int = CONNECTIONS_OF_ADDRESS,
    **options: Any,
) -> int:
    """Serve until SIGTERM or SIGINT. On loopback only for those who name it by its address or by `host_names`; so
    elsewhere as well if the broker asks nobody who they are, but with TLS, where the certificate says the name."""
    if bool(tls_cert) != bool(tls_key):
        raise BadRequest("TLS takes both a certificate (--tls-cert) and its key (--tls-key)")
    log_to_stderr("warning", LineFormatter("rest: %(message)s"))
    sock = listen_on(listen, remote=allow_remote or bool(tls_cert))
    rest = rest_app(url, **options)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=rest.state.lifespan)
    for path in ("/", "/api"):
        app.add_api_route(path, to_description, include_in_schema=False)
    app.mount("/api", rest)
    host, port = sock.getsockname()[:2]
    names, any_host = (*host_names, listen.rpartition(":")[0].strip("[]")), "*" in host_names
    if ipaddress.ip_address(host).is_loopback:
        app.add_middleware(OwnPagesOnly, hosts=Hosts((*names, host), any_host=any_host))
    elif not tls_cert:
        rest.state.hosts = Hosts((*names, socket.gethostname()), any_host=any_host, any_address=True)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ssl_certfile=tls_cert or None,
        ssl_keyfile=tls_key or None,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=KEEP_ALIVE_S,
        limit_concurrency=None,
        forwarded_allow_ips=PROXIES,
    )
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if tls_cert else "http"
    sys.stdout.write(f"listening on {scheme}://{shown}:{port}/api\n")
    sys.stdout.flush()
    limit = ConnectionLimit[HttpConnection](max_connections, max_connections_per_address)
    asyncio.run(Server(config, limit).serve(sockets=[sock]))
    return 0


async def to_description() -> RedirectResponse:
    return RedirectResponse("/api/", 307)


class Server(HttpServer):
    """Ends upon a signal as if nothing else had been expected: with exit code 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def listen_on(text: str, *, remote: bool) -> socket.socket:
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadRequest(f"listen {text!r}: write HOST:PORT, for example 127.0.0.1:7480")
    try:
        family, _, _, _, address = socket.getaddrinfo(host or None, int(port), type=socket.SOCK_STREAM)[0]
        if not remote and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            raise BadRequest(
                f"not listening on {address[0]} without TLS: secrets could be overheard. Give --tls-cert and "
                "--tls-key, or --allow-remote if something in front of it speaks TLS"
            )
        sock = socket.create_server(address[:2], family=family, backlog=256)
        # Taken over by every connection: an answer in two parts must not wait for the kernel.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except OSError as error:
        raise Unavailable(f"cannot listen on {text}: {error.strerror or error}") from None
