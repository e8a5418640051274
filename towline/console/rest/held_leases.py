"""Leases held for REST callers between their requests.

A caller's consumers are reused from pull to pull. A message that was not acknowledged when its lease ended is delivered
again; so are all of them when this process ends.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from typing import Final

from towline.client._async.client import Batch, Consumer
from towline.client.consume.message import Message
from towline.console.rest.client_pool import Caller
from towline.errors import QueueFull, TowlineError

__all__ = ["Held", "Pulls"]

IDLE_S: Final = 60.0
CONSUMERS_MAX: Final = 16
"""For one caller and group: so many pulls may wait at once."""
HELD_MAX: Final = 100_000
HELD_BYTES: Final = 512 << 20
"""They are in memory until all of a pull is settled. No caller has more than half of either."""
TIDY_S: Final = 0.25

Place = tuple[str, str, str]
"""The caller, the topic and the group."""


class _Seat:
    """A consumer, which serves one pull at a time."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.busy = False
        self.leases = 0
        self.used_s = time.monotonic()


class Held:
    """The messages of one pull, until they are settled or their lease ends."""

    def __init__(self, caller: str, seat: _Seat, batch: Batch, deadline_s: float) -> None:
        self.caller = caller
        self.seat = seat
        self.messages: dict[int, Message] = dict(enumerate(batch))
        self.size = batch.lease.size_bytes
        self.deadline_s = deadline_s


class Pulls:
    def __init__(self) -> None:
        self._seats: dict[Place, list[_Seat]] = {}
        self._opening: Counter[Place] = Counter()
        self._held: dict[str, Held] = {}

    @property
    def busy(self) -> set[str]:
        """Callers that must stay connected."""
        return {place[0] for place in self._seats}

    async def pull(
        self, caller: Caller, topic: str, group: str, *, max_messages: int, wait_s: float, lease_s: float
    ) -> list[tuple[str, Message]]:
        self._check_room(caller)
        seat = await self._seat(caller, topic, group)
        seat.busy = True
        try:
            batch = await seat.consumer.pull(max_messages, wait=wait_s)
        finally:
            seat.busy = False
            seat.used_s = time.monotonic()
        if not batch:
            return []
        name = secrets.token_urlsafe(12)
        held = self._held[name] = Held(caller.key, seat, batch, time.monotonic() + lease_s)
        seat.leases += 1
        return [(f"{name}.{number}", message) for number, message in held.messages.items()]

    def _check_room(self, caller: Caller) -> None:
        for whose, part in ((caller.key, 2), ("", 1)):
            held = [one for one in self._held.values() if whose in ("", one.caller)]
            count, size = sum(len(one.messages) for one in held), sum(one.size for one in held)
            if count * part >= HELD_MAX or size * part >= HELD_BYTES:
                by = " by you" if whose else ""
                raise QueueFull(
                    f"{count:,} messages of {size:,} bytes were pulled here{by} and not settled: settle some, then "
                    "pull again"
                )

    async def _seat(self, caller: Caller, topic: str, group: str) -> _Seat:
        place = caller.key, topic, group
        seats = self._seats.setdefault(place, [])
        free = next((seat for seat in seats if not seat.busy and not seat.consumer.closed), None)
        if free is not None:
            return free
        if len(seats) + self._opening[place] >= CONSUMERS_MAX:
            raise QueueFull(f"{CONSUMERS_MAX} pulls of group {group} on topic {topic} wait here already: try again")
        if group.startswith("~"):
            opening = caller.client.consumer(topic, name=group[1:], prefetch=0)
        else:
            opening = caller.client.consumer(topic, group, prefetch=0)
        self._opening[place] += 1
        try:
            seat = _Seat(await opening)
        finally:
            self._opening -= Counter([place])
        self._seats.setdefault(place, []).append(
            seat
        )  # it may have been tidied away meanwhile, as long as it was empty
        return seat

    async def settle(
        self,
        caller: Caller,
        receipts: list[str],
        *,
        ack: bool,
        reason: str = "",
        delay: float | None = None,
        dead: bool = False,
    ) -> tuple[int, list[str]]:
        """Settle messages, durably. Returns how many, and the receipts that are not valid any more."""
        lost: list[str] = []
        touched: dict[int, _Seat] = {}
        count = 0
        for receipt in receipts:
            name, _, number = receipt.rpartition(".")
            held = self._held.get(name)
            message = None
            if held is not None and held.caller == caller.key and number.isascii() and number.isdigit():
                message = held.messages.pop(int(number[:9]), None)
            if held is None or message is None or message.lost:
                lost.append(receipt)
                continue
            if ack:
                message.ack()
            elif dead:
                message.dead(reason)
            else:
                message.nack(reason, delay)
            count += 1
            touched[id(held.seat)] = held.seat
            self._let_go(name, held)
        for seat in touched.values():
            await seat.consumer.flush()
        if not count:
            await caller.client.access.who_am_i()  # whoever is not let in any more gets that error
        return count, lost

    def _let_go(self, name: str, held: Held) -> None:
        if not held.messages and self._held.pop(name, None) is not None:
            held.seat.leases -= 1
            held.seat.used_s = time.monotonic()

    async def tidy(self) -> None:
        """End leases whose time is over, and close unused consumers."""
        now_s = time.monotonic()
        for name, held in list(self._held.items()):
            if held.deadline_s <= now_s:
                for message in held.messages.values():
                    if not message.settled and not message.lost:
                        message.nack("it was not acknowledged before its lease ended", 0)
                held.messages.clear()
                self._let_go(name, held)
        for place, seats in list(self._seats.items()):
            for seat in list(seats):
                if not seat.busy and not seat.leases and now_s - seat.used_s > IDLE_S:
                    seats.remove(seat)
                    await _close(seat)
            if not seats:
                del self._seats[place]

    async def close(self) -> None:
        """Unsettled messages go back at once."""
        seats = [seat for some in self._seats.values() for seat in some]
        self._seats.clear()
        self._held.clear()
        await asyncio.gather(*(_close(seat) for seat in seats))


async def _close(seat: _Seat) -> None:
    try:
        await seat.consumer.close()
    except TowlineError:
        pass  # Its leases end by themselves.
