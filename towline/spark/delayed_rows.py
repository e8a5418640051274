"""Delayed messages as rows: the present schedule. A broker is asked; of a folder, its streams are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from towline.delivery.schedule.events import decode_schedule_event
from towline.delivery.schedule.record import OpenedRecord, decode_parcel
from towline.delivery.schedule.schedule import Position, Schedule, ScheduleSnapshot
from towline.delivery.schedule.wheel import Place
from towline.errors import StoreDamaged
from towline.format import decode_document, not_understood
from towline.frame import Frame
from towline.model import DELAY, DELAY_STREAMS, SCHEDULE_FILE, SCHEDULE_MARKS, lane_name, message_id
from towline.spark.arrow.from_frames import TIME
from towline.store.log.offline.streams import Chunk, OfflineStreams, Seen, read_range
from towline.store.log.write.disk import reading

__all__ = ["SCHEDULE", "Delayed", "FolderSchedule", "schedule_batches"]

T = TypeVar("T")

SCHEDULE: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("lane", pa.string()),
        ("id", pa.string()),
        ("key", pa.string()),
        ("deliver_at", TIME),
        ("produced_at", TIME),
        ("size_bytes", pa.int64()),
        ("broker", pa.string()),
    ]
)
"""By `id` a message is cancelled or rescheduled; its body is in its topic once it is due."""

LOOKS_MAX: Final = 10


class Delayed(NamedTuple):
    """A delayed message."""

    lane: str
    id: str
    key: str | None
    deliver_at_us: int
    produced_at_us: int
    size_bytes: int


def schedule_batches(
    pages: Iterable[list[Delayed]], topic: str, broker: str, columns: pa.Schema, key: str | None
) -> Iterator[pa.RecordBatch]:
    for page in pages:
        entries = [one for one in page if key is None or one.key == key]
        values = {
            "topic": [topic] * len(entries),
            "lane": [one.lane for one in entries],
            "id": [one.id for one in entries],
            "key": [one.key or None for one in entries],
            "deliver_at": [one.deliver_at_us for one in entries],
            "produced_at": [one.produced_at_us for one in entries],
            "size_bytes": [one.size_bytes for one in entries],
            "broker": [broker or None] * len(entries),
        }
        arrays = [
            pa.array(values[field.name], pa.int64()).view(TIME)
            if field.type == TIME
            else pa.array(values[field.name], field.type)
            for field in columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)


class FolderSchedule:
    """The schedule of a folder, as a broker would recover it: its last snapshot, then the later records of its streams.
    A broker may be at work on it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        for _ in range(LOOKS_MAX):
            snapshot = self._snapshot()
            self._streams = dict(OfflineStreams(path, lambda name: name.startswith(DELAY_STREAMS)).look())
            self._schedule = Schedule()
            self._recover(snapshot)
            if snapshot == self._snapshot():
                return
        raise StoreDamaged(f"{path}: the schedule changes faster than it can be read: ask the broker (url)")

    def counts(self) -> dict[str, int]:
        """Delayed messages by topic; about, where a broker is at work."""
        return dict(self._schedule.counts)

    def waiting(self, topic: str, shards: int = 0) -> Iterator[list[Delayed]]:
        """The delayed messages of a topic, slot by slot: roughly the soonest first."""
        for slot in sorted(self._schedule.slots.values(), key=lambda slot: slot.place.begin_us):
            seen = self._streams.get(slot.place.stream)
            if seen is None:
                continue
            for seq, record in self._records(seen, slot.next, slot.end):
                parcel = decode_parcel(record)
                wanted = parcel.number == slot.place.number and parcel.topic == topic
                if wanted and not self._schedule.is_dropped(parcel):
                    yield sorted(
                        self._rows(slot.place, seq, OpenedRecord(parcel), shards), key=lambda one: one.deliver_at_us
                    )

    def _rows(self, place: Place, seq: int, opened: OpenedRecord, shards: int) -> Iterator[Delayed]:
        frame, parcel = opened.frame, opened.parcel
        column = frame.text_column(0)
        assert column is not None, "the body column is always there"
        offsets, keys, produced = frame.offsets(column), frame.keys(), frame.produced_at_each_us()
        lane = lane_name(parcel.lane, shards)
        for at, (number, due_us) in enumerate(zip(opened.ids(0, parcel.count), opened.times, strict=True)):
            if self._schedule.is_waiting(Position(place, seq, at, number, due_us, parcel.era)):
                made_us = frame.produced_at_us if produced is None else produced[at]
                size = offsets[at + 1] - offsets[at]
                key = keys[at] if keys is not None else None
                yield Delayed(lane, message_id(parcel.topic, DELAY, number), key, due_us, made_us, size)

    def _snapshot(self) -> ScheduleSnapshot | None:
        """The snapshot; if it is damaged or missing, the one before it, as a broker does."""
        damaged: Exception | None = None
        for path in (self._path / "config" / SCHEDULE_FILE, self._path / "config" / f"{SCHEDULE_FILE}.bak"):
            try:
                with reading(path):
                    document = path.read_bytes()
                return decode_document(str(path), document, ScheduleSnapshot)
            except FileNotFoundError:
                continue
            except msgspec.MsgspecError as error:
                damaged = error
        if damaged is not None:
            raise StoreDamaged(f"{self._path / 'config' / SCHEDULE_FILE} cannot be read, nor its .bak: {damaged}")
        return None

    def _recover(self, snapshot: ScheduleSnapshot | None) -> None:
        """Records before marks, as a broker does it."""
        schedule = self._schedule
        if snapshot is not None:
            schedule.restore(snapshot)
        for name, seen in self._streams.items():
            if name != SCHEDULE_MARKS:
                level, at = int(name.split("/")[1]), 0 if snapshot is None else snapshot.ends.get(name, 0)
                for seq, record in self._records(seen, at, seen.end):
                    parcel = _understood(name, decode_parcel, record)
                    schedule.register(Place(level, parcel.number), seq, parcel, 0)
        marks = self._streams.get(SCHEDULE_MARKS)
        if marks is not None:
            for _, record in self._records(marks, 0 if snapshot is None else snapshot.position, marks.end):
                schedule.apply(_understood(SCHEDULE_MARKS, decode_schedule_event, record))
        for slot in schedule.slots.values():
            slot_stream = self._streams.get(slot.place.stream)
            slot.next = max(slot.next, slot_stream.first if slot_stream is not None else slot.end)

    def _records(self, seen: Seen, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        first = max(first, seen.first)
        for chunk in read_range(self._path, seen.name, first, end):
            if not isinstance(chunk, Chunk):
                raise StoreDamaged(
                    f"{self._path}: {seen.name}: records {chunk.first} to {chunk.first + chunk.count - 1} of the "
                    f"schedule cannot be read: {chunk.reason}"
                )
            yield from enumerate(Frame(chunk.frame).bodies(chunk.start, chunk.start + chunk.count), chunk.first)


def _understood(stream: str, decode: Callable[[bytes], T], record: bytes) -> T:
    try:
        return decode(record)
    except msgspec.MsgspecError as error:
        raise not_understood(stream, error) from None
