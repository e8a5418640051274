"""Spooled frames cut by shards: when they were made, the number of shards of their topic was not known.

The pieces carry numbers that follow from the frame's own. So whoever cuts it again, after a crash, makes the same, and
the broker recognises those that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from towline.client.produce.sharding import shard_of
from towline.frame import Frame, pick
from towline.model import LANES

__all__ = ["MIDDLE", "Cut", "cut_by_shard"]

FRAMES_MAX: Final = 200
"""Frames of one request: fewer than a broker remembers of one producer."""
MIDDLE: Final = LANES.index("middle")


class Cut(NamedTuple):
    units: list[list[tuple[int, bytes]]]
    """The lanes and frames of each request."""
    lost: bytes | None
    """The messages that belong nowhere: without a key in an ordered topic, or with a shard key in a shared one."""


def cut_by_shard(topic: str, frame: Frame, lane: int, shards: int) -> Cut:
    """The frame, cut for a topic with so many shards; none is a shared one, where all goes to one lane."""
    nothing: Sequence[None] = [None] * frame.count
    own, keys = frame.shard_keys() or nothing, frame.keys() or nothing
    times = frame.deliver_at_us() or [0] * frame.count
    by_lane: dict[tuple[int, bool], list[int]] = {}
    lost: list[int] = []
    for number, (shard_key, key, time_us) in enumerate(zip(own, keys, times, strict=True)):
        if shard_key is not None if not shards else not (shard_key or key):
            lost.append(number)
        elif shards:
            shard = shard_of(topic, shards, key, shard_key, "middle")
            by_lane.setdefault((shard, bool(time_us)), []).append(number)
        else:
            by_lane.setdefault((lane, False), []).append(number)
    found = [(to, numbers) for (to, _), numbers in by_lane.items()]
    units = []
    for begin in range(0, len(found), FRAMES_MAX):
        producer_id, some = _derived(frame, shards, begin), enumerate(found[begin : begin + FRAMES_MAX], 1)
        units.append([(to, pick(frame, numbers, producer=(producer_id, seq))) for seq, (to, numbers) in some])
    return Cut(units, pick(frame, lost) if lost else None)


def _derived(frame: Frame, shards: int, unit: int) -> int:
    name = f"{frame.producer_id}/{frame.producer_seq}/{shards}/{unit}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1 or 1
