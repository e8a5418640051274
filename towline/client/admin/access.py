"""Administration of users, tokens, rules and the audit log: `client.access`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from towline.client.link.connection import Call
from towline.client.link.flow import Flow
from towline.client.operation import Errand, Here, Later, Now, Place, offered
from towline.errors import ProtocolError
from towline.protocol import access as wire
from towline.protocol.access import Grant, Quota
from towline.protocol.messages import Answer, Done, Request

__all__ = ["AioAccess", "BlockingAccess", "Grant", "Quota", "measure"]

A = TypeVar("A", bound=Answer)
Granted = Sequence[wire.Grant | tuple[str, str, str]]


def _asking(request: Request, expected: type[A]) -> Flow[A]:
    answer = yield Call(request)
    if not isinstance(answer, expected):
        raise ProtocolError(f"{type(request).__name__} was answered by {type(answer).__name__}")
    return answer


def _ask(request: Request, expected: type[A]) -> Errand[A]:
    answer: A = yield Here(_asking(request, expected))
    return answer


def _grants(given: Iterable[wire.Grant | tuple[str, str, str]]) -> list[wire.Grant]:
    return [one if isinstance(one, wire.Grant) else wire.Grant(*one) for one in given]


def measure(topic: str = "") -> Flow[wire.Measured]:
    """Figures of the broker, its topics and its groups."""
    return (yield from _asking(wire.Measure(topic), wire.Measured))


class Access:
    """Needs a broker with security; all but what concerns oneself is for administrators."""

    @offered
    def who_am_i(self, may: Granted = ()) -> Errand[wire.Me]:
        """The principal of this client, and whether it may do these: (action, resource, name) each."""
        return _ask(wire.WhoAmI(_grants(may)), wire.Me)

    @offered
    def users(self) -> Errand[list[wire.UserState]]:
        return (yield from _ask(wire.ListUsers(), wire.Users)).users

    @offered
    def create_user(
        self,
        name: str,
        password: str | None = None,
        *,
        roles: Sequence[str] = (),
        identities: Sequence[str] = (),
        quota: wire.Quota | None = None,
    ) -> Errand[None]:
        yield from _ask(
            wire.PutUser(name, True, password or None, roles=list(roles), identities=list(identities), quota=quota),
            Done,
        )

    @offered
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
    ) -> Errand[None]:
        """Change the fields that are given. Everyone may change the own password, giving the old one."""
        yield from _ask(_change(name, password, old_password, roles, disabled, identities, quota), Done)

    @offered
    def delete_user(self, name: str) -> Errand[None]:
        """With its tokens and rules; its connections are closed."""
        yield from _ask(wire.DeleteUser(name), Done)

    @offered
    def tokens(self, owner: str = "") -> Errand[list[wire.TokenState]]:
        return (yield from _ask(wire.ListTokens(owner), wire.Tokens)).tokens

    @offered
    def create_token(
        self,
        name: str = "",
        *,
        owner: str = "",
        scopes: Granted = (),
        expires: float = 0,
        roles: Sequence[str] = (),
        quota: wire.Quota = wire.Quota(),  # noqa: B008 - it is frozen
    ) -> Errand[wire.TokenMade]:
        """Make a token. Its secret is in the answer, and nowhere else: keep it. `expires` is in seconds, 0 is never."""
        request = wire.CreateToken(name, owner, _grants(scopes), expires, False, list(roles), quota)
        return _ask(request, wire.TokenMade)

    @offered
    def rotate_token(self, name: str, *, expires: float = 0) -> Errand[wire.TokenMade]:
        """A second secret for a token; the first one is good until it is revoked."""
        return _ask(wire.CreateToken(name, expires_s=expires, rotate=True), wire.TokenMade)

    @offered
    def revoke_token(self, name: str, secret_id: str = "") -> Errand[None]:
        """A token, or one of its secrets by its id. Connections that came in by it are closed."""
        yield from _ask(wire.RevokeToken(name, secret_id), Done)

    @offered
    def rules(self, subject: str = "") -> Errand[wire.Rules]:
        return _ask(wire.ListRules(subject), wire.Rules)

    @offered
    def allow(self, subject: str, action: str, resource: str, name: str = "*") -> Errand[int]:
        return (
            yield from _ask(wire.AddRule(wire.Rule(0, subject, "allow", action, resource, name)), wire.RuleAdded)
        ).id

    @offered
    def deny(self, subject: str, action: str, resource: str, name: str = "*") -> Errand[int]:
        """A deny beats every allow."""
        rule = wire.Rule(0, subject, "deny", action, resource, name)
        return (yield from _ask(wire.AddRule(rule), wire.RuleAdded)).id

    @offered
    def drop_rule(self, number: int) -> Errand[None]:
        yield from _ask(wire.DropRule(number), Done)

    @offered
    def audit(self, /, **filters: Any) -> Errand[wire.Audit]:
        """The newest entries first. Filters: `before` (a number), `limit`, `actor`, `what`, `outcome`, `since_us`."""
        return _ask(wire.ListAudit(**filters), wire.Audit)


class BlockingAccess(Now, Access):
    def __init__(self, run: Callable[[Flow[Any]], Any]) -> None:
        self._run = run

    def _carry_out(self, place: Place) -> Any:
        assert isinstance(place, Here)
        return self._run(place.flow)


class AioAccess(Later, Access):
    def __init__(self, run: Callable[[Flow[Any]], Awaitable[Any]]) -> None:
        self._run = run

    async def _carry_out(self, place: Place) -> Any:
        assert isinstance(place, Here)
        return await self._run(place.flow)


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
