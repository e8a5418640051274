"""A lease: what one consumer holds of one pull."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from towline.delivery.events import Part
from towline.delivery.parts import PartSet, disjoint
from towline.errors import BadRequest, Conflict, LeaseLost, TowlineError
from towline.model import Span

__all__ = ["Act", "Lease", "lost"]

Act = Literal["acked", "nacked", "given back", "skipped"]
"""How a message of a pull was settled: by its consumer, or skipped by the broker because it cannot be read."""

_SKIPPED: Act = "skipped"
_NOTHING: Final = PartSet()


class Lease:
    """The parts of a pull that are still open, and how the others were settled."""

    __slots__ = ("consumer", "deadline_us", "gone", "open", "pull", "settled", "size", "taken", "why")

    def __init__(self, pull: int, consumer: str, deadline_us: int, parts: Iterable[Part]) -> None:
        self.pull = pull
        self.consumer = consumer
        self.deadline_us = deadline_us
        self.open = PartSet(parts)
        self.settled: dict[Act, PartSet] = {}
        self.size = 0
        """How many parts it takes to remember this lease, once it is settled."""
        self.taken = False
        """Whether open messages were taken away from the consumer: it left, vanished or was too slow."""
        self.gone = _NOTHING
        """Which ones, …"""
        self.why = ""
        """… and why, as far as it is known."""

    def settle(self, part: Part, act: Act) -> None:
        self.open.remove(part)
        if act in self.settled:
            self.settled[act].add(part)
        else:
            self.settled[act] = PartSet((part,))

    def take(self, part: Part, why: str = "") -> None:
        self.open.remove(part)
        if self.gone is _NOTHING:
            self.gone = PartSet()
        self.gone.add(part)
        self.taken = True
        self.why = why or self.why

    def choose(self, spans: tuple[Span, ...], act: Act) -> list[Part]:
        """The open parts within `spans` (all, if there are none). What was settled by the same act before is passed
        over, so that an act may be sent twice; what was settled in another way, or taken away, is refused."""
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


def lost(pull: int, consumer: str) -> LeaseLost:
    return LeaseLost(
        f"pull {pull} is not leased to consumer {consumer} (any more): its messages go to another; drop this work"
    )


def _count(parts: list[Part]) -> int:
    return sum(part.count for part in parts)
