"""Timeouts and maximum attempts of single messages, as their senders set them.

A consumer interrupts its handler by itself; this is for one that does not. A message's time begins when it is pulled,
and again whenever its consumer settles another message of the same pull: a consumer that works through a batch one by
one has the whole time for each. Attempt limits are kept in the lease, which looks at them when the message fails.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, repeat
from typing import TYPE_CHECKING, Final

from towline.clock import SteadyClock, TimeSlice, in_slices
from towline.delivery import Group, Part
from towline.delivery.group.parts import cut
from towline.errors import TowlineError
from towline.frame import Frame
from towline.frame.layout import FLAGS_AT, LIMIT, attempts_in, timeout_us_in
from towline.model import Span

if TYPE_CHECKING:
    from towline.delivery.group.lease import Lease
    from towline.store import Chunk, Store

__all__ = ["GRACE_US", "Limit", "MessageLimits", "limits_of"]

log = logging.getLogger("towline.broker")

GRACE_US: Final = 1_000_000
"""The consumer's own clock comes first."""
RANGES_MAX: Final = 1_000
"""Ranges of one lane in a pull; further ones count as one, with the longest of their timeouts."""

READ_BYTES: Final = 1 << 20
GAP_BYTES: Final = 32 << 10
"""Neighbours with a gap of no more than this are read together, …"""
BATCH_MAX: Final = 5_000
"""… so many at most."""

Limit = tuple[Span, int]
"""Messages, and the value of the column of limits for each of them; or only its microseconds."""

Overdue = tuple[int, tuple[Span, ...], str]
"""Pull, messages, and the reason for which they are taken away."""


def limits_of(lane: int, frame: Frame, chunk: Chunk) -> list[Limit]:
    """The limits of a chunk of a frame that has some."""
    at, found = chunk.first, list[Limit]()
    for limit, run in groupby(frame.numbers(LIMIT, chunk.start, chunk.start + chunk.count) or ()):
        count = sum(1 for _ in run)
        if limit > 0:
            found.append((Span(lane, at, count), limit))
        at += count
    return found


def _timeouts(limits: list[Limit]) -> list[Limit]:
    by_lane: dict[int, list[Limit]] = {}
    for span, limit in limits:
        if timeout_us := timeout_us_in(limit):
            by_lane.setdefault(span.lane, []).append((span, timeout_us))
    return [one for lane, found in by_lane.items() for one in _bounded(lane, found)]


def _bounded(lane: int, found: list[Limit]) -> list[Limit]:
    if len(found) <= RANGES_MAX:
        return found
    rest = found[RANGES_MAX - 1 :]
    first, end = min(span.first for span, _ in rest), max(span.end for span, _ in rest)
    longest_us = max(timeout_us for _, timeout_us in rest)
    return [*found[: RANGES_MAX - 1], (Span(lane, first, end - first), longest_us)]


Opened = tuple[Part, int]
"""Leased messages, and their pull."""


async def _limits_within(store: Store, streams: Sequence[str], opened: Iterable[Opened]) -> dict[int, list[Limit]]:
    """The limits of stored messages, by pull. They are in order by lane and number, so that neighbours are read
    together, whoever has them. Frames that have none are not looked into."""
    found: dict[int, list[Limit]] = {}
    part = TimeSlice()
    for batch in _neighbours(store, streams, opened):
        lane, at, stop = batch[0][0].lane, batch[0][0].first, batch[-1][0].end
        while at < stop:
            read = await store.read(streams[lane], at, stop - at, READ_BYTES)
            for chunk in read.chunks:
                if chunk.frame[FLAGS_AT] & LIMIT:
                    for span, limit in limits_of(lane, Frame(chunk.frame), chunk):
                        for piece, pull in _within(span, batch):
                            found.setdefault(pull, []).append((piece, limit))
                            if part.over:
                                await part.rest()
            at = max(read.next, at + 1)
            await asyncio.sleep(0)  # a store that has it cached gives nobody else a turn
    return found


def _neighbours(store: Store, streams: Sequence[str], opened: Iterable[Opened]) -> Iterator[list[Opened]]:
    batch: list[Opened] = []
    gap = 0
    for one in opened:
        if batch:
            last, part = batch[-1][0], one[0]
            if part.lane != last.lane or part.first - last.end > gap or len(batch) == BATCH_MAX:
                yield batch
                batch = []
        if not batch:
            first, end, size_bytes = store.bounds(streams[one[0].lane])
            gap = GAP_BYTES * (end - first) // max(size_bytes, 1)
        batch.append(one)
    if batch:
        yield batch


def _within(span: Span, batch: Sequence[Opened]) -> Iterator[tuple[Span, int]]:
    at = max(bisect_right(batch, span.first, key=_first) - 1, 0)
    for part, pull in islice(batch, at, None):
        if part.first >= span.end:
            return
        if piece := cut(part, span):
            yield Span(piece.lane, piece.first, piece.count), pull


def _first(one: Opened) -> int:
    return one[0].first


def _held(lease: Lease) -> Iterator[Opened]:
    return zip(list(lease.open), repeat(lease.pull))


class _Timed:
    __slots__ = ("limits", "since_us", "spared_us")

    def __init__(self, limits: list[Limit], since_us: int, spared_us: int) -> None:
        self.limits = limits
        self.since_us = since_us
        self.spared_us = spared_us
        """Nothing is overdue before this time."""

    def due_us(self) -> int:
        return max(self.since_us + min(timeout_us for _, timeout_us in self.limits) + GRACE_US, self.spared_us)


class MessageLimits:
    """The limits of one group. Kept in memory, and read again from the leased messages when the broker has started."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._pulls: dict[int, _Timed] = {}
        self._recalled = asyncio.Event()
        self.recalling = bool(group.leases)
        """Attempt limits of held pulls are still being read."""

    def __bool__(self) -> bool:
        return bool(self._pulls)

    def note(self, pull: int, limits: list[Limit], now_us: int, spared_us: int = 0) -> None:
        attempts = [(span, many) for span, limit in limits if (many := attempts_in(limit))]
        if attempts:
            self._group.leases[pull].limit(attempts)
        timeouts = _timeouts(limits)
        if timeouts:
            self._pulls[pull] = _Timed(timeouts, now_us, spared_us)

    async def recalled(self) -> None:
        """Wait until they are read."""
        await self._recalled.wait()

    async def recall(self, store: Store, streams: Sequence[str], time: SteadyClock, label: str, spared_us: int) -> None:
        """After a start, for the pulls that consumers hold: the time of their messages begins anew, because the broker
        does not know what was done in its absence, and is not over before consumers had time to come back."""
        try:
            opened = heapq.merge(*map(_held, self._group.leases.values()))
            async for pull, limits in in_slices((await _limits_within(store, streams, opened)).items()):
                if pull in self._group.leases:
                    self.note(pull, limits, time.now_us(), spared_us)
        except TowlineError as error:
            log.error("%s: the limits of messages that are out cannot be read: %s", label, error)
        finally:
            self.recalling = False
            self._recalled.set()

    def progress(self, pulls: Iterable[int], now_us: int) -> None:
        """A consumer has settled something of these pulls."""
        for pull in pulls:
            timed = self._pulls.get(pull)
            if timed is not None:
                timed.since_us = now_us
                self._tidy(pull, timed)

    def next_us(self) -> int | None:
        """When the next of them is overdue, if nothing else happens."""
        return min((timed.due_us() for timed in self._pulls.values()), default=None)

    def overdue(self, now_us: int) -> tuple[Overdue, ...]:
        """Messages to be taken away by now; the first of them, if they are very many."""
        late: list[Overdue] = []
        ranges = 0
        for pull, timed in list(self._pulls.items()):
            if ranges >= RANGES_MAX:
                break
            if not self._tidy(pull, timed) or timed.due_us() > now_us:
                continue
            for timeout_us in {one for _, one in timed.limits if timed.since_us + one + GRACE_US <= now_us}:
                spans = tuple(span for span, one in timed.limits if one == timeout_us)
                late.append((pull, spans, f"timeout: not settled within {timeout_us / 1e6:g} s"))
                ranges += len(spans)
        return tuple(late)

    def _tidy(self, pull: int, timed: _Timed) -> bool:
        """Forget settled pulls; returns whether anything is left."""
        lease = self._group.leases.get(pull)
        timed.limits = [one for one in timed.limits if lease is not None and lease.open.within(one[0])]
        if not timed.limits:
            del self._pulls[pull]
        return bool(timed.limits)
