"""The tables, views and indexes of topics: made when the first message comes that needs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from sqlalchemy import Table

from towline.errors import TowlineError
from towline.store.sql.database import Connection, Database
from towline.store.sql.errors import Fault, classify, explain
from towline.store.sql.read.streams import Stream
from towline.store.sql.schema import tables
from towline.store.sql.schema.migrate import make_index, make_table
from towline.store.sql.write.job import Job
from towline.store.sql.write.projection import status_view

__all__ = ["TopicTables"]

log = logging.getLogger("towline.store")


class TopicTables:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._made: set[str] = set()
        self._viewed: dict[str, set[str]] = {}
        self._indexed: set[str] = set()
        self._indexing: set[asyncio.Task[None]] = set()

    def knows(self, stream: Stream) -> None:
        """The tables of this stream are in the database."""
        if stream.messages is not None:
            self._made.add(stream.messages.name)
        if stream.lane is not None:
            self._viewed.setdefault(stream.lane[0], set()).add(stream.lane[1])

    def forget(self) -> bool:
        """A table is gone: make them all again. Returns whether there were any."""
        had = bool(self._made)
        self._made.clear()
        self._viewed.clear()
        return had

    @property
    def indexing(self) -> bool:
        """An index is being made. Until it begins, and when it ends, it waits for every transaction on its table."""
        return bool(self._indexing)

    def has_all(self, group: Sequence[Job]) -> bool:
        """Whether all tables of these jobs exist."""
        return all(
            all(table.name in self._made for table in job.tables)
            and all(table.name in self._indexed for table in job.keyed)
            and all(self._is_viewed(entry.stream) for entry in job.entries)
            for job in group
        )

    def _is_viewed(self, stream: Stream) -> bool:
        lane = stream.lane
        return lane is None or lane[1] in self._viewed.get(lane[0], ())

    async def make(self, connection: Connection, group: Sequence[Job]) -> None:
        """Make the tables of these jobs. That ends the connection's transaction."""
        for job in group:
            for table in job.tables:
                if table.name not in self._made:
                    await make_table(connection, table)
                    self._made.add(table.name)
            for entry in job.entries:
                if not self._is_viewed(entry.stream):
                    assert entry.stream.lane is not None
                    await self._make_view(connection, *entry.stream.lane)
            for table in job.keyed:
                if table.name not in self._indexed:
                    self._indexed.add(table.name)
                    self._index(table)

    async def _make_view(self, connection: Connection, topic: str, lane: str) -> None:
        """A topic has a new lane: the view of its messages' status shows that too."""
        lanes = self._viewed.setdefault(topic, set())
        await make_table(connection, tables.progress_table(topic))
        try:
            await connection.send(status_view(topic, [*lanes, lane]))
        except Exception as error:
            if classify(error) is not Fault.DENIED:
                raise
            # Only people read it.
            log.warning("the view msg_v_%s could not be made: %s", topic, explain(error, self._database.label))
        lanes.add(lane)

    def _index(self, table: Table) -> None:
        """Make the index of a lane's keys, beside the writing: on a large table it takes a while."""
        task = asyncio.get_running_loop().create_task(self._make_index(table), name="towline-sql-index")
        self._indexing.add(task)
        task.add_done_callback(self._indexing.discard)

    async def _make_index(self, table: Table) -> None:
        try:
            await self._database.reading(lambda connection: make_index(connection, tables.key_index(table)))
        except TowlineError as error:
            self._indexed.discard(table.name)
            log.warning("the index of the keys in %s could not be made yet: %s", table.name, error)

    async def close(self) -> None:
        if self._indexing:
            await asyncio.wait(self._indexing, timeout=2)
        for task in self._indexing:
            task.cancel()
        await asyncio.gather(*self._indexing, return_exceptions=True)
