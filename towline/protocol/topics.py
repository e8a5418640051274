"""Requests about topics: make, list, change and delete them, and the template for those made by the first send."""

from __future__ import annotations

from typing import Annotated

import msgspec

from towline.model import TopicConfig
from towline.protocol.base import Answer, Name, Request

__all__ = [
    "CreateTopic",
    "DeleteTopic",
    "EditTopic",
    "LaneState",
    "ListTopics",
    "Purge",
    "Purged",
    "PutTopic",
    "ShardCount",
    "Sharded",
    "Template",
    "Templated",
    "TopicInfo",
    "TopicState",
    "Topics",
]


class LaneState(msgspec.Struct, frozen=True, array_like=True):
    lane: str
    first: int
    end: int
    size_bytes: int


class TopicState(Answer, frozen=True, array_like=True):
    kind = 138
    config: TopicConfig
    lanes: list[LaneState]
    groups: list[str]
    delayed: int = 0
    """Delayed messages."""


class CreateTopic(Request, frozen=True, array_like=True):
    """Answered by `Done`; `Failed` with `conflict` if it exists."""

    kind = 8
    config: TopicConfig


class ListTopics(Request, frozen=True, array_like=True):
    kind = 9


class Topics(Answer, frozen=True, array_like=True):
    kind = 137
    topics: list[TopicState]


class TopicInfo(Request, frozen=True, array_like=True):
    kind = 10
    topic: Name


class DeleteTopic(Request, frozen=True, array_like=True):
    """Delete a topic with its messages, groups and dead letters. Answered by `Done`."""

    kind = 11
    topic: Name


class PutTopic(Request, frozen=True, array_like=True):
    """Change the settings of a topic, or with `template` those of topics that are made by their first send. Answered by
    `Done`."""

    kind = 50
    config: TopicConfig
    template: bool = False


class Template(Request, frozen=True, array_like=True):
    """The settings of topics that are made by their first send."""

    kind = 51


class Templated(Answer, frozen=True, array_like=True):
    kind = 179
    config: TopicConfig


class ShardCount(Request, frozen=True, array_like=True):
    """The number of shards of a topic: 0 for a shared one, or one that this broker does not have."""

    kind = 40
    topic: Name


class Sharded(Answer, frozen=True, array_like=True):
    kind = 168
    shards: int
    known: bool = True
    """Whether this broker has the topic. Of brokers that keep their own messages, another one may have it."""


class Purge(Request, frozen=True, array_like=True):
    """Drop all messages of a topic. Its groups continue with later ones. A dry run only returns the effect."""

    kind = 43
    topic: Name
    dry_run: bool = False


class Purged(Answer, frozen=True, array_like=True):
    """The dropped messages; and by group, how many messages it will not get."""

    kind = 171
    messages: int
    size_bytes: int
    groups: list[tuple[str, int]]


class EditTopic(Request, frozen=True, array_like=True):
    """Change the settings of a topic that can be changed. Answered by `Done`."""

    kind = 44
    topic: Name
    retention_s: Annotated[float, msgspec.Meta(ge=0)] | None
    """How long messages are kept; nil takes the broker's setting, 0 is for ever."""
