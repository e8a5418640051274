"""How a broker comes back: snapshots of groups and producers, and the events and frames that followed them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from towline.broker.agenda import parcels_in
from towline.broker.catalog import Catalog
from towline.broker.config_file import NEWER, ConfigFile, DataVersion
from towline.broker.dispatcher import Dispatcher
from towline.broker.ordering import shards_in
from towline.broker.scheduling import delay_mark
from towline.clock import Clock, SteadyClock
from towline.delivery import Dedup, Event, Group, GroupSnapshot, Producers, decode_event, mend, restore, snapshot
from towline.delivery.dedup import Seen
from towline.delivery.events import Started
from towline.delivery.parcel import Opened, Parcel
from towline.delivery.producers import ProducersSnapshot
from towline.errors import StoreDamaged
from towline.format import not_understood
from towline.frame import Frame
from towline.frame.layout import DEDUP, UNKNOWN_FLAGS
from towline.model import PRIVATE, Durability, GroupConfig, pull_stream
from towline.store import Chunk, Store

__all__ = ["Snapshots", "find_uncatalogued", "recover_group", "recover_producers"]

log = logging.getLogger("towline.broker")

OFFSETS: Final = "consumerOffset.json"
PRODUCERS: Final = "producers.bin"
READ_BYTES: Final = 8 << 20
READ_COUNT: Final = 100_000


class _Offsets(msgspec.Struct):
    version: DataVersion = msgspec.field(name="dataVersion", default=DataVersion())
    groups: list[GroupSnapshot] = []


class _ProducersDocument(msgspec.Struct, array_like=True):
    """What is remembered of producers and of dedup ids, and the end of each lane at that time."""

    ends: dict[str, int]
    remembered: ProducersSnapshot
    seen: list[tuple[tuple[str, bytes], Seen]] = []


class Snapshots:
    """Writes what recovery begins with. A snapshot never speaks of anything that is not durable."""

    def __init__(self, store: Store, clock: Clock, time: SteadyClock) -> None:
        self._store = store
        self._clock = clock
        self._time = time
        self._set_us = 0
        self._file = ConfigFile(store, OFFSETS, _Offsets, indent=1)
        self._version = DataVersion()
        self._written: dict[tuple[str, str], int] = {}
        self._before: dict[tuple[str, str], int] = {}
        """As of the snapshot before, which the file's `.bak` holds."""
        self._remembered = b""
        self.groups: dict[tuple[str, str], GroupSnapshot] = {}
        """As loaded, by topic and group."""

    async def load(self) -> None:
        try:
            offsets = await self._file.load()
        except StoreDamaged as error:
            log.error("%s. The pull logs are replayed from their beginning instead", error)
            return
        if offsets is None:
            return
        self._version = offsets.version
        self.groups = {(one.topic, one.group): one for one in offsets.groups}
        ahead = [name for name, one in self.groups.items() if self._is_ahead(one)]
        if ahead:
            await self._go_back(ahead)
        self._written = self._before = {name: one.position for name, one in self.groups.items()}

    def _is_ahead(self, one: GroupSnapshot) -> bool:
        """Whether it speaks of events that the log does not have: with it, a group would pass over new messages."""
        return one.position > self._store.bounds(pull_stream(one.topic, one.group)).end

    async def _go_back(self, ahead: Iterable[tuple[str, str]]) -> None:
        """Take the snapshot before for these groups, if it fits the log, and else none."""
        older = await self._file.load_older()
        before = {} if older is None else {(one.topic, one.group): one for one in older.groups}
        for name in ahead:
            instead = before.get(name)
            fits = instead is not None and not self._is_ahead(instead)
            source = f"{self._file.backup} is used" if fits else "The pull log is replayed"
            log.error(
                "%s speaks of events of group %s of topic %s that the log does not have: %s. %s instead: messages may "
                "come twice, none is lost",
                *(OFFSETS, name[1], name[0], NEWER, source),
            )
            if instead is not None and fits:
                self.groups[name] = instead
            else:
                del self.groups[name]

    async def save(
        self, dispatchers: Iterable[Dispatcher], producers: Producers, dedup: Dedup, ends: dict[str, int]
    ) -> None:
        kept = [one for one in dispatchers if not one.group.config.ephemeral and not one.closed]
        set_us = self._time.set_us
        if self._before != self._written and self._positions(kept) == self._written and set_us == self._set_us:
            # What only the older snapshot needs must not hold back retention for ever.
            await self._file.settle()
            self._before = self._written
        version = self._version.next(self._clock.now_us())
        refused = -1
        while refused != (refused := _refused(kept, producers, dedup)):
            # What is refused meanwhile was never stored: who sends it again must not be told that it was, and what died
            # is not among the dead letters.
            positions = self._positions(kept)
            changed = positions != self._written or set_us != self._set_us
            groups = [snapshot(one.group, one.position, set_us) for one in kept] if changed else []
            offsets = _Offsets(version, groups) if changed else None
            document = _ProducersDocument(ends, producers.snapshot(), dedup.snapshot(set_us))
            remembered = msgspec.msgpack.encode(document)
            if offsets is None and remembered == self._remembered:
                return
            await self._store.append([], Durability.FSYNC).done
        if offsets is not None:
            await self._file.save(offsets)
            self._version = version
            self._set_us = set_us
            self._before, self._written = self._written, positions
        await self._store.save(PRODUCERS, remembered)
        self._remembered = remembered

    @staticmethod
    def _positions(dispatchers: Iterable[Dispatcher]) -> dict[tuple[str, str], int]:
        return {(one.group.config.topic, one.group.config.name): one.position for one in dispatchers}

    def pins(self) -> dict[str, int]:
        """The events that recovery still needs, by pull log: also if it has to begin with the snapshot before the last
        one, because that is damaged."""
        return {pull_stream(topic, group): self._before.get((topic, group), 0) for topic, group in self._written}


def _refused(dispatchers: Iterable[Dispatcher], producers: Producers, dedup: Dedup) -> int:
    """How often something was taken back because it was not stored."""
    return producers.forgotten + dedup.forgotten + sum(one.taken_back for one in dispatchers)


async def recover_group(store: Store, config: GroupConfig, document: GroupSnapshot | None, shards: int = 0) -> Group:
    """The group as it was: from its snapshot, then event by event through the same `apply` as ever."""
    stream = pull_stream(config.topic, config.name)
    first, end, _ = store.bounds(stream)
    at, whole = first, True
    group = Group(config, shards)
    if document is not None and document.places(shards) is None:
        log.error("the snapshot of %s is of other lanes than the topic has: the pull log is replayed instead", stream)
        document = None
    if document is not None:
        group, at = restore(config, document, shards), max(document.position, first)
    while at < end:
        read = await store.read(stream, at, READ_COUNT, READ_BYTES)
        for lost in read.lost:
            whole = False
            log.error("pull log %s: %d events from %d on are lost: %s", stream, lost.count, lost.first, lost.reason)
        for chunk in read.chunks:
            frame = _known(Frame(chunk.frame), stream, chunk.first)
            for number, record in enumerate(frame.bodies(chunk.start, chunk.start + chunk.count), chunk.first):
                event = _event(record, stream, number)
                if isinstance(event, Started):
                    # Of the group that was deleted, and made anew under the same name, the snapshot may still tell.
                    group = Group(config, shards)
                whole = _replay(group, event, stream, whole=whole)
        at = max(read.next, at + 1)
    return group


def _event(record: bytes, stream: str, number: int) -> Event:
    try:
        return decode_event(record)
    except msgspec.MsgspecError as error:
        # Its frame is whole: it is no damage. A group without it would be a wrong one.
        raise not_understood(f"pull log {stream}: event {number}", error) from None


def _known(frame: Frame, stream: str, first: int) -> Frame:
    if unknown := frame.flags & UNKNOWN_FLAGS:
        raise not_understood(f"{stream}: the frame of record {first}", f"unknown flags {unknown:#x}")
    return frame


def _replay(group: Group, event: Event, stream: str, *, whole: bool) -> bool:
    """Apply one event of a pull log; whether all were whole so far. Once some were lost, the rest is made to fit."""
    if whole:
        try:
            group.apply(event)
        except Exception:
            # A group that delivers some messages again is better than a broker that does not start.
            log.exception("pull log %s: an event does not fit those before it: %s", stream, event)
        else:
            return True
    if mend(group, event):
        log.warning("pull log %s: an event that followed lost ones was made to fit: %s", stream, type(event).__name__)
    return False


async def recover_producers(
    store: Store, lanes: Mapping[str, tuple[str, int]], slots: Sequence[str], dedup: Dedup, now_us: int
) -> Producers:
    """What producers sent, and the dedup ids of it: from the snapshot, then from the frames that came after it. `lanes`
    are the topic and number of each lane, by stream; `slots` the streams of delayed messages."""
    producers, ends = Producers(), dict[str, int]()
    document = await store.load(PRODUCERS)
    if document is not None:
        try:
            decoded = msgspec.msgpack.decode(document, type=_ProducersDocument)
            if any(end > store.bounds(stream).end for stream, end in decoded.ends.items()):
                # A frame that is sent again would be taken for one that is stored.
                log.error("%s speaks of messages that the log does not have: %s. All of it is read", PRODUCERS, NEWER)
            else:
                ends = decoded.ends
                producers.restore(decoded.remembered)
                dedup.restore(decoded.seen, now_us)
        except msgspec.MsgspecError as error:
            log.error("%s cannot be read (%s): frames sent before are not recognised if sent again", PRODUCERS, error)
            ends = {stream: store.bounds(stream).end for stream in [*lanes, *slots]}
    for stream, (topic, lane) in lanes.items():
        async for chunk in _frames_since(store, stream, ends.get(stream, 0)):
            frame = _known(Frame(chunk.frame), stream, chunk.first)
            if frame.producer_id:
                producers.remember(frame.producer_id, frame.producer_seq, chunk.first, chunk.appended_at_us)
            dedup.replay(topic, frame, Seen(lane, chunk.first, chunk.appended_at_us), now_us)
    for stream in slots:
        async for parcel, at_us in _parcels_since(store, stream, ends.get(stream, 0)):
            _remember_parcel(parcel, at_us, producers, dedup, now_us)
    dedup.replayed(now_us)
    return producers


async def _parcels_since(store: Store, stream: str, at: int) -> AsyncIterator[tuple[Parcel, int]]:
    end = store.bounds(stream).end
    while at < end:
        read = await store.read(stream, at, READ_COUNT, READ_BYTES)
        for _, parcel, at_us in parcels_in(read, stream):
            yield parcel, at_us
        at = max(read.next, at + 1)


def _remember_parcel(parcel: Parcel, at_us: int, producers: Producers, dedup: Dedup, now_us: int) -> None:
    """A frame that went to the schedule, or what of it went to one slot."""
    frame = Frame(parcel.frame)
    if frame.producer_id:
        producers.remember(frame.producer_id, frame.producer_seq, delay_mark(parcel.first_id), at_us)
    if frame.flags & DEDUP and not parcel.moved:
        ids = Opened(parcel).ids(0, parcel.count)
        dedup.replay_delayed(parcel.topic, frame, (Seen(parcel.lane, delay_mark(one), at_us) for one in ids), now_us)


async def _frames_since(store: Store, stream: str, at: int) -> AsyncIterator[Chunk]:
    """The frames of a lane from record `at` on, without one that began before it."""
    end = store.bounds(stream).end
    while at < end:
        read = await store.read(stream, at, READ_COUNT, READ_BYTES)
        for chunk in read.chunks:
            if not chunk.start:
                yield chunk
        at = max(read.next, at + 1)


def find_uncatalogued(store: Store, catalog: Catalog, clock: Clock) -> None:
    """Topics and groups that were made just before a crash: their streams are there, their entry is not yet."""
    for stream in store.streams("lane/"):
        topic = stream.split("/")[1]
        first, end, _ = store.bounds(stream)
        if topic not in catalog.topics and first < end:
            log.warning("topic %s is in the store but not in topics.json: added from the template", topic)
            shards = shards_in(store, topic)
            catalog.put_topic(msgspec.structs.replace(catalog.from_template(topic), shards=shards))
    for stream in store.streams("pull/"):
        _, topic, group = stream.split("/")
        first, end, _ = store.bounds(stream)
        unknown = (topic, group) not in catalog.groups and topic in catalog.topics
        if unknown and first < end and not group.startswith(PRIVATE):
            log.warning("group %s on topic %s is added with default settings", group, topic)
            catalog.put_group(GroupConfig(topic, group, created_at_us=clock.now_us()))
