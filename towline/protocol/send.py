"""Sending: frames in, their numbers out."""

from __future__ import annotations

from typing import Annotated

import msgspec

from towline.model import MAX_SHARDS
from towline.protocol.base import MANY, Answer, Lane, Name, Natural, Request

__all__ = ["FrameHead", "Send", "Sent"]


class FrameHead(msgspec.Struct, frozen=True, array_like=True):
    topic: Name
    lane: Lane
    """0 high, 1 middle, 2 low; of an ordered topic the shard."""
    length: Natural
    shards: Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS)] = 0
    """The number of shards of the topic, as the sender knows it; refused with `wrong-shard` if it has another one."""


class Send(Request, frozen=True, array_like=True):
    """Append frames as one unit: all or none. The frames follow as attachments."""

    kind = 3
    frames: Annotated[list[FrameHead], msgspec.Meta(min_length=1, max_length=MANY)]
    durability: Annotated[int, msgspec.Meta(ge=-1, le=2)] = -1
    """0 received, 1 os, 2 fsync, -1 the broker's default."""


class Sent(Answer, frozen=True, array_like=True):
    """The sequence number of the first message of each frame. `duplicate`: it was here already, and was not stored
    twice."""

    kind = 131
    firsts: list[int]
    appended_at_us: int
    duplicate: bool = False
    repeats: list[tuple[int, int, int, int, int]] = []  # noqa: RUF012 - a Struct copies it
    """Messages whose dedup id came before, and which were not stored again: (number of the frame, number of the message
    in it, lane, sequence number and time of the first one). The others are numbered on from `firsts`."""
    delayed: list[int] = []  # noqa: RUF012 - a Struct copies it
    """The indices of the frames that wait for their time: `firsts` has the ids of their first messages."""
