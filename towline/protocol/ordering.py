"""Requests and answers of ordered topics, and of moving groups and emptying topics, as `messages` holds the others."""

from __future__ import annotations

from typing import Annotated

import msgspec

from towline.model import MAX_SHARDS
from towline.protocol.messages import ANSWERS, REQUESTS, Answer, Request

__all__ = ["EditTopic", "Pause", "Purge", "Purged", "Seek", "ShardCount", "Sharded", "Sought"]

_Name = Annotated[str, msgspec.Meta(max_length=100)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Lane = Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS - 1)]


# Ordered topics


class ShardCount(Request, frozen=True, array_like=True):
    """How many shards a topic has: 0 for a shared one, or one that this broker does not have."""

    kind = 40
    topic: _Name


class Sharded(Answer, frozen=True, array_like=True):
    kind = 168
    shards: int
    known: bool = True
    """Whether this broker has the topic. Of those that keep their own messages, another one may have it."""


# Moving groups and emptying topics


class Seek(Request, frozen=True, array_like=True):
    """Let a group go on elsewhere: `to` is `earliest`, `latest` or a time (`@` and microseconds) for all lanes of the
    topic; or `positions` are (lane, sequence number) for some. A dry run only says what it would mean."""

    kind = 41
    topic: _Name
    group: _Name
    to: Annotated[str, msgspec.Meta(pattern=r"^(|earliest|latest|@[0-9]{1,18})$")] = ""
    positions: Annotated[list[tuple[_Lane, _Natural]], msgspec.Meta(max_length=MAX_SHARDS)] = []  # noqa: RUF012 - copied
    dry_run: bool = False


class Sought(Answer, frozen=True, array_like=True):
    """By lane, where the group was and where it is now; how many messages are delivered again, and how many are passed
    over."""

    kind = 169
    moves: list[tuple[str, int, int]]
    again: int
    passed: int


class Pause(Request, frozen=True, array_like=True):
    """Let a group rest, or go on: while it rests, pulls get nothing. Answered by `Done`."""

    kind = 42
    topic: _Name
    group: _Name
    paused: bool
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""


class Purge(Request, frozen=True, array_like=True):
    """Drop all messages of a topic. Its groups go on with what comes then. A dry run only says what it would mean."""

    kind = 43
    topic: _Name
    dry_run: bool = False


class Purged(Answer, frozen=True, array_like=True):
    """What was dropped; and by group, how many messages it will not get."""

    kind = 171
    messages: int
    size_bytes: int
    groups: list[tuple[str, int]]


class EditTopic(Request, frozen=True, array_like=True):
    """Change the settings of a topic that can be changed. Answered by `Done`."""

    kind = 44
    topic: _Name
    retention_s: Annotated[float, msgspec.Meta(ge=0)] | None
    """How long messages are kept; nil takes the broker's setting, 0 is for ever."""


REQUESTS.update({cls.kind: cls for cls in (ShardCount, Seek, Pause, Purge, EditTopic)})
ANSWERS.update({cls.kind: cls for cls in (Sharded, Sought, Purged)})
