"""Groups: listing, making, changing and deleting them."""

from __future__ import annotations

from typing import Final

import msgspec

from towline.model import GroupConfig
from towline.protocol.base import Answer, Name, Request

__all__ = ["NEARLY_FULL", "DeleteGroup", "GroupInfo", "GroupState", "Groups", "ListGroups", "MemberState", "PutGroup"]

NEARLY_FULL: Final = 0.8
"""The `retry_load` of a group from which on the log, `group info` and `check` speak of it."""


class MemberState(msgspec.Struct, frozen=True, array_like=True):
    consumer: str
    address: str
    in_flight: int
    waiting: bool
    last_seen_s: float


class GroupState(Answer, frozen=True, array_like=True):
    kind = 141
    config: GroupConfig
    positions: list[tuple[str, int, int]]
    """(lane, next sequence number to deliver, end of the lane)."""
    lag: int
    """Messages neither consumed nor dead: waiting, in flight and retrying."""
    in_flight: int
    retrying: int
    next_retry_at_us: int
    dying: int
    dead: int
    members: list[MemberState]
    unreadable: str = ""
    """Why the group waits: the store does not bring what it has to deliver. Empty if it does."""
    retry_load: float = 0.0
    """How full its retry queue is: at 1.0 the group gets nothing new."""
    unused_s: float = 0.0
    """For how long nobody has used it, while a broker ran."""
    expires_in_s: float = -1.0
    """In how long it is removed if nobody uses it; below 0 it is not."""


class ListGroups(Request, frozen=True, array_like=True):
    """The groups of a topic, or of all topics when it is empty."""

    kind = 12
    topic: Name = ""


class Groups(Answer, frozen=True, array_like=True):
    kind = 140
    groups: list[GroupState]


class GroupInfo(Request, frozen=True, array_like=True):
    kind = 13
    topic: Name
    group: Name


class PutGroup(Request, frozen=True, array_like=True):
    """Make a group, or change its settings. Answered by `Done`."""

    kind = 14
    config: GroupConfig


class DeleteGroup(Request, frozen=True, array_like=True):
    """Forget a group, its progress and its dead letters. Answered by `Done`."""

    kind = 15
    topic: Name
    group: Name
