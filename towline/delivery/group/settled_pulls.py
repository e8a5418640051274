"""Pulls of a group that are settled, and are remembered for a while."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from towline.delivery.group.lease import Lease

__all__ = ["SettledPulls"]

SETTLED_MAX: Final = 1_024
"""Settled pulls that are remembered, so that an act that is sent twice gets the same answer twice."""
SETTLED_PARTS_MAX: Final = 100_000
"""Parts of settled pulls that are remembered: a pull settled message by message may have as many parts as messages."""


class SettledPulls(OrderedDict[int, Lease]):
    """By number, the oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self._parts = 0
        self.robbed: dict[int, Lease] = {}
        """Those of which something was taken away."""

    def remember(self, lease: Lease) -> None:
        """Keep a settled pull for a while; there is a limit to how many, and to how many parts they have in all."""
        if lease.pull in self:
            self._parts -= self.pop(lease.pull).size
        self[lease.pull] = lease
        lease.forget_limits()
        if lease.gone:
            self.robbed[lease.pull] = lease
        lease.size = sum(map(len, lease.settled.values())) + len(lease.gone)
        self._parts += lease.size
        while len(self) > SETTLED_MAX or (self._parts > SETTLED_PARTS_MAX and len(self) > 1):
            pull, oldest = self.popitem(last=False)
            self._parts -= oldest.size
            self.robbed.pop(pull, None)
