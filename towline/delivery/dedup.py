"""Dedup ids of the window. Pure.

An id is known for a window of time, on one topic, whatever the lane. Ids are bounded in number: when there are more,
the oldest are forgotten before their time, which is counted.
"""

from __future__ import annotations

import heapq
import struct
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from towline.errors import BadRequest, TooLarge
from towline.frame import Frame, pick
from towline.frame.layout import DEDUP

__all__ = ["DEDUP_ID_MAX", "Dedup", "Gone", "Repeat", "Screened", "Seen", "dedup_ids_of"]

DEDUP_ID_MAX: Final = 200
"""In bytes."""

SPARE: Final = 64
FORGOTTEN_AT_ONCE: Final = 1_000
SORTED_AT_ONCE: Final = 2_000
_SINCE: Final = itemgetter(0)
LOOKED_AT: Final = 1_000
_PLACE: Final = struct.Struct("<Iqqq")

Key = tuple[str, bytes]
"""Topic and id."""


class Seen(NamedTuple):
    """Position of the first message with an id."""

    lane: int
    seq: int
    """Below 0 it is a delayed message: `~seq` is its number in the schedule."""
    at_us: int
    since_us: int = 0
    """Since when it is remembered: its time, unless the clock was set."""


class Gone(NamedTuple):
    """Ids of a topic that are remembered since these times or before belong to messages that are gone."""

    stored_us: int = 0
    delayed_us: int = 0
    """Of delayed messages."""


class Repeat(NamedTuple):
    """Message number `index` of frame number `frame` of a unit was not stored again: the first one is at `seq`."""

    frame: int
    index: int  # type: ignore[assignment]  # a tuple's own index is of no use here
    lane: int
    seq: int
    at_us: int


class Screened:
    """The rest of a unit after duplicates were removed."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self.frames: list[Frame | None] = list(frames)
        """The messages of each frame to store; None is none."""
        self.fresh: dict[Key, tuple[int, int]] = {}
        """New ids: the number of the frame, and of the message within the stored part of it."""
        self.seen: list[tuple[int, int, Seen]] = []
        """Duplicates of earlier messages: number of the frame, of the message, and the position of the first one."""
        self.twins: list[tuple[int, int, Key]] = []
        """Duplicates of a message of this very unit."""

    @property
    def has_repeats(self) -> bool:
        return bool(self.seen or self.twins)

    def placed(
        self, firsts: Sequence[int], lanes: Sequence[int], at_us: int, delayed: Sequence[int] = ()
    ) -> tuple[dict[Key, Seen], list[Repeat]]:
        """The positions to remember and the repeats, once the position of each frame is known. `delayed` are the
        numbers of the frames that wait for their time."""
        new = {key: Seen(lanes[n], firsts[n] + place, at_us) for key, (n, place) in self.fresh.items()}
        if delayed:
            for key, (n, place) in self.fresh.items():
                if n in delayed:
                    new[key] = Seen(lanes[n], ~(firsts[n] + place), at_us)
        repeats = [Repeat(n, index, *seen[:3]) for n, index, seen in self.seen]
        repeats += [Repeat(n, index, *new[key][:3]) for n, index, key in self.twins]
        return new, sorted(repeats)


class Dedup:
    """An id takes some 200 bytes besides its own and its topic's, and 300 at most, while the table is made anew: one
    entry of bytes under bytes, which the garbage collector does not look into."""

    def __init__(self, window_us: int, max_ids: int) -> None:
        self.window_us = window_us
        self.max_ids = max_ids
        self._places: dict[bytes, bytes] = {}
        """By topic and id, the position of its message."""
        self._keys: deque[bytes] = deque()
        self._values: deque[bytes] = deque()
        """The same, the oldest first; some of them are forgotten by now."""
        self._fresh: list[bytes] = []
        """New ones since the last snapshot."""
        self._after_us = 0
        """Later ids are remembered since a later time than this."""
        self.gone: dict[str, Gone] = {}
        """By topic, its ids that count no more, though they are still here."""
        self.forgotten = 0
        """Ids that were remembered, and whose messages were refused then."""
        self.early = 0
        """Ids that were forgotten before their time, because there were too many."""

    def __len__(self) -> int:
        return len(self._places)

    def find(self, topic: str, dedup_id: bytes, now_us: int) -> Seen | None:
        place = self._places.get(_key(topic, dedup_id))
        return None if place is None else self._counting(topic, Seen(*_PLACE.unpack(place)), now_us)

    def _counting(self, topic: str, seen: Seen, now_us: int) -> Seen | None:
        if seen.since_us <= now_us - self.window_us:
            return None
        if self.gone and (gone := self.gone.get(topic)) is not None:
            return None if seen.since_us <= (gone.delayed_us if seen.seq < 0 else gone.stored_us) else seen
        return seen

    def remember(self, new: dict[Key, Seen], now_us: int) -> None:
        since_us = max(now_us, self._after_us + 1)
        for (topic, dedup_id), seen in new.items():
            self._put(_key(topic, dedup_id), _PLACE.pack(*seen[:3], since_us))
        self._forget_old(now_us, 2 * len(new) + SPARE)
        if len(self._fresh) > 2 * self.max_ids + SPARE:
            # Nothing could be written for long; the first of them are forgotten by now.
            del self._fresh[: -self.max_ids]
        if len(self._keys) > 2 * self.max_ids + SPARE:
            self._compact()

    def _put(self, key: bytes, place: bytes) -> None:
        self._places[key] = place
        self._keys.append(key)
        self._values.append(place)
        self._fresh.append(key)

    def forget(self, new: dict[Key, Seen]) -> None:
        """Forget ids whose messages were not stored after all."""
        for (topic, dedup_id), seen in new.items():
            key = _key(topic, dedup_id)
            place = self._places.get(key)
            if place is not None and _PLACE.unpack(place)[:3] == seen[:3]:
                del self._places[key]
                self.forgotten += 1
        places, keys, values = self._places, self._keys, self._values
        while keys and places.get(keys[-1]) is not values[-1]:
            keys.pop()
            values.pop()

    def _compact(self) -> None:
        """Rebuild the table when many were refused, or remembered anew, behind one that is still remembered."""
        places = self._places
        live = [(key, place) for key, place in zip(self._keys, self._values, strict=True) if places.get(key) is place]
        self._keys = deque(key for key, _ in live)
        self._values = deque(place for _, place in live)

    def forget_topic(self, topic: str, now_us: int, *, delayed: bool = True) -> None:
        """Note that the messages of the topic are gone, the delayed ones as well, or not. Their ids expire."""
        if not self._places:
            return
        self._after_us = max(now_us, self._after_us + 1)
        known = self.gone.get(topic, Gone())
        self.gone[topic] = Gone(self._after_us, self._after_us if delayed else known.delayed_us)

    def tidy(self, now_us: int, most: int) -> bool:
        """Forget some of what is older than the window; whether there may be more."""
        old_us = now_us - self.window_us
        for topic in [topic for topic, gone in self.gone.items() if gone.stored_us <= old_us]:
            del self.gone[topic]
        return self._forget_old(now_us, most)

    def _forget_old(self, now_us: int, most: int) -> bool:
        """Only a few at a time: an id older than the window is not found, though it is still here."""
        places, keys, values, old_us = self._places, self._keys, self._values, now_us - self.window_us
        for _ in range(most):
            if not keys:
                return False
            key, place = keys[0], values[0]
            if places.get(key) is place:
                if _PLACE.unpack(place)[3] > old_us:
                    if len(places) <= self.max_ids:
                        return False
                    self.early += 1
                del places[key]
            keys.popleft()
            values.popleft()
        return True

    def topics_of_late(self) -> list[str]:
        """The topics of the latest ids, those with most of them first."""
        last = [str(key.partition(b"\0")[0], "utf-8") for key in islice(reversed(self._keys), LOOKED_AT)]
        return sorted(set(last), key=last.count, reverse=True)

    def kept_us(self, now_us: int) -> int:
        """For how long an id is remembered at present."""
        return min(now_us - self.oldest_us, self.window_us) if self._values else self.window_us

    @property
    def oldest_us(self) -> int:
        """Since when the oldest id is remembered."""
        return int(_PLACE.unpack(self._values[0])[3]) if self._values else 1 << 62

    # Frames

    def screen(self, unit: Sequence[tuple[str, Frame]], now_us: int) -> Screened:
        """Screen a unit, each frame with its topic, for duplicates. Only frames that have ids are opened."""
        screened = Screened([frame for _, frame in unit])
        for n, (topic, frame) in enumerate(unit):
            if frame.flags & DEDUP:
                kept = self._screen_frame(screened, n, topic, frame, now_us)
                if len(kept) < frame.count:
                    screened.frames[n] = Frame(pick(frame, kept)) if kept else None
        return screened

    def _screen_frame(self, screened: Screened, n: int, topic: str, frame: Frame, now_us: int) -> list[int]:
        """The numbers of the messages to store."""
        kept: list[int] = []
        for index, dedup_id in enumerate(dedup_ids_of(topic, frame)):
            key = (topic, dedup_id)
            if not dedup_id:
                kept.append(index)
            elif key in screened.fresh:
                screened.twins.append((n, index, key))
            elif (seen := self.find(topic, dedup_id, now_us)) is not None:
                screened.seen.append((n, index, seen))
            else:
                screened.fresh[key] = (n, len(kept))
                kept.append(index)
        return kept

    def recall(self, n: int, topic: str, frame: Frame, at: Seen | None, now_us: int) -> list[Repeat] | None:
        """The answer to a frame that is sent again, number `n` of its unit: its messages that were not stored then.
        `at` is the position of the stored part, if that is known. None: unknown."""
        repeats: list[Repeat] = []
        here = at
        for index, dedup_id in enumerate(dedup_ids_of(topic, frame)):
            seen = self.find(topic, dedup_id, now_us) if dedup_id else None
            if here is not None and (seen is None or seen[:2] == here[:2]):
                here = here._replace(seq=here.seq + (1 if here.seq >= 0 else -1))
            elif seen is not None:
                repeats.append(Repeat(n, index, *seen[:3]))
            else:
                return None
        return repeats

    # Coming back

    def replay(self, topic: str, frame: Frame, first: Seen, now_us: int) -> None:
        """A stored frame, read in recovery; `first` is the position of its first message."""
        if not frame.flags & DEDUP or first.at_us <= now_us - self.window_us:
            return
        for place, dedup_id in enumerate(frame.texts(DEDUP) or []):
            if dedup_id and self.find(topic, dedup_id, first.at_us) is None:
                self._restore(topic, dedup_id, first._replace(seq=first.seq + place), now_us)

    def replay_delayed(self, topic: str, frame: Frame, places: Iterable[Seen], now_us: int) -> None:
        """A delayed frame, or its part in one slot, and the position of each of its messages."""
        for place, dedup_id in zip(places, frame.texts(DEDUP) or [], strict=False):
            known = not dedup_id or self.find(topic, dedup_id, place.at_us) is not None
            if not known and place.at_us > now_us - self.window_us:
                self._restore(topic, dedup_id, place, now_us)

    def replayed(self, now_us: int) -> Generator[None, None, None]:
        """All stored frames were read: lane by lane, while the table is ordered by time. In slices: there may be very
        many."""
        items, runs = iter(self._places.items()), list[list[tuple[int, bytes, bytes]]]()
        while some := list(islice(items, SORTED_AT_ONCE)):
            runs.append(sorted(((_PLACE.unpack(place)[3], key, place) for key, place in some), key=_SINCE))
            yield
        ordered = heapq.merge(*runs, key=_SINCE)
        self._keys.clear()
        self._values.clear()
        self._fresh = []
        while batch := list(islice(ordered, SORTED_AT_ONCE)):
            self._keys.extend(key for _, key, _ in batch)
            self._values.extend(place for _, _, place in batch)
            self._fresh.extend(key for _, key, _ in batch)
            yield
        while self._forget_old(now_us, FORGOTTEN_AT_ONCE):
            yield
        self.early = 0

    def take_fresh(self, now_us: int) -> tuple[list[bytes], int]:
        """The ids since the last call, and a time: later ids are remembered since later than that."""
        self._after_us = max(now_us, self._after_us + 1)
        fresh, self._fresh = self._fresh, []
        return fresh, self._after_us

    def entries(self, keys: Iterable[bytes], until_us: int, set_us: int = 0) -> list[tuple[Key, Seen]]:
        """The ids of these that are remembered since no later than `until_us`; by a clock that is ahead by `set_us` of
        the one that ids are remembered by."""
        found = []
        for key in keys:
            place = self._places.get(key)
            if place is not None and (seen := Seen(*_PLACE.unpack(place))).since_us <= until_us:
                topic, _, dedup_id = key.partition(b"\0")
                found.append(((str(topic, "utf-8"), dedup_id), seen._replace(since_us=seen.since_us + set_us)))
        return found

    def restore(self, entries: Iterable[tuple[Key, Seen]], now_us: int) -> None:
        for (topic, dedup_id), seen in entries:
            self._restore(topic, dedup_id, seen, now_us)

    def _restore(self, topic: str, dedup_id: bytes, seen: Seen, now_us: int) -> None:
        """An id that was remembered by a clock that was ahead is remembered from now on, for no longer than its
        window."""
        since_us = min(seen.since_us or seen.at_us, now_us)
        self._put(_key(topic, dedup_id), _PLACE.pack(*seen[:3], since_us))


def _key(topic: str, dedup_id: bytes) -> bytes:
    return b"%b\0%b" % (topic.encode(), dedup_id)


def dedup_ids_of(topic: str, frame: Frame) -> list[bytes]:
    """The ids of a frame that has some, checked; empty is none."""
    ids = frame.texts(DEDUP)
    if ids is None:
        raise BadRequest(f"topic {topic}: the frame has no dedup ids")
    if max(map(len, ids)) > DEDUP_ID_MAX:
        raise TooLarge(f"topic {topic}: a dedup id has at most {DEDUP_ID_MAX} bytes: send a hash of a longer one")
    return ids
