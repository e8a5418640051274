"""The tokens file: who may connect, for brokers that need no more than that."""

from __future__ import annotations

import stat
from pathlib import Path

from towline.errors import BadRequest
from towline.frame import TOKEN_MAX

__all__ = ["read_tokens"]


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
