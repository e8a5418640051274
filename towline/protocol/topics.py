"""Topics: making, listing, changing and deleting them, and the template for those made by themselves."""

from __future__ import annotations

import msgspec

from towline.model import TopicConfig
from towline.protocol.base import Answer, Name, Request

__all__ = [
    "CreateTopic",
    "DeleteTopic",
    "LaneState",
    "ListTopics",
    "PutTopic",
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
    """Messages that wait for their time."""


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
    """Change the settings of a topic, or with `template` those that topics made by themselves take over. Answered by
    `Done`."""

    kind = 50
    config: TopicConfig
    template: bool = False


class Template(Request, frozen=True, array_like=True):
    """What are the settings that topics made by themselves take over?"""

    kind = 51


class Templated(Answer, frozen=True, array_like=True):
    kind = 179
    config: TopicConfig
