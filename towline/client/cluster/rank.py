"""The rank of a consumer in its group, and the demand of a consumer of many brokers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from towline.client.consume.lease import Lease
from towline.client.consume.pull_size import PullLimits
from towline.protocol.messages import GroupState

__all__ = ["Demand", "Rank", "is_turn_of", "standing"]


class Demand:
    """A demand for messages; each is one of its own."""

    __slots__ = ("in_turn", "limits", "until")

    def __init__(self, limits: PullLimits | None, until: float, *, in_turn: bool = False) -> None:
        self.limits = limits
        """None: as many as the iteration takes."""
        self.until = until
        self.in_turn = in_turn
        """One broker is pulled from after the other, because pulled messages cannot be given back (at most once)."""

    def is_over(self, now: float) -> bool:
        return now >= self.until


class _Branch(Protocol):
    """The consumer at one broker."""

    lease: Lease | None
    served: Demand | None
    pulling: bool
    turn: int

    @property
    def ready(self) -> bool: ...


def is_turn_of(branch: _Branch, branches: Iterable[_Branch], demand: Demand) -> bool:
    """Whether a branch is to pull now: the one that pulled longest ago, when no other pulls or has something."""
    if not demand.in_turn:
        return True
    others = [one for one in branches if one is not branch]
    if not branch.ready or any(one.pulling or one.lease is not None for one in others):
        return False
    return all(branch.turn < one.turn for one in others if one.ready and one.served is not demand)


class Rank(NamedTuple):
    """The rank of a consumer among those of its group, by name, from 0 on, and their number."""

    rank: int
    total: int


def standing(state: GroupState, consumer: str) -> Rank:
    names = sorted(member.consumer for member in state.members)
    return Rank(names.index(consumer) if consumer in names else -1, len(names))
