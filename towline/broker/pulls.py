"""The pulls of a connection that are under way: one for each subscription, within a bound on their bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from towline.broker.connection import State
from towline.broker.delivering import Buffers
from towline.broker.fan import Fan
from towline.broker.guard import Guard
from towline.broker.member import Member
from towline.errors import Conflict, QueueFull, Refused
from towline.protocol.messages import Pull, Pulled

if TYPE_CHECKING:
    from towline.broker.session import Session

__all__ = ["Pulls"]

PULL_MIN_BYTES: Final = 64 << 10
QUOTA_LOOK_S: Final = 0.05
"""How often a pull looks whether its principal's quota has room again."""


class Pulls:
    def __init__(self, session: Session, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self._session = session
        self._loop = loop
        self._max_bytes = max_bytes
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._reserved_bytes = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, number: int, member: Member | Fan, request: Pull, guard: Guard | None) -> None:
        if request.subscription in self._tasks:
            raise Conflict(f"subscription {request.subscription} has a pull under way: one at a time")
        # Each pull may take half of what is left, so that all of them together stay within the bound.
        room = max((self._max_bytes - self._reserved_bytes) // 2, PULL_MIN_BYTES)
        if request.max_bytes > room:
            request = msgspec.structs.replace(request, max_bytes=room)
        self._reserved_bytes += request.max_bytes
        self._tasks[request.subscription] = self._loop.create_task(self._run(number, member, request, guard))

    def cancel(self, subscription: int) -> None:
        if subscription in self._tasks:
            self._tasks[subscription].cancel()

    def cancel_all(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _run(self, number: int, member: Member | Fan, request: Pull, guard: Guard | None) -> None:
        session = self._session
        answered = False

        def hand_over(pulled: Pulled, buffers: Buffers) -> None:
            nonlocal answered
            answered = True
            # Forgotten first: upon the answer the client may pull again before this task has ended.
            self._forget(request)
            session.answer(number, pulled, buffers)
            if guard is not None and guard.meter.quota.bytes_per_s:
                session.pay(guard, sum(map(len, buffers)))

        try:
            if guard is not None and guard.meter.quota.in_flight:
                request = await self._within_quota(guard, member, request)
            pulled, buffers = await member.broker.pull(member, request, hand_over)
            if not answered:
                hand_over(pulled, buffers)
        except asyncio.CancelledError:
            if not answered:
                self._forget(request)
                if session.state is not State.CLOSED:
                    session.fail(number, Refused("the right to consume was revoked"), Pull.kind)
        except Exception as error:
            if answered:
                raise
            self._forget(request)
            session.fail(number, error, Pull.kind)
        session.finish()

    async def _within_quota(self, guard: Guard, member: Member | Fan, request: Pull) -> Pull:
        """The same pull, for as many messages as the principal may still hold; it waits until that is one at least."""
        if request.acts:
            settled = await member.broker.settle(member, request.acts)
            if settled.refused:
                return request  # it says so itself
            request = msgspec.structs.replace(request, acts=[])
        deadline_s = self._loop.time() + request.wait_ms / 1000
        while (room := guard.meter.room()) == 0:
            if self._loop.time() >= deadline_s:
                raise QueueFull(
                    f"{guard.principal.label} holds {guard.meter.quota.in_flight} messages, which is its quota"
                )
            await asyncio.sleep(QUOTA_LOOK_S)
        left_ms = max(round((deadline_s - self._loop.time()) * 1000), 0)
        most = request.max_messages if room is None else min(room, request.max_messages)
        return msgspec.structs.replace(request, max_messages=most, wait_ms=left_ms, min_messages=1)

    def _forget(self, request: Pull) -> None:
        del self._tasks[request.subscription]
        self._reserved_bytes -= request.max_bytes
