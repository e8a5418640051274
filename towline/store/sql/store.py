"""The SQL store: the streams of one realm in a database. See the package's docstring for how they are laid out."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Final, Self

from sqlalchemy import bindparam, select

from towline.clock import SYSTEM, Clock, TimeSlice
from towline.errors import BadName, Closed, QueueFull, TooLarge, TowlineError
from towline.model import Durability
from towline.store.eras import ERAS, Era, Eras, Times, decode_eras, encode_eras
from towline.store.spi import Append, Appended, Bounds, Read, Trimmed, kind_of
from towline.store.sql.database import Connection, Database
from towline.store.sql.ownership import Lease, release
from towline.store.sql.read.cache import FrameCache
from towline.store.sql.read.range_reader import FrameReader
from towline.store.sql.read.streams import Stream, Streams
from towline.store.sql.schema import tables
from towline.store.sql.write.encoding import literal
from towline.store.sql.write.job import Job, Packing, Trim
from towline.store.sql.write.projection import Projection
from towline.store.sql.write.trim import Sweeper, freed_by, plan
from towline.store.sql.write.writer import Writer

__all__ = ["SqlStore"]

log = logging.getLogger("towline.store")

_UNIT_FRAMES_MAX: Final = 65_535
_PACKET_SPARE: Final = 64 << 10
LETTER_ROOM: Final = 16 << 10
"""Room beside the largest message for the headers of its dead letter."""
_CLOSE_S: Final = 15.0
_DOCUMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,199}")

_STREAMS = (
    select(
        tables.stream.c.id,
        tables.stream.c.name,
        tables.stream.c.first_seq,
        tables.stream.c.next_seq,
        tables.stream.c.size_bytes,
        tables.stream.c.swept_seq,
    )
    .where(tables.stream.c.realm_id == bindparam("realm_id"))
    .order_by(tables.stream.c.id)
)
_REALM = select(tables.realm.c.last_unit, tables.realm.c.last_us).where(tables.realm.c.id == bindparam("realm_id"))
_LOAD = select(tables.document.c.body).where(
    tables.document.c.realm_id == bindparam("realm_id"), tables.document.c.name == bindparam("document")
)


class SqlStore:
    """Keeps the streams of a realm that is leased to us. Made by `open`; used from the event loop it was opened on."""

    def __init__(self, database: Database, lease: Lease, clock: Clock, *, last_unit: int, last_us: int) -> None:
        self.database = database
        self.lease = lease
        self._clock = clock
        self._streams = Streams(lease.realm_id)
        self._projection = Projection(lease.realm_id, lease.epoch)
        self._cache = FrameCache(database.settings.cache_bytes)
        self._reader = FrameReader(database, self._cache)
        self._writer = Writer(database, lease, last_unit=last_unit, publish=self._publish)
        self._sweeper = Sweeper(database, self._streams.is_last)
        self._trimming = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._serial = last_unit << 16
        self._eras = Eras([Era(0, min(last_us, 1), last_us)] if last_us else ())
        self._writer.last_us = last_us
        self._row_max = 16 << 20
        self._closed = False

    @classmethod
    async def open(cls, database: Database, lease: Lease, *, clock: Clock = SYSTEM) -> Self:
        """Open the realm of a lease; from now on the store keeps the lease alive."""

        async def look(connection: Connection) -> tuple[Sequence[tuple[int, ...]], Sequence[tuple[object, ...]]]:
            return await connection.rows(_REALM, realm_id=lease.realm_id), await connection.rows(
                _STREAMS, realm_id=lease.realm_id
            )

        realms, streams = await database.reading(look)
        last_unit, last_us = realms[0]
        store = cls(database, lease, clock, last_unit=last_unit, last_us=last_us)
        if (document := await store.load(ERAS)) is not None:
            store._eras = Eras(decode_eras(document, last_us))
        store._row_max = int((await database.variables()).get("max_allowed_packet", 16 << 20)) - _PACKET_SPARE
        part = TimeSlice()  # a broker that takes a realm over serves others meanwhile
        for number, name, first, end, size_bytes, swept in streams:
            stream = Stream(number, name, first, end, size_bytes)  # type: ignore[arg-type]
            if not stream.name.endswith("/"):
                stream.swept = swept  # type: ignore[assignment]
            store._streams.add(stream)
            store._writer.knows(stream)
            store._sweeper.sweep(stream)
            if part.over:
                await part.rest()
        store._streams.list_all()
        return store

    @property
    def lost(self) -> asyncio.Future[None]:
        """Done when the store takes no more writes: another broker owns the realm, or the database failed for good."""
        return self._writer.lost

    @property
    def failure(self) -> TowlineError | None:
        return self._writer.failure

    @property
    def max_message_bytes(self) -> int:
        """The largest message that may be sent, unpacked."""
        return self._row_max // 2 - LETTER_ROOM

    def figures(self) -> dict[str, int]:
        """Figures since the start."""
        return {
            "transactions": self._writer.transactions,
            "begun_ahead": self._writer.ahead,
            "replays": self._writer.replays,
            "reads": self._reader.reads,
            "queued_bytes": self._writer.queued_bytes,
        }

    # --- append -------------------------------------------------------------------------------------------------------

    @property
    def times(self) -> Times:
        return self._eras.times(self._clock.now_us())

    def append(self, unit: Sequence[Append], durability: Durability) -> Appended:
        self._check_writable()
        done: asyncio.Future[None] = self._loop.create_future()
        job = Job(done)
        if unit:
            self._check_room(unit)
            firsts = self._number(job, unit)
        else:
            firsts = ()
        if durability is Durability.RECEIVED and unit:
            done.set_result(None)
        self._writer.submit(job)
        return Appended(firsts, self._eras.last_us, done)

    def _number(self, job: Job, unit: Sequence[Append]) -> tuple[int, ...]:
        now_us = self._clock.now_us()
        if self._eras.breaks(now_us):
            self._begin_era(job, now_us)
        at_us = self._writer.last_us = self._eras.stamp(now_us)
        packing = Packing(self.database.encoding, self.database.settings.statement_bytes)
        firsts = []
        for append in unit:
            stream = self._streams.get(append.stream) or self._streams.make(append.stream)
            self._serial += 1
            firsts.append(job.add_frame(stream, append, self._serial, at_us, packing))
        return tuple(firsts)

    def _begin_era(self, job: Job, now_us: int) -> None:
        self._eras.begin(self._serial + 1, now_us, f"realm {self.lease.realm}")
        self._writer.last_us = self._eras.last_us
        job.statements.append(self._saved(ERAS, encode_eras(self._eras)))

    def _check_room(self, unit: Sequence[Append]) -> None:
        limit, label = self.database.settings.queue_bytes, self.database.label
        length, largest, control = 0, 0, True
        for _, frame, _, _, is_control, _ in unit:
            length += len(frame)
            largest = max(largest, len(frame))
            control = control and is_control
        if length > limit or len(unit) > _UNIT_FRAMES_MAX:
            raise TooLarge(
                f"a unit of {len(unit)} frames and {length} bytes: {_UNIT_FRAMES_MAX} and {limit} are the limits"
            )
        # Quotes and backslashes take two bytes each in a statement.
        if largest > self._row_max // 2:
            raise TooLarge(
                f"a frame of {largest} bytes is over what the database takes, half of its max_allowed_packet "
                f"({self._row_max + _PACKET_SPARE}): send fewer messages at a time, or raise that setting"
            )
        writer = self._writer
        if writer.queued_bytes + length > (limit + limit // 4 if control else limit):
            raise QueueFull(f"{writer.queued_bytes} bytes wait to be written to {label}; {limit} may")
        waited_s = self._loop.time() - writer.trouble_since_s
        if writer.trouble is not None and not control and waited_s > self.database.settings.wait_s:
            raise writer.trouble

    def _publish(self, jobs: Sequence[Job]) -> None:
        """They are committed: from now on they are readable."""
        for job in jobs:
            for stream, chunk in job.entries:
                if not stream.shown:
                    self._streams.show(stream)
                stream.end = chunk.first + chunk.count
                stream.size_bytes += len(chunk.frame)
                if chunk.frame:
                    self._cache.put(stream.id, chunk)
            for stream, first, freed_bytes, forgets in job.trims:
                stream.first = max(first, stream.first)
                stream.size_bytes -= freed_bytes
                self._streams.note(stream)
                if forgets:
                    stream.name = stream.gone_name
                self._cache.drop_before(stream.id, first)
                self._sweeper.sweep(stream)

    # --- read ---------------------------------------------------------------------------------------------------------

    async def read(self, stream: str, first: int, max_count: int, max_bytes: int) -> Read:
        self._check_open()
        found = self._streams.get(stream)
        if found is None:
            return Read((), (), max(first, self._streams.floor(stream)))
        if first >= found.end or max_count <= 0:
            return Read((), (), first)
        if first < found.first:
            first = found.first
            if first >= found.end:
                return Read((), (), first)
        return await self._reader.read(found, first, max_count, max_bytes)

    def bounds(self, stream: str) -> Bounds:
        found = self._streams.get(stream)
        if found is None:
            return Bounds(floor := self._streams.floor(stream), floor, 0)
        return Bounds(found.first, found.end, found.size_bytes)

    def streams(self, prefix: str = "") -> list[str]:
        return self._streams.names(prefix)

    async def locate(self, stream: str, time_us: int, first: int = 0, key: bytes = b"") -> int:
        self._check_open()
        found = self._streams.get(stream)
        if found is None:
            return self._streams.floor(stream)
        at = max(first, found.first)
        if time_us > 0:
            at = max(at, await self._reader.locate_time(found, time_us, self.times))
        if key and at < found.end:
            keyed = await self._reader.locate_key(found, at, key)
            at = found.end if keyed is None else max(keyed, found.first)
        return min(at, found.end)

    # --- trim and retain ----------------------------------------------------------------------------------------------

    async def trim(self, stream: str, before: int, *, forget: bool = False) -> None:
        self._check_writable()
        async with self._trimming:
            found = self._streams.get(stream)
            before = 0 if found is None else max(min(before, found.end), found.first)
            everything = found is not None and before == found.end == found.next
            # A frame that is being written keeps the stream.
            forget = forget and everything and bool(kind_of(stream))
            if found is None or (before <= found.first and not forget):
                return
            if forget:
                # Now, not when it is committed: a later append comes behind it.
                floor = self._streams.forget(found)
                await self._trim([Trim(found, before, found.size_bytes, forgets=True), Trim(floor, floor.end, 0)])
                return
            freed = found.size_bytes if everything else await freed_by(self.database, found, before)
            await self._trim([Trim(found, before, freed)])

    async def retain(self, max_age_us: int, max_bytes: int, pinned: Mapping[str, int]) -> Trimmed:
        self._check_writable()
        async with self._trimming:
            if self._eras.is_ahead(self._clock.now_us()):
                # An old frame is to go though nothing follows it.
                job = Job(self._loop.create_future())
                self._begin_era(job, self._clock.now_us())
                await self._submit(job)
            streams = [stream for stream in self._streams if stream.first < stream.end]
            times = self.times
            planned = await plan(
                self.database, streams, times=times, max_age_us=max_age_us, max_bytes=max_bytes, pinned=pinned
            )
            if planned.trims:
                await self._trim(planned.trims)
            freed = sum(trim.freed_bytes for trim in planned.trims)
            return Trimmed(freed, planned.held_back, planned.holders, planned.surplus_bytes)

    async def _trim(self, trims: list[Trim]) -> None:
        job = Job(self._loop.create_future())
        job.trims = trims
        await self._submit(job)

    # --- documents ----------------------------------------------------------------------------------------------------

    async def load(self, name: str) -> bytes | None:
        self._check_open()
        _check_document(name)
        rows = await self.database.reading(
            lambda connection: connection.rows(_LOAD, realm_id=self.lease.realm_id, document=name)
        )
        return bytes(rows[0][0]) if rows else None

    async def save(self, name: str, document: bytes) -> None:
        self._check_writable()
        _check_document(name)
        job = Job(self._loop.create_future())
        job.statements.append(self._saved(name, document))
        job.size = len(document)
        shown, job.tables = self._projection.follow(name, document)
        job.statements += shown
        await self._submit(job)

    def _saved(self, name: str, document: bytes) -> bytes:
        row = b"(%d,%b,%b,NOW(6))" % (self.lease.realm_id, literal(name), literal(document))
        return b"REPLACE INTO `mq_document` (`realm_id`, `name`, `body`, `saved_at`) VALUES " + row

    async def _submit(self, job: Job) -> None:
        self._check_writable()
        self._writer.submit(job)
        await asyncio.shield(job.done)

    # --- close --------------------------------------------------------------------------------------------------------

    async def close(self, heir: str = "") -> None:
        """Write all waiting jobs, and release the realm: for `heir`, if one is named."""
        if self._closed:
            return
        self._closed = True
        await self._sweeper.close()
        await self._writer.close(_CLOSE_S)
        if self._writer.failure is None:
            try:
                await release(self.database, self.lease, heir)
            except TowlineError as error:
                log.warning("realm %s is free for others only when its lease ends: %s", self.lease.realm, error)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store in {self.database.label} was closed")

    def _check_writable(self) -> None:
        if self._writer.failure is not None:
            raise self._writer.failure
        self._check_open()


def _check_document(name: str) -> None:
    if not _DOCUMENT.fullmatch(name):
        raise BadName(f"document {name[:80]!r}: use letters, digits, dots and hyphens, not beginning with a dot")
