"""Producers and dedup ids on file: `producers.bin`, and the parts that it names.

A save costs what has changed since the last one, and others run in between. It never holds anything that is not
durable, or was refused: entries are noted first, then waited for, and written without those refused meanwhile. Parts go
to documents that the last `producers.bin` does not name, so a crash in between leaves that one whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from crc32c import crc32c

from towline.broker.table_snapshot import PartName, Plan, Slots, TableSnapshot, packed
from towline.clock import SECOND_US, SteadyClock, TimeSlice, in_slices
from towline.delivery.dedup import Gone, Key, Seen
from towline.delivery.producers import Copy, ProducersSnapshot, Window
from towline.format import decode_document, not_understood
from towline.model import Durability
from towline.store.document import NEWER

if TYPE_CHECKING:
    from towline.broker.topics.topic import Topic
    from towline.delivery import Dedup, Producers
    from towline.store import Store

__all__ = ["PRODUCERS", "ProducersFile"]

log = logging.getLogger("towline.broker")

PRODUCERS: Final = "producers.bin"
BACK_S: Final = 600.0
"""Where a part is lost, at least so much of the log is read again."""
SETTLED: Final = 3
"""Turns of the loop until all refusals before a barrier are known."""

K = TypeVar("K")
_ENCODE = msgspec.msgpack.Encoder().encode


class _Document(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The loose entries of three tables, and the names of the other parts."""

    ends: dict[str, int]
    """The end of each lane when the rest was noted, or before."""
    remembered: ProducersSnapshot
    seen: list[tuple[Key, Seen]] = []
    lanes: list[PartName] = []
    producers: list[PartName] = []
    ids: list[PartName] = []
    set_us: int = 0
    gone: dict[str, Gone] = {}


def _name(slot: int) -> str:
    return f"producers-{slot}.bin"


class ProducersFile:
    def __init__(self, store: Store, time: SteadyClock) -> None:
        self._store = store
        self._time = time
        self._lanes = TableSnapshot[str](1_000, 16_384, 500)
        self._producers = TableSnapshot[int](30, 1_000, 16)
        self._ids = TableSnapshot[bytes](1_000, 16_384, 250, distinct=True)
        self._ends: dict[str, int] = {}
        self._head = b""
        self._slots = Slots()
        self._saving = asyncio.Lock()
        self.written_bytes = 0
        """Of all documents, since the broker started."""

    # Recovery

    async def load(
        self, streams: Iterable[str], producers: Producers, dedup: Dedup, now_us: int, part: TimeSlice
    ) -> dict[str, int]:
        """Restore the file; returns from where on frames are to be read, by stream."""
        kept = await self._store.load(PRODUCERS)
        if kept is None:
            return {}
        try:
            head = decode_document(PRODUCERS, kept, _Document)
        except msgspec.MsgspecError as error:
            return await self._from_log(f"{PRODUCERS} cannot be read ({error})", streams, dedup, now_us)
        self._slots.named = {name.slot for name in (*head.lanes, *head.producers, *head.ids)}
        lost: list[str] = []
        ends: dict[str, int] = {}
        async for _, entries in self._parts(head.lanes, tuple[str, int], lost, part):
            ends.update(entries)
        ends |= head.ends
        if [stream async for stream, end in in_slices(ends.items(), part) if end > self._store.bounds(stream).end]:
            # A frame that is sent again would be taken for one that is stored.
            log.error("%s speaks of messages that the log does not have: %s. All of it is read", PRODUCERS, NEWER)
            return {}
        async for _, windows in self._parts(head.producers, Window, lost, part, at_once=1):
            producers.restore(ProducersSnapshot(windows))
        producers.restore(head.remembered)
        async for name, ids in self._parts(head.ids, tuple[Key, Seen], lost, part):
            ahead_us = head.set_us - name.set_us
            dedup.restore(((key, seen._replace(since_us=seen.since_us + ahead_us)) for key, seen in ids), now_us)
        dedup.restore(head.seen, now_us)
        dedup.gone = {topic: Gone(*(min(at_us, now_us) for at_us in gone)) for topic, gone in head.gone.items()}
        if lost:
            return await self._from_log(f"{', '.join(lost)}: missing or damaged", streams, dedup, now_us)
        return ends

    async def _parts(
        self, names: Iterable[PartName], kind: Any, lost: list[str], part: TimeSlice, at_once: int = 100
    ) -> AsyncIterator[tuple[PartName, list[Any]]]:
        """The entries of documents, some at a time: others run in between."""
        decode = msgspec.msgpack.Decoder(kind).decode
        for name in names:
            document = await self._store.load(_name(name.slot)) or b""
            if crc32c(document) != name.checksum:
                lost.append(_name(name.slot))
                continue
            try:
                entries = msgspec.msgpack.decode(document, type=list[msgspec.Raw])
                for at in range(0, len(entries), at_once):
                    yield name, [decode(entry) for entry in entries[at : at + at_once]]
                    await part.rest()
            except msgspec.MsgspecError as error:
                raise not_understood(_name(name.slot), error) from None

    async def _from_log(self, problem: str, streams: Iterable[str], dedup: Dedup, now_us: int) -> dict[str, int]:
        back_us = max(dedup.window_us, round(BACK_S * SECOND_US))
        log.error(
            "%s. What producers sent in the last %d s is read from the log again; frames from before that may not be "
            "recognised if they are sent again",
            *(problem, back_us // SECOND_US),
        )
        return {stream: await self._store.locate(stream, now_us - back_us) for stream in streams}

    # Save

    async def save(self, topics: Sequence[Topic], slots: Mapping[str, int], producers: Producers, dedup: Dedup) -> None:
        """`slots` are the ends of the streams of delayed messages."""
        async with self._saving:
            await self._save_all(topics, slots, producers, dedup)

    async def _save_all(
        self, topics: Sequence[Topic], slots: Mapping[str, int], producers: Producers, dedup: Dedup
    ) -> None:
        lanes = self._lanes.plan(*await self._ends_now(topics, slots))
        set_us = self._time.set_us
        ids, until_us = self._plan_ids(dedup, self._time.now_us())
        fresh = producers.take_fresh()
        stale = self._producers.is_stale(len(producers))
        heard = self._producers.plan(fresh, producers.ids() if stale else None)
        copies = await self._copies(producers, heard)
        await self._store.append([], Durability.FSYNC).done
        for _ in range(SETTLED):
            await asyncio.sleep(0)

        async def write(plan: Plan[K], step: int, entries: Callable[[Sequence[K]], list[Any]]) -> list[PartName]:
            return [await self._write(keys, step, entries, until_us, set_us) for keys in plan.new]

        lane_names = await write(lanes, self._lanes.step, self._entries)
        id_names = await write(ids, self._ids.step, lambda keys: dedup.entries(keys, until_us, set_us))
        names = await write(heard, self._producers.step, lambda keys: producers.windows(copies[key] for key in keys))
        document = _Document(
            dict(self._entries(lanes.loose)),
            ProducersSnapshot(producers.windows(copies[key] for key in heard.loose)),
            dedup.entries(ids.loose, until_us, set_us),
            [*(part.name for part in lanes.kept), *lane_names],
            [*(part.name for part in heard.kept), *names],
            [*(part.name for part in ids.kept), *id_names],
            set_us,
            {topic: Gone(*(at_us and at_us + set_us for at_us in gone)) for topic, gone in dedup.gone.items()},
        )
        head = _ENCODE(document)
        if head != self._head:
            await self._save(PRODUCERS, head)
            self._head = head
        self._lanes.commit(lanes, lane_names)
        self._ids.commit(ids, id_names)
        self._producers.commit(heard, names)
        for slot in self._slots.settle({name.slot for name in (*document.lanes, *document.producers, *document.ids)}):
            await self._store.save(_name(slot), b"")

    def _plan_ids(self, dedup: Dedup, now_us: int) -> tuple[Plan[bytes], int]:
        """A part is left out as a whole once all in it is forgotten."""
        since_us = max(now_us - dedup.window_us, dedup.oldest_us)
        self._ids.parts = [part for part in self._ids.parts if part.name.until_us >= since_us]
        fresh, until_us = dedup.take_fresh(now_us)
        return self._ids.plan(fresh), until_us

    async def _ends_now(self, topics: Sequence[Topic], slots: Mapping[str, int]) -> tuple[list[str], list[str] | None]:
        """The ends of lanes that have grown; and of all of them, if they are to be written anew."""
        fresh: list[str] = []
        count, part = len(slots), TimeSlice()
        for topic in topics:
            for lane in topic.lanes:
                count += 1
                if lane.end != self._ends.get(lane.stream, 0):
                    fresh.append(lane.stream)
                    self._ends[lane.stream] = lane.end
            if part.over:
                await part.rest()
        fresh += [stream for stream, end in slots.items() if end != self._ends.get(stream, 0)]
        self._ends |= slots
        if not self._lanes.is_stale(count):
            return fresh, None
        there = {lane.stream for topic in topics for lane in topic.lanes} | slots.keys()
        self._ends = {stream: end for stream, end in self._ends.items() if stream in there}
        return fresh, list(self._ends)

    def _entries(self, streams: Iterable[str]) -> list[tuple[str, int]]:
        return [(stream, self._ends[stream]) for stream in streams if stream in self._ends]

    async def _copies(self, producers: Producers, plan: Plan[int]) -> dict[int, Copy]:
        copies: dict[int, Copy] = {}
        part = TimeSlice()
        for keys in (*plan.new, plan.loose):
            for key in keys:
                copies[key] = producers.copy(key)
                if part.over:
                    await part.rest()
        return copies

    async def _write(
        self,
        keys: Sequence[K],
        step: int,
        entries: Callable[[Sequence[K]], list[Any]],
        until_us: int,
        set_us: int,
    ) -> PartName:
        document = await packed(keys, step, entries)
        slot = self._slots.take()
        await self._save(_name(slot), document)
        return PartName(slot, crc32c(document), until_us, set_us)

    async def _save(self, name: str, document: bytes) -> None:
        await self._store.save(name, document)
        self.written_bytes += len(document)
