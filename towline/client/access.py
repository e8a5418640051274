"""Users, tokens, rules and the audit log, as an administrator's program sees them: `client.access`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

from towline.client.connection import Call
from towline.client.steps import Flow
from towline.errors import ProtocolError
from towline.protocol import access as wire
from towline.protocol.access import Grant, Quota
from towline.protocol.messages import Answer, Done, Request

__all__ = ["AioAccess", "BlockingAccess", "Grant", "Quota", "measure"]

A = TypeVar("A", bound=Answer)
Granted = Sequence[wire.Grant | tuple[str, str, str]]


def _ask(request: Request, expected: type[A]) -> Flow[A]:
    answer = yield Call(request)
    if not isinstance(answer, expected):
        raise ProtocolError(f"{type(request).__name__} was answered by {type(answer).__name__}")
    return answer


def _grants(given: Iterable[wire.Grant | tuple[str, str, str]]) -> list[wire.Grant]:
    return [one if isinstance(one, wire.Grant) else wire.Grant(*one) for one in given]


def measure(topic: str = "") -> Flow[wire.Measured]:
    """Figures of the broker, its topics and its groups."""
    return (yield from _ask(wire.Measure(topic), wire.Measured))


class _Requests:
    """What can be asked for; how it is asked is up to the two clients."""

    @staticmethod
    def token(  # noqa: PLR0917 - the fields of the request
        name: str, owner: str, scopes: Granted, expires: float, roles: Sequence[str], quota: wire.Quota
    ) -> wire.CreateToken:
        return wire.CreateToken(name, owner, _grants(scopes), expires, False, list(roles), quota)

    @staticmethod
    def rule(effect: Literal["allow", "deny"], subject: str, action: str, resource: str, name: str) -> wire.AddRule:
        return wire.AddRule(wire.Rule(0, subject, effect, action, resource, name))


class AioAccess:
    """Needs a broker with security; all but what concerns oneself is for administrators."""

    def __init__(self, run: Callable[[Flow[Any]], Awaitable[Any]]) -> None:
        self._run = run

    async def who_am_i(self, may: Granted = ()) -> wire.Me:
        """Who this client is to the broker, and whether it may do these: (action, resource, name) each."""
        return await self._ask(wire.WhoAmI(_grants(may)), wire.Me)

    async def users(self) -> list[wire.UserState]:
        return (await self._ask(wire.ListUsers(), wire.Users)).users

    async def create_user(
        self,
        name: str,
        password: str | None = None,
        *,
        roles: Sequence[str] = (),
        identities: Sequence[str] = (),
        quota: wire.Quota | None = None,
    ) -> None:
        await self._ask(
            wire.PutUser(name, True, password or None, roles=list(roles), identities=list(identities), quota=quota),
            Done,
        )

    async def change_user(
        self,
        name: str,
        *,
        password: str | None = None,
        old_password: str = "",
        roles: Sequence[str] | None = None,
        disabled: bool | None = None,
        identities: Sequence[str] | None = None,
        quota: wire.Quota | None = None,
    ) -> None:
        """Change what is given. Everyone may change the own password, saying the old one."""
        await self._ask(_change(name, password, old_password, roles, disabled, identities, quota), Done)

    async def delete_user(self, name: str) -> None:
        """With its tokens and rules; its connections are closed."""
        await self._ask(wire.DeleteUser(name), Done)

    async def tokens(self, owner: str = "") -> list[wire.TokenState]:
        return (await self._ask(wire.ListTokens(owner), wire.Tokens)).tokens

    async def create_token(
        self,
        name: str = "",
        *,
        owner: str = "",
        scopes: Granted = (),
        expires: float = 0,
        roles: Sequence[str] = (),
        quota: wire.Quota = wire.Quota(),  # noqa: B008 - it is frozen
    ) -> wire.TokenMade:
        """Make a token. Its secret is in the answer, and nowhere else: keep it. `expires` is in seconds, 0 is never."""
        request = _Requests.token(name, owner, scopes, expires, roles, quota)
        return await self._ask(request, wire.TokenMade)

    async def rotate_token(self, name: str, *, expires: float = 0) -> wire.TokenMade:
        """A second secret for a token; the first one is good until it is revoked."""
        return await self._ask(wire.CreateToken(name, expires_s=expires, rotate=True), wire.TokenMade)

    async def revoke_token(self, name: str, secret_id: str = "") -> None:
        """A token, or one of its secrets by its id. Connections that came in by it are closed."""
        await self._ask(wire.RevokeToken(name, secret_id), Done)

    async def rules(self, subject: str = "") -> wire.Rules:
        return await self._ask(wire.ListRules(subject), wire.Rules)

    async def allow(self, subject: str, action: str, resource: str, name: str = "*") -> int:
        return (await self._ask(_Requests.rule("allow", subject, action, resource, name), wire.RuleAdded)).id

    async def deny(self, subject: str, action: str, resource: str, name: str = "*") -> int:
        """A deny beats every allow."""
        return (await self._ask(_Requests.rule("deny", subject, action, resource, name), wire.RuleAdded)).id

    async def drop_rule(self, number: int) -> None:
        await self._ask(wire.DropRule(number), Done)

    async def audit(self, **filters: Any) -> wire.Audit:
        """The newest entries first. Filters: `before` (a number), `limit`, `actor`, `what`, `outcome`, `since_us`."""
        return await self._ask(wire.ListAudit(**filters), wire.Audit)

    async def _ask(self, request: Request, expected: type[A]) -> A:
        answer: A = await self._run(_ask(request, expected))
        return answer


class BlockingAccess:
    """The same for the blocking client."""

    def __init__(self, run: Callable[[Flow[Any]], Any]) -> None:
        self._run = run

    def who_am_i(self, may: Granted = ()) -> wire.Me:
        return self._ask(wire.WhoAmI(_grants(may)), wire.Me)

    def users(self) -> list[wire.UserState]:
        return self._ask(wire.ListUsers(), wire.Users).users

    def create_user(
        self,
        name: str,
        password: str | None = None,
        *,
        roles: Sequence[str] = (),
        identities: Sequence[str] = (),
        quota: wire.Quota | None = None,
    ) -> None:
        self._ask(
            wire.PutUser(name, True, password or None, roles=list(roles), identities=list(identities), quota=quota),
            Done,
        )

    def change_user(
        self,
        name: str,
        *,
        password: str | None = None,
        old_password: str = "",
        roles: Sequence[str] | None = None,
        disabled: bool | None = None,
        identities: Sequence[str] | None = None,
        quota: wire.Quota | None = None,
    ) -> None:
        self._ask(_change(name, password, old_password, roles, disabled, identities, quota), Done)

    def delete_user(self, name: str) -> None:
        self._ask(wire.DeleteUser(name), Done)

    def tokens(self, owner: str = "") -> list[wire.TokenState]:
        return self._ask(wire.ListTokens(owner), wire.Tokens).tokens

    def create_token(
        self,
        name: str = "",
        *,
        owner: str = "",
        scopes: Granted = (),
        expires: float = 0,
        roles: Sequence[str] = (),
        quota: wire.Quota = wire.Quota(),  # noqa: B008 - it is frozen
    ) -> wire.TokenMade:
        return self._ask(_Requests.token(name, owner, scopes, expires, roles, quota), wire.TokenMade)

    def rotate_token(self, name: str, *, expires: float = 0) -> wire.TokenMade:
        return self._ask(wire.CreateToken(name, expires_s=expires, rotate=True), wire.TokenMade)

    def revoke_token(self, name: str, secret_id: str = "") -> None:
        self._ask(wire.RevokeToken(name, secret_id), Done)

    def rules(self, subject: str = "") -> wire.Rules:
        return self._ask(wire.ListRules(subject), wire.Rules)

    def allow(self, subject: str, action: str, resource: str, name: str = "*") -> int:
        return self._ask(_Requests.rule("allow", subject, action, resource, name), wire.RuleAdded).id

    def deny(self, subject: str, action: str, resource: str, name: str = "*") -> int:
        return self._ask(_Requests.rule("deny", subject, action, resource, name), wire.RuleAdded).id

    def drop_rule(self, number: int) -> None:
        self._ask(wire.DropRule(number), Done)

    def audit(self, **filters: Any) -> wire.Audit:
        return self._ask(wire.ListAudit(**filters), wire.Audit)

    def _ask(self, request: Request, expected: type[A]) -> A:
        answer: A = self._run(_ask(request, expected))
        return answer


def _change(  # noqa: PLR0917 - the fields of the request
    name: str,
    password: str | None,
    old_password: str,
    roles: Sequence[str] | None,
    disabled: bool | None,
    identities: Sequence[str] | None,
    quota: wire.Quota | None,
) -> wire.PutUser:
    return wire.PutUser(
        name,
        False,
        password,
        old_password,
        None if roles is None else list(roles),
        disabled,
        None if identities is None else list(identities),
        quota,
    )
