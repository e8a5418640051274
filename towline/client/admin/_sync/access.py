# Generated from towline/client/admin/_async/access.py by scripts/unasync.py: change it there.
"""Users, tokens, rules and the audit log: `Client.access`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from towline.client.admin._sync.router import Noun
from towline.client.admin.access import Granted, as_grants
from towline.client.link.flow import ask
from towline.protocol import access as wire
from towline.protocol.messages import Answer, Done, Request

A = TypeVar("A", bound=Answer)


__all__ = ["Access"]


class Access(Noun):
    """Needs a broker with security; all but what concerns oneself is for administrators."""

    def who_am_i(self, may: Granted = ()) -> wire.Me:
        """The principal of this client, and whether it may do these: (action, resource, name) each."""
        return self._ask(wire.WhoAmI(as_grants(may)), wire.Me)

    def users(self) -> list[wire.UserState]:
        """All users, with their roles and identities."""
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
        """Make a user. Without a password it comes in by a token, or by an identity in its certificate."""
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
        """Change the fields that are given. Everyone may change the own password, giving the old one."""
        request = wire.PutUser(
            name,
            False,
            password,
            old_password,
            None if roles is None else list(roles),
            disabled,
            None if identities is None else list(identities),
            quota,
        )
        self._ask(request, Done)

    def delete_user(self, name: str) -> None:
        """With its tokens and rules; its connections are closed."""
        self._ask(wire.DeleteUser(name), Done)

    def tokens(self, owner: str = "") -> list[wire.TokenState]:
        """All tokens, or those of a user; their secrets are told nowhere. Everyone may list the own ones."""
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
        """Make a token. Its secret is in the answer, and nowhere else: keep it. `expires` is in seconds, 0 is never."""
        request = wire.CreateToken(name, owner, as_grants(scopes), expires, False, list(roles), quota)
        return self._ask(request, wire.TokenMade)

    def rotate_token(self, name: str, *, expires: float = 0) -> wire.TokenMade:
        """A second secret for a token; the first one is good until it is revoked."""
        return self._ask(wire.CreateToken(name, expires_s=expires, rotate=True), wire.TokenMade)

    def revoke_token(self, name: str, secret_id: str = "") -> None:
        """A token, or one of its secrets by its id. Connections that came in by it are closed."""
        self._ask(wire.RevokeToken(name, secret_id), Done)

    def rules(self, subject: str = "") -> wire.Rules:
        """The rules of a subject, or all of them."""
        return self._ask(wire.ListRules(subject), wire.Rules)

    def allow(self, subject: str, action: str, resource: str, name: str = "*") -> int:
        """Let a subject do this to what has the name. The number of the rule."""
        return (self._ask(wire.AddRule(wire.Rule(0, subject, "allow", action, resource, name)), wire.RuleAdded)).id

    def deny(self, subject: str, action: str, resource: str, name: str = "*") -> int:
        """A deny beats every allow."""
        rule = wire.Rule(0, subject, "deny", action, resource, name)
        return self._ask(wire.AddRule(rule), wire.RuleAdded).id

    def drop_rule(self, number: int) -> None:
        """Delete a rule, by its number."""
        self._ask(wire.DropRule(number), Done)

    def audit(self, /, **filters: Any) -> wire.Audit:
        """The newest entries first. Filters: `before` (a number), `limit`, `actor`, `what`, `outcome`, `since_us`."""
        return self._ask(wire.ListAudit(**filters), wire.Audit)

    def _ask(self, request: Request, expected: type[A]) -> A:
        return self._router.here(ask(request, expected))
