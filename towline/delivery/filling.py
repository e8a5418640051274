"""What a pull gets: from high to low, what is due again before what is new; then the shards of an ordered topic.

Where a batch cannot take everything, a *share* keeps the lower priorities from starving: some of its places are held
back for them, as far as they have anything. How many follows from the number of pulls so far, so that it is the same
whoever works it out, and small batches come to the same share in the long run as large ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from towline.delivery.events import Part
from towline.model import LANES

if TYPE_CHECKING:
    from towline.delivery.group import Group
    from towline.delivery.shards import Shards

__all__ = ["fill"]

PARTS_MAX: Final = 1_000
"""Parts in one pull: a queue that is all fragments is delivered in several."""
RETRIES_MAX: Final = 50_000
"""Entries of the retry queue. A group that fails more than this at once gets nothing new until it has caught up."""

RANKS: Final = len(LANES)

_NONE: Final = ((0, 0), (0, 0), (0, 0))


def fill(group: Group, room: int, max_bytes: int, now_us: int) -> tuple[list[Part], bool]:
    """As much as fits, and whether that is all that fits: if not, all that there is was taken."""
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
            if group.config.share and parts and group.shards is None and _leaves_some(group, parts[-1].lane % RANKS):
                return _fill_by_share(group, all_room, all_bytes)
            return parts, True
    return parts, False


def _candidates(group: Group, now_us: int) -> Iterator[Part]:
    """From high to low: what is due again, then what is new; the group's own lane before the topic's."""
    fresh, positions, firsts, ends = group.retries.size < RETRIES_MAX, group.next, group.firsts, group.ends
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


def _leaves_some(group: Group, rank: int) -> bool:
    """Whether there is something of a lower priority. A quick look: mostly there is not."""
    retries = group.retries
    for lane in group.lower[rank]:
        if group.next[lane] < group.ends[lane] or (retries.size and retries.is_ready(lane)):
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

    def take(self, candidates: Iterator[Part], held_room: int, held_bytes: int) -> None:
        """As much as fits beside what is held back."""
        room, max_bytes = self.room - held_room, self.max_bytes - held_bytes
        parts = self.parts
        for part in candidates:
            mean = self.mean_bytes[part.lane]
            count = min(part.count, room, max(max_bytes // mean, 0 if parts else 1))
            if count > 0:
                parts.append(Part(part.lane, part.first, count, part.attempt))
                room -= count
                max_bytes -= count * mean
            if count < part.count or room <= 0 or len(parts) == PARTS_MAX:
                self.full = True
                break
        self.room, self.max_bytes = room + held_room, max_bytes + held_bytes


def _fill_by_share(group: Group, room: int, max_bytes: int) -> tuple[list[Part], bool]:
    fresh = group.retries.size < RETRIES_MAX
    batch = _Batch(group.mean_bytes, room, max_bytes)
    for lanes, (held_room, held_bytes) in zip(
        group.ranks, _held_back(group, room, max_bytes, fresh=fresh), strict=True
    ):
        batch.take(_of_rank(group, lanes, fresh=fresh), held_room, held_bytes)
        if batch.full and (not held_room or len(batch.parts) == PARTS_MAX):
            break
    return batch.parts, batch.full


def _of_rank(group: Group, lanes: Sequence[int], *, fresh: bool) -> Iterator[Part]:
    for lane in lanes:
        yield from group.retries.ready(lane)
    for lane in lanes if fresh else ():
        at, end = max(group.next[lane], group.firsts[lane]), group.ends[lane]
        if at < end:
            yield Part(lane, at, end - at, 1)


def _held_back(group: Group, room: int, max_bytes: int, *, fresh: bool) -> tuple[tuple[int, int], ...]:
    """By rank, the places and bytes that are not for it because they are held back for lower ranks."""
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
    """How many messages of a rank there are; it need not be told beyond `most`."""
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
