"""Limits of HTTP connections: in all, and from one address; and of the files that a process may open.

At a limit, the connection that has kept us waiting for longest makes room for the next: half a request, or none.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Hashable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from towline.model import origin_of

__all__ = ["ConnectionLimit", "Visitor", "allow_files"]

log = logging.getLogger("towline.serve")

YIELD_S: Final = 1.0
"""A connection that has sent nothing of the rest of its request for this long makes room for others, if there is none
left."""


class Visitor(Hashable, Protocol):
    """A connection as the limit sees it."""

    @property
    def host(self) -> str:
        """Its remote address."""

    @property
    def waits_since_s(self) -> float | None:
        """Since when nothing has come of the request that we wait for; None while the client need not send."""


V = TypeVar("V", bound=Visitor)


class ConnectionLimit(Generic[V]):
    """Of IPv6, a network of 64 bits is an address."""

    def __init__(self, most: int, of_address: int) -> None:
        self.most = most
        self.of_address = of_address
        """Per address; 0 is no limit but the one in all."""
        self._visitors: dict[str, dict[V, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, visitor: V, now_s: float) -> tuple[int, V | None]:
        """Admit a connection: 0, and the one that goes for it; or the status of HTTP with which it is refused."""
        some = self._visitors.get(origin_of(visitor.host), {})
        going = None
        if self.of_address and len(some) >= self.of_address:
            going = _longest_waiting(some, now_s)
            if going is None:
                return 429, None
        elif self._count >= self.most:
            going = _longest_waiting((one for each in self._visitors.values() for one in each), now_s)
            if going is None:
                return 503, None
        if going is not None:
            self.leave(going)
        self._visitors.setdefault(origin_of(visitor.host), {})[visitor] = None
        self._count += 1
        return 0, going

    def leave(self, visitor: V) -> None:
        origin = origin_of(visitor.host)
        some = self._visitors.get(origin, {})
        if visitor in some:
            del some[visitor]
            self._count -= 1
            if not some:
                del self._visitors[origin]


def _longest_waiting(some: Iterable[V], now_s: float) -> V | None:
    found, since_s = None, now_s - YIELD_S
    for one in some:
        waits_since_s = one.waits_since_s
        if waits_since_s is not None and waits_since_s <= since_s:
            found, since_s = one, waits_since_s
    return found


def allow_files(wanted: int) -> None:
    """Raise the soft limit of open files, as far as the hard one allows, so that limits of connections can hold."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            log.warning("only %d files may be open: fewer connections than max_connections will fit", allowed)
