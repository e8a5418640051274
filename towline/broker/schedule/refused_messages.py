"""Delayed messages that are too large for their destination: they are held in their slots, and tried again.

A refused batch is tried half by half, until the message that is too large is alone. All others come to their
destination.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from towline.broker.refused_writes import Refusals
from towline.delivery.schedule.events import Run
from towline.delivery.schedule.record import OpenedRecord, join
from towline.delivery.schedule.wheel import Place
from towline.errors import TooLarge, TowlineError
from towline.frame.layout import unpacked_bytes
from towline.model import DELAY, message_id

if TYPE_CHECKING:
    from towline.broker.schedule.scheduler import Pieces, Scheduler, Source

__all__ = ["RefusedMessages", "halves"]

log = logging.getLogger("towline.broker")

TOGETHER: Final = 500
"""Messages that are tried anew together, while it is not known of each."""
TOGETHER_BYTES: Final = 16 << 20


class RefusedMessages:
    """The messages of a schedule that are held, as the schedule records them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._refusals = Refusals[Run](scheduler.journal.clock)
        self._to_try: deque[list[Run]] = deque()
        self._trying: asyncio.Future[None] | None = None

    def try_again(self) -> None:
        """Try all of them, if it is time."""
        if self._trying is not None:
            return
        alone, others = set[Run](), list[Run]()
        for slot in self._scheduler.schedule.slots.values():
            for seq, places in slot.held.items():
                for at in sorted(places):
                    run = Run(*slot.place, seq, at, at + 1)
                    alone.add(run) if run in self._refusals else others.append(run)
        self._refusals.keep(alone)
        for run in sorted(alone):
            if self._refusals.may_try(run):
                self.try_soon([run])
        for first in range(0, len(others), TOGETHER):
            self.try_soon(others[first : first + TOGETHER])

    def refused(self, runs: Sequence[Run]) -> None:
        """These were refused together."""
        for some in halves(runs) if _messages(runs) > 1 else (list(runs),):
            self.try_soon(some)

    def try_soon(self, runs: list[Run]) -> None:
        self._to_try.append(runs)
        if self._trying is None:
            self._trying = asyncio.ensure_future(self._try_all())

    def under_way(self) -> list[asyncio.Future[None]]:
        return [] if self._trying is None else [self._trying]

    async def _try_all(self) -> None:
        try:
            while self._to_try:
                await self._try(self._to_try.popleft())
        except TowlineError as error:
            log.error("delayed messages that were refused are tried again later: %s", error)
            self._to_try.clear()
        finally:
            self._trying = None

    async def _try(self, runs: list[Run]) -> None:
        try:
            async with self._scheduler.changing:
                await self._release(runs)
        except TooLarge as error:
            if _messages(runs) > 1:
                self._to_try.extendleft(reversed(halves(runs)))
            else:
                self._refusals.note(runs[0], await self._named(runs[0]), error)

    async def _release(self, runs: Sequence[Run]) -> None:
        """Bring messages to their present destinations: their lanes, or other slots. Unreadable ones are skipped."""
        scheduler, schedule = self._scheduler, self._scheduler.schedule
        found = await self._opened(runs)
        due: dict[Source, Pieces] = {}
        later: dict[Source, Pieces] = {}
        for run in runs:
            opened, slot = found[run.place, run.seq], schedule.slots.get(run.place)
            if opened is None or slot is None:
                continue
            for start, stop in scheduler.runs_of(slot, run.seq, opened, run.start, run.stop):
                middle = bisect_right(opened.times, schedule.until_us, start, stop)
                if start < middle:
                    due.setdefault(opened.origin(), []).append((opened, start, middle))
                if middle < stop:
                    later.setdefault(opened.origin(), []).append((opened, middle, stop))
        arriving = scheduler.arriving(due)
        parcels = [placed for some in later.values() for placed in join(some, schedule.until_us)]
        event = schedule.due(schedule.until_us, list(arriving.counts.items()), released=runs)
        nothing = schedule.due(schedule.until_us)
        await scheduler.carry(event, nothing, runs, arriving=arriving, parcels=parcels).done

    async def _opened(self, runs: Sequence[Run]) -> dict[tuple[Place, int], OpenedRecord | None]:
        """Their records: no more at a time than there is memory for."""
        found: dict[tuple[Place, int], OpenedRecord | None] = {}
        size = 0
        for run in runs:
            key = run.place, run.seq
            if key not in found:
                opened = found[key] = await self._scheduler.open_parcel(*key)
                size += 0 if opened is None else unpacked_bytes(opened.parcel.frame)
                if size > TOGETHER_BYTES and len(found) > 1:
                    raise TooLarge(f"the parcels of {len(runs)} messages take more than {TOGETHER_BYTES} bytes")
        return found

    async def _named(self, run: Run) -> str:
        opened = await self._scheduler.open_parcel(run.place, run.seq)
        if opened is None:
            return f"parcel {run.seq} of delayed messages"
        [number] = opened.ids(run.start, run.stop)
        when = "due" if opened.times[run.start] <= self._scheduler.schedule.until_us else "due later"
        name = message_id(opened.parcel.topic, DELAY, number)
        return f"delayed message {name}, which is {when}, and too large for where it goes,"


def _messages(runs: Sequence[Run]) -> int:
    return sum(run.messages for run in runs)


def halves(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The same messages, in two lists of about the same length."""
    room = _messages(runs) // 2
    first, second = list[Run](), list[Run]()
    for run in runs:
        middle = run.start + min(room, run.messages)
        room -= middle - run.start
        if run.start < middle:
            first.append(run._replace(stop=middle))
        if middle < run.stop:
            second.append(run._replace(start=middle))
    return first, second
