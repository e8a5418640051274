"""The memory of answers that clients have not read yet: one budget for all connections.

Room for an answer is reserved before it is read from the store, and the answer counts until the client has taken it. A
client begins with little and gets more as it reads; one that leaves something gets nothing more until it has taken it.
When nothing is left, those that hold most, and have stood still for longest, are cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from towline.clock import Patience
from towline.errors import TowlineError
from towline.log_lines import RateLimitedLog

__all__ = ["ANSWER_BYTES", "LISTS", "LOOKUPS", "SHARE_BYTES", "AnswerBudget", "AnswerShare"]

log = logging.getLogger("towline.server")

SHARE_BYTES: Final = 1 << 20
"""A client that has left more than this gets no further answers; one that has taken nothing yet gets no more than this
at once."""
ANSWER_BYTES: Final = 64 << 10
"""The least that is reserved for an answer, and the room that one of unknown size is given."""
PULLS, LOOKUPS, LISTS = range(3)
"""Kinds of reads: none waits for reads of another kind, which may take longer."""
READS_MAX: Final = (16, 16, 64)
"""Answers of a kind that are read at once. Each may turn out larger by a message of the largest size."""
PART: Final = 16
"""An answer gets no more than this fraction of what is left."""
STILL_S: Final = 5.0
"""When nothing is left, a client is cut that has taken (almost) nothing for this long."""


class AnswerBudget:
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        """Reserved, or not taken yet."""
        self.cut = 0
        """Connections cut for want of room."""
        self.reads = [0] * len(READS_MAX)
        self._shares: set[AnswerShare] = set()
        self._waiting: list[OrderedDict[AnswerShare, dict[asyncio.Future[int], int]]]
        self._waiting = [OrderedDict() for _ in READS_MAX]
        """By kind, the shares that wait for room, in the order of their turns, and the room for each of their
        answers."""
        self._serving = False
        self._short = False
        """Since the last sweep a share got less than it should have, or nothing."""
        self._log = RateLimitedLog(log)

    def share(self, recount: Callable[[], int], cut: Callable[[], str], most_bytes: int) -> AnswerShare:
        """The share of a connection. `recount` updates what it has not taken; `cut` breaks it off, and returns whose it
        was."""
        share = AnswerShare(self, recount, cut, most_bytes)
        self._shares.add(share)
        return share

    def drop(self, share: AnswerShare) -> None:
        self._shares.discard(share)
        for future in self._forget(share):
            future.cancel()
        self.freed()

    def refuse(self, share: AnswerShare, error: TowlineError) -> None:
        for future in self._forget(share):
            if not future.done():
                future.set_exception(error)

    def _forget(self, share: AnswerShare) -> list[asyncio.Future[int]]:
        """Drop all its waits."""
        return [future for waiting in self._waiting for future in waiting.pop(share, ())]

    def room(self, share: AnswerShare, size: int, kind: int) -> int:
        """The room for an answer; 0 is nothing for now. The more is in use, the less. Of the last quarter, clients that
        have not shown yet that they read get little."""
        if self._is_full(kind):
            return 0
        left = all_left = self.limit_bytes - self.used_bytes
        if share.allowance_bytes <= SHARE_BYTES:
            left -= self.limit_bytes // 4
        wanted = max(min(size, share.allowance_bytes), 1)
        given = min(wanted, max(left // PART, ANSWER_BYTES))
        if given < min(wanted, SHARE_BYTES):
            self._short = True
        if given <= left:
            return given
        little = min(wanted, ANSWER_BYTES)
        return little if little <= all_left and not share.unread_bytes else 0

    def _is_full(self, kind: int) -> bool:
        """Whether no read of this kind may begin."""
        if self.reads[kind] >= READS_MAX[kind]:
            return True
        if self.limit_bytes - self.used_bytes >= ANSWER_BYTES:
            return False
        self._short = True
        return True

    async def wait(self, share: AnswerShare, size: int, kind: int) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[kind]
        waiting.setdefault(share, {})[future] = size
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                share.read(future.result(), 0, kind)
            raise
        finally:
            own = waiting.get(share)
            if own is not None:
                own.pop(future, None)
                if not own:
                    del waiting[share]

    def freed(self) -> None:
        """There may be room for a waiting share."""
        if any(self._waiting) and not self._serving:
            self._serving = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """One answer for each waiting share, as far as there is room; then it is the turn of the others."""
        self._serving = False
        for kind, waiting in enumerate(self._waiting):
            served = []
            for share, own in waiting.items():
                if self._is_full(kind):
                    break
                future = next((one for one in own if not one.done()), None)
                if future is not None and (room := share.set_aside(own[future], kind)):
                    future.set_result(room)
                    served.append(share)
            for share in served:
                waiting.move_to_end(share)
            if served:
                self.freed()  # there may be room for another of its answers

    def sweep(self, now_s: float) -> None:
        """Update what was taken. If there is not enough for all, cut the connections that stand still."""
        for share in self._shares:
            share.look(now_s)
        if self._short or self.used_bytes > self.limit_bytes:
            self._short = False
            self._relieve(now_s)
        self.freed()

    def _relieve(self, now_s: float) -> None:
        still = [share for share in self._shares if share.unread_bytes and share.stands_s(now_s) >= STILL_S]
        for share in sorted(still, key=lambda one: one.held_bytes * one.stands_s(now_s), reverse=True):
            if self.used_bytes * 2 <= self.limit_bytes:
                break
            size, stands_s = share.unread_bytes, share.stands_s(now_s)
            self.cut += 1
            self._log.say(
                *(now_s, logging.WARNING),
                "%s: closed: it has left %d bytes of answers for %.0f s, and all clients together have used up "
                "max_unread_total_bytes (%d)",
                *(share.cut(), size, stands_s, self.limit_bytes),
            )


class AnswerShare:
    """The part of one connection."""

    __slots__ = (
        "_answers",
        "_budget",
        "_cut",
        "_given_bytes",
        "_most_bytes",
        "_patience",
        "_recount",
        "allowance_bytes",
        "held_bytes",
        "set_aside_bytes",
        "unread_bytes",
    )

    def __init__(
        self, budget: AnswerBudget, recount: Callable[[], int], cut: Callable[[], str], most_bytes: int
    ) -> None:
        self._budget = budget
        self._recount = recount
        self._cut = cut
        self._most_bytes = most_bytes
        self._given_bytes = 0
        self._answers: deque[tuple[int, int]] = deque()
        """Answers not taken to their end: the position of that, and their length."""
        self._patience = Patience()
        self.allowance_bytes = min(SHARE_BYTES, most_bytes)
        """The limit of an answer."""
        self.unread_bytes = 0
        """Written, but not taken yet, as of the last look."""
        self.held_bytes = 0
        """Of the answers that are not read to their end: each is in memory whole until then."""
        self.set_aside_bytes = 0

    @property
    def taken_bytes(self) -> int:
        """Bytes taken; grows as the client reads."""
        return self._given_bytes - self.unread_bytes

    def stands_s(self, now_s: float) -> float:
        return self._patience.stands_s(now_s)

    def wrote(self, size: int) -> None:
        """An answer was given to the transport."""
        self._given_bytes += size
        self._answers.append((self._given_bytes, size))
        self._hold(size)
        self.count()

    def count(self) -> None:
        self.unread_bytes = self._recount()
        taken, answers = self.taken_bytes, self._answers
        while answers and answers[0][0] <= taken:
            self._hold(-answers.popleft()[1])

    def _hold(self, size: int) -> None:
        self.held_bytes += size
        self._budget.used_bytes += size

    def look(self, now_s: float) -> None:
        if self.unread_bytes:
            self.count()
        self._patience.is_over(now_s, STILL_S, self.taken_bytes if self.unread_bytes else None)
        if self.stands_s(now_s) >= STILL_S:
            self.allowance_bytes = min(SHARE_BYTES, self._most_bytes)

    def set_aside(self, size: int, kind: int = PULLS) -> int:
        """Reserve room for an answer of at most `size` bytes; 0 is that it must wait."""
        if self.unread_bytes:
            self.count()
        if self.unread_bytes + self.set_aside_bytes > SHARE_BYTES:
            return 0
        if self.set_aside_bytes and self.allowance_bytes <= SHARE_BYTES:
            return 0  # one at a time, until it has shown that it reads
        room = self._budget.room(self, size, kind)
        if room:
            if not self.unread_bytes and self._given_bytes:
                self.allowance_bytes = min(self.allowance_bytes * 2, self._most_bytes)
            self._budget.reads[kind] += 1
            self._add(room)
        return room

    async def wait(self, size: int, kind: int = PULLS) -> int:
        """`set_aside`, once there is room."""
        return await self._budget.wait(self, size, kind)

    def read(self, room: int, size: int, kind: int = PULLS) -> None:
        """An answer was read for which `room` was reserved; it takes `size`, which is kept for it until `free`."""
        self._budget.reads[kind] -= 1
        self._add(size - room)
        self._budget.freed()

    def free(self, size: int) -> None:
        self._add(-size)
        self._budget.freed()

    def cut(self) -> str:
        whose = self._cut()
        self._recount, self._cut = _nothing, str  # the connection is closed, nothing is kept
        self.count()
        return whose

    def end(self, error: TowlineError) -> None:
        """The connection takes no more requests: waits for room end."""
        self._budget.refuse(self, error)

    def close(self) -> None:
        """The connection is gone. Reads under way for it count until they have ended."""
        self._recount, self._cut = _nothing, str  # the connection is closed, nothing is kept
        self.count()
        self._budget.drop(self)

    def _add(self, size: int) -> None:
        self.set_aside_bytes += size
        self._budget.used_bytes += size


def _nothing() -> int:
    return 0
