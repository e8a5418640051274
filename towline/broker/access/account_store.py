"""Users, tokens and rules: one document of the store, hashes only, replaced whole.

A damaged document is never replaced by an older one, which might know tokens that were revoked since: the broker does
not start then.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from typing import Final

import msgspec

from towline.broker.access.rules import ANY
from towline.clock import Clock
from towline.errors import BadName, BadRequest, Conflict, NotFound, StoreDamaged, TooMany
from towline.format import decode_document, not_understood
from towline.protocol.access import ACTIONS, RESOURCES, Grant, Quota, Rule
from towline.store import Store

__all__ = [
    "SETUP",
    "AccountStore",
    "Declared",
    "Secret",
    "Token",
    "User",
    "check_name",
    "check_role",
    "hash_secret",
    "is_of_admins",
    "new_secret",
]

DOCUMENT: Final = "access.json"
SETUP: Final = "setup"
"""The name of the setup secret's principal; nobody else may have it."""
PRINCIPALS_MAX: Final = 10_000
RULES_MAX: Final = 10_000
SECRETS_MAX: Final = 2
UNKNOWN: Final = -1

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._;@-]{0,63}")
_ROLE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,49}")


class User(msgspec.Struct, frozen=True):
    name: str
    password: str = ""
    """Its argon2 hash."""
    roles: list[str] = []
    disabled: bool = False
    identities: list[str] = []
    quota: Quota = Quota()
    created_at_us: int = 0


class Secret(msgspec.Struct, frozen=True):
    id: str
    hash: str
    created_at_us: int
    expires_at_us: int = 0


class Token(msgspec.Struct, frozen=True):
    name: str
    owner: str = ""
    roles: list[str] = []
    scopes: list[Grant] = []
    quota: Quota = Quota()
    secrets: list[Secret] = []
    created_at_us: int = 0
    expires_at_us: int = 0
    """The latest expiry of its secrets, unless an administrator sets another; 0 is no limit."""


class Declared(msgspec.Struct, frozen=True):
    """Tokens and rules of the access file: they are used besides those of the store, and are not kept in it."""

    path: str = ""
    tokens: dict[str, Token] = {}
    rules: tuple[Rule, ...] = ()


class _Stored(Token, frozen=True):
    expires_at_us: int = UNKNOWN
    """Version 0.1.0 did not write it."""


class _Document(msgspec.Struct):
    version: int = 0
    users: list[User] = []
    tokens: list[Token] = []
    rules: list[Rule] = []
    next_rule: int = 1


class _Found(_Document):
    """The document as it is read."""

    tokens: list[_Stored] = []  # type: ignore[assignment]


def new_secret() -> str:
    """256 bits."""
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """A plain hash will do: 256 bits are not guessed, however fast each try is."""
    return hashlib.sha256(secret.encode()).hexdigest()


class AccountStore:
    """Read at any time; changed by one at a time, and a change counts once it is saved."""

    def __init__(self, store: Store, clock: Clock, declared: Declared | None = None) -> None:
        self._declared = declared or Declared()
        self._store = store
        self._clock = clock
        self.changing = asyncio.Lock()
        self.version = 0
        """Grows with every change."""
        self.users: dict[str, User] = {}
        self.tokens: dict[str, Token] = dict(self._declared.tokens)
        self.rules: dict[int, Rule] = {}
        """Of the store; see `all_rules`."""
        self._next_rule = 1
        self._stored: set[str] = set()
        """Names of the tokens in the store."""

    async def load(self) -> bool:
        """Read it again; True if it has changed."""
        raw = await self._store.load(DOCUMENT)
        if raw is None:
            return False
        try:
            document = decode_document(DOCUMENT, raw, _Found)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise StoreDamaged(
                f"{DOCUMENT} in the store's config folder cannot be read: {error}. Bring it back from a backup; or "
                "remove it, then users, tokens and rules begin anew"
            ) from None
        if document.version == self.version:
            return False
        rights = [(one.action, one.resource) for one in document.rules]
        rights += [(one.action, one.resource) for token in document.tokens for one in token.scopes]
        for action, resource in rights:
            if action not in {ANY, *ACTIONS} or resource not in {ANY, *RESOURCES}:
                # It may be a prohibition.
                raise not_understood(DOCUMENT, f"the right to {action[:40]!r} a {resource[:40]!r}")
        self._take(document)
        return True

    def _take(self, document: _Document) -> None:
        self.version = document.version
        self._stored = {token.name for token in document.tokens}
        self.users = {user.name: user for user in document.users}
        tokens = (self._bound(token) for token in document.tokens)
        self.tokens = {token.name: token for token in tokens} | self._declared.tokens
        self.rules = {rule.id: rule for rule in document.rules}
        self._next_rule = document.next_rule

    def _bound(self, token: Token) -> Token:
        """The token with its latest expiry, where that was not written yet: whoever gave it secrets that all expire has
        meant it."""
        given = msgspec.structs.asdict(token)
        if token.expires_at_us != UNKNOWN:
            return Token(**given)
        now_us = self._clock.now_us()
        expiries = [one.expires_at_us for one in token.secrets]
        live = [one for one in expiries if not 0 < one <= now_us] or expiries
        return Token(**given | {"expires_at_us": max(live) if live and all(live) else 0})

    async def _save(
        self,
        *,
        users: dict[str, User] | None = None,
        tokens: dict[str, Token] | None = None,
        rules: dict[int, Rule] | None = None,
    ) -> None:
        document = _Document(
            self.version + 1,
            list((self.users if users is None else users).values()),
            [one for one in (self.tokens if tokens is None else tokens).values() if not self._is_declared(one.name)],
            list((self.rules if rules is None else rules).values()),
            self._next_rule,
        )
        if len(document.users) + len(document.tokens) > PRINCIPALS_MAX or len(document.rules) > RULES_MAX:
            raise TooMany(
                f"{PRINCIPALS_MAX:,} users and tokens and {RULES_MAX:,} rules are the limits: delete what is not needed"
            )
        if self.has_admin() and not self._has_admin(document):
            raise Conflict("nobody would be left who may administer access: give another user the role admin first")
        await self._store.save(DOCUMENT, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
        self._take(document)

    def all_rules(self) -> list[Rule]:
        """The rules of the store, and those of the access file, which have no number."""
        return [*self.rules.values(), *self._declared.rules]

    def is_admin(self, user: User) -> bool:
        """Whether it may administer access, by its roles or by a rule."""
        return _is_admin(user.name, user.roles, {rule.subject for rule in self.all_rules() if is_admin_rule(rule)})

    def is_admins(self, token: Token) -> bool:
        """Whether it may administer access, or its user may."""
        owner = self.users.get(token.owner)
        return self.is_admin(owner or User(token.name, roles=token.roles))

    def has_admin_among(self, subject: str) -> bool:
        """Whether a rule for this subject is for somebody who may administer access, were it not for rules that deny
        it."""
        admins = {rule.subject for rule in self.all_rules() if is_admin_rule(rule)}
        everyone = [(one.name, one.roles) for one in self.users.values()]
        everyone += [(one.name, one.roles) for one in self.tokens.values() if not one.owner]
        return any(
            subject in (ANY, name, *(f"role:{role}" for role in roles)) and _is_admin(name, roles, admins)
            for name, roles in everyone
        )

    def check_declared(self) -> None:
        """A name is unique: none of the access file may be in the store."""
        for name in self._declared.tokens:
            if name in self.users or name in self._stored:
                raise BadRequest(
                    f"access file {self._declared.path}: the store has a user or token {name} already; give the token "
                    "another name, or remove the other one first"
                )

    def _is_declared(self, name: str) -> bool:
        return name in self._declared.tokens

    def has_admin(self) -> bool:
        return self._has_admin(
            _Document(0, list(self.users.values()), list(self.tokens.values()), list(self.rules.values()))
        )

    def _has_admin(self, document: _Document) -> bool:
        tokens = {one.name: one for one in document.tokens} | self._declared.tokens
        rules = [*document.rules, *self._declared.rules]
        return _has_admin(_Document(0, document.users, list(tokens.values()), rules))

    # Users

    async def put_user(self, user: User, *, create: bool) -> None:
        check_name(user.name)
        for role in user.roles:
            check_role(role)
        for identity in user.identities:
            check_identity(identity)
            other = self.user_of(identity)
            if other is not None and other.name != user.name:
                raise Conflict(f"identity {identity} stands for user {other.name} already")
        if create:
            self._check_free(user.name)
        await self._save(users=self.users | {user.name: user})

    async def delete_user(self, name: str) -> None:
        self.user(name)
        tokens = {key: token for key, token in self.tokens.items() if token.owner != name}
        rules = {key: rule for key, rule in self.rules.items() if rule.subject != name}
        users = {key: user for key, user in self.users.items() if key != name}
        await self._save(users=users, tokens=tokens, rules=rules)

    def user(self, name: str) -> User:
        found = self.users.get(name)
        if found is None:
            raise NotFound(f"there is no user {name[:80]}")
        return found

    def user_of(self, identity: str) -> User | None:
        return next((user for user in self.users.values() if identity in user.identities), None)

    # Tokens

    async def create_token(self, token: Token) -> None:
        check_name(token.name)
        self._check_free(token.name)
        for role in token.roles:
            check_role(role)
        if token.owner:
            self.user(token.owner)
        await self._save(tokens=self.tokens | {token.name: token})

    async def rotate(self, name: str, secret: Secret, expires_at_us: int) -> None:
        token = self._changeable(name)
        live = [one for one in token.secrets if not one.expires_at_us or one.expires_at_us > self._clock.now_us()]
        if len(live) >= SECRETS_MAX:
            raise TooMany(
                f"token {name} has {SECRETS_MAX} live secrets already: revoke the older one ({live[0].id}) first"
            )
        rotated = msgspec.structs.replace(token, secrets=[*live, secret], expires_at_us=expires_at_us)
        await self._save(tokens=self.tokens | {name: rotated})

    async def revoke(self, name: str, secret_id: str) -> None:
        token = self._changeable(name)
        if secret_id:
            left = [one for one in token.secrets if one.id != secret_id]
            if len(left) == len(token.secrets):
                raise NotFound(f"token {name} has no secret {secret_id}")
            await self._save(tokens=self.tokens | {name: msgspec.structs.replace(token, secrets=left)})
            return
        rules = {key: rule for key, rule in self.rules.items() if rule.subject != name}
        await self._save(tokens={key: one for key, one in self.tokens.items() if key != name}, rules=rules)

    def token(self, name: str) -> Token:
        found = self.tokens.get(name)
        if found is None:
            raise NotFound(f"there is no token {name[:80]}")
        return found

    def _changeable(self, name: str) -> Token:
        if self._is_declared(name):
            raise Conflict(
                f"token {name} is declared in {self._declared.path}: change it there, and start the broker anew"
            )
        return self.token(name)

    # Rules

    async def add_rule(self, rule: Rule) -> int:
        check_subject(rule.subject)
        token = self.tokens.get(rule.subject)
        if token is not None and token.owner:
            raise BadRequest(
                f"token {token.name} has the rights of its user {token.owner}: give the rule to {token.owner}, or make "
                "a token with scopes"
            )
        rule = msgspec.structs.replace(rule, id=self._next_rule)
        self._next_rule += 1
        await self._save(rules=self.rules | {rule.id: rule})
        return rule.id

    async def drop_rule(self, number: int) -> Rule:
        rule = self.rules.get(number)
        if rule is None:
            raise NotFound(f"there is no rule {number}")
        await self._save(rules={key: one for key, one in self.rules.items() if key != number})
        return rule

    def _check_free(self, name: str) -> None:
        if name in self.users or name in self.tokens:
            raise Conflict(f"the name {name} is taken: users and tokens share their names")


def _has_admin(document: _Document) -> bool:
    """Whether an administrator of access is left who can log in."""
    admins = {rule.subject for rule in document.rules if is_admin_rule(rule)}
    owners = {token.owner for token in document.tokens if token.secrets and not token.scopes}
    users = (
        one for one in document.users if not one.disabled and (one.password or one.identities or one.name in owners)
    )
    tokens = (one for one in document.tokens if not one.owner and one.secrets and not one.scopes)
    everyone = [*((one.name, one.roles) for one in users), *((one.name, one.roles) for one in tokens)]
    return any(_is_admin(name, roles, admins) for name, roles in everyone)


def _is_admin(name: str, roles: list[str], admins: set[str]) -> bool:
    return "admin" in roles or name in admins or ANY in admins or any(f"role:{role}" in admins for role in roles)


def is_admin_rule(rule: Rule) -> bool:
    return rule.effect == "allow" and is_of_admins(rule)


def is_of_admins(rule: Rule) -> bool:
    """Whether it says who may administer access, or who may not."""
    return rule.action in (ANY, "admin") and rule.resource in (ANY, "cluster")


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name == SETUP:
        raise BadName(
            f"user or token {name[:80]!r}: use 1 to 64 letters, digits and . _ ; @ -, beginning with a letter or "
            f"digit, and not {SETUP!r}"
        )
    return name


def check_role(role: str) -> str:
    if not _ROLE.fullmatch(role):
        raise BadName(f"role {role[:80]!r}: use 1 to 50 lower-case letters, digits, dots, underscores and hyphens")
    return role


def check_subject(subject: str) -> str:
    if subject == ANY:
        return subject
    return check_role(subject[5:]) if subject.startswith("role:") else check_name(subject)


def check_identity(identity: str) -> str:
    kind, colon, rest = identity.partition(":")
    if not colon or not rest or kind not in ("cn", "dns", "uri", "sha256"):
        raise BadRequest(f"identity {identity[:80]!r}: write cn:NAME, dns:NAME, uri:URI or sha256:HEX")
    if kind == "sha256" and not re.fullmatch(r"[0-9a-f]{64}", rest):
        raise BadRequest(
            f"identity {identity[:80]!r}: the SHA-256 of a certificate is 64 lower-case hexadecimal digits"
        )
    return identity
