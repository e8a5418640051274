"""The writer: all that waits goes into one transaction, again and again.

While a transaction is under way the next group gathers, so that many producers share one COMMIT without anyone waiting
for a clock; a busy database makes larger groups. The rows were made when they were appended, while the database was
busy with those before them.

A transaction begins with the fence (see `ownership`): it holds off other owners, prolongs the lease, and numbers the
unit. When anything fails, the whole group is done again under the same number until it is known to have taken place.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy import Table, bindparam, func, select, text, update

from towline.errors import OwnershipLost, StoreFailed, TowlineError
from towline.store.sql import tables
from towline.store.sql.database import Connection, Database
from towline.store.sql.faults import Fault, classify, code_of, explain, in_words
from towline.store.sql.job import Job, batches
from towline.store.sql.ownership import Lease
from towline.store.sql.projection import status_view
from towline.store.sql.rows import literal
from towline.store.sql.schema import NO_SUCH_TABLE, make_index, make_table
from towline.store.sql.streams import Stream

__all__ = ["Writer"]

log = logging.getLogger("towline.store")

_PAUSES_S: Final = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
_table = tables.realm
_FENCE = (
    update(_table)
    .where(
        _table.c.id == bindparam("realm_id"),
        _table.c.epoch == bindparam("our_epoch"),
        _table.c.last_unit == bindparam("before"),
    )
    .values(
        last_unit=bindparam("number"),
        last_us=bindparam("at_us"),
        expires_at=func.timestampadd(text("MICROSECOND"), bindparam("lease_us"), func.now(6)),
    )
)
_WHERE_WE_ARE = select(_table.c.epoch, _table.c.last_unit, _table.c.owner, _table.c.address).where(
    _table.c.id == bindparam("realm_id")
)


class _After:
    """Where a stream is after a transaction."""

    __slots__ = ("_stream", "end", "first", "size_bytes")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.first = stream.first
        self.end = stream.end
        self.size_bytes = stream.size_bytes

    def row(self, realm_id: int) -> bytes:
        name = literal(self._stream.name)
        return b"(%d,%d,%b,%d,%d,%d)" % (self._stream.id, realm_id, name, self.first, self.end, self.size_bytes)


class Writer:
    """The queue in front of the database, and the task behind it."""

    def __init__(
        self, database: Database, lease: Lease, *, last_unit: int, publish: Callable[[Sequence[Job]], None]
    ) -> None:
        self._database = database
        self._lease = lease
        self._publish = publish
        self._unit = last_unit
        self._waiting: deque[Job] = deque()
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._made: set[str] = set()
        self._viewed: dict[str, set[str]] = {}
        self._indexed: set[str] = set()
        self._indexing: set[asyncio.Task[None]] = set()
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self.queued_bytes = 0
        self.last_us = 0
        self.failure: TowlineError | None = None
        """Set for good: nothing is written any more."""
        self.trouble: TowlineError | None = None
        """Set while the database does not answer …"""
        self.trouble_since_s = 0.0
        """… and since when, by the loop's clock."""
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done when nothing can be written any more."""
        self.transactions = 0
        self.replays = 0
        self._task = self._loop.create_task(self._run(), name="towline-sql-writer")

    def knows(self, stream: Stream) -> None:
        """The tables of this stream are in the database."""
        if stream.messages is not None:
            self._made.add(stream.messages.name)
        if stream.lane is not None:
            self._viewed.setdefault(stream.lane[0], set()).add(stream.lane[1])

    def submit(self, job: Job) -> None:
        self.queued_bytes += job.size
        self._waiting.append(job)
        self._wake.set()

    async def close(self, patience_s: float) -> None:
        """Write all that waits, if the database lets us, and end."""
        self._closing = True
        self._wake.set()
        _, pending = await asyncio.wait([self._task], timeout=patience_s)
        if pending:
            self._task.cancel()
            await asyncio.wait([self._task])
            reason = f": {self.trouble}" if self.trouble is not None else ""
            self._fail(StoreFailed(f"the store was closed before all was written{reason}"))
        if self._indexing:
            await asyncio.wait(self._indexing, timeout=2)
        for task in self._indexing:
            task.cancel()
        await asyncio.gather(*self._indexing, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    # --- the task -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not (self._closing and not self._waiting):
                if not self._waiting:
                    await self._idle()
                await self._commit(self._take())
        except TowlineError as error:
            self._fail(error)
        except Exception as error:
            log.critical("the writer of %s failed", self._database.label, exc_info=True)
            self._fail(StoreFailed(f"writing to the database {self._database.label} failed: {in_words(error)}"))

    async def _idle(self) -> None:
        """Until there is something to write, or the lease wants to be renewed."""
        self._wake.clear()
        try:
            async with asyncio.timeout(self._lease.lease_s / 4):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _take(self) -> list[Job]:
        settings = self._database.settings
        group: list[Job] = []
        size = rows = 0
        while self._waiting:
            job = self._waiting[0]
            if group and (size + job.size > settings.group_bytes or rows + job.rows > settings.group_rows):
                break
            group.append(self._waiting.popleft())
            size += job.size
            rows += job.rows
        return group

    async def _commit(self, group: list[Job]) -> None:
        attempt = 0
        while True:
            try:
                connection = await self._connected()
                await self._make_tables(connection, group)
                await self._transact(connection, group)
                break
            except TowlineError:
                self._waiting.extendleft(reversed(group))
                raise
            except asyncio.CancelledError:
                self._waiting.extendleft(reversed(group))
                raise
            except Exception as error:
                try:
                    await self._recover(error)
                except TowlineError:
                    self._waiting.extendleft(reversed(group))
                    raise
            self.replays += 1
            await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
            attempt += 1
        if self.trouble is not None:
            log.warning("the database %s answers again", self._database.label)
            self.trouble = None
        self._unit += 1
        self.transactions += 1
        self.queued_bytes -= sum([job.size for job in group])
        self._publish(group)
        for job in group:
            if not job.done.done():
                job.done.set_result(None)

    async def _connected(self) -> Connection:
        if self._connection is None:
            connection = await self._database.connect()
            # Every statement begins a transaction if there is none: one question less for each.
            await connection.send("SET autocommit = 0")
            self._connection = connection
        return self._connection

    async def _make_tables(self, connection: Connection, group: Sequence[Job]) -> None:
        for job in group:
            for table in job.tables:
                if table.name not in self._made:
                    await make_table(connection, table)
                    self._made.add(table.name)
            for entry in job.entries:
                lane = entry.stream.lane
                if lane is not None and lane[1] not in self._viewed.setdefault(lane[0], set()):
                    await self._make_view(connection, *lane)
            for table in job.keyed:
                if table.name not in self._indexed:
                    self._indexed.add(table.name)
                    self._index(table)

    async def _make_view(self, connection: Connection, topic: str, lane: str) -> None:
        """A topic has a new lane: the view of its messages' status shows that too."""
        await make_table(connection, tables.progress_table(topic))
        await connection.send(status_view(topic, [*self._viewed[topic], lane]))
        self._viewed[topic].add(lane)

    def _index(self, table: Table) -> None:
        """Make the index of a lane's keys, beside the writing: on a large table it takes a while."""
        task = self._loop.create_task(self._make_index(table), name="towline-sql-index")
        self._indexing.add(task)
        task.add_done_callback(self._indexing.discard)

    async def _make_index(self, table: Table) -> None:
        try:
            await self._database.reading(lambda connection: make_index(connection, tables.key_index(table)))
        except TowlineError as error:
            self._indexed.discard(table.name)
            log.warning("the index of the keys in %s could not be made yet: %s", table.name, error)

    async def _transact(self, connection: Connection, group: Sequence[Job]) -> None:
        number = self._unit + 1
        met = await connection.run(
            _FENCE,
            realm_id=self._lease.realm_id,
            our_epoch=self._lease.epoch,
            before=self._unit,
            number=number,
            at_us=self.last_us,
            lease_us=round(self._lease.lease_s * 1e6),
        )
        if met != 1:
            await self._find_out(connection, number)
            return
        for into, rows in batches(group, self._database.settings.statement_bytes):
            await connection.insert(into.head(), rows)
        streams = self._stream_rows(group)
        if streams:
            await connection.send(streams)
        for job in group:
            for statement in job.statements:
                await connection.send(statement)
        await connection.commit()

    async def _find_out(self, connection: Connection, number: int) -> None:
        """The fence met no row: either this unit was committed although we were not told, or another one owns all."""
        rows = await connection.rows(_WHERE_WE_ARE, realm_id=self._lease.realm_id)
        await connection.rollback()
        epoch, last_unit, owner, address = rows[0] if rows else (0, 0, "nobody", "")
        if epoch != self._lease.epoch:
            raise OwnershipLost(
                f"realm {self._lease.realm} of the database {self._database.label} belongs to another broker by now: "
                f"{owner or 'nobody'} at {address or 'no address'}, epoch {epoch} (ours was {self._lease.epoch})"
            )
        if last_unit != number:
            raise StoreFailed(
                f"realm {self._lease.realm} of the database {self._database.label} is at unit {last_unit}, not at "
                f"{number - 1} as it should be: was the database brought back from a backup under a running broker?"
            )
        log.info("unit %d was committed, although the answer was lost", number)

    def _stream_rows(self, group: Sequence[Job]) -> bytes:
        """One statement that says where all streams of the group are after it."""
        after: dict[int, _After] = {}
        for job in group:
            for stream, chunk in job.entries:
                state = after.get(stream.id) or after.setdefault(stream.id, _After(stream))
                state.end = chunk.first + chunk.count
                state.size_bytes += len(chunk.frame)
            for stream, first, freed_bytes in job.trims:
                state = after.get(stream.id) or after.setdefault(stream.id, _After(stream))
                state.first = first
                state.size_bytes -= freed_bytes
        if not after:
            return b""
        rows = [state.row(self._lease.realm_id) for _, state in sorted(after.items())]
        return b"".join(
            (
                b"INSERT INTO `mq_stream` (`id`, `realm_id`, `name`, `first_seq`, `next_seq`, `size_bytes`) VALUES ",
                b",".join(rows),
                b" ON DUPLICATE KEY UPDATE `first_seq` = VALUES(`first_seq`), `next_seq` = VALUES(`next_seq`),"
                b" `size_bytes` = VALUES(`size_bytes`)",
            )
        )

    async def _recover(self, error: Exception) -> None:
        """After a failed transaction: be ready to do it again, or raise if that would not help."""
        connection, self._connection = self._connection, None
        match classify(error):
            case Fault.AGAIN if connection is not None:
                log.info("a transaction is done again: %s", in_words(error))
                connection.drop()
                return
            case Fault.FINAL if code_of(error) == NO_SUCH_TABLE and self._made:
                log.warning("a table is gone and is made anew: %s", in_words(error))
                self._made.clear()
                self._viewed.clear()
                if connection is not None:
                    connection.drop()
                return
            case Fault.FINAL:
                if connection is not None:
                    connection.drop()
                raise explain(error, self._database.label) from error
        if connection is not None:
            self._database.left(connection)
        if self.trouble is None:
            self.trouble_since_s = self._loop.time()
            log.error("the database %s does not answer, and is tried again: %s", self._database.label, in_words(error))
        self.trouble = explain(error, self._database.label)

    def _fail(self, error: TowlineError) -> None:
        if self.failure is None:
            self.failure = error
            if not self._closing or isinstance(error, OwnershipLost):
                log.critical("%s", error)
        if not self.lost.done():
            self.lost.set_result(None)
        while self._waiting:
            done = self._waiting.popleft().done
            if not done.done():
                done.set_exception(self.failure)
                done.exception()
