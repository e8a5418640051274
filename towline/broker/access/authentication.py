"""Authentication: tokens, users, client certificates and the setup secret, each to a principal.

Without security anyone who may connect may do everything; with it, each request is checked (see `authorization`)
against the rules.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from towline.broker.access.access_file import read_access_file
from towline.broker.access.account_store import SETUP, AccountStore, Token, hash_secret
from towline.broker.access.audit import AuditLog, audit_path
from towline.broker.access.passwords import NOBODYS_HASH, Passwords
from towline.broker.access.quota import Meter
from towline.broker.access.rules import Rights
from towline.broker.access.setup_secret import SetupSecret, setup_path
from towline.clock import SYSTEM, Clock
from towline.errors import BadRequest, NotLetIn
from towline.frame import TOKEN_MAX
from towline.protocol.access import Grant, Quota
from towline.settings import BrokerSettings
from towline.store import Store

__all__ = ["Access", "Principal", "check_listen_address"]

log = logging.getLogger("towline.access")

_WRONG = "this broker asks for a token and its secret, and these are not right"


class Principal(msgspec.Struct, frozen=True):
    """The principal of a connection, and its proof."""

    name: str
    """As the client introduced itself."""
    kind: Literal["anyone", "token", "user", "certificate", "setup"] = "anyone"
    user: str = ""
    """The user whose permissions it has, if any."""
    proof: str = ""
    """The id of the secret, the hash of the password, or the identity: the principal is valid for as long as that
    is."""
    expires_at_us: int = 0

    @property
    def label(self) -> str:
        return self.user or self.name


class Access:
    """Without accounts, anyone may connect under any name."""

    def __init__(
        self,
        *,
        book: AccountStore | None = None,
        setup: SetupSecret | None = None,
        audit: AuditLog | None = None,
        clock: Clock = SYSTEM,
        gateways: str = "",
    ) -> None:
        self.clock = clock
        self.book = book
        self.audit = audit
        self.last_used_us: dict[str, int] = {}
        self.watchers: set[Callable[[], None]] = set()
        """Called when accounts or rules have changed: connections check whether they may go on."""
        self._setup = setup
        self._meters: dict[str, Meter] = {}
        if book is not None:
            self.passwords = Passwords(clock, gateways)

    @classmethod
    async def open(cls, settings: BrokerSettings, store: Store, clock: Clock = SYSTEM) -> Access:
        if settings.access_file and not settings.security:
            raise BadRequest("access_file is of no use without security: add --security, or leave --access-file out")
        declared = read_access_file(Path(settings.access_file).expanduser()) if settings.access_file else None
        book = AccountStore(store, clock, declared)
        await book.load()
        book.check_declared()
        path = audit_path(settings)
        if not settings.security:
            if book.users or book.tokens:
                log.warning(
                    "this store has users and tokens, but security is off: anyone who may connect may do anything"
                )
            audit = await AuditLog.open(path, clock, settings.audit_max_bytes) if settings.audit_file else None
            return cls(audit=audit, clock=clock)
        audit = await AuditLog.open(path, clock, settings.audit_max_bytes)
        setup = SetupSecret(setup_path(settings))
        if book.has_admin():
            setup.end()
        elif not (settings.join and settings.store.startswith("mysql:") and setup.take_up()):
            setup.make()
        if not book.has_admin():
            log.warning(
                "nobody may administer access yet: make the first user with the token %r and the secret in %s",
                SETUP, setup.path,
            )  # fmt: skip
        return cls(book=book, setup=setup, audit=audit, clock=clock, gateways=settings.gateways)

    async def close(self) -> None:
        if self.audit is not None:
            await self.audit.close()

    # Login

    def admit(self, token: str, secret: str, identities: Sequence[str] = ()) -> Principal:
        """The principal of a token. Raises `Refused` with the same words for a wrong token and for a wrong secret."""
        if len(token.encode()) > TOKEN_MAX:
            raise NotLetIn(f"a token has at most {TOKEN_MAX} bytes")
        if self.book is None:
            return Principal(token)
        principal = self._admit_by_book(token, secret, identities)
        if principal is None:
            raise NotLetIn(_WRONG)
        return principal

    def _admit_by_book(self, token: str, secret: str, identities: Sequence[str]) -> Principal | None:
        assert self.book is not None, "asked only where there is one"
        if token == SETUP:
            right = self._setup is not None and self._setup.is_right(secret)
            return Principal(SETUP, "setup") if right else None
        if not secret:
            return self._admit_by_certificate(token, identities)
        found = self.book.tokens.get(token)
        if found is None or not self._owner_is_active(found):
            return None
        now_us, hashed = self.clock.now_us(), hash_secret(secret)
        for one in found.secrets:
            if hmac.compare_digest(one.hash, hashed) and not 0 < one.expires_at_us <= now_us:
                self.last_used_us[one.id] = now_us
                return Principal(token, "token", found.owner, one.id, one.expires_at_us)
        return None

    def _admit_by_certificate(self, token: str, identities: Sequence[str]) -> Principal | None:
        assert self.book is not None, "asked only where there is one"
        for identity in identities:
            user = self.book.user_of(identity)
            if user is not None and not user.disabled and token in ("", user.name):
                return Principal(token or user.name, "certificate", user.name, identity)
        return None

    def admit_at_once(self, token: str, secret: str, identities: Sequence[str] = ()) -> Principal | None:
        """None if it takes longer, see `admit_user`: where a password decides, and where something is wrong, because
        nobody must learn from the time it takes which names exist."""
        slow = self.book is not None and bool(secret) and len(token.encode()) <= TOKEN_MAX
        if slow and self.book is not None and token in self.book.users:
            return None
        try:
            return self.admit(token, secret, identities)
        except NotLetIn:
            if not slow:
                raise
            return None

    async def admit_user(self, name: str, password: str, origin: str) -> Principal:
        assert self.book is not None, "asked only where there is one"
        user = self.book.users.get(name)
        hashed = (user.password if user is not None else "") or NOBODYS_HASH
        right = await self.passwords.verify(name, hashed, password, origin)
        user = self.book.users.get(name)  # as it is now
        if not right or user is None or user.disabled or user.password != hashed:
            raise NotLetIn(_WRONG)
        return Principal(user.name, "user", user.name, user.password)

    def _owner_is_active(self, token: Token) -> bool:
        assert self.book is not None, "asked only where there is one"
        owner = self.book.users.get(token.owner)
        return not token.owner or (owner is not None and not owner.disabled)

    # Validity

    def is_valid(self, principal: Principal) -> bool:
        """Whether its credentials are still valid."""
        book = self.book
        if 0 < principal.expires_at_us <= self.clock.now_us():
            return False
        if book is None or principal.kind == "anyone":
            return True
        if principal.kind == "setup":
            return not book.has_admin()
        if principal.kind == "token":
            token = book.tokens.get(principal.name)
            known = token is not None and self._owner_is_active(token) and token.owner == principal.user
            return known and token is not None and any(one.id == principal.proof for one in token.secrets)
        user = book.users.get(principal.user)
        if user is None or user.disabled:
            return False
        return principal.proof == user.password if principal.kind == "user" else principal.proof in user.identities

    def roles(self, principal: Principal) -> list[str]:
        if self.book is None or principal.kind == "setup":
            return []
        user = self.book.users.get(principal.user) if principal.user else None
        if user is not None:
            return user.roles
        token = self.book.tokens.get(principal.name) if principal.kind == "token" else None
        return token.roles if token is not None else []

    def rights(self, principal: Principal) -> Rights:
        assert self.book is not None, "without a book everyone may do everything"
        if principal.kind == "setup":
            return _SetupRights((), ())
        roles = self.roles(principal)
        subjects = {principal.label, "*", *(f"role:{role}" for role in roles)}
        token = self.book.tokens.get(principal.name) if principal.kind == "token" else None
        scopes: Sequence[Grant] = token.scopes if token is not None else ()
        return Rights((rule for rule in self.book.all_rules() if rule.subject in subjects), roles, scopes)

    def meter(self, principal: Principal) -> Meter:
        """The meter shared by all connections of a principal."""
        quota = self._quota(principal)
        meter = self._meters.get(principal.label)
        if meter is None:
            meter = self._meters[principal.label] = Meter(quota)
        meter.quota = quota
        return meter

    def let_go(self, principal: Principal) -> None:
        """A connection ended."""
        meter = self._meters.get(principal.label)
        if meter is not None and not meter.holders and not meter.quota.bytes_per_s:
            del self._meters[principal.label]

    def _quota(self, principal: Principal) -> Quota:
        if self.book is None:
            return Quota()
        user = self.book.users.get(principal.user) if principal.user else None
        token = self.book.tokens.get(principal.name) if user is None else None
        found = user or token
        return found.quota if found is not None else Quota()

    # Changes

    def changed(self) -> None:
        """Accounts or rules have changed: whoever is not allowed any more is notified, or disconnected, now."""
        if self._setup is not None and self.book is not None and self.book.has_admin():
            self._setup.end()
        if self.book is not None:
            self._forget(self.book)
        for watcher in list(self.watchers):
            watcher()

    def _forget(self, book: AccountStore) -> None:
        """Forget secrets that are gone, and meters without connection and debt."""
        secrets = {secret.id for token in book.tokens.values() for secret in token.secrets}
        for one in self.last_used_us.keys() - secrets:
            del self.last_used_us[one]
        now_s = self.clock.steady_s()
        for label, meter in list(self._meters.items()):
            if not meter.holders and not meter.take(0, now_s):
                del self._meters[label]

    async def refresh(self) -> None:
        """Another broker on the same store may have changed the accounts."""
        if self.book is None:
            return
        async with self.book.changing:
            if await self.book.load():
                self.changed()


class _SetupRights(Rights):
    """To administer access, and nothing else."""

    def may(self, action: str, resource: str, name: str) -> bool:
        return (action, resource) == ("admin", "cluster")


def check_listen_address(address: str, access: Access, settings: BrokerSettings) -> None:
    """Listening to the world without security must be asked for: anyone there could do anything."""
    if access.book is not None or settings.allow_remote or ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return
    raise BadRequest(
        f"not listening on {address}: other machines could reach it, and nobody is asked who they are. "
        "Set security, or allow_remote if everyone there may do anything"
    )
