"""The other ends of the raw sockets that the machine is measured with: `python -m bench.peers echo|sink`."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import cast

__all__ = ["MESSAGE", "main"]

MESSAGE = 250
"""Bytes of an echoed message: about what a single confirmed send takes on the wire."""


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def _echo() -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


def _sink() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        block = bytearray(128 << 10)
        with connection:
            while connection.recv_into(block):
                pass
            # Only now has everything arrived.
            connection.sendall(b".")


def main() -> None:
    if sys.argv[1] == "sink":
        _sink()
        return
    import uvloop

    uvloop.run(_echo())


if __name__ == "__main__":
    main()
