"""Requests about groups: list, make, change and delete them."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from towline.model import MAX_SHARDS, GroupConfig
from towline.protocol.base import Answer, Name, Request

__all__ = [
    "NEARLY_FULL",
    "DeleteGroup",
    "GroupInfo",
    "GroupState",
    "Groups",
    "ListGroups",
    "MemberState",
    "Pause",
    "PutGroup",
    "Seek",
    "Sought",
]

NEARLY_FULL: Final = 0.8
"""The `retry_load` of a group from which on the log, `group info` and `check` warn of it."""

_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Lane = Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS - 1)]


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
    """Why the group waits: the store cannot read the messages that are next. Empty if it can."""
    retry_load: float = 0.0
    """The load of its retry queue: at 1.0 the group gets nothing new."""
    unused_s: float = 0.0
    """For how long nobody has used it, while a broker ran."""
    expires_in_s: float = -1.0
    """The time until it is removed if nobody uses it; below 0 it is not."""


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


class Seek(Request, frozen=True, array_like=True):
    """Move a group: `to` is `earliest`, `latest` or a time (`@` and microseconds) for all lanes of the topic; or
    `positions` are (lane, sequence number) for some. A dry run only returns the effect."""

    kind = 41
    topic: Name
    group: Name
    to: Annotated[str, msgspec.Meta(pattern=r"^(|earliest|latest|@[0-9]{1,18})$")] = ""
    positions: Annotated[list[tuple[_Lane, _Natural]], msgspec.Meta(max_length=MAX_SHARDS)] = []  # noqa: RUF012 - copied
    dry_run: bool = False


class Sought(Answer, frozen=True, array_like=True):
    """By lane, the position of the group before and now; how many messages are delivered again, and how many are
    skipped."""

    kind = 169
    moves: list[tuple[str, int, int]]
    again: int
    passed: int


class Pause(Request, frozen=True, array_like=True):
    """Pause or resume a group: while it is paused, pulls get nothing. Answered by `Done`."""

    kind = 42
    topic: Name
    group: Name
    paused: bool
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""
