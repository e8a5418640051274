"""TLS: the broker's certificate, and the identities in a client's certificate."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from pathlib import Path
from typing import Any

from towline.errors import BadRequest
from towline.settings import BrokerSettings

__all__ = ["identities_of", "tls_context", "tls_of"]


def tls_of(settings: BrokerSettings) -> ssl.SSLContext | None:
    """The context of the settings; None without TLS."""
    context = tls_context(settings.tls_cert, settings.tls_key)
    if not settings.tls_client_ca:
        return context
    if context is None:
        raise BadRequest("tls_client_ca asks clients for certificates, which takes TLS: set tls_cert and tls_key, too")
    _read(settings.tls_client_ca)
    try:
        context.load_verify_locations(settings.tls_client_ca)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise BadRequest(f"TLS authority {settings.tls_client_ca} does not load: {reason}") from None
    context.verify_mode = ssl.CERT_OPTIONAL if settings.tls_client_optional else ssl.CERT_REQUIRED
    return context


def tls_context(cert: str, key: str) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with this certificate and key; None when neither is given."""
    if not cert and not key:
        return None
    if not cert or not key:
        raise BadRequest("TLS takes both a certificate (tls_cert) and its key (tls_key)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for file in (cert, key):
        _read(file)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise BadRequest(f"TLS certificate {cert} and key {key} do not load: {reason}") from None
    return context


def _read(file: str) -> None:
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise BadRequest(f"TLS file {file}: {error.strerror}") from None


def _no_password() -> str:
    raise BadRequest("the TLS key is protected by a password; a broker starts unattended: give it a key without one")


def identities_of(transport: asyncio.BaseTransport) -> list[str]:
    """The identities in the client's certificate, which was verified. Each is compared whole, never in parts."""
    connection: Any = transport.get_extra_info("ssl_object")
    certificate = connection.getpeercert() if connection is not None else None
    if not certificate:
        return []
    raw = connection.getpeercert(binary_form=True)
    found = [f"sha256:{hashlib.sha256(raw).hexdigest()}"]
    found += [
        f"{kind.lower()}:{value}" for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")
    ]
    names = [value for parts in certificate.get("subject", ()) for kind, value in parts if kind == "commonName"]
    if len(names) == 1:  # with several it would be ambiguous
        found.append(f"cn:{names[0]}")
    return found
