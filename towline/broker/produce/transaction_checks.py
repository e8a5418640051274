"""Checks of prepared transactions: asking their producers for the outcome.

A transaction that is due waits here until a producer of its group waits for checks; each round goes to another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from towline.clock import SECOND_US, Clock, SteadyClock
from towline.delivery.transactions import Checked, Mark, Open, Transactions
from towline.errors import TowlineError
from towline.model import check_producer_group
from towline.protocol.transactions import AwaitChecks, Check, Checks

__all__ = ["TransactionChecks"]

log = logging.getLogger("towline.broker")

CHECKS_MAX: Final = 100
"""Transactions in one answer."""
AGAIN_S: Final = 1.0

Key = tuple[str, bytes]
"""Producer group and token: transactions of another token are hidden."""


class TransactionChecks:
    def __init__(
        self, state: Transactions, clock: Clock, time: SteadyClock, record: Callable[[Sequence[Mark]], object]
    ) -> None:
        self._state = state
        self._clock = clock
        self._time = time
        self._record = record
        self._ready: dict[Key, OrderedDict[str, None]] = {}
        """Transactions that are due, while no producer waits."""
        self._waiters: dict[Key, deque[asyncio.Future[list[Check]]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def wait(self, request: AwaitChecks, *, token: bytes = b"") -> Checks:
        """Wait for transactions of a producer group that are to be checked."""
        key = (check_producer_group(request.producer_group), token)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[list[Check]] = loop.create_future()
        self._waiters.setdefault(key, deque()).append(waiter)
        timer: asyncio.TimerHandle | None = None
        try:
            self.look_round()
            if not waiter.done() and (self._closed or not request.wait_ms):
                return Checks([])
            timer = loop.call_later(request.wait_ms / 1000, _release, waiter)
            return Checks(await waiter)
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(key, waiter)

    def _leave(self, key: Key, waiter: asyncio.Future[list[Check]]) -> None:
        waiters = self._waiters.get(key)
        if waiters is not None:
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                del self._waiters[key]

    def look_round(self) -> None:
        """Collect the transactions that are due, and answer producers that wait."""
        pause_s = 0.0
        try:
            self._gather()
            for key in [key for key in self._ready if key in self._waiters]:
                self._ask(key)
        except TowlineError as error:
            log.error("prepared transactions cannot be asked after now: %s", error)
            pause_s = AGAIN_S
        self.arm(pause_s)

    def _gather(self) -> None:
        now_us = self._clock.now_us()
        for waiting in self._state.due(self._time.now_us()):
            mark = self._state.check(waiting.head.id, now_us)
            if isinstance(mark, Checked):
                key = (waiting.head.producer_group, waiting.head.token)
                self._ready.setdefault(key, OrderedDict())[waiting.head.id] = None
            else:
                self._park(waiting, mark)

    def _park(self, waiting: Open, mark: Mark) -> None:
        try:
            self._record([mark])
        except TowlineError:
            self._state.due_later(waiting)
            raise
        head = waiting.head
        log.error(
            "transaction %s (%r, producer group %s, topics %s) was asked after %d times in vain and is parked: see "
            "`towline tx ls`, then `towline tx resolve %s commit` or `rollback`",
            head.id, head.name, head.producer_group, ", ".join(head.topics), waiting.checks, head.id,
        )  # fmt: skip

    def _ask(self, key: Key) -> None:
        ready, waiters = self._ready[key], self._waiters[key]
        while ready and waiters:
            if waiters[0].done():
                waiters.popleft()
                continue
            names = list(islice(ready, CHECKS_MAX))
            asked = [waiting for name in names if (waiting := self._state.open.get(name)) is not None]
            if asked:
                self._record([Checked(self._clock.now_us(), waiting.head.id) for waiting in asked])
                waiters.popleft().set_result([_check(waiting) for waiting in asked])
            for name in names:
                del ready[name]
        if not ready:
            del self._ready[key]

    def drop(self, waiting: Open) -> None:
        """It is decided, and needs no check any more."""
        key = (waiting.head.producer_group, waiting.head.token)
        ready = self._ready.get(key)
        if ready is not None:
            ready.pop(waiting.head.id, None)
            if not ready:
                del self._ready[key]

    def arm(self, pause_s: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_us = self._state.next_due_us()
        if due_us is not None and not self._closed:
            delay_s = max((due_us - self._time.now_us()) / SECOND_US, pause_s, 0.001)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.look_round)

    def close(self) -> None:
        """Answer all who wait; nobody waits any more."""
        self._closed = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                _release(waiter)
        self.arm()


def _release(waiter: asyncio.Future[list[Check]]) -> None:
    if not waiter.done():
        waiter.set_result([])


def _check(waiting: Open) -> Check:
    head = waiting.head
    return Check(head.id, head.name, head.producer_group, head.at_us, waiting.checks, head.messages, head.topics)
