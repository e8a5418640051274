"""Producers and the numbers of their last frames, by which a frame that is sent again is recognised."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import ge
from typing import Final, NamedTuple

import msgspec

from towline.clock import is_ahead
from towline.errors import Conflict, Refused

__all__ = ["Copy", "Producers", "ProducersSnapshot", "Remembered", "Window"]

WINDOW: Final = 256
"""Frames remembered of each producer: more than it may have in flight."""
TOTAL_MAX: Final = 100_000
"""Frames remembered in all; producers that have been silent longest are forgotten first."""
NONE: Final = -1


class Remembered(NamedTuple):
    first: int
    at_us: int


Window = tuple[int, int, list[tuple[int, int, int]]]
"""A producer's id, floor, [(sequence, first, at_us), …]."""


class ProducersSnapshot(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Producers and their frames, the longest silent producer first."""

    producers: list[Window]


class Copy(NamedTuple):
    """The window of a producer at one time."""

    producer_id: int
    floor: int
    frames: Sequence[tuple[int, Remembered]]


class _Window:
    """The highest numbers of one producer, whatever order they came in."""

    __slots__ = ("counts_us", "floor", "frames", "order", "token")

    def __init__(self) -> None:
        self.frames: dict[int, Remembered] = {}
        self.order: list[int] = []
        """The numbers in `frames`, sorted."""
        self.floor = NONE
        """The highest number that fell out of the window: whether a lower one outside the window came is unknown."""
        self.counts_us = 0
        """The time that later stamps count as, for a clock was ahead when they were made; 0 if none is known to be."""
        self.token: bytes | None = None
        """The token of the producer; None where that is not known any more, until it sends again."""

    def add(self, seq: int, frame: Remembered) -> int:
        """Remember a frame; returns how many more there are than before."""
        frames, order = self.frames, self.order
        if seq in frames:
            frames[seq] = frame
            return 0
        frames[seq] = frame
        if not order or seq > order[-1]:
            order.append(seq)
        else:
            insort(order, seq)
        if len(order) <= WINDOW:
            return 1
        lowest = order.pop(0)
        del frames[lowest]
        self.floor = max(self.floor, lowest)
        return 0

    def add_all(self, seqs: Sequence[int], frames: Sequence[Remembered]) -> int:
        """Remember several frames: at once if they continue from the highest, as they do when nothing is repeated."""
        if not seqs[0] > self.highest or any(map(ge, seqs, seqs[1:])):
            return sum(map(self.add, seqs, frames))
        before, order = len(self.order), self.order
        self.frames.update(zip(seqs, frames, strict=True))
        order += seqs
        if len(order) > WINDOW:
            gone = order[:-WINDOW]
            del order[:-WINDOW]
            for seq in gone:
                del self.frames[seq]
            self.floor = max(self.floor, gone[-1])
        return len(order) - before

    @property
    def heard_us(self) -> int:
        """The time of the frame with the highest number; 0 if none is remembered."""
        return self.time_of(self.frames[self.order[-1]]) if self.order else 0

    def time_of(self, frame: Remembered) -> int:
        return min(frame.at_us, self.counts_us or frame.at_us)

    @property
    def highest(self) -> int:
        """The highest number known; every number above it is new."""
        return max(self.order[-1], self.floor) if self.order else self.floor

    def remove(self, seq: int) -> bool:
        if self.frames.pop(seq, None) is None:
            return False
        del self.order[bisect_left(self.order, seq)]
        return True


class Producers:
    def __init__(self) -> None:
        self._windows: OrderedDict[int, _Window] = OrderedDict()
        self._total = 0
        self._fresh: set[int] = set()
        """Producers that have changed since the last snapshot."""
        self.forgotten = 0
        """Frames that were remembered and refused then."""

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def total(self) -> int:
        """Remembered frames."""
        return self._total

    def check(self, producer_id: int, token: bytes) -> None:
        """Check the token of a producer. Everybody who reads a frame reads the number of its producer: whoever sent the
        next ones in its name would make the true ones count as sent already."""
        window = self._windows.get(producer_id)
        if window is not None and window.token != token and window.token is not None:
            raise Refused(f"producer {producer_id:x} is one of another token: send under a number of your own")

    def find(self, producer_id: int, seq: int) -> Remembered | None:
        """The position of the frame, if it is here already. A number from before the window is refused: it is
        unknown."""
        window = self._windows.get(producer_id)
        if window is None:
            return None
        known = window.frames.get(seq)
        if known is None and seq <= window.floor:
            raise Conflict(
                f"producer {producer_id:x} sends frame {seq} again, but only its last {WINDOW} frames are remembered: "
                "whether it was stored cannot be told"
            )
        return known

    def all_new(self, producer_id: int, lowest: int) -> bool:
        """Whether frames with this number and higher ones are new for sure: the cheap check before `find`."""
        window = self._windows.get(producer_id)
        return window is None or (lowest > window.floor and (not window.order or lowest > window.order[-1]))

    def remember(self, producer_id: int, seq: int, first: int, at_us: int, token: bytes | None = None) -> None:
        window = self._touch(producer_id, token)
        if window is None:
            return
        self._total += window.add(seq, Remembered(first, at_us))
        if self._total > TOTAL_MAX:
            self._keep_few()

    def remember_all(
        self, producer_id: int, seqs: Sequence[int], firsts: Sequence[int], at_us: int, token: bytes | None = None
    ) -> None:
        """Remember the frames of a unit, each by itself."""
        window = self._touch(producer_id, token)
        if window is None:
            return
        self._total += window.add_all(seqs, [Remembered(first, at_us) for first in firsts])
        self._keep_few()

    def _keep_few(self) -> None:
        while self._total > TOTAL_MAX:
            self._drop_first()

    def _drop_first(self) -> None:
        producer_id, window = self._windows.popitem(last=False)
        self._total -= len(window.frames)
        self._fresh.discard(producer_id)

    def forget(self, producer_id: int, seq: int) -> None:
        """Forget a frame that was not stored after all."""
        window = self._windows.get(producer_id)
        if window is not None and window.remove(seq):
            self._total -= 1
            self.forgotten += 1
            if not window.frames and window.floor == NONE:
                del self._windows[producer_id]
                self._fresh.discard(producer_id)

    def forget_silent(self, silent_us: int, now_us: int, most: int) -> bool:
        """Forget some of the producers that were silent for so long; returns whether there may be more. Stamps of a
        clock that was ahead count as of now, from the first time that they are seen."""
        windows = self._windows
        for _ in range(most):
            if not windows:
                return False
            producer_id, window = next(iter(windows.items()))
            if is_ahead(window.heard_us, now_us):
                window.counts_us = now_us
                windows.move_to_end(producer_id)
                self._fresh.add(producer_id)
            elif window.heard_us >= now_us - silent_us:
                return False
            else:
                self._drop_first()
        return True

    def take_fresh(self) -> list[int]:
        """The producers that have changed since the last call, the longest silent first."""
        fresh, self._fresh = self._fresh, set()
        return list(islice(reversed(self._windows), len(fresh)))[::-1]

    def ids(self) -> list[int]:
        """All producers, the longest silent first."""
        return list(self._windows)

    def copy(self, producer_id: int) -> Copy:
        """The window of one of them as of now."""
        window = self._windows.get(producer_id)
        return (
            Copy(producer_id, NONE, ()) if window is None else Copy(producer_id, window.floor, [*window.frames.items()])
        )

    def windows(self, copies: Iterable[Copy]) -> list[Window]:
        """The windows of a copy, without frames that were refused since, or fell out."""
        found = []
        for producer_id, floor, frames in copies:
            known = self._windows.get(producer_id)
            kept = (
                []
                if known is None
                else [(seq, one.first, known.time_of(one)) for seq, one in frames if known.frames.get(seq) is one]
            )
            if kept or floor != NONE:
                found.append((producer_id, floor, sorted(kept)))
        return found

    def snapshot(self) -> ProducersSnapshot:
        return ProducersSnapshot(self.windows(map(self.copy, self._windows)))

    def restore(self, snapshot: ProducersSnapshot) -> None:
        for producer_id, floor, frames in snapshot.producers:
            window = self._touch(producer_id)
            assert window is not None, "nobody asks whose it is"
            window.floor = max(window.floor, floor)
            for seq, first, at_us in frames:
                self.remember(producer_id, seq, first, at_us)

    def _touch(self, producer_id: int, token: bytes | None = None) -> _Window | None:
        """The producer's window; the producer counts as active now. None if it is another token's."""
        window = self._windows.get(producer_id)
        if window is None:
            window = self._windows[producer_id] = _Window()
            window.token = token
        else:
            if token is not None and window.token != token:
                if window.token is not None:
                    return None
                window.token = token
            self._windows.move_to_end(producer_id)
            window.counts_us = 0
        self._fresh.add(producer_id)
        return window
