"""The asyncio driver: how its sockets end."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.inside.client import _Wire


class _Link:
    """Whoever has closed is told of nothing any more."""

    def made(self, wire: _Wire) -> None:
        pass

    def stalled(self) -> None:
        pass


async def test_a_socket_that_gets_rid_of_its_last_bytes_while_it_closes_ends_well() -> None:
    closing = asyncio.Event()
    received = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await closing.wait()
        received.set_result(len(await reader.read()))
        writer.close()

    link: Any = _Link()
    wire = _Wire(link)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        await asyncio.get_running_loop().create_connection(lambda: wire, host, port)
        wire.write([bytes(20 << 20)])
        ended = asyncio.create_task(wire.end())
        await asyncio.sleep(0)
        closing.set()
        await ended
        assert await received > 0
