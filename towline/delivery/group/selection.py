"""Selection of a pull's messages: by priority, retries before new messages; then the shards of an ordered topic.

Where a batch cannot take everything, a *share* keeps the lower priorities from starving: some of its places are held
back for them, as far as they have messages. How many follows from the number of pulls so far, so that every replay
computes the same, and small batches come to the same share in the long run as large ones. In the same way half of the
places of each priority are held back for new messages: those that fail again and again do not keep them waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from towline.delivery.group.events import Part
from towline.delivery.group.parts import messages_in
from towline.model import LANES

if TYPE_CHECKING:
    from towline.delivery.group.group import Group
    from towline.delivery.group.shards import Shards

__all__ = ["fill"]

PARTS_MAX: Final = 1_000
"""Retried parts in one pull: a queue of fragments is delivered in several."""

RANKS: Final = len(LANES)
LANES_MAX: Final = 2 * RANKS
"""New parts of a pull: one a lane."""

Held = tuple[tuple[int, int], ...]
"""By rank, places and bytes."""

_NONE: Final[Held] = ((0, 0), (0, 0), (0, 0))


def fill(group: Group, room: int, max_bytes: int, now_us: int) -> tuple[list[Part], bool]:
    """Fill a pull; returns the parts, and whether it is full: if not, all that there is was taken."""
    parts: list[Part] = []
    all_room, all_bytes, mean_bytes = room, max_bytes, group.mean_bytes
    for part in _candidates(group, now_us):
        mean = mean_bytes[part.lane]
        count = min(part.count, room, max(max_bytes // mean, 0 if parts else 1))
        if count > 0:
            parts.append(part if count == part.count else Part(part.lane, part.first, count, part.attempt))
        room -= count
        max_bytes -= count * mean
        if count < part.count or room == 0 or len(parts) == PARTS_MAX:
            if parts and group.shards is None and _leaves_some(group, parts[-1]):
                return _fill_by_share(group, all_room, all_bytes)
            return parts, True
    return parts, False


def _candidates(group: Group, now_us: int) -> Iterator[Part]:
    """From high to low: retries, then new messages; the group's own lane before the topic's."""
    fresh, positions, firsts, ends = group.retries.load < 1, group.next, group.firsts, group.ends
    for lanes in group.ranks:
        if group.retries.size:
            for lane in lanes:
                yield from group.retries.ready(lane)
        if fresh:
            for lane in lanes:
                end = ends[lane]
                if positions[lane] < end and (at := max(positions[lane], firsts[lane])) < end:
                    yield Part(lane, at, end - at, 1)
    if group.shards is not None:
        yield from _of_shards(group, group.shards, now_us, fresh=fresh)


def _of_shards(group: Group, shards: Shards, now_us: int, *, fresh: bool) -> Iterator[Part]:
    for lane in shards.waiting:
        for part in shards.due(lane, now_us):
            if part is None:
                break
            yield part
        else:
            at, end = max(group.next[lane], group.firsts[lane]), group.ends[lane]
            if fresh and at < end:
                yield Part(lane, at, end - at, 1)


# By share


def _leaves_some(group: Group, last: Part) -> bool:
    """Whether something that has a share is left behind the last that fits: new, or of a lower priority. A quick check:
    mostly there is nothing."""
    retries, positions, ends, rank = group.retries, group.next, group.ends, last.lane % RANKS
    if last.first < positions[last.lane]:
        for lane in group.ranks[rank]:
            if positions[lane] < ends[lane]:
                return True
    for lane in group.lower[rank] if group.config.share else ():
        if positions[lane] < ends[lane] or (retries.size and retries.is_ready(lane)):
            return True
    return False


class _Batch:
    """A pull that is being filled."""

    __slots__ = ("full", "max_bytes", "mean_bytes", "parts", "room")

    def __init__(self, mean_bytes: Sequence[int], room: int, max_bytes: int) -> None:
        self.mean_bytes = mean_bytes
        self.room = room
        self.max_bytes = max_bytes
        self.parts: list[Part] = []
        self.full = False

    def take_again(
        self, group: Group, lanes: Sequence[int], new: Sequence[Part], held_room: int, held_bytes: int
    ) -> None:
        """Take retries of a priority, beside the places that are held back, also for new messages."""
        mean = self.mean_bytes[lanes[-1]]
        places = min(self.room - held_room, max((self.max_bytes - held_bytes) // mean, 0 if self.parts else 1))
        # The one place that is left over goes to the one or the other by turns, and not in step with the priorities.
        held = min(messages_in(new), (places + (group.turns.bit_count() & 1)) // 2) if new else 0
        again = (part for lane in lanes for part in group.retries.ready(lane))
        self.take(again, held_room + held, held_bytes + held * mean, PARTS_MAX)

    def take(self, parts: Iterable[Part], held_room: int, held_bytes: int, most: int = PARTS_MAX + LANES_MAX) -> None:
        """Take parts beside the places that are held back, and at most `most` of them."""
        room, max_bytes = self.room - held_room, self.max_bytes - held_bytes
        taken = self.parts
        for part in parts:
            mean = self.mean_bytes[part.lane]
            count = min(part.count, room, max(max_bytes // mean, 0 if taken else 1)) if len(taken) < most else 0
            if count > 0:
                taken.append(Part(part.lane, part.first, count, part.attempt))
                room -= count
                max_bytes -= count * mean
            if count < part.count or room <= 0:
                self.full = True
                break
        self.room, self.max_bytes = room + held_room, max_bytes + held_bytes


def _fill_by_share(group: Group, room: int, max_bytes: int) -> tuple[list[Part], bool]:
    fresh = group.retries.load < 1
    batch, held = _Batch(group.mean_bytes, room, max_bytes), _NONE
    if group.config.share:
        held = _held_back(group, room, max_bytes, fresh=fresh)
    for lanes, (held_room, held_bytes) in zip(group.ranks, held, strict=True):
        new = _new(group, lanes) if fresh else ()
        batch.take_again(group, lanes, new, held_room, held_bytes)
        batch.take(new, held_room, held_bytes)
        if batch.full and not held_room:
            break
    return batch.parts, batch.full


def _new(group: Group, lanes: Sequence[int]) -> list[Part]:
    places = [(lane, max(group.next[lane], group.firsts[lane]), group.ends[lane]) for lane in lanes]
    return [Part(lane, at, end - at, 1) for lane, at, end in places if at < end]


def _held_back(group: Group, room: int, max_bytes: int, *, fresh: bool) -> Held:
    """The places and bytes held back for the lower ranks, by rank."""
    middle, low = (_some(group, lanes, room, fresh=fresh) for lanes in group.ranks[1:])
    if not middle and not low:
        return _NONE
    weights, turn = group.config.share, group.turns
    total = sum(weights)
    # A batch may be limited by its bytes rather than by its number.
    places = max(min(room, max_bytes // group.mean_bytes[group.ranks[0][-1]]), 1)
    low = min(low, _part_of(places, weights[2], total, turn))
    middle = min(middle, _part_of(places, weights[1], total, turn), max(places - low, 0))
    low_bytes = low * group.mean_bytes[group.ranks[2][-1]]
    middle_bytes = middle * group.mean_bytes[group.ranks[1][-1]]
    return (middle + low, middle_bytes + low_bytes), (low, low_bytes), (0, 0)


def _part_of(places: int, weight: int, total: int, turn: int) -> int:
    """A share of some places, rounded so that over many turns it comes out right."""
    return (turn + 1) * places * weight // total - turn * places * weight // total


def _some(group: Group, lanes: Sequence[int], most: int, *, fresh: bool) -> int:
    """The number of messages of a rank, counted no further than `most`."""
    count = 0
    if fresh:
        for lane in lanes:
            count += max(group.ends[lane] - max(group.next[lane], group.firsts[lane]), 0)
    if count < most and group.retries.size:
        for lane in lanes:
            for part in group.retries.ready(lane):
                count += part.count
                if count >= most:
                    break
    return min(count, most)
