"""Rules, and what a principal may do by them: pure, and the only place where that is decided.

A deny beats every allow, and what no rule allows is refused. `admin` of a resource is every action on it, `admin` of
the cluster every action on everything; any permission on a resource includes describing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from towline.errors import BadRequest
from towline.protocol.access import ACTIONS, RESOURCES, Grant, Rule

__all__ = ["ANY", "ROLES", "May", "Need", "Rights", "check_grant", "check_rule", "covers"]

ANY: Final = "*"
Need = tuple[str, str, str]
"""An action, the kind of a resource, its name; the cluster has none."""
May = Callable[[str, str, str], bool]

ROLES: Final[dict[str, list[Grant]]] = {
    "admin": [Grant(ANY, ANY)],
    "operator": [
        *(Grant(action, kind) for kind in ("topic", "group") for action in ("create", "alter", "delete", "describe")),
        Grant("describe", "cluster"),
        Grant("alter", "cluster"),
    ],
    "viewer": [Grant("describe", ANY)],
    "producer": [Grant("send", "topic")],
    "consumer": [Grant("consume", "topic"), Grant("consume", "group")],
}
"""The built-in roles. Others may be named in rules as they are needed."""


class Rights:
    """The rules of one principal, and the scopes of its token."""

    __slots__ = ("_allows", "_denies", "_scopes")

    def __init__(self, rules: Iterable[Rule], roles: Iterable[str], scopes: Sequence[Grant] = ()) -> None:
        rules = list(rules)
        self._denies = [Grant(one.action, one.resource, one.name) for one in rules if one.effect == "deny"]
        self._allows = [Grant(one.action, one.resource, one.name) for one in rules if one.effect == "allow"]
        for role in roles:
            self._allows += ROLES.get(role, ())
        self._scopes = scopes

    def may(self, action: str, resource: str, name: str) -> bool:
        if any(_denies(grant, action, resource, name) for grant in self._denies):
            return False
        if self._scopes and not any(_allows(grant, action, resource, name) for grant in self._scopes):
            return False
        return any(_allows(grant, action, resource, name) for grant in self._allows)

    def sight(self) -> May | None:
        """The part of long lists that it may see: None is all of it."""
        return None if all(self.may_all("describe", kind) for kind in RESOURCES) else self.may

    def may_all(self, action: str, resource: str, pattern: str = ANY) -> bool:
        """Whether it may do this to all that a pattern can mean: then no single one of ten thousand need be checked."""
        if any(_denies_some(grant, action, resource, pattern) for grant in self._denies):
            return False
        return all(
            any(_allows(grant, action, resource, pattern) for grant in grants)
            for grants in (self._allows, *([self._scopes] if self._scopes else []))
        )


def _denies(grant: Grant, action: str, resource: str, name: str) -> bool:
    return grant.action in (ANY, action) and grant.resource in (ANY, resource) and _matches(grant.name, name)


def _denies_some(grant: Grant, action: str, resource: str, pattern: str) -> bool:
    both = _matches(pattern, grant.name.removesuffix(ANY)) or _matches(grant.name, pattern.removesuffix(ANY))
    return both and grant.action in (ANY, action) and grant.resource in (ANY, resource)


def _allows(grant: Grant, action: str, resource: str, name: str) -> bool:
    if grant.action in (ANY, "admin") and grant.resource in (ANY, "cluster") and grant.name == ANY:
        return True
    if grant.resource not in (ANY, resource) or not _matches(grant.name, name):
        return False
    return grant.action in (ANY, "admin", action) or action == "describe"


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith(ANY) else name == pattern


def covers(wide: Sequence[Grant], narrow: Sequence[Grant]) -> bool:
    """Whether a token with the scopes `narrow` may do nothing that one with the scopes `wide` may not. No scopes are no
    limit."""
    return not wide or (bool(narrow) and all(any(_holds(one, other) for one in wide) for other in narrow))


def _holds(wide: Grant, narrow: Grant) -> bool:
    if narrow.action in (ANY, "admin") and narrow.resource in (ANY, "cluster") and narrow.name == ANY:
        return _allows(wide, "admin", "cluster", "")
    if wide.action in (ANY, "admin") and wide.resource in (ANY, "cluster") and wide.name == ANY:
        return True
    action = wide.action in (ANY, "admin", narrow.action) or narrow.action == "describe"
    return action and wide.resource in (ANY, narrow.resource) and _matches(wide.name, narrow.name)


def check_grant(grant: Grant) -> None:
    if grant.action != ANY and grant.action not in ACTIONS:
        raise BadRequest(f"action {grant.action[:40]!r} is not one of {', '.join(ACTIONS)} or *")
    if grant.resource != ANY and grant.resource not in RESOURCES:
        raise BadRequest(f"resource {grant.resource[:40]!r} is not one of {', '.join(RESOURCES)} or *")
    if grant.resource in (ANY, "cluster") and grant.name != ANY:
        raise BadRequest(f"a rule for {grant.resource!r} has the name *, since it is for all of it")
    if not grant.name or ANY in grant.name[:-1]:
        raise BadRequest(f"name {grant.name[:80]!r}: give a name, a prefix and *, or * for all")


def check_rule(rule: Rule) -> None:
    check_grant(Grant(rule.action, rule.resource, rule.name))
    if not rule.subject:
        raise BadRequest("a rule has a subject: a user or token by its name, role:NAME, or * for everyone")
