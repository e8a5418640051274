"""Leases of a group, and its settled pulls."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Literal

from towline.delivery.group.events import Part
from towline.delivery.group.parts import PartSet, disjoint
from towline.errors import BadRequest, Conflict, LeaseLost, TowlineError
from towline.model import Span

if TYPE_CHECKING:
    from towline.delivery.group.group import Group

__all__ = ["Act", "Lease", "SettledPulls", "lost", "missing"]


Act = Literal["acked", "nacked", "given back", "skipped"]
"""How a message of a pull was settled: by its consumer, or skipped by the broker because it is unreadable."""

Attempts = Sequence[tuple[int, int, int, int]]
"""Lane, first, end, and the limit of attempts of the messages between; in order."""

_SKIPPED: Act = "skipped"
_NOTHING: Final = PartSet()


class Lease:
    """The open parts of a pull, and the outcome of the others."""

    __slots__ = (
        "_attempts",
        "consumer",
        "deadline_us",
        "gone",
        "open",
        "pull",
        "settled",
        "size",
        "taken",
        "timeout_us",
        "why",
    )

    def __init__(self, pull: int, consumer: str, deadline_us: int, parts: Iterable[Part], timeout_us: int = 0) -> None:
        self.pull = pull
        self.consumer = consumer
        self.deadline_us = deadline_us
        self.timeout_us = timeout_us
        """From the pull to its deadline; 0 if it has none, or that is not known."""
        self.open = PartSet(parts)
        self._attempts: Attempts = ()
        self.settled: dict[Act, PartSet] = {}
        self.size = 0
        """How many parts it takes to remember this lease, once it is settled."""
        self.taken = False
        """Whether open messages were taken away from the consumer: it left, vanished or was too slow."""
        self.gone = _NOTHING
        """Those parts, …"""
        self.why = ""
        """… and the reason, as far as it is known."""

    def limit(self, attempts: Iterable[tuple[Span, int]]) -> None:
        """Set the attempt limits of some messages, as their senders gave them. It is not recorded, because it follows
        from the messages."""
        self._attempts = sorted((span.lane, span.first, span.end, most) for span, most in attempts)

    def by_attempt(self, parts: Iterable[Part], most: int) -> tuple[list[Part], list[Part]]:
        """The parts that may be retried, and those that may not: after `most` attempts, or their own limit."""
        again: list[Part] = []
        last: list[Part] = []
        for part in parts:
            for piece, limit in _pieces(part, self._attempts, most) if self._attempts else ((part, most),):
                (again if piece.attempt < limit else last).append(piece)
        return again, last

    def forget_limits(self) -> None:
        self._attempts = ()

    def settle(self, part: Part, act: Act) -> None:
        self.open.remove(part)
        if act in self.settled:
            self.settled[act].add(part)
        else:
            self.settled[act] = PartSet((part,))

    def settle_all(self, act: Act) -> None:
        """Settle all open messages."""
        if act in self.settled:
            self.settled[act].merge(self.open)
        else:
            self.settled[act] = self.open
        self.open = PartSet()

    def take(self, part: Part, why: str = "") -> None:
        self.open.remove(part)
        if self.gone is _NOTHING:
            self.gone = PartSet()
        self.gone.add(part)
        self.taken = True
        self.why = why or self.why

    def choose(self, spans: tuple[Span, ...], act: Act) -> list[Part]:
        """The open parts within `spans` (all, if there are none). Parts settled by the same act before are skipped, so
        that an act may be sent twice; parts settled in another way, or taken away, are refused."""
        if not spans:
            return self._choose_all(act)
        chosen: list[Part] = []
        for span in disjoint(spans):
            found = self.open.within(span)
            if _count(found) + self._settled_before(span, act) != span.count:
                raise self._refusal(span, act)
            chosen += found
        return chosen

    def _choose_all(self, act: Act) -> list[Part]:
        if self.open:
            return list(self.open)
        if self.taken:
            raise lost(self.pull, self.consumer)
        if act in self.settled or _SKIPPED in self.settled:
            return []
        raise Conflict(f"pull {self.pull} was {' and '.join(sorted(self.settled))} already")

    def _settled_before(self, span: Span, act: Act) -> int:
        return sum(_count(self.settled[how].within(span)) for how in (act, _SKIPPED) if how in self.settled)

    def _refusal(self, span: Span, act: Act) -> TowlineError:
        names = f"messages {span.first} to {span.end - 1}"
        for how, parts in self.settled.items():
            if how not in (act, _SKIPPED) and parts.within(span):
                return Conflict(f"{names} of pull {self.pull} were {how} already")
        if self.taken:
            return lost(self.pull, self.consumer)
        return BadRequest(f"{names} are not part of pull {self.pull}")


def _pieces(part: Part, attempts: Attempts, most: int) -> Iterator[tuple[Part, int]]:
    """A part, cut where another attempt limit begins."""
    at = part.first
    for lane, first, end, limit in islice(attempts, max(bisect_right(attempts, (part.lane, at + 1)) - 1, 0), None):
        if lane > part.lane or (lane == part.lane and first >= part.end):
            break
        if lane < part.lane or end <= at:
            continue
        if first > at:
            yield part._replace(first=at, count=first - at), most
            at = first
        stop = min(end, part.end)
        yield part._replace(first=at, count=stop - at), limit
        at = stop
    if at < part.end:
        yield part._replace(first=at, count=part.end - at), most


def lost(pull: int, consumer: str) -> LeaseLost:
    return LeaseLost(
        f"pull {pull} is not leased to consumer {consumer} (any more): its messages go to another; drop this work"
    )


def _count(parts: list[Part]) -> int:
    return sum(part.count for part in parts)


SETTLED_MAX: Final = 1_024
"""Settled pulls that are remembered, so that an act that is sent twice gets the same answer twice."""
SETTLED_PARTS_MAX: Final = 100_000
"""Parts of settled pulls that are remembered: a pull settled message by message may have as many parts as messages."""


class SettledPulls(OrderedDict[int, Lease]):
    """Settled pulls by number, the oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self._parts = 0
        self.reduced: dict[int, Lease] = {}
        """Those of which something was taken away."""

    def remember(self, lease: Lease) -> None:
        """Keep a settled pull for a while; their number, and that of their parts in all, are bounded."""
        if lease.pull in self:
            self._parts -= self.pop(lease.pull).size
        self[lease.pull] = lease
        lease.forget_limits()
        if lease.gone:
            self.reduced[lease.pull] = lease
        lease.size = sum(map(len, lease.settled.values())) + len(lease.gone)
        self._parts += lease.size
        while len(self) > SETTLED_MAX or (self._parts > SETTLED_PARTS_MAX and len(self) > 1):
            pull, oldest = self.popitem(last=False)
            self._parts -= oldest.size
            self.reduced.pop(pull, None)


MISSING_MAX: Final = 1_000


def missing(group: Group, consumer: str, pull: int, *, up_to: bool) -> list[tuple[int, Part, str]]:
    """Messages of a pull, or also of those before it, that were taken away from their consumer; with the number of
    their pull, and the reason. The first so many ranges of them."""
    lease = group.leases.get(pull) or group.settled.get(pull)
    found = [] if lease is None or not lease.taken or lease.consumer != consumer else [lease]
    if up_to:
        before = chain(group.leases.values(), group.settled.reduced.values())
        found += [one for one in before if one.taken and one.consumer == consumer and one.pull < pull]
    return list(islice(_parts(found), MISSING_MAX))


def _parts(leases: list[Lease]) -> Iterator[tuple[int, Part, str]]:
    for lease in leases:
        for part in lease.gone:
            yield lease.pull, part, lease.why
