"""Trimming: trimmed or old records are unreadable at once; their rows are deleted afterwards, a few at a time.

The beginning of a stream is one number of `mq_stream`, written by the writer behind its fence. Deleting rows before
that number can harm nobody, whoever does it, so it needs no fence and holds up no writer.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Table, bindparam, delete, func, select, update
from sqlalchemy.sql import ClauseElement

from towline.store.eras import Times
from towline.store.sql.database import Connection, Database
from towline.store.sql.errors import in_words
from towline.store.sql.read.streams import Stream
from towline.store.sql.schema import tables
from towline.store.sql.write.job import Trim

__all__ = ["Plan", "Sweeper", "freed_by", "plan"]

log = logging.getLogger("towline.store")

_AT_ONCE: Final = 1_000
_ROWS_AT_ONCE: Final = 5_000
_PAUSE_S: Final = 1.0
_FRAME_TABLES: Final = (tables.frame, tables.pull_log, tables.schedule)


def _sum(table: Table) -> ClauseElement:
    c = table.c
    return select(func.coalesce(func.sum(c.length), 0)).where(
        c.stream_id == bindparam("stream"), c.end_seq > bindparam("after"), c.end_seq <= bindparam("until")
    )


def _ages(table: Table) -> ClauseElement:
    c = table.c
    return (
        select(c.end_seq, c.records, c.length, c.at_us, c.serial)
        .where(c.stream_id == bindparam("stream"), c.end_seq > bindparam("after"))
        .order_by(c.stream_id, c.end_seq)
        .limit(_AT_ONCE)
    )


_SUMS: Final = {table.name: _sum(table) for table in _FRAME_TABLES}
_AGES: Final = {table.name: _ages(table) for table in _FRAME_TABLES}


async def freed_by(database: Database, stream: Stream, before: int) -> int:
    """The bytes of the frames that lie before this record whole."""
    rows = await database.reading(
        lambda connection: connection.rows(
            _SUMS[stream.frames.name], stream=stream.id, after=stream.first, until=before
        )
    )
    return int(rows[0][0])


class _Frame(NamedTuple):
    serial: int
    end: int
    count: int  # type: ignore[assignment]  # a tuple's own count is of no use here
    length: int
    at_us: int


class Plan(NamedTuple):
    trims: list[Trim]
    held_back: str
    holders: tuple[str, ...] = ()
    surplus_bytes: int = 0


class _Oldest:
    """The frames of a stream from the oldest on, read a thousand at a time."""

    def __init__(self, database: Database, stream: Stream) -> None:
        self._database = database
        self.stream = stream
        self.at = stream.first
        self.freed = 0
        self._frames: list[_Frame] = []
        self._index = 0

    async def head(self) -> _Frame | None:
        if self._index < len(self._frames):
            return self._frames[self._index]
        if self.at >= self.stream.end:
            return None
        query, end = _AGES[self.stream.frames.name], self.stream.end
        after = self.at
        rows = await self._database.reading(lambda one: one.rows(query, stream=self.stream.id, after=after))
        self._frames = [
            _Frame(serial, end_seq, count, length, at_us)
            for end_seq, count, length, at_us, serial in rows
            if end_seq <= end
        ]
        self._index = 0
        return self._frames[0] if self._frames else None

    def drop(self, frame: _Frame) -> None:
        self.at = frame.end
        self.freed += frame.length
        self._index += 1


async def plan(
    database: Database,
    streams: Sequence[Stream],
    *,
    times: Times,
    max_age_us: int,
    max_bytes: int,
    pinned: Mapping[str, int],
) -> Plan:
    """The frames that may go: the oldest of all streams, in the order of their age, as far as the limits demand."""
    oldest_us = times.now_us - max_age_us if max_age_us else 0
    surplus = sum(stream.size_bytes for stream in streams) - max_bytes if max_bytes else 0
    heads: list[tuple[int, int, _Oldest, _Frame]] = []
    if oldest_us <= 0 and surplus <= 0:
        return Plan([], "")
    sources = [_Oldest(database, stream) for stream in streams if stream.first < stream.end]
    for source in sources:
        head = await source.head()
        if head is not None and (surplus > 0 or times.time_of(head.serial, head.at_us) < oldest_us):
            heads.append((head.serial, source.stream.id, source, head))
    heapq.heapify(heads)
    held_back, held_too_old, holders = "", False, list[str]()
    while heads:
        _, _, source, frame = heads[0]
        name = source.stream.name
        too_old = times.time_of(frame.serial, frame.at_us) < oldest_us
        if not too_old and surplus <= 0:
            break
        heapq.heappop(heads)
        if name in pinned and pinned[name] < frame.end:
            held_back = held_back or f"record {pinned[name]} of stream {name} is still needed"
            held_too_old = held_too_old or too_old
            holders.append(name)
            continue
        source.drop(frame)
        surplus -= frame.length
        following = await source.head()
        if following is not None:
            heapq.heappush(heads, (following.serial, source.stream.id, source, following))
    trims = [Trim(source.stream, source.at, source.freed) for source in sources if source.freed]
    if not held_too_old and surplus <= 0:
        return Plan(trims, "")
    return Plan(trims, held_back, tuple(holders), max(surplus, 0))


def _sweep_frames(table: Table) -> ClauseElement:
    c = table.c
    return delete(table).where(
        c.stream_id == bindparam("stream"), c.end_seq > bindparam("after"), c.end_seq <= bindparam("until")
    )


def _edge(table: Table) -> ClauseElement:
    """The frame that the first readable record is in."""
    c = table.c
    return (
        select(c.end_seq - c.records)
        .where(c.stream_id == bindparam("stream"), c.end_seq > bindparam("after"))
        .order_by(c.stream_id, c.end_seq)
        .limit(1)
    )


_SWEEP_FRAMES: Final = {table.name: _sweep_frames(table) for table in _FRAME_TABLES}
_EDGES: Final = {table.name: _edge(table) for table in _FRAME_TABLES}
_SWEPT = (
    update(tables.stream)
    .where(tables.stream.c.id == bindparam("stream"))
    .values(swept_seq=func.greatest(tables.stream.c.swept_seq, bindparam("until")))
)


_FORGET = delete(tables.stream).where(tables.stream.c.id == bindparam("stream"))


def _sweep_rows(table: Table) -> ClauseElement:
    c = table.c
    statement = delete(table).where(c.id >= bindparam("after"), c.id < bindparam("until"))
    return statement.where(c.stream_id == bindparam("stream")) if "stream_id" in c else statement


class Sweeper:
    """Deletes rows that cannot be read any more, by ranges of the primary key, in transactions of a few thousand."""

    def __init__(self, database: Database, is_last: Callable[[Stream], bool]) -> None:
        """`is_last`: whether no other stream in the database has a higher number."""
        self._database = database
        self._is_last = is_last
        self._streams: dict[int, Stream] = {}
        self._last: Stream | None = None
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="towline-sql-sweeper")

    def sweep(self, stream: Stream) -> None:
        if stream.swept < stream.first or stream.is_gone:
            self._streams[stream.id] = stream
            self._wake.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._streams:
                stream = self._streams.pop(next(iter(self._streams)))
                try:
                    await self._sweep(stream)
                except Exception as error:
                    log.warning("old rows of stream %s could not be deleted yet: %s", stream.name, in_words(error))
                    await asyncio.sleep(_PAUSE_S)

    async def _sweep(self, stream: Stream) -> None:
        first, end = stream.first, stream.end
        edge = end
        if first < end:
            rows = await self._database.reading(
                lambda one: one.rows(_EDGES[stream.frames.name], stream=stream.id, after=first)
            )
            edge = int(rows[0][0]) if rows else first
        # The rows of messages before the frames that they belong to: so what is left can always be found again.
        if stream.messages is not None:
            statement = _sweep_rows(stream.messages)
            for at in range(stream.swept, edge, _ROWS_AT_ONCE):
                await self._delete(statement, stream, at, min(at + _ROWS_AT_ONCE, edge))
        for at in range(stream.swept, edge, 10 * _ROWS_AT_ONCE):
            await self._delete(_SWEEP_FRAMES[stream.frames.name], stream, at, min(at + 10 * _ROWS_AT_ONCE, edge))
        await self._database.reading(lambda one: one.run(_SWEPT, stream=stream.id, until=edge))
        stream.swept = max(stream.swept, edge)
        if stream.is_gone:
            # The last one stays until there is another: its number must not be given again.
            gone = [one for one in (self._last, stream) if one is not None]
            self._last = next((one for one in gone if self._is_last(one)), None)
            for number in {one.id for one in gone if one is not self._last}:
                await self._forget(number)

    async def _forget(self, stream_id: int) -> None:
        await self._database.reading(lambda one: one.run(_FORGET, stream=stream_id))

    async def _delete(self, statement: ClauseElement, stream: Stream, after: int, until: int) -> None:
        async def run(connection: Connection) -> Any:
            return await connection.run(statement, stream=stream.id, after=after, until=until)

        await self._database.reading(run)
