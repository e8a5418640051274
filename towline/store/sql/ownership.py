"""Ownership of the realms of a database: leases with an epoch.

A *realm* is a set of topics that are owned together. Its streams, its documents and its schedule are its own, as those
of a folder are: a broker on a realm needs to know of no other. A database holds any number of realms, and a topic
belongs to exactly one; a broker alone has the one realm `main`. Which topic is in which realm is for those to say who
assign them (`broker/`); here a realm is a name.

    ownership = Ownership(database, owner="broker-2", address="10.0.0.2:7400")
    lease = await ownership.acquire("main")          # None: another one has it, `holders()` says who
    store = await SqlStore.open(database, lease)     # renews the lease by itself for as long as it is open
    …                                                # `store.lost` is done when the lease was lost: drop all state
    await store.close()                              # writes what waits, then lets go of the lease at once

**Safety is the epoch's, not the clock's.** `acquire` is one conditional UPDATE that takes a free or expired realm and
adds 1 to its epoch. Every transaction of a store has the statement

    UPDATE mq_realm SET last_unit = n + 1, expires_at = … WHERE id = ? AND epoch = ? AND last_unit = n

which must meet one row, and whose lock it holds until COMMIT; else it is rolled back. So a deposed owner changes
nothing, however late its packets come: its epoch is gone. Two nodes of a Galera cluster that both take a realm meet at
certification, and one fails. The clock, always the database's own, only says when a realm may be taken.

**A COMMIT without an answer** is resolved by the same statement: doing the unit again meets the row only if it did not
take place; if it does not, the row holds either this unit's number (it did), or another epoch (fenced off).

Every transaction prolongs the lease, and an idle store renews it every quarter of its length (`lease_s`, 2 s), so that
a killed broker's realm is free after at most that, and taken as soon as another one asks (ask every 0.2 s or so: asking
is one SELECT). `release` frees it at once, on behalf of a given heir if one is named.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import bindparam, func, select, text, update
from sqlalchemy.dialects.mysql import insert

from towline.errors import StoreLocked
from towline.store.sql.database import Connection, Database
from towline.store.sql.errors import Fault, classify
from towline.store.sql.schema import tables

__all__ = ["MAIN", "Holder", "Lease", "Ownership"]

log = logging.getLogger("towline.store")

MAIN: Final = "main"
"""The realm of a broker that is alone."""
HEIR_S: Final = 1.0
"""A realm that is handed over waits this long for its heir before others may take it."""
_ASK_S: Final = 0.1


class Lease(msgspec.Struct, frozen=True):
    """A realm that was acquired. It holds what to write, not that it still is ours: only the database knows."""

    realm: str
    realm_id: int
    owner: str
    epoch: int
    lease_s: float


class Holder(NamedTuple):
    """A realm and its owner. `left_s` is the rest of the lease, by the database's clock: free if it is not above 0."""

    realm: str
    owner: str
    address: str
    epoch: int
    left_s: float
    heir: str


_table = tables.realm
_MAKE = insert(_table).values(name=bindparam("realm")).prefix_with("IGNORE")
_NOW = func.now(6)
_LEFT = (func.timestampdiff(text("MICROSECOND"), _NOW, _table.c.expires_at) / 1_000_000.0).label("left_s")
_ALL = select(_table.c.name, _table.c.owner, _table.c.address, _table.c.epoch, _LEFT, _table.c.heir).order_by(
    _table.c.name
)
_ONE = select(_table.c.id, _table.c.owner, _table.c.epoch, _LEFT, _table.c.heir).where(
    _table.c.name == bindparam("realm")
)
_UNTIL = func.timestampadd(text("MICROSECOND"), bindparam("lease_us"), _NOW)
_TAKEOVER = (
    update(_table)
    .where(_table.c.id == bindparam("realm_id"), _table.c.epoch == bindparam("known_epoch"))
    .values(
        owner=bindparam("new_owner"),
        address=bindparam("new_address"),
        heir="",
        epoch=bindparam("new_epoch"),
        expires_at=_UNTIL,
    )
)
"""Each of the three ways to take a realm adds its own condition."""
_TAKE = _TAKEOVER.where(_table.c.expires_at <= _NOW)
_DEPOSE = _TAKEOVER.where(_table.c.owner == bindparam("dead_owner"))
_INHERIT = _TAKEOVER.where(_table.c.heir == bindparam("new_owner"))
_RELEASE = (
    update(_table)
    .where(_table.c.id == bindparam("realm_id"), _table.c.epoch == bindparam("known_epoch"))
    .values(owner="", address="", heir=bindparam("new_heir"), expires_at=_UNTIL)
)


class Ownership:
    """Takes realms and gives them back, for one broker. The schema must be there (`prepare` in `schema`)."""

    def __init__(self, database: Database, owner: str, address: str = "") -> None:
        self._database = database
        self._owner = owner
        self._address = address

    async def holders(self) -> list[Holder]:
        """All realms that were ever acquired, by name."""
        rows = await self._database.reading(lambda connection: connection.rows(_ALL))
        return [Holder(realm, owner, at, epoch, float(left_s), heir) for realm, owner, at, epoch, left_s, heir in rows]

    async def acquire(self, realm: str, dead_owner: str = "") -> Lease | None:
        """Take a realm that is free, has expired, was left to us, or belongs to `dead_owner`, which is known to be
        dead; made if it was never there. None if another one holds it: also if that is a broker of our own name, for it
        may live."""
        return await self._database.reading(lambda connection: self._acquire(connection, realm, dead_owner))

    async def wait_for(self, realm: str, patience_s: float) -> Lease:
        """Take a realm as soon as it is free; `StoreLocked` if it is not within `patience_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while (lease := await self.acquire(realm)) is None:
            if loop.time() > deadline:
                holder = next((one for one in await self.holders() if one.realm == realm), None)
                whom = f"{holder.owner} at {holder.address}" if holder is not None else "another one"
                raise StoreLocked(
                    f"realm {realm} of the database {self._database.label} belongs to another broker: {whom}. Stop "
                    "that one, or give this one another database"
                )
            await asyncio.sleep(_ASK_S)
        return lease

    async def _acquire(self, connection: Connection, realm: str, dead_owner: str) -> Lease | None:
        found = await connection.rows(_ONE, realm=realm)
        if not found:
            await connection.run(_MAKE, realm=realm)
            found = await connection.rows(_ONE, realm=realm)
        realm_id, owner, epoch, left_s, heir = found[0]
        lease_s = self._database.settings.lease_s
        if float(left_s) <= 0:
            taking = _TAKE
        elif heir and heir == self._owner:
            taking = _INHERIT
        elif owner and owner == dead_owner:
            taking = _DEPOSE
        else:
            return None
        try:
            met = await connection.run(
                taking,
                realm_id=realm_id,
                known_epoch=epoch,
                dead_owner=dead_owner,
                new_owner=self._owner,
                new_address=self._address,
                new_epoch=epoch + 1,
                lease_us=round(lease_s * 1e6),
            )
        except Exception as error:
            if classify(error) is Fault.AGAIN:  # another one was faster
                return None
            raise
        if met != 1:
            return None
        log.info("realm %s of %s is ours, in epoch %d", realm, self._database.label, epoch + 1)
        return Lease(realm, realm_id, self._owner, epoch + 1, lease_s)

    async def release(self, lease: Lease, heir: str = "") -> None:
        """Release a realm: it is free at once, for `heir` alone during the next second if one is named. Nothing happens
        if the lease was lost already."""
        await release(self._database, lease, heir)


async def release(database: Database, lease: Lease, heir: str = "") -> None:
    await database.reading(
        lambda connection: connection.run(
            _RELEASE,
            realm_id=lease.realm_id,
            known_epoch=lease.epoch,
            new_heir=heir,
            lease_us=round(HEIR_S * 1e6) if heir else -1,
        )
    )
