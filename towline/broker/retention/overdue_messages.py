"""Open messages that are older than retention waits for: found, reported, and given up.

One message that a consumer holds, or that is to be retried, keeps its file and all behind it, of every topic. So
retention waits for it no longer than `open_max_s`, and where the store has a limit, for no more than `open_max_bytes`
beyond it: then it is dropped as waiting messages are, or goes to the dead letters if its group keeps expired messages.
It is not carried forward: in a group that nobody uses any more it would be for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from towline.broker.topics.oldest_messages import look_for_oldest, oldest_us
from towline.clock import SECOND_US, Clock, TimeSlice
from towline.delivery import Forfeit, Skip
from towline.delivery.group.events import GaveUp
from towline.model import Durability, Span

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher
    from towline.broker.topics.topic import Topic
    from towline.settings import BrokerSettings
    from towline.store import Store

__all__ = ["OverdueMessages"]

log = logging.getLogger("towline.broker")

REMIND_S: Final = 3600.0
BURIAL_US: Final = 3600 * SECOND_US
"""Retention waits so much longer for messages that are being buried."""
STEP_US: Final = 3600 * SECOND_US
"""Where the size of the store demands it, the oldest go first: so much of time in one round."""
PART: Final = 16
"""Where that is not enough, at least this fraction of the time since the oldest of them came."""
READS_MAX: Final = 500


class Wait(NamedTuple):
    """The oldest open message that retention waits for: since when, and its group."""

    since_us: int
    who: str


class OverdueMessages:
    def __init__(self, store: Store, clock: Clock, settings: BrokerSettings) -> None:
        self._store, self._clock = store, clock
        self.max_us = round(settings.open_max_s * SECOND_US)
        self.max_bytes = settings.open_max_bytes
        self._reminded: dict[str, float] = {}
        self._by_age: Wait | None = None
        self._by_size: Wait | None = None
        """The time is that at which the message came: from then on, `open_max_s` counts here."""
        self.held_bytes = 0
        """By how much the store is larger than it should be because of open messages."""
        self.dropped = 0
        """Messages that were given up, since the broker started."""

    @property
    def _wait(self) -> Wait | None:
        return min(filter(None, (self._by_age, self._by_size)), default=None)

    @property
    def held_s(self) -> float:
        """For how long retention has waited; 0 if it does not."""
        wait = self._wait
        return 0.0 if wait is None else max(self._clock.now_us() - wait.since_us, 0) / SECOND_US

    def figures(self) -> dict[str, object]:
        wait = self._wait
        return {
            "retention_held_s": round(self.held_s, 3),
            "retention_held_max_s": self.max_us / SECOND_US,
            "retention_held_bytes": self.held_bytes,
            "retention_held_max_bytes": self.max_bytes,
            "retention_held_by": "" if wait is None else wait.who,
            "retention_dropped_open": self.dropped,
        }

    async def look(self, kept: Iterable[tuple[Topic, int]]) -> None:
        """Give up messages that are far too old. With each topic comes how long its messages are kept, in
        microseconds."""
        now_us, reads = self._clock.now_us(), READS_MAX
        reason = f"older than retention by more than {self.max_us // SECOND_US} s"
        wait, part = None, TimeSlice()
        for topic, kept_us in kept:
            for dispatcher in list(topic.groups.values()):
                if part.over:
                    await part.rest()
                if dispatcher.closed or not dispatcher.pins():
                    continue
                await self._give_up(dispatcher, now_us - kept_us - self.max_us, reason)
                reads -= await look_for_oldest(self._store, dispatcher, reads)
                oldest_us = self._oldest_us(dispatcher)
                if 0 < oldest_us < now_us - kept_us and (wait is None or oldest_us + kept_us < wait.since_us):
                    wait = Wait(oldest_us + kept_us, dispatcher.label)
        self._by_age = wait
        if wait is not None:
            told = f"and drops them when they are {self.max_us // SECOND_US} s older than it allows"
            self.remind("age", f"retention waits for open messages of {wait.who}, {told}")

    async def make_room(self, topics: Iterable[Topic], beyond_bytes: int) -> None:
        """The store is larger than it should be by so much, and open messages keep it so: give up the oldest of them,
        those that are older than `open_max_s`, or if it is more than `open_max_bytes`, whatever their age."""
        self.held_bytes = beyond_bytes
        if not beyond_bytes:
            self._by_size = None
            return
        found, part = [], TimeSlice()
        for topic in topics:
            await part.rest()
            found += [one for one in topic.groups.values() if not one.closed and one.pins()]
        for dispatcher in found:
            await part.rest()
            await look_for_oldest(self._store, dispatcher, READS_MAX)
        oldest = [Wait(at_us, one.label) for one in found if (at_us := self._oldest_us(one))]
        self._by_size = wait = min(oldest, default=None)
        if wait is None:
            return
        oldest_us, now_us = wait.since_us, self._clock.now_us()
        before_us = min(now_us - self.max_us, oldest_us + STEP_US)
        reason = f"open for more than {self.max_us // SECOND_US} s in a store that is too large"
        # A stamp may be ahead of the clock.
        part_us = min(oldest_us + max((now_us - oldest_us) // PART, 1), now_us)
        if beyond_bytes > self.max_bytes and part_us > before_us:
            before_us, reason = part_us, f"open messages kept more than {self.max_bytes} bytes too many"
        for dispatcher in found:
            await self._give_up(dispatcher, before_us, reason)
        told = f"and drops them after {self.max_us // SECOND_US} s, or when they keep {self.max_bytes} bytes too many"
        self.remind("size", f"retention waits for open messages of {wait.who}, {told}")

    def _oldest_us(self, dispatcher: Dispatcher) -> int:
        """When the oldest open message came in; 0 if that is not known."""
        known, pins = dispatcher.oldest, dispatcher.pins()
        found = [one for lane, at in pins.items() if (one := known.get(lane)) is not None and one.begin <= at < one.end]
        return oldest_us(found, self._store)

    async def _give_up(self, dispatcher: Dispatcher, before_us: int, reason: str) -> None:
        store = self._store
        lanes = [
            (lane, before)
            for lane, at in dispatcher.pins().items()
            if (before := await store.locate(dispatcher.streams[lane], before_us)) > at
        ]
        count = 0
        while lanes and not dispatcher.closed:
            events, _ = dispatcher.run(Forfeit(tuple(lanes), dispatcher.next_pull(), reason), Durability.OS)
            if not events:
                break
            count += sum(part.count for event in events if isinstance(event, GaveUp) for part in event.parts)
            await asyncio.sleep(0)
        if count:
            self.dropped += count
            fate = "go to the dead letters" if dispatcher.group.config.expired_to_dead else "are dropped"
            log.warning("%s: %d open message(s) %s: %s", dispatcher.label, count, fate, reason)
            dispatcher.wake()
        await self._stop_dying(dispatcher, [lane for lane, _ in lanes], before_us - BURIAL_US)

    async def _stop_dying(self, dispatcher: Dispatcher, lanes: list[int], before_us: int) -> None:
        for lane in lanes:
            before = await self._store.locate(dispatcher.streams[lane], before_us)
            if any(part.lane == lane and part.first < before for part in dispatcher.group.dying):
                dying = [part for part in dispatcher.group.dying if part.lane == lane and part.first < before]
                dispatcher.run(Skip(0, (Span(lane, 0, before),), "could not be copied to the dead letters"))
                told = dispatcher.listed(dying)
                log.error("%s: dying messages could not be copied, and are dropped: %s", dispatcher.label, told)

    def remind(self, about: str, text: str) -> None:
        """Log it, and again every hour."""
        now_s = self._clock.steady_s()
        if now_s >= self._reminded.get(about, now_s):
            self._reminded[about] = now_s + REMIND_S
            log.warning("%s", text)
