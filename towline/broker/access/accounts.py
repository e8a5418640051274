"""Requests about users, tokens and rules."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from towline.broker.access.account_store import (
    AccountStore,
    Secret,
    Token,
    User,
    hash_secret,
    is_of_admins,
    new_secret,
)
from towline.broker.access.authentication import Access, Principal
from towline.broker.access.authorization import Guard
from towline.broker.access.rules import ROLES, check_grant, check_rule, covers
from towline.clock import SECOND_US, in_slices
from towline.errors import BadRequest, Conflict, Overtaken, Refused, TooMany
from towline.protocol import access as wire
from towline.protocol.messages import Answer, Done, Request

__all__ = [
    "add_rule",
    "change",
    "create_token",
    "delete_user",
    "drop_rule",
    "list_audit",
    "list_rules",
    "list_tokens",
    "list_users",
    "put_user",
    "read",
    "revoke_token",
    "who",
]

CLUSTER: Final = ("admin", "cluster", "")
TRIES: Final = 20
SCOPES_MAX: Final = 100
"""Scopes of a new token: each decision may go through all of them."""
OWN_TOKENS_MAX: Final = 50
"""Tokens that a user may make for itself: one document holds all, written whole with each change."""


Way = Callable[[Access, AccountStore, Guard, Any], Awaitable[Answer]]


async def read(way: Way, access: Access, guard: Guard | None, request: Request) -> Answer:
    return await way(access, *_kept(access, guard), request)


async def change(way: Way, access: Access, guard: Guard | None, request: Request) -> Answer:
    book, guard = _kept(access, guard)
    return await _change(access, book, guard, partial(way, access, book, guard, request))


def _kept(access: Access, guard: Guard | None) -> tuple[AccountStore, Guard]:
    if access.book is None or guard is None:
        raise BadRequest(
            "security is off at this broker, so it keeps no users, tokens and rules: start it with --security"
        )
    return access.book, guard


async def _change(access: Access, book: AccountStore, guard: Guard, work: Callable[[], Awaitable[Answer]]) -> Answer:
    async with book.changing:
        for left in reversed(range(TRIES)):
            await book.load()
            if not access.is_valid(guard.principal):
                raise Refused(f"{guard.principal.name} is not let in any more: this is not done")
            try:
                answer = await work()
                break
            except Overtaken:
                # Another broker on the same database was faster; its changes are the new base.
                if not left:
                    raise
        access.changed()
    return answer


async def who(access: Access, guard: Guard | None, request: wire.WhoAmI, name: str) -> wire.Me:
    if guard is None:
        return wire.Me(name, name, [], False, [True] * len(request.may))
    principal = guard.principal
    async with guard.meter.asking:
        allowed = [guard.may(one.action, one.resource, one.name) async for one in in_slices(request.may)]
    return wire.Me(principal.name, principal.user, access.roles(principal), True, allowed, principal.expires_at_us)


def _check_admin(guard: Guard, request: Request) -> None:
    if not guard.may(*CLUSTER):
        guard.note(request, "refused", "needs admin cluster")
        raise Refused(f"{guard.principal.label!r} may not admin cluster: only an administrator may do this for others")


# Reading


async def list_users(access: Access, book: AccountStore, guard: Guard, request: wire.ListUsers) -> Answer:
    return wire.Users(
        [
            wire.UserState(
                one.name, one.roles, one.disabled, bool(one.password), one.identities, one.quota, one.created_at_us
            )
            for one in sorted(book.users.values(), key=lambda one: one.name)
        ]
    )


async def list_tokens(access: Access, book: AccountStore, guard: Guard, request: wire.ListTokens) -> Answer:
    tokens = sorted(book.tokens.values(), key=lambda one: one.name)
    if not guard.may(*CLUSTER):
        if request.owner not in ("", guard.principal.user):
            _check_admin(guard, request)
        tokens = [one for one in tokens if _reaches(book, guard.principal, one)]
    return wire.Tokens([_state(access, one) for one in tokens if request.owner in ("", one.owner)])


def _reaches(book: AccountStore, principal: Principal, token: Token) -> bool:
    """Whether someone who is no administrator may list, rotate and revoke it: the token it came with, and those of its
    own user that may do nothing that it may not do itself."""
    if principal.kind == "token" and token.name == principal.name:
        return True
    if not principal.user or token.owner != principal.user:
        return False
    scopes = _scopes(book, principal)
    return not scopes or covers(scopes, token.scopes)


def _scopes(book: AccountStore, principal: Principal) -> Sequence[wire.Grant]:
    token = book.tokens.get(principal.name) if principal.kind == "token" else None
    return token.scopes if token is not None else ()


def _state(access: Access, token: Token) -> wire.TokenState:
    live = [
        wire.SecretState(one.id, one.created_at_us, one.expires_at_us, access.last_used_us.get(one.id, 0))
        for one in token.secrets
    ]
    return wire.TokenState(token.name, token.owner, token.roles, token.scopes, token.quota, live, token.created_at_us)


async def list_rules(access: Access, book: AccountStore, guard: Guard, request: wire.ListRules) -> Answer:
    return wire.Rules([one for one in book.all_rules() if request.subject in ("", one.subject)], ROLES)


async def list_audit(access: Access, book: AccountStore, guard: Guard, request: wire.ListAudit) -> Answer:
    assert access.audit is not None, "with security there is an audit log"
    return await access.audit.list(request)


# Changing


async def put_user(access: Access, guard: Guard | None, request: wire.PutUser) -> Answer:
    if not request.password:
        return await change(_put_user, access, guard, request)
    # The slow hash comes first: other changes wait while the document is changed.
    book, guard = _kept(access, guard)
    own, passwords = _own(book, guard, request), access.passwords
    with passwords.changing(own.name) if own is not None else nullcontext():
        if own is not None and not (
            own.password and await passwords.verify(own.name, own.password, request.old_password, guard.origin)
        ):
            raise Refused("the old password is not right")
        hashed = await passwords.hash(request.password, guard.origin)
        work = partial(_put_user, access, book, guard, request, hashed, old=own.password if own is not None else "")
        return await _change(access, book, guard, work)


async def _put_user(  # noqa: PLR0917 - as all handlers, and what was found out before
    access: Access, book: AccountStore, guard: Guard, request: wire.PutUser, hashed: str = "", old: str = ""
) -> Answer:
    """`hashed` is the new password, `old` the one that was right."""
    own = _own(book, guard, request)
    if own is not None and own.password != old:
        raise Conflict(f"the password of {own.name} was changed meanwhile: try again, with that one as the old one")
    fresh = User(request.name, created_at_us=access.clock.now_us())
    changed = fresh if request.create else book.user(request.name)
    changes: dict[str, Any] = {
        field: getattr(request, field)
        for field in ("roles", "disabled", "identities", "quota")
        if getattr(request, field) is not None
    }
    if request.password is not None:
        changes["password"] = hashed
    put = msgspec.structs.replace(changed, **changes)
    if own is None and (book.is_admin(changed) or book.is_admin(put)):
        _check_lasting(guard, request, f"makes or changes no administrator, as {request.name} is")
    await book.put_user(put, create=request.create)
    return Done()


def _check_lasting(guard: Guard, request: Request, what: str) -> None:
    """A caller with a temporary permission gives nobody the same for good, and takes it from nobody who has it."""
    if guard.principal.expires_at_us:
        guard.note(request, "refused", "needs a login that does not expire")
        raise Refused(f"{guard.principal.name!r} expires, and so {what}: log in with a password for that")


def _own(book: AccountStore, guard: Guard, request: wire.PutUser) -> User | None:
    """The user that changes its own password, and nothing else; None where an administrator makes or changes one."""
    if guard.may(*CLUSTER):
        return None
    user = book.users.get(request.name)
    others = (request.roles, request.disabled, request.identities, request.quota)
    own = (
        user is not None
        and guard.principal.user == user.name
        and not request.create
        and not any(one is not None for one in others)
    )
    if not own or not request.password:
        _check_admin(guard, request)
    elif guard.principal.expires_at_us or _scopes(book, guard.principal):
        raise Refused("a token that expires or has scopes changes no password: log in with the password")
    return user


async def delete_user(access: Access, book: AccountStore, guard: Guard, request: wire.DeleteUser) -> Answer:
    if book.is_admin(book.user(request.name)):
        _check_lasting(guard, request, f"deletes no administrator, as {request.name} is")
    await book.delete_user(request.name)
    return Done()


async def create_token(access: Access, book: AccountStore, guard: Guard, request: wire.CreateToken) -> Answer:
    if len(request.scopes) > SCOPES_MAX:
        raise TooMany(
            f"a token has at most {SCOPES_MAX} scopes, not {len(request.scopes)}: give prefixes (send:topic:orders.*), "
            "or make several tokens"
        )
    for scope in request.scopes:
        check_grant(scope)
    now_us = access.clock.now_us()
    token = book.tokens.get(request.name) if request.rotate else None
    if request.rotate:
        _check_reach(book, guard, request, token)
    expires_at_us, bound_us = _expiry(book, guard, request, token, now_us)
    secret = new_secret()
    kept = Secret(secrets.token_hex(4), hash_secret(secret), now_us, expires_at_us)
    if request.rotate:
        await book.rotate(request.name, kept, bound_us)
        return wire.TokenMade(request.name, secret, kept.id, expires_at_us)
    owner = _owner_of(book, guard, request)
    name = request.name or f"{owner}.{secrets.token_hex(4)}"
    if owner and request.roles:
        raise BadRequest(
            f"token {name} has the rights of its user {owner}: give roles to the user, or scopes to the token"
        )
    if not guard.may(*CLUSTER):
        _check_count(book, owner)
    made = Token(name, owner, list(request.roles), list(request.scopes), request.quota, [kept], now_us, bound_us)
    await book.create_token(made)
    return wire.TokenMade(name, secret, kept.id, expires_at_us)


def _expiry(
    book: AccountStore, guard: Guard, request: wire.CreateToken, token: Token | None, now_us: int
) -> tuple[int, int]:
    """The expiry of the new secret, and of the token from now on. Nobody makes a secret that outlives the one it came
    with; and a limit set by an administrator is changed by administrators only."""
    principal, is_admin = guard.principal, guard.may(*CLUSTER)
    wished_us = now_us + round(request.expires_s * SECOND_US) if request.expires_s else 0
    came_with = book.tokens.get(principal.name) if principal.kind == "token" else None
    bound = None if is_admin else token or came_with
    bound_us = bound.expires_at_us if bound is not None else 0
    limit_us = min((one for one in (principal.expires_at_us, bound_us) if one), default=0)
    if limit_us and wished_us > limit_us:
        until = datetime.fromtimestamp(limit_us / SECOND_US, UTC).isoformat(timespec="seconds")
        raise Refused(
            f"{principal.name!r} makes no secret that is good for longer than until {until}: leave the time out, or "
            "ask an administrator whose own login does not expire"
        )
    expires_at_us = wished_us or limit_us
    if is_admin and (wished_us or token is None or token.expires_at_us):
        bound_us = expires_at_us
    return expires_at_us, bound_us


def _owner_of(book: AccountStore, guard: Guard, request: wire.CreateToken) -> str:
    """The user whose permissions the token has. A user makes tokens for itself, under its own name, and none that may
    do more than the token it came with."""
    principal = guard.principal
    if guard.may(*CLUSTER):
        return request.owner
    if not principal.user or request.owner not in ("", principal.user) or _scopes(book, principal):
        _check_admin(guard, request)
    if request.name and not request.name.startswith(principal.user + "."):
        raise BadRequest(f"the name of a token of {principal.user} begins with {principal.user + '.'!r}")
    if request.quota != wire.Quota():
        _check_admin(guard, request)
    return principal.user


def _check_count(book: AccountStore, owner: str) -> None:
    if sum(one.owner == owner for one in book.tokens.values()) >= OWN_TOKENS_MAX:
        raise TooMany(
            f"{owner} has {OWN_TOKENS_MAX} tokens already: revoke those that are not needed (towline token ls), "
            "or ask an administrator to make more"
        )


def _check_reach(book: AccountStore, guard: Guard, request: Request, token: Token | None) -> None:
    if token is None or not _reaches(book, guard.principal, token):
        _check_admin(guard, request)


async def revoke_token(access: Access, book: AccountStore, guard: Guard, request: wire.RevokeToken) -> Answer:
    token, until_us = book.tokens.get(request.name), guard.principal.expires_at_us
    _check_reach(book, guard, request, token)
    taken = [one for one in token.secrets if request.id in ("", one.id)] if token is not None else []
    if token is not None and until_us and any(not 0 < one.expires_at_us <= until_us for one in taken):
        # Else the last holder of an old secret could lock out those who were given the new one.
        _check_admin(guard, request)
        if book.is_admins(token):
            _check_lasting(guard, request, f"revokes no administrator's token that lasts longer, as {token.name} does")
    await book.revoke(request.name, request.id)
    return Done()


async def add_rule(access: Access, book: AccountStore, guard: Guard, request: wire.AddRule) -> Answer:
    check_rule(request.rule)
    _check_rule_lasting(book, guard, request, request.rule)
    rule = msgspec.structs.replace(request.rule, created_at_us=access.clock.now_us(), created_by=guard.principal.label)
    return wire.RuleAdded(await book.add_rule(rule))


async def drop_rule(access: Access, book: AccountStore, guard: Guard, request: wire.DropRule) -> Answer:
    rule = book.rules.get(request.id)
    if rule is not None:
        _check_rule_lasting(book, guard, request, rule)
    await book.drop_rule(request.id)
    return Done()


def _check_rule_lasting(book: AccountStore, guard: Guard, request: Request, rule: wire.Rule) -> None:
    if is_of_admins(rule) and (rule.effect == "allow" or book.has_admin_among(rule.subject)):
        _check_lasting(guard, request, "changes no rule by which somebody may administer access or may not")
