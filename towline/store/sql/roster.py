"""The roster of brokers and consumers in the table `mq_registry`, by the database's clock.

    roster = Roster(database)
    await roster.beat("broker", "broker-2", "10.0.0.2:7400", {"realms": ["main"]})    # every few seconds
    await roster.present("broker", within_s=30)                                        # all that were heard of
    await roster.leave("broker", "broker-2")

    await roster.beat_all([Entry("consumer", …), …])                                   # many in one statement

Nothing is decided by it: owners are the business of `ownership`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import bindparam, delete, func, select, text
from sqlalchemy.dialects.mysql import insert

from towline.errors import TowlineError
from towline.store.sql.database import Connection, Database
from towline.store.sql.schema import tables
from towline.store.sql.write.encoding import literal

__all__ = ["BROKER", "CONSUMER", "Entry", "Present", "Roster"]

log = logging.getLogger("towline.store")

BROKER: Final = "broker"
CONSUMER: Final = "consumer"
_table = tables.registry
_NOW = func.now(6)
_INSERT = insert(_table).values(
    kind=bindparam("a_kind"),
    name=bindparam("a_name"),
    address=bindparam("an_address"),
    data=bindparam("some_data"),
    since=_NOW,
    beat_at=_NOW,
)
_BEAT = _INSERT.on_duplicate_key_update(
    address=_INSERT.inserted.address, data=_INSERT.inserted.data, beat_at=_INSERT.inserted.beat_at
)
_SILENT_S = (func.timestampdiff(text("MICROSECOND"), _table.c.beat_at, _NOW) / 1_000_000.0).label("silent_s")
_PRESENT = (
    select(_table.c.name, _table.c.address, _table.c.data, _SILENT_S)
    .where(_table.c.kind == bindparam("a_kind"))
    .order_by(_table.c.name)
)
_LEAVE = delete(_table).where(_table.c.kind == bindparam("a_kind"), _table.c.name == bindparam("a_name"))


_DROP_SILENT = delete(_table).where(
    _table.c.kind == bindparam("a_kind"),
    _table.c.beat_at < func.timestampadd(text("SECOND"), bindparam("ago_s"), _NOW),
)
_HEAD = "INSERT INTO `mq_registry` (`kind`, `name`, `address`, `data`, `since`, `beat_at`) VALUES "
_TAIL = " ON DUPLICATE KEY UPDATE `address` = VALUES(`address`), `data` = VALUES(`data`), `beat_at` = VALUES(`beat_at`)"
AT_ONCE: Final = 500
"""Rows of one statement."""


class Entry(NamedTuple):
    """A broker or consumer that is present."""

    kind: str
    name: str
    address: str
    data: Mapping[str, Any]

    def row(self) -> bytes:
        values = (self.kind, self.name, self.address, msgspec.json.encode(self.data).decode())
        return b"(%b,NOW(6),NOW(6))" % b",".join(map(literal, values))


class Present(NamedTuple):
    name: str
    address: str
    data: dict[str, Any]
    silent_s: float
    """How long ago it was heard of."""


class Roster:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def beat(self, kind: str, name: str, address: str, data: Mapping[str, Any]) -> None:
        encoded = msgspec.json.encode(data).decode()
        await self._database.reading(
            lambda connection: connection.run(_BEAT, a_kind=kind, a_name=name, an_address=address, some_data=encoded)
        )

    async def present(self, kind: str, within_s: float) -> list[Present]:
        """All of a kind that were heard of within this time, by name."""
        rows = await self._database.reading(lambda connection: connection.rows(_PRESENT, a_kind=kind))
        found = [Present(name, at, msgspec.json.decode(data), float(silent)) for name, at, data, silent in rows]
        return [one for one in found if one.silent_s <= within_s]

    async def leave(self, kind: str, name: str) -> None:
        await self._database.reading(lambda connection: connection.run(_LEAVE, a_kind=kind, a_name=name))

    async def beat_all(self, entries: Sequence[Entry]) -> None:
        for at in range(0, len(entries), AT_ONCE):
            rows = b",".join(entry.row() for entry in entries[at : at + AT_ONCE])
            statement = _HEAD.encode() + rows + _TAIL.encode()
            await self._send(statement)

    async def leave_all(self, names: Sequence[tuple[str, str]]) -> None:
        """Those of these kinds and names."""
        for at in range(0, len(names), AT_ONCE):
            some = b",".join(b"(%b,%b)" % (literal(kind), literal(name)) for kind, name in names[at : at + AT_ONCE])
            statement = b"DELETE FROM `mq_registry` WHERE (`kind`, `name`) IN (" + some + b")"
            await self._send(statement)

    async def _send(self, statement: bytes) -> None:
        async def work(connection: Connection) -> int:
            return await connection.send(statement)

        await self._database.reading(work)

    async def drop_silent(self, kind: str, silent_s: float) -> None:
        """Those of a kind that have not been heard of for so long."""
        await self._database.reading(
            lambda connection: connection.run(_DROP_SILENT, a_kind=kind, ago_s=-round(silent_s))
        )

    async def keep_beating(self, kind: str, name: str, address: str, data: Mapping[str, Any], every_s: float) -> None:
        """Until it is cancelled. A database that does not answer is no reason to end."""
        while True:
            try:
                await self.beat(kind, name, address, data)
            except TowlineError as error:
                log.debug("%s %s could not be registered: %s", kind, name, error)
            await asyncio.sleep(every_s)
