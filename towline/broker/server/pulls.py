"""The pulls of a connection that are under way: one for each subscription, within a bound on their bytes.

A standing pull is answered several times. It stands only while its client reads what it is sent, and has no quota; else
the next answer is its last.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from towline.broker.access.authorization import Guard
from towline.broker.consume.fetch import Buffers
from towline.broker.consume.member import Member
from towline.broker.consume.prefix_subscription import PrefixSubscription
from towline.broker.server.connection import State
from towline.errors import Conflict, QueueFull, Refused
from towline.protocol.messages import Pull, Pulled

if TYPE_CHECKING:
    from towline.broker.server.session import Session

__all__ = ["Pulls"]

PULL_MIN_BYTES: Final = 64 << 10
QUOTA_LOOK_S: Final = 0.05
"""How often a pull checks whether its principal's quota has room again."""


class _Taker:
    """Takes the answers of one pull to its client."""

    __slots__ = (
        "_answers",
        "_guard",
        "_kept_bytes",
        "_number",
        "_pulls",
        "_room",
        "_waiting",
        "behind",
        "ending",
        "over",
        "request",
        "session",
    )

    def __init__(self, pulls: Pulls, session: Session, number: int, request: Pull, guard: Guard | None) -> None:
        self._pulls = pulls
        self.session = session
        self._number = number
        self._guard = guard
        self._answers = request.answers
        self._kept_bytes = 0
        """The part of the answer budget that was read, and is about to be sent."""
        self._room = 0
        """The part of it that was waited for, and is not read for yet."""
        self._waiting: asyncio.Timeout | None = None
        self.request = request
        self.behind: asyncio.Task[None] | None = None
        """The standing pull before: this one begins when it has ended."""
        self.ending = False
        """The client pulls again: the next answer is the last, and the pull waits no more."""
        self.over = False
        """The last answer was given."""

    @property
    def may_stand(self) -> bool:
        return self.request.answers > 1

    @property
    def stands(self) -> bool:
        if self._answers == 1 or self.ending or self.session.is_held:
            return False
        quota = None if self._guard is None else self._guard.meter.quota
        return quota is None or not (quota.bytes_per_s or quota.in_flight)

    def take(self, pulled: Pulled, buffers: Buffers) -> None:
        if pulled.more:
            self._answers -= 1
        else:
            self.end()
        self.session.answer(self._number, pulled, buffers)
        if self._guard is not None and self._guard.meter.quota.bytes_per_s:
            self.session.pay(self._guard, sum(map(len, buffers)))

    def fail(self, error: BaseException) -> None:
        self.end()
        self.session.fail(self._number, error, Pull.kind)

    def set_aside(self, size: int) -> int:
        room, self._room = self._room, 0
        return room or self.session.share.set_aside(size)

    async def wait_for_room(self, size: int, within_s: float) -> bool:
        if self.ending:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s) as self._waiting:
                self._room = await self.session.share.wait(size)
        self._waiting = None
        return self._room > 0

    def end_soon(self) -> None:
        """Stop waiting: what it carries out, or was granted and reads just now, is still answered."""
        self.ending = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(0)

    def read(self, room: int, size: int) -> None:
        kept = 0 if self.over else size
        self.session.share.read(room, kept)
        self._keep(kept)

    def _keep(self, size: int) -> None:
        before, self._kept_bytes = self._kept_bytes, size
        if before:
            self.session.share.free(before)

    def let_go(self) -> None:
        if self._room:
            room, self._room = self._room, 0
            self.session.share.read(room, 0)
        self._keep(0)

    def end(self) -> None:
        """It is forgotten before its last answer: upon that, the client may pull again at once."""
        self.over = True
        self.let_go()
        self._pulls.forget(self)


class Pulls:
    """It does not keep its session: so the memory of a connection is free as soon as that is gone, without the garbage
    collector."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self._loop = loop
        self._max_bytes = max_bytes
        self._tasks: dict[_Taker, asyncio.Task[None]] = {}
        self._takers: dict[int, _Taker] = {}
        """By subscription, the latest one."""
        self._reserved_bytes = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def start(
        self, session: Session, number: int, member: Member | PrefixSubscription, request: Pull, guard: Guard | None
    ) -> None:
        before = self._takers.get(request.subscription)
        if before is not None:
            if not before.may_stand or before.behind is not None:
                raise Conflict(f"subscription {request.subscription} has a pull under way: one at a time")
            before.end_soon()
            member.end_waiting()
        # Each pull may take half of what is left, so that all of them together stay within the bound.
        room = max((self._max_bytes - self._reserved_bytes) // 2, PULL_MIN_BYTES)
        if request.max_bytes > room:
            request = msgspec.structs.replace(request, max_bytes=room)
        self._reserved_bytes += request.max_bytes
        taker = self._takers[request.subscription] = _Taker(self, session, number, request, guard)
        taker.behind = None if before is None else self._tasks[before]
        self._tasks[taker] = self._loop.create_task(self._run(taker, member, request, guard))

    def cancel(self, subscription: int) -> None:
        for taker in list(self._tasks):
            if taker.request.subscription == subscription:
                self._cancel(taker)

    def cancel_all(self) -> None:
        for taker in list(self._tasks):
            self._cancel(taker)

    def _cancel(self, taker: _Taker) -> None:
        """It is answered here: a task that has not begun yet would not do so."""
        task = self._tasks[taker]
        if taker.session.state is State.CLOSED:
            taker.end()
        else:
            taker.fail(Refused("the right to consume was revoked"))
        task.cancel()

    async def _run(
        self, taker: _Taker, member: Member | PrefixSubscription, request: Pull, guard: Guard | None
    ) -> None:
        try:
            if taker.behind is not None:
                await asyncio.wait([taker.behind])
                taker.behind = None
            if guard is not None and guard.meter.quota.in_flight:
                request = await self._within_quota(guard, member, request, taker)
            pulled, buffers = await member.broker.consumers.pull(member, request, taker)
            if not taker.over:
                taker.take(pulled, buffers)
        except asyncio.CancelledError:
            if not taker.over:
                raise  # not by us: the loop ends
        except Exception as error:
            if taker.over:
                raise
            taker.fail(error)
        taker.session.finish()

    async def _within_quota(
        self, guard: Guard, member: Member | PrefixSubscription, request: Pull, taker: _Taker
    ) -> Pull:
        """The same pull, for as many messages as the principal may still hold; it waits until that is one at least."""
        if request.acts:
            settled = await member.broker.consumers.settle(member, request.acts)
            if not (settled.refused or settled.lost):  # else they are asked again, and it answers itself
                request = msgspec.structs.replace(request, acts=[])
        deadline_s = self._loop.time() + request.wait_ms / 1000
        while (room := guard.meter.room()) == 0:
            if self._loop.time() >= deadline_s or taker.ending:
                raise QueueFull(
                    f"{guard.principal.label} holds {guard.meter.quota.in_flight} messages, which is its quota"
                )
            await asyncio.sleep(QUOTA_LOOK_S)
        left_ms = max(round((deadline_s - self._loop.time()) * 1000), 0)
        most = request.max_messages if room is None else min(room, request.max_messages)
        return msgspec.structs.replace(request, max_messages=most, wait_ms=left_ms, min_messages=1)

    def forget(self, taker: _Taker) -> None:
        del self._tasks[taker]
        if self._takers[taker.request.subscription] is taker:
            del self._takers[taker.request.subscription]
        self._reserved_bytes -= taker.request.max_bytes
