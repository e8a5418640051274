"""The schema: made when it is missing, brought up to date when it is old, refused when it is newer than this code.

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

from towline.errors import StoreFailed
from towline.store.sql import tables
from towline.store.sql.database import Connection, Database
from towline.store.sql.faults import code_of

__all__ = ["make_index", "make_table", "prepare"]

log = logging.getLogger("towline.store")

NO_SUCH_TABLE: Final = 1146
DUPLICATE_INDEX: Final = 1061
INDEX_S: Final = 3600.0

_VERSION = select(func.max(tables.schema.c.version))
_NOTE = insert(tables.schema).values(version=bindparam("new_version")).prefix_with("IGNORE")

UPGRADES: Mapping[int, tuple[ClauseElement, ...]] = {}
"""What turns the schema before into the one of this number; each step may be repeated."""


async def prepare(database: Database) -> None:
    """Make or upgrade the tables that do not belong to a topic."""
    await database.reading(_prepare)


async def _prepare(connection: Connection) -> None:
    version = await _version(connection)
    if version == tables.VERSION:
        return
    if version > tables.VERSION:
        raise StoreFailed(
            f"the database has tables of version {version}, this broker knows versions up to {tables.VERSION}: "
            "use the newer version of Towline that made them"
        )
    if version == 0:
        for table in tables.FIXED.sorted_tables:
            await make_table(connection, table)
    else:
        log.warning("the tables are upgraded from version %d to %d", version, tables.VERSION)
        for number in range(version + 1, tables.VERSION + 1):
            for statement in UPGRADES[number]:
                await connection.run(statement)
    await connection.run(_NOTE, new_version=tables.VERSION)


async def _version(connection: Connection) -> int:
    try:
        rows = await connection.rows(_VERSION)
    except Exception as error:
        if code_of(error) == NO_SUCH_TABLE:
            return 0
        raise
    return int(rows[0][0] or 0)


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
