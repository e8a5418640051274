"""The position of a consumer without a group, sent to a broker that has forgotten its group.

For each lane that is the next message that the consumer was not given, and the earlier ones for which the broker has
taken no ack: they come again.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import product
from operator import itemgetter
from typing import Final

import msgspec

from towline.client.consume.lease import Lease
from towline.client.consume.message_block import runs_of
from towline.frame.layout import attempts_in
from towline.protocol.base import LISTS_MAX_BYTES, MANY
from towline.protocol.consume import ACK, GIVE_BACK, NACK
from towline.protocol.messages import Act, Part, Place, Places

__all__ = ["BroadcastPosition"]

log = logging.getLogger("towline.client")

FOREVER: Final = 1 << 63
_BESIDE_BYTES: Final = 112 << 10
"""The part of a request that is not for positions: held pulls, and settings."""
_LEAST_BYTES: Final = 16 << 10

_first, _end = itemgetter(0), itemgetter(1)


class _Lane:
    __slots__ = ("next", "open")

    def __init__(self, at: int = 0, open_: Iterable[tuple[int, int, int]] = ()) -> None:
        self.next = at
        self.open = list(open_)
        """(first, end, attempt) of messages that were given and are not settled: in order, nothing twice."""

    def give(self, first: int, end: int, attempt: int) -> None:
        if not self.take(first, end):
            # It is new; or the group was moved back to it, and forgot all behind it.
            self.take(end, FOREVER)
            self.next = end
        # Some may have come again, with new ones behind them.
        self.next = max(self.next, end)
        insort(self.open, (first, end, attempt))

    def take(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """Remove the open ones among these messages."""
        low, high = bisect_right(self.open, first, key=_end), bisect_left(self.open, end, key=_first)
        found = self.open[low:high]
        if found:
            (head, _, begun), (_, tail, ended) = found[0], found[-1]
            sides = (head, first, begun), (end, tail, ended)
            self.open[low:high] = [side for side in sides if side[0] < side[1]]
        return [(max(one, first), min(other, end), attempt) for one, other, attempt in found]

    def begin(self, at: int) -> None:
        """The broker continues here."""
        self.take(at, FOREVER)
        self.next = at

    def pieces(self) -> list[tuple[int, int, int]]:
        """The open messages, neighbours together."""
        found: list[tuple[int, int, int]] = []
        for first, end, attempt in self.open:
            if found and found[-1][1:] == (first, attempt):
                found[-1] = (found[-1][0], end, attempt)
            else:
                found.append((first, end, attempt))
        return found


class _Topic:
    __slots__ = ("lanes", "shards")

    def __init__(self, shards: int, lanes: dict[int, _Lane]) -> None:
        self.shards = shards
        self.lanes = lanes

    def lane(self, number: int) -> _Lane:
        return self.lanes.setdefault(number, _Lane())

    def settle(self, spans: Iterable[tuple[int, int, int]]) -> None:
        for lane, first, count in spans:
            self.lane(lane).take(first, first + count)

    def copy(self) -> _Topic:
        return _Topic(self.shards, {number: _Lane(lane.next, lane.open) for number, lane in self.lanes.items()})

    def place(self, name: str, most: int) -> Place:
        """The position, with so many open pieces of a lane at most: if there are more, the lane comes again from there
        on."""
        at: list[tuple[int, int]] = []
        opened: list[tuple[int, int, int, int]] = []
        for number, lane in sorted(self.lanes.items()):
            lane.open = lane.pieces()
            if len(lane.open) > most:
                lane.begin(lane.open[most][0])
            if lane.next:
                at.append((number, lane.next))
            opened += [(number, first, end - first, attempt) for first, end, attempt in lane.open]
        return Place(name, self.shards, at, opened)


class BroadcastPosition:
    """The positions in all topics of one consumer, at one broker."""

    def __init__(self) -> None:
        self._store = -1
        self._topics: dict[str, _Topic] = {}
        self._offered: dict[str, _Topic] = {}
        """As the broker got them when we attached last."""

    # Messages

    def given(self, lease: Lease, parts: Iterable[Part], *, once: bool) -> None:
        topic = self._topics.setdefault(lease.topic, _Topic(lease.shards, {}))
        for part in parts:
            lane = topic.lane(part.lane)
            for first, end in runs_of(part):
                lane.give(first, end, part.attempt)
                if once:
                    lane.take(first, end)

    def answered(self, lease: Lease, act: Act, max_attempts: int) -> None:
        """The broker has carried out an act."""
        if act.what == ACK:
            self.settled(lease.topic, act.spans or lease.acked())
        elif act.what == NACK:
            self._failed(lease, act.spans or lease.nacked(), max_attempts)
        elif act.what != GIVE_BACK:
            self.settled(lease.topic, act.spans or lease.nacked())

    def settled(self, topic: str, spans: Iterable[tuple[int, int, int]]) -> None:
        """These do not come again."""
        if (known := self._topics.get(topic)) is not None:
            known.settle(spans)

    def _failed(self, lease: Lease, spans: Sequence[tuple[int, int, int]], max_attempts: int) -> None:
        """They come again, unless this was their last attempt."""
        topic = self._topics.get(lease.topic, _Topic(0, {}))
        for section, (number, first, count) in product(lease.sections, spans):
            low, high = section.places(first, first + count)
            if section.lane != number or low >= high:
                continue
            lane, step = topic.lane(number), 1 if section.timed else high - low
            for index in range(low, high, step):
                again = section.attempt < (attempts_in(section.limit(index)) or max_attempts)
                for _, seq, many in section.spans(index, index + step):
                    for begin, end, _ in lane.take(seq, seq + many):
                        if again:
                            insort(lane.open, (begin, end, section.attempt + 1))

    # Attach

    def places(self, leases: Iterable[Lease], max_bytes: int) -> Places | None:
        """The positions; None before there are any. Acked messages count as settled, though the broker may not have
        their acks yet: it learns of them by this."""
        if self._store < 0:
            return None
        self._offered = {name: topic.copy() for name, topic in self._topics.items()}
        for lease in leases:
            if (topic := self._offered.get(lease.topic)) is not None:
                topic.settle(lease.acked())
        fragments = [len(lane.open) for topic in self._offered.values() for lane in topic.lanes.values() if lane.open]
        most = MANY if sum(fragments) <= MANY else MANY // len(fragments)
        found = [topic.place(name, most) for name, topic in self._offered.items()]
        room = max(min(max_bytes, LISTS_MAX_BYTES) - _BESIDE_BYTES, _LEAST_BYTES)
        kept = _within(room, [place for place in found if place.lanes])
        self._offered = {place.topic: self._offered[place.topic] for place in kept}
        return Places(self._store, kept)

    def attached(self, places: Places | None) -> set[str]:
        """The topics in which we have begun anew at our position, because the broker had forgotten it."""
        if places is None:
            return set()
        met = places.store == self._store
        if not met:
            self._store, self._topics, self._offered = places.store, {}, {}
        for place in places.topics:
            topic = self._offered.get(place.topic)
            if topic is None or topic.shards != place.shards:
                topic = _Topic(place.shards, {})
            at = dict(place.lanes)
            missing = sum(max(lane.next - at.get(number, 0), 0) for number, lane in topic.lanes.items())
            if missing:
                log.warning("topic %s: the broker has lost %d messages that we were given", place.topic, missing)
            for number in topic.lanes.keys() | at.keys():
                topic.lane(number).begin(at.get(number, 0))
            self._topics[place.topic] = topic
        return {place.topic for place in places.topics} if met else set()


def _within(room: int, places: list[Place]) -> list[Place]:
    """As many as fit. Those of which the least would come again are left out first."""
    sizes = {place.topic: len(msgspec.msgpack.encode(place)) for place in places}
    if sum(sizes.values()) <= room:
        return places
    kept: list[Place] = []
    for place in sorted(places, key=lambda one: sum(map(_end, one.lanes)), reverse=True):
        room -= sizes[place.topic]
        if room >= 0:
            kept.append(place)
    log.warning(
        "a consumer is in %d topics, too many to tell the broker of: %d of them begin again with the first message",
        *(len(places), len(places) - len(kept)),
    )
    return kept
