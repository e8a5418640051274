"""Settings of a SQL store, and the URL that names its database."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Annotated

import msgspec

from towline.errors import BadRequest

__all__ = ["SqlSettings", "parse_url"]

KIB = 1 << 10
MIB = 1 << 20

_URL = re.compile(r"mysql://(?:(?P<user>[^@/]*)@)?(?P<hosts>[^@/?]+)/(?P<database>[A-Za-z0-9_$-]{1,64})")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")


class SqlSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit of a SQL store. The defaults suit a broker."""

    hosts: tuple[tuple[str, int], ...]
    """The hosts of the database; with several (the nodes of a Galera cluster) one is used, the next when it fails."""
    database: str
    user: str = "root"
    password: str = ""
    tls_ca: str = ""
    """A file of certificates (PEM): the connection is encrypted, and the server's certificate checked."""
    readers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """Connections that read; there is one more that writes."""
    queue_bytes: Annotated[int, msgspec.Meta(ge=64 * KIB)] = 256 * MIB
    """The bytes that may wait to be written before `append` refuses with `QueueFull`."""
    group_bytes: Annotated[int, msgspec.Meta(ge=64 * KIB)] = 8 * MIB
    """About the size of one transaction …"""
    group_rows: Annotated[int, msgspec.Meta(ge=1)] = 20_000
    """… and its number of messages: it must end long before the lease does."""
    statement_bytes: Annotated[int, msgspec.Meta(ge=4 * KIB)] = MIB
    """About the length of an INSERT of many rows."""
    cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 64 * MIB
    """The size of the cache of recent frames."""
    ahead_bytes: Annotated[int, msgspec.Meta(ge=0)] = 2 * MIB
    """The bytes that are read at once from a lane that is far behind."""
    wait_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    """Producers wait this long for a database that does not answer; then new ones get an error they may retry."""
    answer_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """A statement that takes longer than this counts as lost, with its connection."""
    lease_s: Annotated[float, msgspec.Meta(ge=0.2, le=60)] = 2.0
    """A broker's realms are free for others when it was not heard of for this long, by the database's clock."""

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("give at least one host")

    @property
    def label(self) -> str:
        """The database, for people and logs; never with the password."""
        return f"{self.user}@{','.join(f'{host}:{port}' for host, port in self.hosts)}/{self.database}"

    def tls(self) -> ssl.SSLContext | None:
        if not self.tls_ca:
            return None
        try:
            return ssl.create_default_context(cafile=self.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise BadRequest(f"the database's certificates in {self.tls_ca} cannot be used: {error}") from None


def parse_url(url: str, *, password_file: str = "", tls_ca: str = "", wait_s: float = 10.0) -> SqlSettings:
    """Settings from `mysql://user@host:port[,host:port…]/database`."""
    found = _URL.fullmatch(url)
    if found is None:
        raise BadRequest(f"store {_shown(url)!r}: write mysql://USER@HOST:PORT/DATABASE, several hosts with commas")
    user = found["user"] or "root"
    if ":" in user:
        raise BadRequest(
            f"store {_shown(url)!r}: the password does not belong here, where others can read it; write it into a file "
            "and name that with --store-password-file"
        )
    return SqlSettings(
        hosts=tuple(_host(text, url) for text in found["hosts"].split(",")),
        database=found["database"],
        user=user,
        password=_password(password_file),
        tls_ca=tls_ca,
        wait_s=wait_s,
    )


def _host(text: str, url: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or 3306) if found is not None else 0
    if found is None or not 0 < port < 65536:
        raise BadRequest(f"store {_shown(url)!r}: {text!r} is not HOST:PORT")
    return found["host"].strip("[]"), port


def _password(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadRequest(f"the file of the database's password, {file}, cannot be read: {reason}") from None


def _shown(url: str) -> str:
    """The URL without a password that somebody may have written into it."""
    return re.sub(r"(//[^@/:]*):[^@]*@", r"\1:…@", url)
