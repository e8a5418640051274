"""A proxy in front of a database that cuts connections at a COMMIT: before the server gets it, or before the answer."""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Literal

__all__ = ["CuttingProxy"]

COMMIT = b"\x07\x00\x00\x00\x03COMMIT"
"""The packet as the client sends it: length, number, COM_QUERY, text."""

Place = Literal["before", "after"]


class CuttingProxy:
    """Passes bytes on. With a certain chance it cuts a connection when a COMMIT comes by: *before* passing it on, so
    that it never takes place, or *after*, so that it does and nobody is told."""

    def __init__(self, target_port: int, chance: float, cuts: int, seed: int) -> None:
        self._target_port = target_port
        self._chance = chance
        self._left = cuts
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self.refusing = False
        """While set, nobody gets through."""
        self.cuts = {"before": 0, "after": 0}
        self.port = 0

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_all(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if self.refusing:
                return
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target_port)
            try:
                await self._pass(reader, writer, from_server, to_server)
            finally:
                to_server.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        muted = asyncio.Event()

        async def answers() -> None:
            while data := await from_server.read(1 << 16):
                if muted.is_set():
                    # The COMMIT took place: the server answers. Nobody hears it.
                    return
                writer.write(data)
                await writer.drain()

        async def questions() -> None:
            while data := await reader.read(1 << 16):
                place = self._place(data)
                if place == "before":
                    return
                if place == "after":
                    muted.set()
                    to_server.write(data)
                    await to_server.drain()
                    await back
                    return
                to_server.write(data)
                await to_server.drain()

        back = asyncio.ensure_future(answers())
        forth = asyncio.ensure_future(questions())
        try:
            await asyncio.wait([back, forth], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (back, forth):
                one.cancel()
            await asyncio.gather(back, forth, return_exceptions=True)

    def _place(self, data: bytes) -> Place | None:
        if self._left <= 0 or not data.endswith(COMMIT) or self._random.random() > self._chance:
            return None
        self._left -= 1
        place: Place = "before" if self._random.random() < 0.5 else "after"
        self.cuts[place] += 1
        return place
