"""A consumer that waits for messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from towline.broker.delivering import Buffers
from towline.broker.member import Member
from towline.delivery.events import Pulled
from towline.protocol import messages as wire

__all__ = ["HandOver", "Waiter"]

HandOver = Callable[[wire.Pulled, Buffers], None]
"""Gives a consumer what its pull was granted, at once."""


class Waiter:
    """A pull that waits for messages."""

    __slots__ = ("acted", "future", "hand_over", "handed_over", "member", "request")

    def __init__(
        self,
        member: Member,
        request: wire.Pull,
        future: asyncio.Future[Pulled | None],
        acted: asyncio.Future[None] | None,
        hand_over: HandOver | None,
    ) -> None:
        self.member = member
        self.request = request
        self.future = future
        self.acted = acted
        """The acts that came with the pull: it is answered once they are durable."""
        self.hand_over = hand_over
        self.handed_over: tuple[wire.Pulled, Buffers] | None = None
