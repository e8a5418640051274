"""Addresses: `towline://host:port,…`, `towlines://…` (TLS), or a broker in this process: `memory:` and `file:DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

from towline.errors import BadRequest

__all__ = ["DEFAULT_PORT", "Target", "parse_url", "show_address"]

DEFAULT_PORT: Final = 7400
_MAX_ADDRESSES: Final = 100
_FORMS: Final = "towline://host:port, towlines://host:port, memory: or file:DIR"


class Target(NamedTuple):
    scheme: Literal["towline", "towlines", "memory", "file"]
    addresses: tuple[tuple[str, int], ...] = ()
    """Hosts and ports, in the order in which they are tried."""
    path: str = ""
    """The folder of `file:`, or the name of `memory:`."""
    options: tuple[tuple[str, str], ...] = ()
    """Settings of a broker in this process, by name."""

    @property
    def embedded(self) -> bool:
        return self.scheme in ("memory", "file")

    @property
    def tls(self) -> bool:
        return self.scheme == "towlines"

    def __str__(self) -> str:
        if self.embedded:
            return f"{self.scheme}:{self.path}"
        return f"{self.scheme}://" + ",".join(show_address(*address) for address in self.addresses)


def show_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_url(url: str) -> Target:
    if not isinstance(url, str):
        raise TypeError(f"a broker's URL is a str, not {type(url).__name__}")
    scheme, colon, rest = url.partition(":")
    rest, _, query = rest.partition("?")
    if not colon or "#" in rest:
        raise BadRequest(f"not a broker's URL: use {_FORMS}")
    if "@" in rest and scheme not in ("memory", "file"):
        # Not echoed: the part before the @ may well be a secret.
        raise BadRequest("a broker's URL holds no user or password: give token= and secret= instead")
    options = tuple(parse_qsl(query, keep_blank_values=True))
    match scheme:
        case "towline" | "towlines":
            if options:
                raise BadRequest("a network URL takes no options: give them to connect() by name")
            return Target(scheme, _addresses(rest))
        case "memory":
            return Target(scheme, path=unquote(rest), options=options)
        case "file":
            folder = unquote(rest.removeprefix("//"))
            if not folder:
                raise BadRequest("file: needs a folder, for example file:./data")
            if folder.startswith("~/"):
                folder = str(Path(folder).expanduser())
            return Target(scheme, path=folder, options=options)
        case _:
            raise BadRequest(f"unknown kind of URL {scheme[:20]!r}: use {_FORMS}")


def _addresses(rest: str) -> tuple[tuple[str, int], ...]:
    if not rest.startswith("//"):
        raise BadRequest("a network URL begins with towline:// or towlines://")
    texts = rest[2:].rstrip("/").split(",")
    if len(texts) > _MAX_ADDRESSES:
        raise BadRequest(f"a URL names at most {_MAX_ADDRESSES} brokers")
    return tuple(_address(text.strip()) for text in texts)


def _address(text: str) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, bracket, port = text.partition(":")
    if not host or "/" in text or (text.startswith("[") and not bracket):
        raise BadRequest(f"broker address {text[:100]!r} is not of the form host:port")
    if not port and text.endswith(":"):
        raise BadRequest(f"broker address {text[:100]!r} has no port after the colon")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise BadRequest(f"broker address {text[:100]!r}: a port is a number from 1 to 65535")
    return host, int(port) if port else DEFAULT_PORT
