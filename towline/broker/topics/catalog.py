"""Topics and groups by name. A change is appended to a stream of the store, and is as durable as its record.

`topics.json` and `subscriptionGroup.json` hold all of them for people. They are written behind, now and then; each
names the last change that it holds, and a start replays those that follow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import msgspec

from towline.broker.journal import replayed
from towline.clock import Clock, TimeSlice, in_slices
from towline.delivery.catalog_changes import (
    GROUP_CHANGES,
    TOPIC_CHANGES,
    CatalogChange,
    GroupDropped,
    GroupPut,
    TemplatePut,
    TopicDropped,
    TopicPut,
    decode_catalog_change,
    encode_catalog_change,
    follow,
)
from towline.errors import DiskFull, QueueFull
from towline.frame import encode_events
from towline.model import GROUPS_FILE, TOPICS_FILE, Durability, GroupConfig, TopicConfig
from towline.store import Append, Appended, Lost, Store
from towline.store.document import NEWER, ConfigFile, DataVersion

__all__ = ["TEMPLATE", "WRITE_S", "Catalog"]

log = logging.getLogger("towline.broker")


TEMPLATE: Final = TopicConfig("template")
"""The template before any change. Its name means nothing: it stands apart from the topics."""

UNIT_MAX: Final = 1_000
"""Changes that are appended together."""
WRITE_S: Final = 1.0
"""The least pause between two writes of the documents, ..."""
WRITE_SHARE: Final = 20
"""... and as a multiple of the time that it took: large ones are not written all the time."""


class _Topics(msgspec.Struct):
    version: DataVersion = msgspec.field(name="dataVersion", default=DataVersion())
    position: int | None = None
    """The first change that it does not hold, in `catalog/topics`. Without one it is complete: a broker of a version
    before has written it, that knew of no changes."""
    template: TopicConfig = TEMPLATE
    topics: list[TopicConfig] = []
    lines: list[str] = msgspec.field(name="businessLines", default_factory=list)
    """Business lines in the order of lists."""


class _Groups(msgspec.Struct):
    version: DataVersion = msgspec.field(name="dataVersion", default=DataVersion())
    position: int | None = None
    """The first change that it does not hold, in `catalog/groups`."""
    groups: list[GroupConfig] = []


_Document = TypeVar("_Document", bound=_Topics | _Groups)
_Key = tuple[str, ...]


class Catalog:
    """The catalog. Changes are seen at once; `save` makes them durable, many changes in one append."""

    def __init__(self, store: Store, clock: Clock, lines: Iterable[str] = ()) -> None:
        self._store = store
        self._clock = clock
        self._lines = list(lines)
        self._topics = _Changes(store, TOPIC_CHANGES, ConfigFile(store, TOPICS_FILE, _Topics))
        self._groups = _Changes(store, GROUP_CHANGES, ConfigFile(store, GROUPS_FILE, _Groups))
        self._writing = asyncio.Lock()
        self._written_s = self._took_s = 0.0
        """When the documents were written last, and how long that took."""
        self.template = TEMPLATE
        """The settings of a topic that is made by the first send to it."""
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[tuple[str, str], GroupConfig] = {}
        self.dropped: set[tuple[str, str]] = set()
        """As loaded, groups that were deleted of late: their streams may be there still."""
        self.leaving: dict[tuple[str, str], int] = {}
        """Deleted groups whose streams are not gone yet; and a change no later than the one that deletes them: without
        that, a start would take the rest of their streams for groups that it does not know."""
        self.shards = 0
        """Of all topics."""

    # Recovery

    async def load(self, part: TimeSlice) -> None:
        """The documents, and the changes since they were written."""
        topics = await self._topics.load(part) or _Topics()
        groups = await self._groups.load(part) or _Groups()
        self.template = topics.template
        self.topics = {config.name: config for config in topics.topics}
        await part.rest()
        self.groups = {(config.topic, config.name): config for config in groups.groups}
        for changes in (self._topics, self._groups):
            async for number, change in changes.replay(part):
                self._note_dropped(change)
                if number < changes.position:
                    continue
                if isinstance(change, TemplatePut):
                    self.template = change.config
                follow(change, self.topics, self.groups)
        if not self._groups.is_whole:
            self.dropped.clear()  # they may have been made anew since
        self.dropped -= self.groups.keys()
        self.shards = sum(config.shards for config in self.topics.values())
        if topics.lines != self._lines:
            self._topics.stale = True

    def _note_dropped(self, change: CatalogChange) -> None:
        if isinstance(change, GroupDropped):
            self.dropped.add((change.topic, change.group))
        elif isinstance(change, GroupPut):
            self.dropped.discard((change.config.topic, change.config.name))

    @staticmethod
    def template_in(document: bytes) -> TopicConfig:
        """The template that a `topics.json` holds."""
        found = msgspec.json.decode(document, type=dict[str, msgspec.Raw]).get("template")  # not of all the topics
        return TEMPLATE if found is None else msgspec.json.decode(found, type=TopicConfig)

    # Changes

    def from_template(self, name: str) -> TopicConfig:
        """The settings of a topic that was not made by request."""
        return msgspec.structs.replace(self.template, name=name, created_at_us=self._clock.now_us())

    def put_template(self, config: TopicConfig) -> None:
        self.template = msgspec.structs.replace(config, name=TEMPLATE.name, created_at_us=0)
        self._topics.note((), TemplatePut(self.template))

    def put_topic(self, config: TopicConfig) -> None:
        old = self.topics.get(config.name)
        self.shards += config.shards - (old.shards if old is not None else 0)
        self.topics[config.name] = config
        self._topics.note((config.name,), TopicPut(config), new=old is None)

    def drop_topic(self, topic: str) -> None:
        self.shards -= self.topics.pop(topic).shards
        self._topics.note((topic,), TopicDropped(topic))

    def put_group(self, config: GroupConfig) -> None:
        key = config.topic, config.name
        new, self.groups[key] = key not in self.groups, config
        if not config.ephemeral:
            self._groups.note(key, GroupPut(config), new=new)

    def drop_group(self, topic: str, group: str) -> None:
        """The caller takes it out of `leaving`, once its streams are gone."""
        self.leaving[topic, group] = self._groups.end
        if not self.groups.pop((topic, group)).ephemeral:
            self._groups.note((topic, group), GroupDropped(topic, group))

    # Durability

    def record_of(self, config: GroupConfig) -> list[Append]:
        """The record of a new group, to be appended in one unit with the group's first events."""
        return [] if config.ephemeral else [self._groups.append_of([GroupPut(config)], self._clock.now_us())]

    def recorded(self, config: GroupConfig, appended: Appended) -> None:
        """The record of a new group was appended, as the first of a unit."""
        key = config.topic, config.name
        self.groups[key] = config
        if not config.ephemeral:
            self._groups.appended([key], appended.firsts[0])

    def append(self, durability: Durability) -> Appended:
        """Append the changes; the answer comes when these, and all before them, are durable."""
        for changes in (self._topics, self._groups):
            while unsaved := dict(islice(changes.unsaved.items(), UNIT_MAX)):
                append = changes.append_of(list(unsaved.values()), self._clock.now_us())
                changes.appended(list(unsaved), self._store.append([append], durability).firsts[0])
        return self._store.append([], durability)

    async def save(self) -> None:
        """Return when all changes are durable."""
        try:
            appended = self.append(Durability.FSYNC)
        except (QueueFull, DiskFull):
            # There may be room for the documents still, in place of those that are there.
            await self.write()
            return
        await appended.done
        if getattr(self._store, "older_may_come", False):
            # Brokers of a version before know the documents only.
            await self.write()

    # Documents

    @property
    def is_behind(self) -> bool:
        """Whether the documents are not up to date."""
        return self._topics.is_behind or self._groups.is_behind

    async def renew(self) -> None:
        """At a start: write documents that must not wait."""
        if self._topics.stale or self._groups.stale:
            await self.write()

    async def write_behind(self) -> None:
        """Write the documents if they are behind, and it is time."""
        pause_s = max(WRITE_S, WRITE_SHARE * self._took_s)
        if self.is_behind and self._clock.steady_s() - self._written_s >= pause_s:
            await self.write()

    async def write(self) -> None:
        """Write the documents that are behind; others run in between."""
        async with self._writing:
            begun_s = self._clock.steady_s()
            if self._topics.is_behind:
                head: dict[str, Any] = {"template": self.template}
                await self._write(
                    self._topics, head, "topics", list(self.topics.values()), {"businessLines": self._lines}
                )
            if self._groups.is_behind:
                kept = [config for config in self.groups.values() if not config.ephemeral]
                await self._write(self._groups, {}, "groups", kept, {})
            self._written_s = self._clock.steady_s()
            self._took_s = self._written_s - begun_s

    async def _write(
        self,
        changes: _Changes[Any],
        head: Mapping[str, Any],
        name: str,
        configs: Sequence[msgspec.Struct],
        tail: Mapping[str, Any],
    ) -> None:
        # From here on to the first await, nothing changes: the document is as of this moment.
        version, noted, position = changes.version.next(self._clock.now_us()), dict(changes.unsaved), changes.end
        changes.stale = False
        try:
            document = await _document({"dataVersion": version, "position": position, **head}, name, configs, tail)
            # It never holds a change that is not durable.
            await self._store.append([], Durability.FSYNC).done
            await changes.written(document, version, position, noted)
        except BaseException:
            changes.stale = True
            raise

    async def tidy(self) -> None:
        """Drop the changes that both documents of a kind, the last one and the one before, have."""
        await self._topics.tidy(self._topics.end)
        await self._groups.tidy(self._left_from)

    def pins(self) -> dict[str, int]:
        """The changes that a start needs, by stream."""
        return {self._topics.stream: self._topics.pin, self._groups.stream: min(self._groups.pin, self._left_from)}

    @property
    def _left_from(self) -> int:
        return min(self.leaving.values(), default=self._groups.end)


class _Changes(Generic[_Document]):
    """The changes of one kind, in their stream; and the document that has those before some position."""

    def __init__(self, store: Store, stream: str, file: ConfigFile[_Document]) -> None:
        self.stream = stream
        self._store = store
        self._file = file
        self.version = DataVersion()
        self.unsaved: dict[_Key, CatalogChange] = {}
        """By topic or group, the last change that is not in the stream yet."""
        self._unheard: set[_Key] = set()
        """Those of them that were never in the stream."""
        self.end = 0
        """The number of the next change."""
        self.stale = False
        """Whether the document is to be written though nothing has changed."""
        self._unfit = False
        """Whether the files do not match the log, and both are to be written anew."""
        self.position = 0
        """The position of the document."""
        self._before: int | None = None
        """The position of the one before it, its `.bak`; not known until this broker has written that."""
        self.is_whole = True
        """Whether the stream has all changes since its first record."""
        self._quiet: int | None = None
        """The position of the document when it was tidied up last."""

    @property
    def is_behind(self) -> bool:
        return self.stale or bool(self.unsaved) or self.position < self.end

    @property
    def pin(self) -> int:
        return self._store.bounds(self.stream).first if self._before is None else self._before

    async def load(self, part: TimeSlice) -> _Document | None:
        found = await self._file.load(part)
        first, self.end, _ = self._store.bounds(self.stream)
        if found is None:
            return None
        self.version, self.position = found.version, found.position or 0
        if found.position is None or found.position > self.end:
            if found.position is not None:
                log.error("%s has changes that the log does not have: %s. It counts as it is", self._file.name, NEWER)
            self.stale = self._unfit = True
            self.is_whole, self.position = False, self.end
        elif first and found.position < first:
            log.error(
                "%s goes up to change %d, and the log has those from %d on: what changed in between is not known. Look "
                "through topics and groups, or bring back both from one backup (towline restore)",
                *(self._file.name, found.position, first),
            )
        return found

    async def replay(self, part: TimeSlice) -> AsyncIterator[tuple[int, CatalogChange]]:
        """The changes in the stream, by number: those since the document was written, and those before."""
        async for number, change, _ in replayed(
            self._store, self.stream, 0, decode_catalog_change, part, lost=self._miss
        ):
            yield number, change

    def _miss(self, lost: Lost) -> None:
        self.is_whole = False
        last = lost.first + lost.count - 1
        if last >= self.position:
            log.error("%s: changes %d to %d are lost: %s", self.stream, lost.first, last, lost.reason)

    def note(self, key: _Key, change: CatalogChange, *, new: bool = False) -> None:
        """A change was made. One that was undone before it was appended leaves nothing behind there; a file that is
        being written may have it."""
        noted = self.unsaved.pop(key, None)
        if key in self._unheard and isinstance(change, TopicDropped | GroupDropped):
            self._unheard.discard(key)
            self.stale = True
            return
        self.unsaved[key] = change
        if new and noted is None:
            self._unheard.add(key)

    def append_of(self, changes: Sequence[CatalogChange], now_us: int) -> Append:
        records = [encode_catalog_change(change) for change in changes]
        return Append(self.stream, encode_events(records, produced_at_us=now_us), len(records), control=True)

    def appended(self, keys: Sequence[_Key], first: int) -> None:
        """The last changes of these were appended."""
        self.end = first + len(keys)
        for key in keys:
            self.unsaved.pop(key, None)
            self._unheard.discard(key)

    async def written(
        self, document: bytes, version: DataVersion, position: int, noted: Mapping[_Key, CatalogChange]
    ) -> None:
        """Write the document; it holds what was `noted` as well, though the stream does not."""
        await self._file.replace(document)
        if self._unfit:
            await self._file.settle()
        self.version, self._before, self.position = version, self.position, position
        if self._unfit:
            self._unfit, self._before = False, position
        for key, change in noted.items():
            if self.unsaved.get(key) is change:
                del self.unsaved[key]
                self._unheard.discard(key)

    async def tidy(self, most: int) -> None:
        """Drop the changes that no document needs, and that are before this one."""
        first, end, _ = self._store.bounds(self.stream)
        quiet, self._quiet = self._quiet, self.position
        if first == end:
            return
        if quiet == self.position and self._before != quiet and not self.is_behind:
            # The older document alone must not hold back retention for ever.
            await self._file.settle()
            self._before = quiet
        if first < (pin := min(self.pin, most)):
            await self._store.trim(self.stream, pin)


async def _document(
    head: Mapping[str, Any], name: str, configs: Sequence[msgspec.Struct], tail: Mapping[str, Any]
) -> bytes:
    """A document as people read it, encoded in slices."""
    parts = [b"{\n"]
    for key, value in head.items():
        parts += (f'  "{key}": '.encode(), _indented(value, 1).lstrip(), b",\n")
    parts.append(f'  "{name}": ['.encode())
    separator = b"\n"
    async for config in in_slices(configs):
        parts += (separator, _indented(config, 2))
        separator = b",\n"
    parts.append(b"\n  ]" if configs else b"]")
    for key, value in tail.items():
        parts += (f',\n  "{key}": '.encode(), _indented(value, 1).lstrip())
    parts.append(b"\n}\n")
    # Megabytes are put together without holding up the loop.
    return await asyncio.to_thread(b"".join, parts) if len(configs) > UNIT_MAX else b"".join(parts)


def _indented(value: Any, level: int) -> bytes:
    margin = b"  " * level
    return margin + msgspec.json.format(msgspec.json.encode(value), indent=2).replace(b"\n", b"\n" + margin)
