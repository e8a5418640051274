"""Topics and groups by name, and the two files that keep them: `topics.json` and `subscriptionGroup.json`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from towline.broker.config_file import ConfigFile, DataVersion
from towline.clock import Clock
from towline.model import GroupConfig, TopicConfig
from towline.store import Store

__all__ = ["Catalog"]

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"

TEMPLATE: Final = TopicConfig("template")
"""What the template says before anyone has changed it. Its name means nothing: it stands apart from the topics."""


class _Topics(msgspec.Struct):
    version: DataVersion = msgspec.field(name="dataVersion", default=DataVersion())
    template: TopicConfig = TEMPLATE
    topics: list[TopicConfig] = []
    lines: list[str] = msgspec.field(name="businessLines", default_factory=list)
    """Those that have a place in lists, in that order."""


class _Groups(msgspec.Struct):
    version: DataVersion = msgspec.field(name="dataVersion", default=DataVersion())
    groups: list[GroupConfig] = []


class Catalog:
    """What exists. Changes are seen at once; `save` makes them durable, many changes in one write."""

    def __init__(self, store: Store, clock: Clock, lines: Iterable[str] = ()) -> None:
        self._clock = clock
        self._lines = list(lines)
        self._topics_file = ConfigFile(store, TOPICS, _Topics)
        self._groups_file = ConfigFile(store, GROUPS, _Groups)
        self._versions = {TOPICS: DataVersion(), GROUPS: DataVersion()}
        self._dirty: set[str] = set()
        self._lock = asyncio.Lock()
        self.template = TEMPLATE
        """The settings that a topic made upon the first send to it takes over."""
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[tuple[str, str], GroupConfig] = {}

    async def load(self) -> None:
        topics = await self._topics_file.load() or _Topics()
        groups = await self._groups_file.load() or _Groups()
        self._versions = {TOPICS: topics.version, GROUPS: groups.version}
        if topics.lines != self._lines:
            self._dirty.add(TOPICS)
        self.template = topics.template
        self.topics = {config.name: config for config in topics.topics}
        self.groups = {(config.topic, config.name): config for config in groups.groups}

    @staticmethod
    def template_in(document: bytes) -> TopicConfig:
        """The template that a `topics.json` holds."""
        return msgspec.json.decode(document, type=_Topics).template

    def from_template(self, name: str) -> TopicConfig:
        """The settings of a topic that nobody has made on purpose."""
        return msgspec.structs.replace(self.template, name=name, created_at_us=self._clock.now_us())

    def put_template(self, config: TopicConfig) -> None:
        self.template = msgspec.structs.replace(config, name=TEMPLATE.name, created_at_us=0)
        self._dirty.add(TOPICS)

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
                    self._versions[name] = self._versions[name].next(self._clock.now_us())
                    await self._write(name)
            except BaseException:
                self._dirty |= dirty
                raise

    async def _write(self, name: str) -> None:
        if name == TOPICS:
            await self._topics_file.save(
                _Topics(self._versions[name], self.template, list(self.topics.values()), self._lines)
            )
        else:
            kept = [config for config in self.groups.values() if not config.ephemeral]
            await self._groups_file.save(_Groups(self._versions[name], kept))
