"""Checks for ordered topics: the number of shards, delayed and other messages in one frame."""

from __future__ import annotations

from towline.errors import BadRequest, WrongShard
from towline.frame import Frame
from towline.frame.layout import DELIVER_AT
from towline.model import MAX_SHARDS, lane_stream
from towline.store import Store

__all__ = ["refuse_mixed", "shards_in", "wrong_shard"]


def wrong_shard(topic: str, shards: int, reckoned: int) -> WrongShard:
    has = f"is ordered, with {shards} shards" if shards else "is shared, without shards"
    took = f"{reckoned} shards" if reckoned else "a shared topic"
    return WrongShard(f"topic {topic} {has}, but the sender takes it for {took}: look it up again, then send again")


def refuse_mixed(topic: str, frame: Frame) -> None:
    """A frame that has a delayed message goes to the schedule as a whole. Its other messages must not: the next frame,
    which goes straight to the shard, would overtake them."""
    if frame.flags & DELIVER_AT and not all(frame.deliver_at_us() or ()):
        raise BadRequest(
            f"topic {topic} is ordered: messages that are delayed and messages that are not go in frames of their own"
        )


def shards_in(store: Store, topic: str) -> int:
    """The number of shards of a topic of which only the messages are left; 0 if it was a shared one."""
    prefix = lane_stream(topic, "")
    numbers = [name.removeprefix(prefix) for name in store.streams(prefix)]
    return min(max((int(name) + 1 for name in numbers if name.isdigit()), default=0), MAX_SHARDS)
