"""The schema: made when it is missing, brought up to date when it is old, refused when it is newer than this code.

The tables are brought up to date apart from the number that they state: brokers that know a lower one may still be
there, and go on with tables that have more in them. The number is raised once there are none.

Several brokers may begin at once: every step may be done twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from sqlalchemy import Index, Table, bindparam, func, select
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql import ClauseElement

from towline.format import NOTE, refuse_newer, writer_in
from towline.store.sql.database import Connection, Database
from towline.store.sql.errors import code_of
from towline.store.sql.schema import tables
from towline.version import order_of

__all__ = ["make_index", "make_table", "prepare", "raise_number", "stated_number"]

log = logging.getLogger("towline.store")

NO_SUCH_TABLE: Final = 1146
DUPLICATE_INDEX: Final = 1061
INDEX_S: Final = 3600.0

_VERSION = select(func.max(tables.schema.c.version))
_NOTE = insert(tables.schema).values(version=bindparam("new_version")).prefix_with("IGNORE")

_WRITER = select(tables.document.c.body).where(tables.document.c.name == NOTE)

UPGRADES: Mapping[int, tuple[ClauseElement, ...]] = {}
"""Statements that turn the tables before into those of this number, where they differ. Each step may be repeated, and
leaves tables that brokers of the number before can use."""


async def prepare(database: Database) -> None:
    """Make or upgrade the tables that do not belong to a topic."""
    await database.reading(_prepare)


async def _prepare(connection: Connection) -> None:
    version = await _version(connection)
    if version == tables.VERSION:
        return
    refuse_newer("the database", version, await _writer(connection) if version > tables.VERSION else "")
    if version == 0:
        for table in tables.FIXED.sorted_tables:
            await make_table(connection, table)
        await connection.run(_NOTE, new_version=tables.VERSION)
        return
    for number in range(version + 1, tables.VERSION + 1):
        for statement in UPGRADES.get(number, ()):
            log.warning("the tables are upgraded from version %d to %d", version, number)
            await connection.run(statement)


async def stated_number(database: Database) -> int:
    return await database.reading(_version)


async def raise_number(database: Database) -> None:
    """From now on no broker that does not know our number can begin to use the database."""
    await database.reading(lambda connection: connection.run(_NOTE, new_version=tables.VERSION))


async def _version(connection: Connection) -> int:
    try:
        rows = await connection.rows(_VERSION)
    except Exception as error:
        if code_of(error) == NO_SUCH_TABLE:
            return 0
        raise
    return int(rows[0][0] or 0)


async def _writer(connection: Connection) -> str:
    """The version of Towline that wrote to the database last, if it is stated."""
    try:
        rows = await connection.rows(_WRITER)
        return max((writer_in(body) for (body,) in rows), key=order_of, default="")
    except Exception:
        # The tables may be others by then; that they are newer is what counts.
        log.debug("who wrote the tables cannot be told", exc_info=True)
        return ""


async def make_table(connection: Connection, table: Table) -> None:
    await connection.run(CreateTable(table, if_not_exists=True))
    for index in table.indexes:
        await make_index(connection, index)


async def make_index(connection: Connection, index: Index) -> None:
    """Nothing happens if it is there."""
    try:
        await connection.run(CreateIndex(index), patience_s=INDEX_S)
    except Exception as error:
        if code_of(error) != DUPLICATE_INDEX:
            raise
