"""Reading streams: cached frames from memory, others from the database, by primary key and never by counting.

A read costs the same however long the backlog: frames are found by the number of their end, messages by their id, each
by a range of the primary key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from sqlalchemy import Select, Table, bindparam, select

from towline.errors import BadFrame, TooLarge
from towline.frame import Frame
from towline.frame.search import find_key
from towline.store.eras import Times
from towline.store.spi import Chunk, Lost, Read
from towline.store.sql.database import Connection, Database
from towline.store.sql.read.cache import FrameCache
from towline.store.sql.read.streams import Stream
from towline.store.sql.schema.tables import KEY_CHARACTERS
from towline.store.sql.write.rows import WHOLE, rebuilt

__all__ = ["FrameReader"]

_FRAMES_AT_FIRST: Final = 8
_FRAMES_AT_ONCE: Final = 512
_CANDIDATES: Final = 100
_MISSING: Final = "it is not in the database, which may have refused it as too large"


class _Heading(NamedTuple):
    end: int
    count: int  # type: ignore[assignment]  # a tuple's own count is of no use here
    length: int
    at_us: int
    source: bytes
    body_at: int
    serial: int

    @property
    def first(self) -> int:
        return self.end - self.count


class _Queries(NamedTuple):
    """The queries of one kind of stream."""

    headings: Select[Any]
    frames: Select[Any]
    bodies: Select[Any] | None
    keyed: Select[Any] | None


_QUERIES: dict[tuple[str, str], _Queries] = {}
_QUERIES_MAX: Final = 5_000


def _queries(stream: Stream) -> _Queries:
    messages = stream.messages
    name = (stream.frames.name, "" if messages is None else messages.name)
    known = _QUERIES.get(name)
    if known is None:
        if len(_QUERIES) >= _QUERIES_MAX:
            _QUERIES.clear()
        known = _QUERIES[name] = _Queries(
            _headings(stream.frames),
            _frames(stream.frames),
            *(_of_messages(messages) if messages is not None else (None, None)),
        )
    return known


def _headings(table: Table) -> Select[Any]:
    c = table.c
    return (
        select(c.end_seq, c.records, c.length, c.at_us, c.source_ip, c.body_at, c.serial)
        .where(c.stream_id == bindparam("stream"), c.end_seq > bindparam("after"))
        .order_by(c.stream_id, c.end_seq)
        .limit(bindparam("some"))
    )


def _frames(table: Table) -> Select[Any]:
    c = table.c
    return (
        select(c.frame)
        .where(c.stream_id == bindparam("stream"), c.end_seq > bindparam("after"), c.end_seq <= bindparam("until"))
        .order_by(c.stream_id, c.end_seq)
    )


def _of_messages(table: Table) -> tuple[Select[Any], Select[Any]]:
    c = table.c
    bodies = select(c.body).where(c.id >= bindparam("first"), c.id < bindparam("until")).order_by(c.id)
    keyed = (
        select(c.id)
        .where(c.ref_key == bindparam("key"), c.id >= bindparam("first"), c.id < bindparam("until"))
        .order_by(c.id)
        .limit(_CANDIDATES)
    )
    if "stream_id" in c:
        bodies = bodies.where(c.stream_id == bindparam("stream"))
        keyed = keyed.where(c.stream_id == bindparam("stream"))
    return bodies, keyed


class _Taken:
    """The result of a read so far, and how much more it may take."""

    __slots__ = ("at", "chunks", "full", "lost", "max_bytes", "max_count")

    def __init__(self, first: int, max_count: int, max_bytes: int) -> None:
        self.at = first
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.chunks: list[Chunk] = []
        self.lost: list[Lost] = []
        self.full = False

    def wants(self, end: int) -> bool:
        return not self.full and self.at < end

    def take(self, chunk: Chunk) -> bool:
        """Take as much of the frame at `at` as fits; returns whether more may fit behind it."""
        if self.full or (len(chunk.frame) > self.max_bytes and self.chunks):
            self.full = True
            return False
        start = self.at - chunk.first
        count = min(chunk.count - start, self.max_count)
        if count < chunk.count:
            chunk = Chunk(self.at, count, start, chunk.frame, chunk.appended_at_us, chunk.source, chunk.serial)
        self.chunks.append(chunk)
        self.at += count
        self.max_count -= count
        self.max_bytes -= len(chunk.frame)
        self.full = self.max_count == 0
        return not self.full

    def miss(self, until: int, reason: str) -> None:
        if not self.full and until > self.at:
            count = min(until - self.at, self.max_count)
            self.lost.append(Lost(self.at, count, reason))
            self.at += count
            self.max_count -= count
            self.full = self.max_count == 0


class FrameReader:
    def __init__(self, database: Database, cache: FrameCache) -> None:
        self._database = database
        self._cache = cache
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self.reads = 0

    async def read(self, stream: Stream, first: int, max_count: int, max_bytes: int) -> Read:
        taken = _Taken(first, max_count, max_bytes)
        self._from_cache(stream, taken)
        if taken.wants(stream.end):
            # One reader a stream at a time: what it reads ahead is what the others want next.
            lock = self._locks.get(stream.id)
            if lock is None:
                lock = self._locks[stream.id] = asyncio.Lock()
            async with lock:
                self._from_cache(stream, taken)
                if taken.wants(stream.end):
                    await self._from_database(stream, taken)
        return Read(taken.chunks, taken.lost, taken.at)

    def _from_cache(self, stream: Stream, taken: _Taken) -> None:
        end = stream.end
        while taken.at < end:
            chunk = self._cache.find(stream.id, taken.at)
            if chunk is None or not taken.take(chunk):
                return

    async def _from_database(self, stream: Stream, taken: _Taken) -> None:
        self.reads += 1
        first, end = taken.at, stream.end
        budget = max(taken.max_bytes, self._database.settings.ahead_bytes)
        found = await self._database.reading(lambda connection: self._fetch(connection, stream, first, end, budget))
        for heading, frame in found:
            whole = _checked(heading, frame)
            if heading.first > taken.at:
                taken.miss(heading.first, _MISSING)
            if whole is None:
                taken.miss(heading.end, "the messages in the database do not make the frame they came in")
            else:
                self._cache.put(stream.id, whole)
                taken.take(whole)
        if not found:
            taken.miss(end, _MISSING)

    async def _fetch(
        self, connection: Connection, stream: Stream, first: int, end: int, budget: int
    ) -> list[tuple[_Heading, bytes]]:
        queries = _queries(stream)
        headings = await self._headings(connection, queries.headings, stream.id, (first, end), budget)
        if not headings:
            return []
        until = headings[-1].end
        kept = await connection.rows(queries.frames, stream=stream.id, after=first, until=until)
        bodies: Sequence[tuple[bytes]] = ()
        begin = headings[0].first
        if queries.bodies is not None and any(heading.body_at != WHOLE for heading in headings):
            bodies = await connection.rows(queries.bodies, stream=stream.id, first=begin, until=until)
        # Refused records have no rows, neither here nor there.
        whole = len(bodies) == sum(heading.count for heading in headings)
        found, at = [], 0
        for heading, (frame,) in zip(headings, kept, strict=True):
            some = bodies[at : at + heading.count] if whole else ()
            at += heading.count
            found.append((heading, rebuilt(heading.body_at, frame, [body for (body,) in some])))
        return found

    @staticmethod
    async def _headings(
        connection: Connection, query: Select[Any], stream_id: int, span: tuple[int, int], budget: int
    ) -> list[_Heading]:
        """The headings of the frames in a range, up to so many bytes of frames and at least one: a few at first, for
        most reads need no more."""
        after, end = span
        headings: list[_Heading] = []
        some = _FRAMES_AT_FIRST
        while len(headings) < _FRAMES_AT_ONCE:
            rows = await connection.rows(query, stream=stream_id, after=after, some=some)
            for row in rows:
                heading = _Heading(*row)
                budget -= heading.length
                if heading.end > end or (headings and budget < 0):
                    return headings
                headings.append(heading)
            if len(rows) < some or budget <= 0:
                break
            after, some = headings[-1].end, 4 * some
        return headings

    async def locate_time(self, stream: Stream, time_us: int, times: Times) -> int:
        """The first record whose frame was appended at this time or later."""
        low, high = stream.first, stream.end

        async def search(connection: Connection) -> int:
            nonlocal low, high
            while low < high:
                middle = (low + high) // 2
                chunk = self._cache.find(stream.id, middle)
                if chunk is not None and times.time_of(chunk.serial, chunk.appended_at_us) >= time_us:
                    high = min(middle, max(chunk.first, stream.first))
                    continue
                if chunk is not None:
                    low = chunk.first + chunk.count
                    continue
                rows = await connection.rows(_queries(stream).headings, stream=stream.id, after=middle, some=1)
                if not rows:
                    high = middle
                    continue
                heading = _Heading(*rows[0])
                if times.time_of(heading.serial, heading.at_us) >= time_us:
                    high = min(middle, max(heading.first, stream.first))
                else:
                    low = heading.end
            return low

        return min(max(await self._database.reading(search), stream.first), stream.end)

    async def locate_key(self, stream: Stream, first: int, key: bytes) -> int | None:
        """The first record from `first` on that has this key. Streams whose messages have rows have an index of keys;
        each row found is compared in full, because the column holds only the beginning of a long key."""
        keyed = _queries(stream).keyed
        if keyed is None:
            return await self._scan(stream, first, key)
        text, end = key.decode("utf-8", "replace")[:KEY_CHARACTERS], stream.end
        while first < end:
            values = {"stream": stream.id, "key": text, "first": first, "until": end}
            rows = await self._database.reading(partial(_rows, keyed, values))
            for (seq,) in rows:
                if await self._has_key(stream, seq, key):
                    return int(seq)
            if len(rows) < _CANDIDATES:
                return None
            first = int(rows[-1][0]) + 1
        return None

    async def _has_key(self, stream: Stream, seq: int, key: bytes) -> bool:
        read = await self.read(stream, seq, 1, 1)
        return any(
            find_key(Frame(chunk.frame), key, chunk.start, chunk.start + 1) is not None
            for chunk in read.chunks
            if chunk.first == seq
        )

    async def _scan(self, stream: Stream, first: int, key: bytes) -> int | None:
        while first < stream.end:
            read = await self.read(stream, first, 1 << 20, 1 << 20)
            for chunk in read.chunks:
                index = find_key(Frame(chunk.frame), key, chunk.start, chunk.start + chunk.count)
                if index is not None:
                    return chunk.first + index - chunk.start
            first = max(read.next, first + 1)
        return None


async def _rows(statement: Select[Any], values: dict[str, Any], connection: Connection) -> Sequence[tuple[Any, ...]]:
    return await connection.rows(statement, **values)


def _checked(heading: _Heading, frame: bytes) -> Chunk | None:
    """A frame of the database as it came; None if it is damaged."""
    if len(frame) != heading.length:
        return None
    try:
        Frame(frame).verify()
    except (BadFrame, TooLarge):
        return None
    return Chunk(heading.first, heading.count, 0, frame, heading.at_us, bytes(heading.source), heading.serial)
