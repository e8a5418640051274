"""Webhooks: the addresses that notices may be sent to, and sending one.

A rule is made by people who may alter the cluster, but the broker stands in a network where it may reach what they may
not: services that trust their own machine, and the addresses where clouds give out credentials. Such are refused unless
a setting names them. Private networks are not among them, because there an operator's own receivers live. The name is
looked up once, all its addresses are checked, and the connection goes to one that was checked: a name that means
something else a moment later does not help.

Sending blocks, and runs in a thread.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from towline.clock import SYSTEM
from towline.errors import BadRequest, Unavailable

__all__ = ["Webhooks", "masked"]

PATIENCE_S: Final = 15.0
WHOLE_S: Final = 60.0
"""For all of a notice, however slowly the answer comes, from the moment on in which its addresses are known."""
ADDRESSES_MAX: Final = 4
"""Addresses of a name that are tried."""
_HIDDEN: Final = "/…"
_SETTING: Final = "an operator can allow it (--webhook-allow)"

Address = IPv4Address | IPv6Address
_REFUSED: Final = tuple(
    (ip_network(network), why)
    for network, why in (
        ("0.0.0.0/8", "no address of anyone"),
        ("127.0.0.0/8", "this machine itself"),
        ("169.254.0.0/16", "link-local, where clouds give out credentials"),
        ("100.100.100.200/32", "where a cloud gives out credentials"),
        ("168.63.129.16/32", "where a cloud gives out credentials"),
        ("192.0.0.0/24", "no address of a receiver"),
        ("224.0.0.0/4", "an address of many"),
        ("240.0.0.0/4", "no address of a receiver"),
        ("::/128", "no address of anyone"),
        ("::1/128", "this machine itself"),
        ("2001::/32", "the end of a tunnel"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "link-local"),
        ("fd00:ec2::/32", "where a cloud gives out credentials"),
        ("fd20:ce::/32", "where a cloud gives out credentials"),
        ("ff00::/8", "an address of many"),
    )
)
_WRAPPING: Final = (
    *((IPv6Network(f"{prefix}/96"), 0) for prefix in ("::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::")),
    (IPv6Network("64:ff9b:1::/48"), 0),
    (IPv6Network("2002::/16"), 80),
)
"""IPv6 networks that lead to an address of IPv4, and by how many bits that is shifted in it."""


class Webhooks:
    def __init__(self, allowed: str = "") -> None:
        """`allowed` are networks, addresses and names of hosts, with commas between."""
        self._networks: list[IPv4Network | IPv6Network] = []
        self._hosts: set[str] = set()
        for one in filter(None, map(str.strip, allowed.split(","))):
            try:
                self._networks.append(ip_network(one, strict=False))
            except ValueError:
                if "/" in one or "*" in one:
                    raise BadRequest(
                        f"setting webhook_allow: {one!r} is neither a network, as 127.0.0.0/8, nor the name of a host"
                    ) from None
                self._hosts.add(_bare(one))

    def check(self, url: str) -> None:
        """Raises `BadRequest` if nothing may be sent there. A name that is not known now may be when it matters."""
        parts = _split(url)
        try:
            self._addresses(url, parts)
        except Unavailable:
            return

    def post(self, url: str, payload: dict[str, Any]) -> None:
        """Post one notice. Neither a redirect nor a proxy is followed."""
        parts = _split(url)
        addresses = self._addresses(url, parts)
        try:
            end_s = SYSTEM.steady_s() + WHOLE_S
            connected = _connect(addresses[:ADDRESSES_MAX], parts.port or _port(parts), end_s)
            with _cut_off(connected, end_s):
                status = _exchange(connected, parts, msgspec.json.encode(payload))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unavailable(f"webhook {masked(url)}: {error}") from None
        if not 200 <= status < 300:
            raise Unavailable(f"webhook {masked(url)}: HTTP Error {status}")

    def _addresses(self, url: str, parts: SplitResult) -> list[Address]:
        """All addresses of its host, each of which is allowed."""
        host = parts.hostname or ""
        try:
            found = socket.getaddrinfo(host, parts.port or _port(parts), type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise Unavailable(f"webhook {masked(url)}: {host} is not known: {reason}") from None
        addresses = [ip_address(str(each[4][0]).partition("%")[0]) for each in found]
        if _bare(host) not in self._hosts:
            for address in addresses:
                why = self._why_not(address)
                if why:
                    shown = host if host == str(address) else f"{host} ({address})"
                    raise BadRequest(f"webhook {masked(url)}: {shown} is not sent to, it is {why}; {_SETTING}")
        return list(dict.fromkeys(addresses))

    def _why_not(self, address: Address) -> str:
        ways = [address, *_inside(address)]
        if any(way in network for network in self._networks for way in ways):
            return ""
        return next((why for network, why in _REFUSED for way in ways if way in network), "")


def _inside(address: Address) -> list[Address]:
    """The address of IPv4 that one of IPv6 leads to."""
    if isinstance(address, IPv4Address):
        return []
    return [
        IPv4Address(int(address) >> shift & 0xFFFFFFFF)
        for network, shift in _WRAPPING
        if address in network and int(address) > 1
    ]


def _bare(host: str) -> str:
    return host.lower().rstrip(".")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise BadRequest(f"webhook {url[:80]!r} is not an http or https address")
    if parts.username is not None or parts.password is not None:
        raise BadRequest(f"webhook {masked(url)}: a name and a password before the host are not sent; leave them out")
    return parts


def _port(parts: SplitResult) -> int:
    return 443 if parts.scheme == "https" else 80


def _connect(addresses: list[Address], port: int, end_s: float) -> socket.socket:
    """Connect to the first address that answers."""
    refused = OSError("its host has no address")
    for address in addresses:
        left_s = end_s - SYSTEM.steady_s()
        if left_s <= 0:
            break
        try:
            return socket.create_connection((str(address), port), min(PATIENCE_S, left_s))
        except OSError as error:
            refused = error
    raise refused


@contextmanager
def _cut_off(connected: socket.socket, end_s: float) -> Iterator[None]:
    """Limit of the whole exchange: an answer may come byte by byte without end."""
    same = connected.dup()  # TLS takes the socket over

    def cut() -> None:
        with suppress(OSError):
            same.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(end_s - SYSTEM.steady_s(), 0.0), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        same.close()
        connected.close()


def _exchange(connected: socket.socket, parts: SplitResult, body: bytes) -> int:
    """The status of the receiver's answer."""
    host = parts.hostname or ""
    connection = http.client.HTTPConnection(host, parts.port or _port(parts), timeout=PATIENCE_S)
    if parts.scheme == "https":
        connection.default_port = 443  # it stays out of the header `Host`
        connected = ssl.create_default_context().wrap_socket(connected, server_hostname=host)
    connection.sock = connected
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json", "User-Agent": "towline", "Connection": "close"}
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read(1024)
        return answer.status
    finally:
        connection.close()


def masked(url: str) -> str:
    """A webhook as it may be shown: its path often is its secret."""
    if url.endswith(_HIDDEN):
        return url
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return _HIDDEN
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{_HIDDEN}"
