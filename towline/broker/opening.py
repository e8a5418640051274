"""From the `store` setting to an open store."""

from __future__ import annotations

from pathlib import Path

from towline.errors import BadRequest
from towline.settings import BrokerSettings
from towline.store.log import LogSettings, LogStore
from towline.store.memory import MemoryStore
from towline.store.spi import Store

__all__ = ["open_store"]


async def open_store(settings: BrokerSettings) -> Store:
    scheme, colon, rest = settings.store.partition(":")
    if colon and scheme == "memory" and not rest:
        return MemoryStore(settings.capacity_messages, settings.capacity_bytes)
    if colon and scheme == "file" and rest:
        limits = LogSettings(segment_bytes=settings.segment_bytes, min_free_bytes=settings.min_free_bytes)
        return await LogStore.open(Path(rest), limits)
    hint = f"; for a folder: file:{settings.store}" if settings.store.startswith((".", "/", "~")) else ""
    raise BadRequest(f"store {settings.store!r}: write memory: or file:DIR{hint}")
