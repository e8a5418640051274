"""Quotas: limits of a principal over all its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from towline.errors import TooMany
from towline.protocol.access import Quota

__all__ = ["Meter"]

BURST_S: Final = 1.0
"""The part of a second's rate that may come at once."""


class Meter:
    """Counts for one principal. Bytes beyond the rate are a debt, and their sender waits until it is paid."""

    __slots__ = ("_at_s", "_debt", "asking", "holders", "quota")

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.holders: set[Callable[[], int]] = set()
        """One for each connection: the messages that it holds."""
        self.asking = asyncio.Lock()
        """Long permission checks run one after the other."""
        self._debt = 0.0
        self._at_s = 0.0

    def join(self, name: str, holds: Callable[[], int]) -> None:
        limit = self.quota.connections
        if limit and len(self.holders) >= limit:
            raise TooMany(f"{name} has {limit} connections already, which is its quota")
        self.holders.add(holds)

    def leave(self, holds: Callable[[], int]) -> None:
        self.holders.discard(holds)

    def take(self, size: int, now_s: float) -> float:
        """Count bytes; returns for how long to take no more."""
        rate = self.quota.bytes_per_s
        if not rate:
            return 0.0
        self._debt = max(self._debt - (now_s - self._at_s) * rate, 0.0) + size
        self._at_s = now_s
        return max(self._debt / rate - BURST_S, 0.0)

    def room(self) -> int | None:
        """How many more messages may be held; None is no limit."""
        limit = self.quota.in_flight
        return max(limit - sum(holds() for holds in self.holders), 0) if limit else None
