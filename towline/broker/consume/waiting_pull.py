"""A pull that waits for messages, and the taker of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from towline.broker.consume.fetch import Buffers
    from towline.broker.consume.member import Member
    from towline.delivery.group.events import Pulled
    from towline.protocol import messages as wire

__all__ = ["Taker", "WaitingPull", "in_turn"]


class Taker(Protocol):
    """Takes a granted pull to its consumer."""

    @property
    def stands(self) -> bool:
        """Whether the pull may be answered again after the next answer."""

    @property
    def ending(self) -> bool:
        """The pull is to wait no longer."""

    def take(self, pulled: wire.Pulled, buffers: Buffers) -> None: ...

    def set_aside(self, size: int) -> int:
        """Reserve room for an answer of at most `size` bytes, from the room in hand or the budget; 0 is that there is
        none."""

    async def wait_for_room(self, size: int, within_s: float) -> bool:
        """Wait for room, and keep it in hand. False: there was none in time, or the pull is to wait no longer."""

    def read(self, room: int, size: int) -> None:
        """An answer was read for which `room` was reserved: it takes `size`."""

    def let_go(self) -> None:
        """Give back the room in hand, and that of an answer that was read and is not handed over."""


class WaitingPull:
    """A pull that waits for messages."""

    __slots__ = ("acted", "future", "member", "request", "taken", "taker")

    def __init__(
        self,
        member: Member,
        request: wire.Pull,
        future: asyncio.Future[Pulled | None],
        acted: asyncio.Future[None] | None,
        taker: Taker | None,
    ) -> None:
        self.member = member
        self.request = request
        self.future = future
        self.acted = acted
        """The acts that came with the pull: it is answered once they are durable."""
        self.taker = taker
        self.taken: tuple[wire.Pulled, Buffers] | None = None
        """The last answer, if it was given at once."""

    @property
    def may_take(self) -> bool:
        """Whether it may be answered now: it has a taker, and the acts that came with it are durable."""
        acted = self.acted
        return self.taker is not None and (acted is None or (acted.done() and acted.exception() is None))

    @property
    def stands(self) -> bool:
        return self.taker is not None and self.taker.stands


def in_turn(waiters: Iterable[WaitingPull]) -> list[WaitingPull]:
    """FIFO; standing pulls whose consumer has messages to work on come last."""
    return sorted(waiters, key=lambda waiter: waiter.member.in_flight if waiter.stands else 0)
