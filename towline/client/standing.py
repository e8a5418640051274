"""What a consumer of many brokers wants from them, and where a consumer stands in its group."""

from __future__ import annotations

from typing import NamedTuple

from towline.client.limits import Limits
from towline.protocol.messages import GroupState

__all__ = ["Demand", "Standing", "standing"]


class Demand:
    """Somebody waits for messages; each is one of its own."""

    __slots__ = ("limits", "until")

    def __init__(self, limits: Limits | None, until: float) -> None:
        self.limits = limits
        """None: as many as the iteration takes."""
        self.until = until

    def is_over(self, now: float) -> bool:
        return now >= self.until


class Standing(NamedTuple):
    """The place of a consumer among those of its group, by name, from 0 on, and how many they are."""

    rank: int
    total: int


def standing(state: GroupState, consumer: str) -> Standing:
    names = sorted(member.consumer for member in state.members)
    return Standing(names.index(consumer) if consumer in names else -1, len(names))
