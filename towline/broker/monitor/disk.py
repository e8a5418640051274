"""Disk usage: the files of the store, and the room on its disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from towline.protocol.monitor import SegmentState, Stored
from towline.settings import BrokerSettings

__all__ = ["Room", "room_of", "storage"]

SEGMENTS_MAX = 1_000


class Room(NamedTuple):
    """Bytes on the disk under the store; of a memory store, its capacity."""

    free_bytes: int
    total_bytes: int

    @property
    def free_percent(self) -> float:
        return 100.0 * self.free_bytes / self.total_bytes if self.total_bytes else 100.0


def _folder(settings: BrokerSettings) -> Path | None:
    scheme, _, rest = settings.store.partition(":")
    return Path(rest).expanduser().absolute() if scheme == "file" else None


def room_of(settings: BrokerSettings, used_bytes: int) -> Room:
    folder = _folder(settings)
    if folder is None:
        if settings.store.startswith("memory:"):
            return Room(max(settings.capacity_bytes - used_bytes, 0), settings.capacity_bytes)
        return Room(0, 0)
    try:
        status = os.statvfs(folder)
    except OSError:
        return Room(0, 0)
    return Room(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


async def storage(settings: BrokerSettings, used_bytes: int) -> Stored:
    room = room_of(settings, used_bytes)
    folder = _folder(settings)
    segments = await asyncio.to_thread(_segments, folder) if folder is not None else []
    size_bytes = sum(one.size_bytes for one in segments) if folder is not None else used_bytes
    shown = segments[-SEGMENTS_MAX:]
    return Stored(
        _without_secrets(settings.store), size_bytes, room.free_bytes, room.total_bytes, shown, _shown(settings)
    )


def _segments(folder: Path) -> list[SegmentState]:
    """From the files themselves: the message log with its indexes, oldest first."""
    found = []
    with os.scandir(folder / "log") as entries:
        for entry in entries:
            if entry.name.endswith(".log"):
                status = entry.stat()
                sealed = (folder / "log" / entry.name).with_suffix(".idx").exists()
                found.append(
                    SegmentState(entry.name, status.st_blocks * 512, round(status.st_mtime * 1_000_000), sealed)
                )
    return sorted(found, key=lambda one: one.name)


def _without_secrets(store: str) -> str:
    """The address of a database may hold a password."""
    scheme, sign, rest = store.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if sign else store


def _shown(settings: BrokerSettings) -> dict[str, Any]:
    facts = msgspec.to_builtins(settings)
    facts["store"] = _without_secrets(settings.store)
    return facts if isinstance(facts, dict) else {}
