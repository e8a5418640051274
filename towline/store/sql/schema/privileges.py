"""Privileges of the broker's user in its database: tried out at the start, on a table made for that.

Lists of grants are no answer: privileges come from roles, from patterns, from other levels. A try tells.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Column, Integer, MetaData, Table, delete, insert, select, text, update
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable
from sqlalchemy.schema import Index as MakeIndex
from sqlalchemy.sql import ClauseElement

from towline.errors import Refused
from towline.store.sql.database import Connection, Database
from towline.store.sql.errors import DENIED, code_of, missing_right
from towline.store.sql.schema.tables import quoted

__all__ = ["NEEDED", "check_rights"]

NEEDED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "INDEX", "CREATE VIEW")


async def check_rights(database: Database) -> None:
    """Raises `Refused`, which names all that are missing."""
    missing = await database.reading(_missing)
    if missing:
        grant = f"GRANT {', '.join(NEEDED)} ON {database.settings.database}.* TO {database.settings.user}"
        raise Refused(
            f"the user {database.settings.user} may not do all that the broker does in the database {database.label}: "
            f"the right to {' and '.join(missing)} is missing. Let an administrator run: {grant}"
        )


async def _missing(connection: Connection) -> list[str]:
    table = Table(f"mq_try_{secrets.token_hex(6)}", MetaData(), Column("number", Integer, primary_key=True))
    view = Table(f"{table.name}_view", MetaData())
    drop = DropTable(table, if_exists=True)
    # First, so that nothing is left behind by one who may not clear up: it is checked although there is no such table.
    missing = await _try(connection, [("DROP", drop)])
    if missing or (missing := await _try(connection, [("CREATE", CreateTable(table))])):
        return missing
    missing = await _try(
        connection,
        [
            ("INSERT", insert(table).values(number=1)),
            ("SELECT", select(table.c.number)),
            ("UPDATE", update(table).values(number=2).where(table.c.number == 1)),
            ("DELETE", delete(table).where(table.c.number == 2)),
            ("ALTER", text(f"ALTER TABLE {quoted(table)} ADD COLUMN more INT")),
            ("INDEX", CreateIndex(MakeIndex("tried", table.c.number))),
            ("CREATE VIEW", text(f"CREATE OR REPLACE VIEW {quoted(view)} AS {select(table.c.number)}")),
        ],
    )
    if "CREATE VIEW" not in missing:
        await connection.run(text(f"DROP VIEW IF EXISTS {quoted(view)}"))
    await connection.run(drop)
    return missing


async def _try(connection: Connection, acts: Sequence[tuple[str, ClauseElement]]) -> list[str]:
    missing = []
    for right, statement in acts:
        try:
            await connection.rows(statement) if right == "SELECT" else await connection.run(statement)
        except Exception as error:
            if code_of(error) not in DENIED:
                raise
            missing.append(missing_right(error) or right)
    return list(dict.fromkeys(missing))
