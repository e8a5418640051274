"""Documents that all brokers on a database share: read by any, replaced by any, never by two at once.

They lie beside the documents of the realm `main`, where a broker that is alone keeps its own, so that documents from
before brokers were joined count on, and the other way round. No lease protects them: a document is replaced only if it
is still the one that was read before, and `Overtaken` tells a late writer to read it again.
"""

from __future__ import annotations

import hashlib
from typing import Final

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.dialects.mysql import insert

from towline.errors import Overtaken
from towline.store.sql.database import Connection, Database
from towline.store.sql.ownership import MAIN
from towline.store.sql.schema import tables

__all__ = ["SharedDocuments"]

_DIGEST_BITS: Final = 256
_realm, _table = tables.realm, tables.document
_MAKE_REALM = insert(_realm).values(name=MAIN).prefix_with("IGNORE")
_REALM = select(_realm.c.id).where(_realm.c.name == MAIN)
_IT = (_table.c.realm_id == bindparam("a_realm"), _table.c.name == bindparam("a_name"))
_digest = func.sha2(_table.c.body, _DIGEST_BITS)
_LOOK = select(_digest).where(*_IT)
_LOAD = select(_table.c.body).where(*_IT)
_FIRST = (
    insert(_table)
    .values(realm_id=bindparam("a_realm"), name=bindparam("a_name"), body=bindparam("a_body"), saved_at=func.now(6))
    .prefix_with("IGNORE")
)
_NEXT = (
    update(_table).where(*_IT, _digest == bindparam("a_digest")).values(body=bindparam("a_body"), saved_at=func.now(6))
)


class SharedDocuments:
    """`save` replaces what this process has loaded or saved last under that name, and nothing else."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._realm_id = 0
        self._known: dict[str, bytes] = {}

    async def load(self, name: str) -> bytes | None:
        found = await self._database.reading(lambda connection: self._load(connection, name))
        if found is None:
            self._known.pop(name, None)
        else:
            self._known[name] = found
        return found

    async def save(self, name: str, document: bytes) -> None:
        await self._database.reading(lambda connection: self._save(connection, name, document))
        self._known[name] = document

    async def _load(self, connection: Connection, name: str) -> bytes | None:
        realm = await self._realm(connection)
        known = self._known.get(name)
        if known is not None:
            # Looked at every few seconds by every broker: its digest is enough while it stays the same.
            rows = await connection.rows(_LOOK, a_realm=realm, a_name=name)
            if rows and _text(rows[0][0]) == _digest_of(known):
                return known
        rows = await connection.rows(_LOAD, a_realm=realm, a_name=name)
        return bytes(rows[0][0]) if rows else None

    async def _save(self, connection: Connection, name: str, document: bytes) -> None:
        realm = await self._realm(connection)
        known = self._known.get(name)
        if known is None:
            met = await connection.run(_FIRST, a_realm=realm, a_name=name, a_body=document)
        else:
            digest = _digest_of(known)
            met = await connection.run(_NEXT, a_realm=realm, a_name=name, a_body=document, a_digest=digest)
        if met:
            return
        # It may have been ourselves, if the answer was lost on its way.
        rows = await connection.rows(_LOAD, a_realm=realm, a_name=name)
        if not rows or bytes(rows[0][0]) != document:
            raise Overtaken(f"{name} was changed by another broker in this moment: try again")

    async def _realm(self, connection: Connection) -> int:
        if not self._realm_id:
            await connection.run(_MAKE_REALM)
            self._realm_id = int((await connection.rows(_REALM))[0][0])
        return self._realm_id


def _digest_of(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
