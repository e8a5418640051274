"""Dialing a broker: the next address to try, TLS, and the connected socket."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from towline.client.link.url import Target, show_address
from towline.errors import BadRequest, Refused

__all__ = ["CONNECT_S", "Certificates", "Route", "explain", "make_ssl_context", "never_better"]

CONNECT_S: Final = 5.0
"""How long one address may take to answer before the next is tried."""
_MISMATCHES: Final = (62, 64)
"""OpenSSL's numbers for a certificate of another host, and of another address."""


_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "TLSV1_ALERT_PROTOCOL_VERSION", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons when the other side does not speak TLS; and our broker's own."""


class Route:
    """The addresses of a target, in turn. After each round that failed, the caller waits."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._at = 0

    @property
    def address(self) -> tuple[str, int]:
        return self.target.addresses[self._at]

    @property
    def shown(self) -> str:
        """The address in use as `host:port`; empty for a broker inside the process."""
        return show_address(*self.address) if self.target.addresses else ""

    def prefer(self, address: str) -> bool:
        """Continue with this one, `host:port`, if we know it."""
        for at, known in enumerate(self.target.addresses):
            if show_address(*known) == address and at != self._at:
                self._at = at
                return True
        return False

    def learn(self, addresses: Sequence[tuple[str, int]]) -> None:
        """There are other addresses by now; the one in use stays in use, if it is among them."""
        current = self.address
        known = tuple(dict.fromkeys(addresses))
        if known and known != self.target.addresses:
            self.target = self.target._replace(addresses=known)
            self._at = known.index(current) if current in known else 0

    @property
    def name(self) -> str:
        return str(self.target) if self.target.embedded else show_address(*self.address)

    def failed(self) -> bool:
        """Continue with the next address. True when all of them were tried."""
        self._at = (self._at + 1) % max(1, len(self.target.addresses))
        return self._at == 0


def never_better(route: Route, error: OSError) -> Refused | None:
    """The error to raise at once, because trying again would fare no better; None for all that may pass."""
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return Refused(f"{route.name}: it does not speak TLS: use towline:// if that is meant ({error.reason})")
    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    hint = "if it has an authority of its own, name that one's file (ca_file, --ca-file)"
    if error.verify_code in _MISMATCHES:
        hint = "connect by a name that stands in it"
    reason = (error.verify_message or str(error)).rstrip(".")
    return Refused(f"{route.name}: its certificate is not accepted: {reason}; {hint}")


def explain(route: Route, cause: Exception | None) -> str:
    """Why a broker was not reached, and possible causes."""
    if cause is None:
        return "it does not answer"
    reason = str(cause) or type(cause).__name__
    if route.target.embedded:
        return reason
    if isinstance(cause, ConnectionRefusedError):
        return f"{reason}; is a broker running there?"
    if route.target.tls and isinstance(cause, ssl.SSLError | ConnectionResetError):
        return f"{reason}; does it speak TLS? If not, use towline://"
    if isinstance(cause, ConnectionResetError):
        return f"{reason}; does it speak TLS? Then use towlines://"
    return reason


class Certificates(NamedTuple):
    """The parts of TLS: a context, or the files to make one of."""

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
    for name, file in (("ca_file", given.ca_file), ("cert_file", given.cert_file), ("key_file", given.key_file)):
        try:
            if file:
                Path(file).read_bytes()
        except OSError as error:
            raise BadRequest(f"{name} {file}: {error.strerror}") from None
    try:
        context = ssl.create_default_context(cafile=given.ca_file)
        if given.cert_file:
            context.load_cert_chain(given.cert_file, given.key_file)
    except OSError as error:
        raise BadRequest(f"the certificate or key files cannot be used: {error}") from None
    return context
