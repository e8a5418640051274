"""The one central check: every request of a connection passes here before anything is done for it.

Decisions are cached for the connection, until the rules change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from towline.broker.access.authentication import Access, Principal
from towline.broker.access.permissions import Context, Permission
from towline.broker.access.rules import May, Need
from towline.errors import Refused
from towline.model import is_pattern
from towline.protocol.messages import Answer, Request

__all__ = ["Guard"]

REMEMBERED_MAX: Final = 10_000


class Guard:
    __slots__ = (
        "_context",
        "_decided",
        "_rights",
        "_table",
        "access",
        "address",
        "holds",
        "meter",
        "origin",
        "principal",
    )

    def __init__(
        self,
        access: Access,
        principal: Principal,
        table: Mapping[type[Request], Permission],
        context: Context,
        *,
        address: str,
        holds: Callable[[], int],
        origin: str,
    ) -> None:
        self.access = access
        self.principal = principal
        self._table = table
        self.address = address
        self.origin = origin
        """The origin under which its wrong passwords are counted."""
        self.holds = holds
        self.meter = access.meter(principal)
        self.meter.join(principal.label, holds)
        self._context = context
        self._decided: dict[Need, bool] = {}
        self._rights = access.rights(principal)

    def check(self, request: Request) -> None:
        """Raises `Refused` unless all that the request does is allowed."""
        decided = self._decided
        for need in self._table[type(request)].needs(request, self._context):
            if not (decided[need] if need in decided else self.may(*need)):
                self._refuse(request, need)

    def may(self, action: str, resource: str, name: str) -> bool:
        need = (action, resource, name)
        found = self._decided.get(need)
        if found is None:
            if len(self._decided) >= REMEMBERED_MAX:
                self._decided.clear()
            found = self._decided[need] = self._rights.may(action, resource, name)
        return found

    def sight(self) -> May | None:
        """The part of long lists that this principal may see: None is all of it."""
        return None if self._rights.sight() is None else self._sees

    def _sees(self, action: str, resource: str, name: str) -> bool:
        """A pattern, if the action is allowed on all that the pattern can mean."""
        return self._rights.may_all(action, resource, name) if is_pattern(name) else self.may(action, resource, name)

    def _refuse(self, request: Request, need: Need) -> None:
        action, resource, name = need
        what = f"{action} {resource} {name}".rstrip()
        self.note(request, "refused", f"needs {what}")
        raise Refused(f"{self.principal.label!r} may not {what}: an administrator can allow it (towline acl allow)")

    def filter(self, request: Request, answer: Answer) -> Answer:
        """Leave out of a list what the principal must not see."""
        found = self._table[type(request)].filter
        return answer if found is None else found(answer, self.may)

    def note(self, request: Request, outcome: str, detail: str = "") -> None:
        if self.access.audit is not None:
            what, target = type(request).__name__, self._table[type(request)].target(request)
            self.access.audit.note(self.principal.name, self.address, what, target, outcome, detail)

    def renew(self) -> bool:
        """The rules have changed: decide anew. False if this principal is not let in any more."""
        self._decided.clear()
        if not self.access.is_valid(self.principal):
            return False
        self._rights = self.access.rights(self.principal)
        self.access.meter(self.principal)
        return True

    def leave(self) -> None:
        self.meter.leave(self.holds)
        self.access.let_go(self.principal)
