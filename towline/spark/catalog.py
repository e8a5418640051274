"""Topics and groups of a folder, as a broker would recover them: the documents, then the changes since they were
written. A broker may be at work on it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from towline.delivery.catalog_changes import (
    GROUP_CHANGES,
    TOPIC_CHANGES,
    CatalogChange,
    GroupDropped,
    GroupPut,
    TopicDropped,
    TopicPut,
    decode_catalog_change,
)
from towline.format import decode_document, not_understood
from towline.frame import Frame
from towline.model import GROUPS_FILE, TOPICS_FILE
from towline.store.log.offline.streams import Lost, OfflineStreams, read_range
from towline.store.log.write.disk import reading

__all__ = ["FolderCatalog"]


class _Topic(msgspec.Struct):
    name: str
    shards: int = 0


class _Topics(msgspec.Struct):
    position: int | None = None
    topics: list[_Topic] = []


class _Group(msgspec.Struct):
    topic: str
    name: str


class _Groups(msgspec.Struct):
    position: int | None = None
    groups: list[_Group] = []


T = TypeVar("T", _Topics, _Groups)


class FolderCatalog:
    def __init__(self, path: Path) -> None:
        self._path = path

    def topics(self) -> dict[str, int]:
        """All topics, and their shards."""
        document = self._document(TOPICS_FILE, _Topics)
        found = {one.name: one.shards for one in document.topics}
        for change in self._changes(TOPIC_CHANGES, document.position):
            if isinstance(change, TopicPut):
                found[change.config.name] = change.config.shards
            elif isinstance(change, TopicDropped):
                found.pop(change.topic, None)
        return found

    def groups(self) -> dict[str, set[str]]:
        """The names of all groups, by topic."""
        document = self._document(GROUPS_FILE, _Groups)
        found: dict[str, set[str]] = {}
        for one in document.groups:
            found.setdefault(one.topic, set()).add(one.name)
        for change in self._changes(GROUP_CHANGES, document.position):
            if isinstance(change, GroupPut):
                found.setdefault(change.config.topic, set()).add(change.config.name)
            elif isinstance(change, GroupDropped):
                found.get(change.topic, set()).discard(change.group)
        return found

    def _changes(self, stream: str, position: int | None) -> list[CatalogChange]:
        if position is None:
            return []  # a version before has written the document: it is complete
        outside = OfflineStreams(self._path, lambda name: name == stream)
        seen = outside.look().get(stream)
        found: list[CatalogChange] = []
        if seen is None or position >= seen.end:
            return found
        first = max(position, seen.first)
        for chunk in read_range(self._path, stream, first, seen.end, outside.place_of(stream, first)):
            if not isinstance(chunk, Lost):
                bodies = Frame(chunk.frame).bodies(chunk.start, chunk.start + chunk.count)
                try:
                    found += map(decode_catalog_change, bodies)
                except msgspec.MsgspecError as error:
                    raise not_understood(stream, error) from None
        return found

    def _document(self, name: str, kind: type[T]) -> T:
        """If it is damaged or missing, the one before it: the changes behind that are kept as well."""
        for path in (self._path / "config" / name, self._path / "config" / f"{name}.bak"):
            try:
                with reading(path):
                    document = path.read_bytes()
                return decode_document(str(path), document, kind)
            except (FileNotFoundError, msgspec.MsgspecError):
                continue
        return kind(position=0)
