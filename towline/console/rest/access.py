"""Routes: users, tokens, rules and the audit log. The broker decides who may see and change them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field, SecretStr

from towline.client.admin.access import Grant, Quota
from towline.console.rest.client_pool import Mq
from towline.console.rest.models import Count, Created, Strict, time

__all__ = ["router"]

router = APIRouter(tags=["access"])

NAME = r"^[A-Za-z0-9][A-Za-z0-9._;@-]{0,63}$"
Name = Annotated[str, Path(pattern=NAME)]
Named = Annotated[str, Field(pattern=NAME)]
Role = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,49}$")]
Roles = Annotated[list[Role], Field(max_length=100)]
Action = Literal["send", "consume", "create", "alter", "delete", "describe", "admin", "*"]
Resource = Literal["topic", "group", "cluster", "*"]
Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9._~-]{0,50}\*?$", min_length=1)]
Natural = Annotated[int, Field(ge=0, le=(1 << 53) - 1)]
Identities = Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=100)]


class Limits(Strict):
    """0 is no limit."""

    bytes_per_s: Natural = 0
    connections: Natural = 0
    in_flight: Natural = 0

    def quota(self) -> Quota:
        return Quota(self.bytes_per_s, self.connections, self.in_flight)


class Scope(Strict):
    action: Action
    resource: Resource
    name: Pattern = "*"

    def grant(self) -> Grant:
        return Grant(self.action, self.resource, self.name)


class Me(BaseModel):
    name: str
    user: str
    roles: list[str]
    security: bool
    expires_at: datetime | None


class UserInfo(BaseModel):
    name: str
    roles: list[str]
    disabled: bool
    has_password: bool
    identities: list[str]
    quota: Limits
    created_at: datetime | None


class Users(BaseModel):
    users: list[UserInfo]


class UserChange(Strict):
    """What is left out stays as it is."""

    password: Annotated[SecretStr, Field(min_length=8, max_length=512)] | None = None
    old_password: Annotated[SecretStr, Field(max_length=512)] | None = None
    roles: Roles | None = None
    disabled: bool | None = None
    identities: Identities | None = None
    quota: Limits | None = None


class NewUser(Strict):
    name: Named
    password: Annotated[SecretStr, Field(min_length=8, max_length=512)] | None = None
    roles: Roles = Field(default_factory=list)
    identities: Identities = Field(default_factory=list)
    quota: Limits = Limits()


class Secret(BaseModel):
    id: str
    created_at: datetime | None
    expires_at: datetime | None
    last_used_at: datetime | None


class TokenInfo(BaseModel):
    name: str
    owner: str
    roles: list[str]
    scopes: list[Scope]
    quota: Limits
    secrets: list[Secret]
    created_at: datetime | None


class Tokens(BaseModel):
    tokens: list[TokenInfo]


class NewToken(Strict):
    name: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._;@-]{0,63})?$")] = ""
    owner: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._;@-]{0,63})?$")] = ""
    scopes: Annotated[list[Scope], Field(max_length=1_000)] = Field(default_factory=list)
    roles: Roles = Field(default_factory=list)
    expires_s: Annotated[float, Field(ge=0, le=36_525 * 86400)] = Field(0, description="0 is never.")
    quota: Limits = Limits()


class NewSecret(Strict):
    expires_s: Annotated[float, Field(ge=0, le=36_525 * 86400)] = Field(0, description="0 is never.")


class TokenMade(BaseModel):
    """The secret is told this once. `bearer` is what goes into `Authorization: Bearer …`."""

    name: str
    secret: str
    secret_id: str
    bearer: str
    expires_at: datetime | None


class NewRule(Strict):
    subject: Annotated[str, Field(pattern=r"^(\*|role:[a-z0-9][a-z0-9._-]{0,49}|[A-Za-z0-9][A-Za-z0-9._;@-]{0,63})$")]
    effect: Literal["allow", "deny"]
    action: Action
    resource: Resource
    name: Pattern = "*"


class RuleInfo(BaseModel):
    id: int
    subject: str
    effect: str
    action: str
    resource: str
    name: str
    created_by: str
    created_at: datetime | None


class Rules(BaseModel):
    rules: list[RuleInfo]
    roles: dict[str, list[Scope]]


class RuleAdded(BaseModel):
    id: int


class Entry(BaseModel):
    number: int
    at: datetime | None
    actor: str
    address: str
    what: str
    target: str
    outcome: str
    detail: str


class Audit(BaseModel):
    """`next` is the `before` to go on with; 0 if there is no more."""

    entries: list[Entry]
    next: int


@router.get("/me", summary="Who is calling, as the broker sees it")
async def me(mq: Mq) -> Me:
    found = await mq.access.who_am_i()
    return Me(
        name=found.name,
        user=found.user,
        roles=found.roles,
        security=found.security,
        expires_at=time(found.expires_at_us),
    )


@router.get("/users", summary="List users")
async def users(mq: Mq) -> Users:
    return Users(
        users=[
            UserInfo(
                name=one.name,
                roles=one.roles,
                disabled=one.disabled,
                has_password=one.has_password,
                identities=one.identities,
                quota=_limits(one.quota),
                created_at=time(one.created_at_us),
            )
            for one in await mq.access.users()
        ]
    )


@router.post("/users", status_code=201, summary="Make a user")
async def create_user(user: NewUser, mq: Mq) -> Created:
    await mq.access.create_user(
        user.name,
        _secret(user.password),
        roles=user.roles,
        identities=user.identities,
        quota=user.quota.quota(),
    )
    return Created(created=user.name)


@router.patch("/users/{name}", summary="Change a user, or one's own password")
async def change_user(name: Name, change: UserChange, mq: Mq) -> Count:
    await mq.access.change_user(
        name,
        password=_secret(change.password),
        old_password=_secret(change.old_password) or "",
        roles=change.roles,
        disabled=change.disabled,
        identities=change.identities,
        quota=None if change.quota is None else change.quota.quota(),
    )
    return Count(count=1)


@router.delete("/users/{name}", summary="Remove a user with its tokens and rules")
async def delete_user(name: Name, mq: Mq) -> Count:
    await mq.access.delete_user(name)
    return Count(count=1)


@router.get("/tokens", summary="List tokens: all, or one's own")
async def tokens(
    mq: Mq, owner: Annotated[str, Query(pattern=r"^([A-Za-z0-9][A-Za-z0-9._;@-]{0,63})?$")] = ""
) -> Tokens:
    return Tokens(
        tokens=[
            TokenInfo(
                name=one.name,
                owner=one.owner,
                roles=one.roles,
                scopes=[_scope(scope) for scope in one.scopes],
                quota=_limits(one.quota),
                secrets=[
                    Secret(
                        id=secret.id,
                        created_at=time(secret.created_at_us),
                        expires_at=time(secret.expires_at_us),
                        last_used_at=time(secret.last_used_us),
                    )
                    for secret in one.secrets
                ],
                created_at=time(one.created_at_us),
            )
            for one in await mq.access.tokens(owner)
        ]
    )


@router.post("/tokens", status_code=201, summary="Make a token")
async def create_token(token: NewToken, mq: Mq) -> TokenMade:
    made = await mq.access.create_token(
        token.name,
        owner=token.owner,
        scopes=[one.grant() for one in token.scopes],
        expires=token.expires_s,
        roles=token.roles,
        quota=token.quota.quota(),
    )
    return _made(made)


@router.post("/tokens/{name}/rotate", status_code=201, summary="Make a second secret for a token")
async def rotate(name: Name, given: NewSecret, mq: Mq) -> TokenMade:
    return _made(await mq.access.rotate_token(name, expires=given.expires_s))


@router.delete("/tokens/{name}", summary="Revoke a token, or one of its secrets")
async def revoke(name: Name, mq: Mq, secret_id: Annotated[str, Query(max_length=64)] = "") -> Count:
    await mq.access.revoke_token(name, secret_id)
    return Count(count=1)


@router.get("/rules", summary="List rules")
async def rules(mq: Mq, subject: Annotated[str, Query(max_length=64)] = "") -> Rules:
    found = await mq.access.rules(subject)
    return Rules(
        rules=[
            RuleInfo(
                id=one.id,
                subject=one.subject,
                effect=one.effect,
                action=one.action,
                resource=one.resource,
                name=one.name,
                created_by=one.created_by,
                created_at=time(one.created_at_us),
            )
            for one in found.rules
        ],
        roles={role: [_scope(one) for one in grants] for role, grants in found.roles.items()},
    )


@router.post("/rules", status_code=201, summary="Add a rule")
async def add_rule(rule: NewRule, mq: Mq) -> RuleAdded:
    add = mq.access.allow if rule.effect == "allow" else mq.access.deny
    return RuleAdded(id=await add(rule.subject, rule.action, rule.resource, rule.name))


@router.delete("/rules/{id}", summary="Remove a rule")
async def drop_rule(id: Annotated[int, Path(ge=0, le=(1 << 53) - 1)], mq: Mq) -> Count:  # noqa: A002 - it is what it is
    await mq.access.drop_rule(id)
    return Count(count=1)


@router.get("/audit", summary="The audit log, the newest first")
async def audit(
    mq: Mq,
    *,
    before: Annotated[int, Query(ge=0, le=(1 << 53) - 1)] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    actor: Annotated[str, Query(max_length=64)] = "",
    what: Annotated[str, Query(max_length=64)] = "",
    outcome: Annotated[str, Query(max_length=64)] = "",
) -> Audit:
    found = await mq.access.audit(before=before, limit=limit, actor=actor, what=what, outcome=outcome)
    return Audit(
        entries=[
            Entry(
                number=one.number,
                at=time(one.at_us),
                actor=one.actor,
                address=one.address,
                what=one.what,
                target=one.target,
                outcome=one.outcome,
                detail=one.detail,
            )
            for one in found.entries
        ],
        next=found.next,
    )


def _secret(given: SecretStr | None) -> str | None:
    return None if given is None else given.get_secret_value()


def _made(made: Any) -> TokenMade:
    return TokenMade(
        name=made.name,
        secret=made.secret,
        secret_id=made.id,
        bearer=f"{made.name}.{made.secret}",
        expires_at=time(made.expires_at_us),
    )


def _limits(quota: Quota) -> Limits:
    return Limits(bytes_per_s=quota.bytes_per_s, connections=quota.connections, in_flight=quota.in_flight)


def _scope(grant: Grant) -> Scope:
    return Scope.model_construct(action=grant.action, resource=grant.resource, name=grant.name)
