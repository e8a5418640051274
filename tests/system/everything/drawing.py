"""What more than one file of rules needs: what is drawn by chance, and a step."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from hypothesis import strategies as st

from tests.broker.conftest import ACK, DEAD, GIVE_BACK, NACK
from tests.system.everything.machine import Machine

__all__ = ["Stepping", "acts", "pick", "shares"]

shares = st.floats(0, 1)
subsets = st.none() | st.lists(st.tuples(shares, st.integers(1, 4)), min_size=1, max_size=3)
acts = st.tuples(
    st.sampled_from([ACK, ACK, ACK, NACK, NACK, DEAD, GIVE_BACK]),
    shares,
    subsets,
    st.booleans(),
    st.sampled_from([None, None, 0.0, 0.4, 3.21]),
)


def pick(some: Any, share: float) -> Any:
    return some[min(int(share * len(some)), len(some) - 1)]


class Stepping(Machine):
    def step(self, work: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            await work
            await self.compare()

        self.do(whole())
