"""Reaching a broker: which address to try next, and how to make the socket."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

from towline.client.url import Target, show_address
from towline.errors import BadRequest

__all__ = ["CONNECT_S", "Certificates", "Route", "connect_socket", "make_ssl_context"]

CONNECT_S: Final = 5.0
"""How long one address may take to answer before the next is tried."""


class Route:
    """The addresses of a target, in turn. After each round that failed, the caller waits."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._at = 0

    @property
    def address(self) -> tuple[str, int]:
        return self.target.addresses[self._at]

    @property
    def name(self) -> str:
        return str(self.target) if self.target.embedded else show_address(*self.address)

    def failed(self) -> bool:
        """Go on to the next address. True when all of them were tried."""
        self._at = (self._at + 1) % max(1, len(self.target.addresses))
        return self._at == 0


def connect_socket(
    route: Route, timeout_s: float, context: ssl.SSLContext | None, embedded: Callable[[], socket.socket] | None
) -> socket.socket:
    """A connected socket, with TLS if the target asks for it. Raises OSError."""
    if embedded is not None:
        return embedded()
    host, port = route.address
    sock = socket.create_connection((host, port), timeout=timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if context is not None:
            return context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise
    return sock


class Certificates(NamedTuple):
    """What TLS needs: a context, or the files to make one of."""

    context: ssl.SSLContext | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def make_ssl_context(target: Target, given: Certificates) -> ssl.SSLContext | None:
    if not target.tls:
        if any(given):
            raise BadRequest("certificates are given, but the URL does not ask for TLS: use towlines://")
        return None
    if given.context is not None:
        return given.context
    try:
        context = ssl.create_default_context(cafile=given.ca_file)
        if given.cert_file:
            context.load_cert_chain(given.cert_file, given.key_file)
    except OSError as error:
        raise BadRequest(f"the certificate or key files cannot be used: {error}") from None
    return context
