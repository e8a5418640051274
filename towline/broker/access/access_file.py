"""The access file: tokens and their permissions, declared by the operator, for containers and tests where nobody is
there to make them. It is read at each start, and nothing of it is written to the store.

    [tokens.shop]
    secret_file = "shop.secret"            # or secret = "…"
    allow = ["send:topic:orders.*", "consume:group:billing"]

    [tokens.root]
    secret = "…"
    roles = ["admin"]
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Final

import msgspec

from towline.broker.access.account_store import Declared, Secret, Token, check_name, check_role, hash_secret
from towline.broker.access.rules import ANY, check_grant
from towline.errors import BadRequest, TowlineError
from towline.protocol.access import Grant, Rule

__all__ = ["read_access_file"]

FILE_MAX: Final = 1 << 20
SECRET_MIN: Final = 16
SECRET_MAX: Final = 512
_SECRET: Final = re.compile(r"[A-Za-z0-9_~+/=-]*")


class _Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    secret: str = ""
    secret_file: str = ""
    roles: list[str] = []
    allow: list[str] = []


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: dict[str, _Token]


def read_access_file(path: Path) -> Declared:
    try:
        found = msgspec.convert(tomllib.loads(_read(path, "access file")), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadRequest(
            f"access file {path}: {error}. Write for each token [tokens.NAME], then secret or secret_file, and roles "
            "or allow"
        ) from None
    if not found.tokens:
        raise BadRequest(f"access file {path}: it holds no token")
    tokens, rules = {}, []
    for name, one in found.tokens.items():
        where = f"access file {path}, token {name[:80]!r}"
        try:
            tokens[check_name(name)] = _token(name, one, path)
            rules += [_rule(name, text) for text in one.allow]
        except TowlineError as error:
            raise BadRequest(f"{where}: {error}") from None
    return Declared(str(path), tokens, tuple(rules))


def _token(name: str, given: _Token, path: Path) -> Token:
    for role in given.roles:
        check_role(role)
    if bool(given.secret) == bool(given.secret_file):
        raise BadRequest("give secret or secret_file, one of them")
    secret = given.secret or _read(path.parent / Path(given.secret_file).expanduser(), "secret file").strip()
    if not SECRET_MIN <= len(secret) <= SECRET_MAX:
        raise BadRequest(
            f"its secret has {len(secret)} characters; give {SECRET_MIN} to {SECRET_MAX} that nobody guesses"
        )
    if not _SECRET.fullmatch(secret):
        # `Bearer NAME.SECRET` is cut at the last dot: with one in the secret, half of it would be taken for a name.
        raise BadRequest("its secret holds other than letters, digits and _ ~ + / = -: make another one")
    hashed = hash_secret(secret)
    return Token(name, roles=given.roles, secrets=[Secret(hashed[:8], hashed, 0)])


def _rule(name: str, text: str) -> Rule:
    action, colon, rest = text.partition(":")
    resource, _, what = rest.partition(":")
    if not colon:
        raise BadRequest(f"allow {text[:80]!r}: write ACTION:RESOURCE:NAME, for example send:topic:orders.*")
    check_grant(Grant(action, resource, what or ANY))
    return Rule(0, name, "allow", action, resource, what or ANY)


def _read(path: Path, what: str) -> str:
    """The text of a file that others may neither read nor change."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode  # of the file that is read, whatever the path is by then
            data = file.read(FILE_MAX + 1)
    except OSError as error:
        raise BadRequest(f"{what} {path}: {error.strerror}") from None
    if mode & stat.S_IRWXO:
        raise BadRequest(
            f"{what} {path}: anyone on this machine may read or change it; run: chmod o= {path} (or mount it with "
            "mode 0440)"
        )
    if len(data) > FILE_MAX:
        raise BadRequest(f"{what} {path}: it has more than {FILE_MAX:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"{what} {path}: it is not UTF-8") from None
