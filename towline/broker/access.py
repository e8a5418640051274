"""Who may come in: tokens and their secrets, the principal that a connection speaks for, and TLS."""

from __future__ import annotations

import hmac
import ipaddress
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path

from towline.errors import BadRequest, Refused
from towline.frame import TOKEN_MAX
from towline.settings import BrokerSettings

__all__ = ["Access", "Principal", "check_listen_address", "read_tokens", "tls_context"]

_NOBODYS_SECRET = b"compared with when there is no such token, so that both take as long"


class Principal:
    """Whoever a connection speaks for. Every request asks it once, in one place: here is the room for ACLs."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def may(self, action: str, resource: str) -> bool:
        """Whether it may do `action` (send, consume, look, administer) to `resource` (a topic, or `*` for all)."""
        del action, resource
        return True


class Access:
    """Decides who may connect. Without tokens anyone may, under any name."""

    def __init__(self, tokens: Mapping[str, str] | None = None) -> None:
        self._secrets = None if tokens is None else {name: secret.encode() for name, secret in tokens.items()}

    @classmethod
    def from_settings(cls, settings: BrokerSettings) -> Access:
        return cls(read_tokens(Path(settings.tokens_file)) if settings.tokens_file else None)

    @property
    def asks_for_tokens(self) -> bool:
        return self._secrets is not None

    def admit(self, token: str, secret: str) -> Principal:
        """The principal of a token. Raises `Refused` with the same words for a wrong token and for a wrong secret."""
        if len(token.encode()) > TOKEN_MAX:
            raise Refused(f"a token has at most {TOKEN_MAX} bytes")
        if self._secrets is not None:
            kept = self._secrets.get(token)
            right = hmac.compare_digest(_NOBODYS_SECRET if kept is None else kept, secret.encode())
            if kept is None or not right:
                raise Refused("this broker asks for a token and its secret, and these are not right")
        return Principal(token)


def read_tokens(path: Path) -> dict[str, str]:
    """The secrets by token, from lines `name = secret`; empty lines and lines that begin with # are passed over."""
    try:
        mode = path.stat().st_mode
        if mode & stat.S_IRWXO:
            raise BadRequest(f"tokens file {path}: anyone on this machine may read or change it; run: chmod o= {path}")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"tokens file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadRequest(f"tokens file {path}: it is not UTF-8") from None
    tokens: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            name, secret = _parse_token(stripped, f"tokens file {path}, line {number}")
            if name in tokens:
                raise BadRequest(f"tokens file {path}, line {number}: there is a line for {name!r} already")
            tokens[name] = secret
    if not tokens:
        raise BadRequest(f"tokens file {path}: it holds no token, so nobody could connect")
    return tokens


def _parse_token(line: str, where: str) -> tuple[str, str]:
    name, sign, secret = line.partition("=")
    name, secret = name.strip(), secret.strip()
    if not sign or not name or not secret:
        raise BadRequest(f"{where}: write `name = secret`")
    if len(name.encode()) > TOKEN_MAX or len(secret) > 512:
        raise BadRequest(f"{where}: a name has at most {TOKEN_MAX} bytes, a secret at most 512 characters")
    return name, secret


def check_listen_address(address: str, access: Access, settings: BrokerSettings) -> None:
    """Listening to the world without tokens must be asked for: anyone there could do anything."""
    if access.asks_for_tokens or settings.allow_remote or ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return
    raise Refused(
        f"not listening on {address}: other machines could reach it, and no tokens are set. "
        "Set tokens_file, or allow_remote if everyone there may do anything"
    )


def tls_context(cert: str, key: str) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with this certificate and key; None when neither is given."""
    if not cert and not key:
        return None
    if not cert or not key:
        raise BadRequest("TLS takes both a certificate (tls_cert) and its key (tls_key)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for file in (cert, key):
        try:
            Path(file).read_bytes()
        except OSError as error:
            raise BadRequest(f"TLS file {file}: {error.strerror}") from None
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise BadRequest(f"TLS certificate {cert} and key {key} do not load: {reason}") from None
    return context


def _no_password() -> str:
    raise BadRequest("the TLS key is protected by a password; a broker starts unattended: give it a key without one")
