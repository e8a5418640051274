"""Which messages came already, by the id that their sender gave them. Pure.

An id is known for a window of time, on one topic, whatever the lane. Ids are bounded in number: when there are more,
the oldest are forgotten before their time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from towline.errors import BadRequest, TooLarge
from towline.frame import Frame, pick
from towline.frame.layout import DEDUP

__all__ = ["DEDUP_ID_MAX", "Dedup", "Repeat", "Screened", "Seen", "dedup_ids_of"]

DEDUP_ID_MAX: Final = 200
"""Bytes of an id."""

Key = tuple[str, bytes]
"""Topic and id."""


class Seen(NamedTuple):
    """Where the first message with an id is."""

    lane: int
    seq: int
    """Below 0 it is a delayed message: `~seq` is its number in the schedule."""
    at_us: int
    since_us: int = 0
    """Since when it is remembered. It is its time, unless the clock was set."""


class Repeat(NamedTuple):
    """Message number `index` of frame number `frame` of a unit was not stored again: the first one is at `seq`."""

    frame: int
    index: int  # type: ignore[assignment]  # a tuple's own index is of no use here
    lane: int
    seq: int
    at_us: int


class Screened:
    """What is left of a unit when the messages that came already are taken out."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self.frames: list[Frame | None] = list(frames)
        """What to store of each frame; None is nothing."""
        self.fresh: dict[Key, tuple[int, int]] = {}
        """Ids that are new: the number of the frame, and of the message within what is stored of it."""
        self.seen: list[tuple[int, int, Seen]] = []
        """Messages that came earlier: number of the frame, of the message, and where the first one is."""
        self.twins: list[tuple[int, int, Key]] = []
        """Messages whose first one is in this very unit."""

    @property
    def has_repeats(self) -> bool:
        return bool(self.seen or self.twins)

    def placed(
        self, firsts: Sequence[int], lanes: Sequence[int], at_us: int, delayed: Sequence[int] = ()
    ) -> tuple[dict[Key, Seen], list[Repeat]]:
        """Where everything is, once it is known where each frame begins: what to remember, and what is a repeat.
        `delayed` are the numbers of the frames that wait for their time."""
        new = {key: Seen(lanes[n], firsts[n] + place, at_us) for key, (n, place) in self.fresh.items()}
        if delayed:
            for key, (n, place) in self.fresh.items():
                if n in delayed:
                    new[key] = Seen(lanes[n], ~(firsts[n] + place), at_us)
        repeats = [Repeat(n, index, *seen[:3]) for n, index, seen in self.seen]
        repeats += [Repeat(n, index, *new[key][:3]) for n, index, key in self.twins]
        return new, sorted(repeats)


class Dedup:
    def __init__(self, window_us: int, max_ids: int) -> None:
        self._window_us = window_us
        self._max_ids = max_ids
        self._seen: OrderedDict[Key, Seen] = OrderedDict()
        self.forgotten = 0
        """How often something was remembered that was refused then."""

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, topic: str, dedup_id: bytes, now_us: int) -> Seen | None:
        seen = self._seen.get((topic, dedup_id))
        return seen if seen is not None and seen.since_us > now_us - self._window_us else None

    def remember(self, new: dict[Key, Seen], now_us: int) -> None:
        for key, seen in new.items():
            self._seen.pop(key, None)
            self._seen[key] = seen._replace(since_us=now_us)
        self._forget_old(now_us)

    def forget(self, new: dict[Key, Seen]) -> None:
        """They were not stored after all."""
        for key, seen in new.items():
            known = self._seen.get(key)
            if known is not None and known[:3] == seen[:3]:
                del self._seen[key]
                self.forgotten += 1

    def forget_topic(self, topic: str, *, delayed: bool = True) -> None:
        """The messages of the topic are gone; those that were delayed as well, or not."""
        for key in [key for key, seen in self._seen.items() if key[0] == topic and (delayed or seen.seq >= 0)]:
            del self._seen[key]

    def _forget_old(self, now_us: int) -> None:
        seen, old_us = self._seen, now_us - self._window_us
        while seen and (len(seen) > self._max_ids or next(iter(seen.values())).since_us <= old_us):
            seen.popitem(last=False)

    # Frames

    def screen(self, unit: Sequence[tuple[str, Frame]], now_us: int) -> Screened:
        """Look at the ids of a unit, each a topic and a frame. Only frames that have ids are opened."""
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
        """What was answered for a frame that is sent again, number `n` of its unit: which of its messages were not
        stored then. `at` is where what was stored of it begins, if that is known. None: it cannot be told."""
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
        """A stored frame, met again at a start; `first` is where its first message is."""
        if not frame.flags & DEDUP or first.at_us <= now_us - self._window_us:
            return
        for place, dedup_id in enumerate(frame.texts(DEDUP) or []):
            if dedup_id and self.find(topic, dedup_id, first.at_us) is None:
                self._seen[topic, dedup_id] = _since(first._replace(seq=first.seq + place), now_us)

    def replay_delayed(self, topic: str, frame: Frame, places: Iterable[Seen], now_us: int) -> None:
        """A delayed frame, or what went to one slot of it, and where each of its messages was put."""
        for place, dedup_id in zip(places, frame.texts(DEDUP) or [], strict=False):
            known = not dedup_id or self.find(topic, dedup_id, place.at_us) is not None
            if not known and place.at_us > now_us - self._window_us:
                self._seen[topic, dedup_id] = _since(place, now_us)

    def replayed(self, now_us: int) -> None:
        """All stored frames have been met: lanes were gone through one after another, time goes through all of them."""
        self._seen = OrderedDict(sorted(self._seen.items(), key=lambda item: item[1].since_us))
        self._forget_old(now_us)

    def snapshot(self, set_us: int = 0) -> list[tuple[Key, Seen]]:
        """By a clock that is ahead by `set_us` of the one that ids are remembered by."""
        if not set_us:
            return list(self._seen.items())
        return [(key, seen._replace(since_us=seen.since_us + set_us)) for key, seen in self._seen.items()]

    def restore(self, snapshot: Sequence[tuple[Key, Seen]], now_us: int) -> None:
        self._seen = OrderedDict((key, _since(seen, now_us)) for key, seen in snapshot)


def _since(seen: Seen, now_us: int) -> Seen:
    """What was remembered by a clock that was ahead is remembered from now on, and for no longer than its window."""
    return seen._replace(since_us=min(seen.since_us or seen.at_us, now_us))


def dedup_ids_of(topic: str, frame: Frame) -> list[bytes]:
    """The ids of a frame that has some, checked; empty is none."""
    ids = frame.texts(DEDUP)
    if ids is None:
        raise BadRequest(f"topic {topic}: the frame has no dedup ids")
    if max(map(len, ids)) > DEDUP_ID_MAX:
        raise TooLarge(f"topic {topic}: a dedup id has at most {DEDUP_ID_MAX} bytes: send a hash of a longer one")
    return ids
