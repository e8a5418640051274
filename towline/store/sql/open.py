"""Opening the store of a broker that is alone on its database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from towline.clock import SYSTEM, Clock
from towline.errors import TowlineError
from towline.format import FORMAT
from towline.store.sql.database import Database
from towline.store.sql.errors import explain
from towline.store.sql.ownership import MAIN, Ownership
from towline.store.sql.roster import BROKER, Roster
from towline.store.sql.schema.migrate import prepare, raise_number, stated_number
from towline.store.sql.schema.privileges import check_rights
from towline.store.sql.schema.server_checks import check_server
from towline.store.sql.settings import SqlSettings
from towline.store.sql.store import SqlStore

__all__ = ["open_sql", "prepare_database"]

log = logging.getLogger("towline.store")

_BEAT_S: Final = 10.0


async def prepare_database(settings: SqlSettings, *, max_frame_bytes: int = 0) -> Database:
    """Connect, check the server's settings and our privileges, and make the tables that are missing."""
    database = Database(settings)
    try:
        connection = await database.connect()
        await connection.close()
        await check_server(database, max_frame_bytes)
        await check_rights(database)
        await prepare(database)
    except TowlineError:
        await database.close()
        raise
    except Exception as error:
        await database.close()
        raise explain(error, database.label) from None
    return database


class _OwnStore(SqlStore):
    """A store with a database of its own, which it closes; its broker is on the roster for as long as it is open."""

    _beating: asyncio.Task[None] | None = None

    def register(self, owner: str, address: str) -> None:
        data = {"realm": self.lease.realm, "epoch": self.lease.epoch, "format": FORMAT}
        beats = Roster(self.database).keep_beating(BROKER, owner, address, data, _BEAT_S)
        self._beating = asyncio.get_running_loop().create_task(beats, name="towline-sql-roster")

    async def close(self, heir: str = "") -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait([beating])
        await super().close(heir)
        if beating is not None and self.failure is None:
            with contextlib.suppress(TowlineError):
                await Roster(self.database).leave(BROKER, self.lease.owner)
        await self.database.close()


async def open_sql(
    settings: SqlSettings, *, owner: str, address: str = "", max_frame_bytes: int = 0, clock: Clock = SYSTEM
) -> SqlStore:
    """Open the realm `main`. A broker that was killed just now keeps it until its lease ends: this waits for that."""
    database = await prepare_database(settings, max_frame_bytes=max_frame_bytes)
    try:
        lease = await Ownership(database, owner, address).wait_for(MAIN, 2 * settings.lease_s)
        store = await _OwnStore.open(database, lease, clock=clock)
        number = await stated_number(database)
        if number < FORMAT:
            await raise_number(database)
            log.warning(
                "%s is upgraded from format %d to %d: no version of Towline before this one can use it any more",
                *(database.label, number, FORMAT),
            )
        store.register(owner, address)
        return store
    except BaseException:
        await database.close()
        raise
