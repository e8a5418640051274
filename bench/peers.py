"""The other ends of the raw sockets that the machine is measured with: `python -m bench.peers ROLE [FILE]`.

echo     sends back what comes
sink     takes what comes, and says when it has all
store    the same, but writes it to a file
replay   sends the file, as long as somebody listens
relay    passes on to the first who comes what the second one sends
pace     sends so many messages to a relay's port, a thousand a second, each with its time
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from typing import cast

__all__ = ["BLOCK", "MESSAGE", "PACE_NS", "STAMP", "main"]

MESSAGE = 250
"""Bytes of an echoed message: about what a single confirmed send takes on the wire."""

STAMP = 8
"""Bytes at the beginning of a paced message: when it was sent, on the steady clock."""
PACE_NS = 1_000_000

BLOCK = 128 << 10
"""About what a frame of 1,000 messages of 100 bytes takes."""


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


def _accept() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        return server.accept()[0]


def _sink(file: int | None) -> None:
    block = memoryview(bytearray(BLOCK))
    with _accept() as connection:
        while count := connection.recv_into(block, BLOCK, socket.MSG_WAITALL):
            if file is not None:
                os.write(file, block[:count])
        # Only now has everything arrived.
        connection.sendall(b".")


def _replay(file: int) -> None:
    with _accept() as connection:
        position, size = 0, os.fstat(file).st_size
        try:
            while True:
                connection.sendall(os.pread(file, BLOCK, position))
                position = (position + BLOCK) % size
        except OSError:
            pass  # Nobody listens any more.


def _relay() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        receiver, sender = server.accept()[0], server.accept()[0]
    with receiver, sender:
        receiver.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := sender.recv(BLOCK):
            receiver.sendall(data)


def _pace(port: int, count: int) -> None:
    padding = bytes(MESSAGE - STAMP)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin_ns = time.perf_counter_ns()
        for number in range(count):
            left_ns = begin_ns + number * PACE_NS - time.perf_counter_ns()
            if left_ns > 0:
                time.sleep(left_ns / 1e9)
            connection.sendall(time.perf_counter_ns().to_bytes(STAMP, "little") + padding)


def main() -> None:
    match sys.argv[1:]:
        case ["echo"]:
            import uvloop

            uvloop.run(_echo())
        case ["sink"]:
            _sink(None)
        case ["store", path]:
            _sink(os.open(path, os.O_WRONLY))
        case ["replay", path]:
            _replay(os.open(path, os.O_RDONLY))
        case ["relay"]:
            _relay()
        case ["pace", port, count]:
            _pace(int(port), int(count))


if __name__ == "__main__":
    main()
