"""Topics and groups by name, and the two files that keep them: `topics.json` and `subscriptionGroup.json`."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec

from towline.errors import StoreDamaged
from towline.model import GroupConfig, TopicConfig
from towline.store import Store

__all__ = ["Catalog"]

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"

_T = TypeVar("_T")


class _Topics(msgspec.Struct):
    version: int = 0
    topics: list[TopicConfig] = []


class _Groups(msgspec.Struct):
    version: int = 0
    groups: list[GroupConfig] = []


class Catalog:
    """What exists. Changes are seen at once; `save` makes them durable, many changes in one write."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._versions = {TOPICS: 0, GROUPS: 0}
        self._dirty: set[str] = set()
        self._lock = asyncio.Lock()
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[tuple[str, str], GroupConfig] = {}

    async def load(self) -> None:
        topics = _decode(TOPICS, await self._store.load(TOPICS), _Topics)
        groups = _decode(GROUPS, await self._store.load(GROUPS), _Groups)
        self._versions = {TOPICS: topics.version, GROUPS: groups.version}
        self.topics = {config.name: config for config in topics.topics}
        self.groups = {(config.topic, config.name): config for config in groups.groups}

    def put_topic(self, config: TopicConfig) -> None:
        self.topics[config.name] = config
        self._dirty.add(TOPICS)

    def drop_topic(self, topic: str) -> None:
        del self.topics[topic]
        self._dirty.add(TOPICS)

    def put_group(self, config: GroupConfig) -> None:
        self.groups[config.topic, config.name] = config
        self._dirty.add(GROUPS)

    def drop_group(self, topic: str, group: str) -> None:
        del self.groups[topic, group]
        self._dirty.add(GROUPS)

    async def save(self) -> None:
        """Write what has changed since it was written last."""
        async with self._lock:
            dirty, self._dirty = self._dirty, set()
            try:
                for name in sorted(dirty):
                    self._versions[name] += 1
                    await self._store.save(name, self._document(name))
            except BaseException:
                self._dirty |= dirty
                raise

    def _document(self, name: str) -> bytes:
        if name == TOPICS:
            document: _Topics | _Groups = _Topics(self._versions[name], list(self.topics.values()))
        else:
            kept = [config for config in self.groups.values() if not config.ephemeral]
            document = _Groups(self._versions[name], kept)
        return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _decode(name: str, document: bytes | None, kind: type[_T]) -> _T:
    if document is None:
        return kind()
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"{name} in the store's config folder cannot be read: {error}. Mend or remove it.") from None
