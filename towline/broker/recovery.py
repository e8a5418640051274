"""How a broker comes back: snapshots of groups and producers, and the events and frames that followed them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from towline.broker.dispatcher import Dispatcher
from towline.delivery import Group, GroupSnapshot, Producers, decode_event, mend, restore, snapshot
from towline.delivery.producers import ProducersSnapshot
from towline.frame import Frame
from towline.model import Durability, GroupConfig, pull_stream
from towline.store import Store

__all__ = ["Snapshots", "recover_group", "recover_producers"]

log = logging.getLogger("towline.broker")

OFFSETS: Final = "consumerOffset.json"
PRODUCERS: Final = "producers.bin"
READ_BYTES: Final = 8 << 20
READ_COUNT: Final = 100_000


class _Offsets(msgspec.Struct):
    version: int = 0
    groups: list[GroupSnapshot] = []


class _ProducersDocument(msgspec.Struct, array_like=True):
    """What is remembered of producers, and the end of each lane at that time."""

    ends: dict[str, int]
    remembered: ProducersSnapshot


class Snapshots:
    """Writes what recovery begins with. A snapshot never speaks of anything that is not durable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = 0
        self._written: dict[tuple[str, str], int] = {}
        self._remembered = b""
        self.groups: dict[tuple[str, str], GroupSnapshot] = {}
        """As loaded, by topic and group."""

    async def load(self) -> None:
        document = await self._store.load(OFFSETS)
        if document is None:
            return
        try:
            offsets = msgspec.json.decode(document, type=_Offsets)
        except msgspec.MsgspecError as error:
            log.error("%s cannot be read (%s): the pull logs are replayed from their beginning", OFFSETS, error)
            return
        self._version = offsets.version
        self.groups = {(one.topic, one.group): one for one in offsets.groups}
        self._written = {name: one.position for name, one in self.groups.items()}

    async def save(self, dispatchers: Iterable[Dispatcher], producers: Producers, ends: dict[str, int]) -> None:
        kept = [one for one in dispatchers if not one.group.config.ephemeral and not one.closed]
        positions = {(one.group.config.topic, one.group.config.name): one.position for one in kept}
        changed = positions != self._written
        offsets = _Offsets(self._version + 1, [snapshot(one.group, one.position) for one in kept]) if changed else None
        remembered = msgspec.msgpack.encode(_ProducersDocument(ends, producers.snapshot()))
        if offsets is None and remembered == self._remembered:
            return
        await self._store.append([], Durability.FSYNC).done
        if offsets is not None:
            await self._store.save(OFFSETS, msgspec.json.format(msgspec.json.encode(offsets), indent=1))
            self._version += 1
            self._written = positions
        await self._store.save(PRODUCERS, remembered)
        self._remembered = remembered

    def pins(self) -> dict[str, int]:
        """The events that recovery still needs, by pull log."""
        return {pull_stream(topic, group): position for (topic, group), position in self._written.items()}


async def recover_group(store: Store, config: GroupConfig, document: GroupSnapshot | None, shards: int = 0) -> Group:
    """The group as it was: from its snapshot, then event by event through the same `apply` as ever."""
    stream = pull_stream(config.topic, config.name)
    first, end, _ = store.bounds(stream)
    at, whole = first, True
    group = Group(config, shards)
    if document is not None and len(document.offsets) != len(group.next):
        log.error("the snapshot of %s is of another number of lanes: the pull log is replayed instead", stream)
        document = None
    if document is not None:
        group, at = restore(config, document, shards), max(document.position, first)
        if document.position > end:
            log.error(
                "pull log %s ends at event %d, but a snapshot speaks of %d: the snapshot is used, events are missing",
                stream,
                end,
                document.position,
            )
    while at < end:
        read = await store.read(stream, at, READ_COUNT, READ_BYTES)
        for lost in read.lost:
            whole = False
            log.error("pull log %s: %d events from %d on are lost: %s", stream, lost.count, lost.first, lost.reason)
        for chunk in read.chunks:
            for record in Frame(chunk.frame).bodies(chunk.start, chunk.start + chunk.count):
                whole = _replay(group, record, stream, whole=whole)
        at = max(read.next, at + 1)
    return group


def _replay(group: Group, record: bytes, stream: str, *, whole: bool) -> bool:
    """Apply one event of a pull log; whether all were whole so far. Once some were lost, the rest is made to fit."""
    try:
        event = decode_event(record)
    except msgspec.MsgspecError as error:
        log.error("pull log %s: an event cannot be read and is passed over: %s", stream, error)
        return False
    if whole:
        group.apply(event)
    elif mend(group, event):
        log.warning("pull log %s: an event that followed lost ones was made to fit: %s", stream, type(event).__name__)
    return whole


async def recover_producers(store: Store, lanes: Iterable[str]) -> Producers:
    """What producers sent: from the snapshot, then from the headers of the frames that came after it."""
    producers, ends = Producers(), dict[str, int]()
    document = await store.load(PRODUCERS)
    if document is not None:
        try:
            decoded = msgspec.msgpack.decode(document, type=_ProducersDocument)
            ends = decoded.ends
            producers.restore(decoded.remembered)
        except msgspec.MsgspecError as error:
            log.error("%s cannot be read (%s): frames sent before are not recognised if sent again", PRODUCERS, error)
            ends = {stream: store.bounds(stream).end for stream in lanes}
    for stream in lanes:
        await _remember_frames(store, stream, ends.get(stream, 0), producers)
    return producers


async def _remember_frames(store: Store, stream: str, at: int, producers: Producers) -> None:
    end = store.bounds(stream).end
    while at < end:
        read = await store.read(stream, at, READ_COUNT, READ_BYTES)
        for chunk in read.chunks:
            frame = Frame(chunk.frame)
            if frame.producer_id and not chunk.start:
                producers.remember(frame.producer_id, frame.producer_seq, chunk.first, chunk.appended_at_us)
        at = max(read.next, at + 1)
