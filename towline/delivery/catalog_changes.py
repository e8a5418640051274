"""Changes of topics and groups: the records of the streams `catalog/topics` and `catalog/groups`. Pure.

`topics.json` and `subscriptionGroup.json` are snapshots as of one position of their stream; what follows there has
changed since. A change holds the whole of what it puts, so that it may be applied twice.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

import msgspec

from towline.model import GroupConfig, TopicConfig

__all__ = [
    "GROUP_CHANGES",
    "TOPIC_CHANGES",
    "CatalogChange",
    "GroupDropped",
    "GroupPut",
    "TemplatePut",
    "TopicDropped",
    "TopicPut",
    "decode_catalog_change",
    "encode_catalog_change",
    "follow",
]

TOPIC_CHANGES: Final = "catalog/topics"
GROUP_CHANGES: Final = "catalog/groups"


class _Change(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class TopicPut(_Change, frozen=True, array_like=True, tag=1):
    """A topic was made, or has other settings."""

    config: TopicConfig


class TopicDropped(_Change, frozen=True, array_like=True, tag=2):
    topic: str


class TemplatePut(_Change, frozen=True, array_like=True, tag=3):
    """The template of topics that the first send makes."""

    config: TopicConfig


class GroupPut(_Change, frozen=True, array_like=True, tag=4):
    """A group was made, or has other settings."""

    config: GroupConfig


class GroupDropped(_Change, frozen=True, array_like=True, tag=5):
    topic: str
    group: str


CatalogChange = TopicPut | TopicDropped | TemplatePut | GroupPut | GroupDropped

_ENCODE = msgspec.msgpack.Encoder().encode
_CHANGE: msgspec.msgpack.Decoder[CatalogChange] = msgspec.msgpack.Decoder(CatalogChange)


def encode_catalog_change(change: CatalogChange) -> bytes:
    return _ENCODE(change)


def decode_catalog_change(record: bytes) -> CatalogChange:
    return _CHANGE.decode(record)


def follow(
    change: CatalogChange,
    topics: MutableMapping[str, TopicConfig],
    groups: MutableMapping[tuple[str, str], GroupConfig],
) -> None:
    """Apply a change to topics and groups by name; the template is not among them."""
    match change:
        case TopicPut():
            topics[change.config.name] = change.config
        case TopicDropped():
            topics.pop(change.topic, None)
        case GroupPut():
            groups[change.config.topic, change.config.name] = change.config
        case GroupDropped():
            groups.pop((change.topic, change.group), None)
