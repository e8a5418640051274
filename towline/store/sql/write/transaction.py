"""The contents of a transaction: rows, fence, and the ends of all streams."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, func, select, text, update

from towline.errors import OwnershipLost, StoreFailed
from towline.store.sql.database import Command, Connection, Database
from towline.store.sql.ownership import Lease
from towline.store.sql.read.streams import Stream
from towline.store.sql.schema import tables
from towline.store.sql.write.encoding import literal
from towline.store.sql.write.job import Job, batches

__all__ = ["confirm_committed", "fence", "insertions", "rest_of"]

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


async def insertions(connection: Connection, group: Sequence[Job], statement_bytes: int) -> list[Command]:
    """The rows of the group."""
    return [await connection.insertion(where, runs) for where, runs in batches(group, statement_bytes)]


def fence(connection: Connection, lease: Lease, number: int, at_us: int) -> Command:
    """The statement that must meet one row: no other owner, and the unit before this one is the last."""
    return connection.query(
        _FENCE,
        realm_id=lease.realm_id,
        our_epoch=lease.epoch,
        before=number - 1,
        number=number,
        at_us=at_us,
        lease_us=round(lease.lease_s * 1e6),
    )


def rest_of(connection: Connection, group: Sequence[Job], realm_id: int) -> list[Command]:
    """The statements behind the fence: the ends of the streams, and others of the jobs."""
    commands = [connection.query(statement) for job in group for statement in job.statements]
    streams = _stream_rows(group, realm_id)
    return [connection.query(streams), *commands] if streams else commands


async def confirm_committed(connection: Connection, database: Database, lease: Lease, number: int) -> None:
    """The fence met no row: either this unit was committed although we were not told, or another broker owns the
    realm."""
    rows = await connection.rows(_WHERE_WE_ARE, realm_id=lease.realm_id)
    await connection.rollback()
    epoch, last_unit, owner, address = rows[0] if rows else (0, 0, "nobody", "")
    if epoch != lease.epoch:
        raise OwnershipLost(
            f"realm {lease.realm} of the database {database.label} belongs to another broker by now: "
            f"{owner or 'nobody'} at {address or 'no address'}, epoch {epoch} (ours was {lease.epoch})"
        )
    if last_unit != number:
        raise StoreFailed(
            f"realm {lease.realm} of the database {database.label} is at unit {last_unit}, not at "
            f"{number - 1} as it should be: was the database brought back from a backup under a running broker?"
        )


class _After:
    """The state of a stream after a transaction."""

    __slots__ = ("_stream", "end", "first", "name", "size_bytes", "swept")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.name = stream.name
        self.first = stream.first
        self.end = stream.end
        self.size_bytes = stream.size_bytes
        self.swept = stream.swept
        """Of a new one: nothing before its first record need be deleted."""

    def row(self, realm_id: int) -> bytes:
        numbers = self.first, self.end, self.size_bytes, self.swept
        return b"(%d,%d,%b,%d,%d,%d,%d)" % (self._stream.id, realm_id, literal(self.name), *numbers)


def _stream_rows(group: Sequence[Job], realm_id: int) -> bytes:
    """One statement with the state of all streams of the group after it. All before it must be published. One that is
    forgotten comes before another that has its name by now, for its number is the lower one."""
    after: dict[int, _After] = {}
    for job in group:
        for stream, chunk in job.entries:
            state = after.get(stream.id) or after.setdefault(stream.id, _After(stream))
            state.end = chunk.first + chunk.count
            state.size_bytes += len(chunk.frame)
        for stream, first, freed_bytes, forgets in job.trims:
            state = after.get(stream.id) or after.setdefault(stream.id, _After(stream))
            state.first = first
            state.size_bytes -= freed_bytes
            if forgets:
                state.name = stream.gone_name
    if not after:
        return b""
    rows = [state.row(realm_id) for _, state in sorted(after.items())]
    return b"".join(
        (
            b"INSERT INTO `mq_stream` "
            b"(`id`, `realm_id`, `name`, `first_seq`, `next_seq`, `size_bytes`, `swept_seq`) VALUES ",
            b",".join(rows),
            b" ON DUPLICATE KEY UPDATE `first_seq` = VALUES(`first_seq`), `next_seq` = VALUES(`next_seq`),"
            b" `size_bytes` = VALUES(`size_bytes`), `name` = VALUES(`name`)",
        )
    )
