"""The queue that people build on a table: `python -m bench.table_queue ROLE PORT DATABASE COUNT`.

produce    INSERT of 500 rows, one transaction each
consume    SELECT … ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED, DELETE of these, COMMIT

The statements are as cheap for the client as can be: the INSERT is made once and sent again and again. Two connections
at a time produce, and two consume: the fastest when measured, for with four the consumers deadlock all the time. Prints
when it began and ended, in nanoseconds of the steady clock.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import asyncmy
import uvloop
from asyncmy.errors import OperationalError

__all__ = ["BATCH", "main"]

BATCH = 500
CONNECTIONS = 2
DEADLOCK = 1213
TABLE = "CREATE TABLE IF NOT EXISTS queue (id BIGINT AUTO_INCREMENT PRIMARY KEY, body BLOB NOT NULL) ENGINE=InnoDB"


async def _connect(port: int, database: str) -> Any:
    connection = await asyncmy.connect(
        host="127.0.0.1", port=port, user="root", database=database, autocommit=True, binary_prefix=True
    )
    ready: Any = connection
    await ready.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    return ready


async def _produce(connection: Any, batches: list[bytes]) -> None:
    while batches:
        await connection.query(batches.pop())


async def _consume(connection: Any, left: list[int]) -> None:
    while left[0] > 0:
        try:
            taken = await _take(connection)
        except OperationalError as error:
            if error.args[0] != DEADLOCK:
                raise
            await connection.query("ROLLBACK")
            continue
        left[0] -= taken
        if not taken:
            await asyncio.sleep(0.001)


async def _take(connection: Any) -> int:
    cursor = connection.cursor()
    await connection.query("BEGIN")
    await cursor.execute(f"SELECT id, body FROM queue ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED")
    rows = await cursor.fetchall()
    if rows:
        await connection.query(f"DELETE FROM queue WHERE id IN ({','.join(str(row[0]) for row in rows)})")
    await connection.query("COMMIT")
    return len(rows)


async def _work(role: str, port: int, database: str, count: int) -> None:
    connections = [await _connect(port, database) for _ in range(CONNECTIONS)]
    await connections[0].query(TABLE)
    rows = ",".join(["(_binary'" + "x" * 100 + "')"] * BATCH)
    insert = f"INSERT INTO queue (body) VALUES {rows}".encode()
    begin = time.monotonic_ns()
    if role == "produce":
        batches = [insert] * (count // BATCH)
        await asyncio.gather(*(_produce(one, batches) for one in connections))
    else:
        left = [count]
        await asyncio.gather(*(_consume(one, left) for one in connections))
    print(begin, time.monotonic_ns(), flush=True)
    for connection in connections:
        await connection.ensure_closed()


def main() -> None:
    role, port, database, count = sys.argv[1:]
    uvloop.run(_work(role, int(port), database, int(count)))


if __name__ == "__main__":
    main()
