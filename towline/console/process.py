"""The console as a process of its own: alone, or beside a broker, whose end is then its own."""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import uvicorn

from towline.connection_limit import ConnectionLimit
from towline.console.app import console_app
from towline.console.rest.process import Server, listen_on
from towline.console.security.http_connection import (
    CONNECTIONS,
    CONNECTIONS_OF_ADDRESS,
    KEEP_ALIVE_S,
    PROXIES,
    HttpConnection,
)
from towline.errors import BadRequest
from towline.log_lines import LineFormatter, log_to_stderr

__all__ = ["serve"]


def serve(
    url: str,
    listen: str,
    *,
    tls_cert: str = "",
    tls_key: str = "",
    allow_remote: bool = False,
    host_names: tuple[str, ...] = (),
    beside: bool = False,
    pin: bool = False,
    max_connections: int = CONNECTIONS,
    max_connections_per_address: int = CONNECTIONS_OF_ADDRESS,
    **options: Any,
) -> int:
    """Serve until SIGTERM or SIGINT; `beside` a broker, until its end of stdin is closed.

    With `pin`, the broker is the one that has the certificate `ca_file`, by whatever address it is reached."""
    if bool(tls_cert) != bool(tls_key):
        raise BadRequest("TLS takes both a certificate (--tls-cert) and its key (--tls-key)")
    if pin:
        context = options["ssl_context"] = _pinned(options.pop("ca_file"))
        cert_file, key_file = options.pop("cert_file", None), options.pop("key_file", None)
        if cert_file:
            context.load_cert_chain(cert_file, key_file)
    log_to_stderr("warning", LineFormatter("console: %(message)s"))
    sock = listen_on(listen, remote=allow_remote or bool(tls_cert))
    host, port = sock.getsockname()[:2]
    names = (*host_names, host, listen.rpartition(":")[0].strip("[]"))
    app = console_app(url, hosts=names, any_host="*" in host_names, tls=bool(tls_cert), **options)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ssl_certfile=tls_cert or None,
        ssl_keyfile=tls_key or None,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=KEEP_ALIVE_S,
        limit_concurrency=None,
        forwarded_allow_ips=PROXIES,
        ws="websockets-sansio",
        ws_max_size=4 << 20,
    )
    server = Server(config, ConnectionLimit[HttpConnection](max_connections, max_connections_per_address))
    if beside:
        threading.Thread(target=_watch, args=(server,), daemon=True).start()
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(f"console at {'https' if tls_cert else 'http'}://{shown}:{port}/\n")
    sys.stdout.flush()
    asyncio.run(server.serve(sockets=[sock]))
    return 0


def _pinned(cert_file: str) -> ssl.SSLContext:
    """Trusts the first certificate of the file and no other: by loopback, its broker has none of the names in it."""
    mark = "-----END CERTIFICATE-----"
    first, found, _ = Path(cert_file).read_text(encoding="ascii", errors="replace").partition(mark)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=first[first.find("-----BEGIN CERTIFICATE-----") :] + found + "\n")
    return context


def _watch(server: Server) -> None:
    """The parent process holds the other end; the system closes it whatever becomes of that."""
    sys.stdin.buffer.read()
    server.should_exit = True
