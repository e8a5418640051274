"""The stores that the contract is checked on, and what the tests append to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tests.inside.frame import Frame, encode
from tests.inside.ground import ManualClock
from tests.inside.store import Append, Appended, Chunk, LogSettings, LogStore, MemoryStore, Store
from tests.store.sql.server import new_database, sql_settings
from towline.model import Durability

ALL = 1 << 20
"""More records, and more bytes, than any test reads at once."""
LIMIT_BYTES = 1 << 20
"""A unit larger than this fits into none of the stores, as they are set up here."""
SEGMENT_BYTES = 64 << 10
OVERHEAD_BYTES = 256
"""No store takes more than so many bytes for a frame besides the frame itself."""


class Stores(ABC):
    """A kind of store: opens it, and opens it again with what it held before."""

    durable: bool
    coarseness_bytes: int
    """`retain` may keep so much more than the limits ask for, or free so much more."""

    def __init__(self) -> None:
        self.clock = ManualClock()

    @abstractmethod
    async def make(self) -> Store:
        """Open a store, with everything in it that was there when it was closed."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Store]:
        store = await self.make()
        try:
            yield store
        finally:
            await store.close()


class MemoryStores(Stores):
    durable = False
    coarseness_bytes = 0

    async def make(self) -> Store:
        return MemoryStore(capacity_bytes=LIMIT_BYTES, clock=self.clock)


class LogStores(Stores):
    durable = True
    coarseness_bytes = 2 * SEGMENT_BYTES

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    async def make(self) -> Store:
        settings = LogSettings(segment_bytes=SEGMENT_BYTES, queue_bytes=LIMIT_BYTES, min_free_bytes=0)
        return await LogStore.open(self.folder, settings, clock=self.clock)


class SqlStores(Stores):
    durable = True
    coarseness_bytes = 0

    def __init__(self) -> None:
        super().__init__()
        self.url = new_database()

    async def make(self) -> Store:
        from tests.inside.sql import open_sql

        settings = msgspec.structs.replace(sql_settings(self.url), queue_bytes=LIMIT_BYTES, cache_bytes=200_000)
        return await open_sql(settings, owner="test", clock=self.clock)


KINDS = ["memory", "log", "sql"]
DURABLE = ["log", "sql"]


def make_stores(kind: str, folder: Path) -> Stores:
    if kind == "sql":
        return SqlStores()
    return LogStores(folder) if kind == "log" else MemoryStores()


def frame_of(count: int, size: int = 20, mark: str = "") -> bytes:
    """A frame of `count` messages, each of `size` bytes or of what the mark needs."""
    return encode([f"{mark}:{index}".encode().ljust(size, b".") for index in range(count)])


def put(store: Store, stream: str, *frames: bytes, durability: Durability = Durability.OS) -> Appended:
    """Append these frames as one unit."""
    return store.append([Append(stream, frame, Frame(frame).count) for frame in frames], durability)


async def fill(store: Store, stream: str, frames: int, *, count: int = 1, size: int = 20) -> list[bytes]:
    """Append so many frames, each a unit, and wait for them; gives the bodies of their messages."""
    made = [frame_of(count, size, f"{stream}/{index}") for index in range(frames)]
    for frame in made:
        await put(store, stream, frame).done
    return [body for frame in made for body in Frame(frame).bodies()]


def bodies_of(chunks: Sequence[Chunk]) -> list[bytes]:
    return [
        body for chunk in chunks for body in Frame(chunk.frame).verify().bodies(chunk.start, chunk.start + chunk.count)
    ]


async def read_on(
    store: Store, stream: str, first: int = 0, *, max_count: int = 7, max_bytes: int = 1000
) -> list[Chunk]:
    """Read to the end in small steps, checking that the answers join without a gap."""
    chunks: list[Chunk] = []
    position = max(first, store.bounds(stream).first)
    while position < store.bounds(stream).end:
        answer = await store.read(stream, position, max_count, max_bytes)
        assert not answer.lost
        for chunk in answer.chunks:
            assert chunk.first == position
            assert chunk.count > 0
            assert chunk.start + chunk.count <= Frame(chunk.frame).count
            position += chunk.count
        assert answer.next == position
        assert answer.chunks, "there was something to read"
        chunks += answer.chunks
    return chunks


async def all_bodies(store: Store, stream: str, first: int = 0) -> list[bytes]:
    return bodies_of(await read_on(store, stream, first))
