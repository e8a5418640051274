"""Finding messages of a lane: by key, by time, or both."""

from __future__ import annotations

from typing import Final

from towline.broker.delivering import Buffers, wire_part
from towline.broker.lane import Lane
from towline.protocol.messages import Find, Found, Part
from towline.store import Store

__all__ = ["find"]

ROUND: Final = 1_000
"""Messages that are read at once when no key is asked for."""


async def find(store: Store, lane: Lane, request: Find) -> tuple[Found, Buffers]:
    key = request.key.encode()
    parts: list[Part] = []
    buffers: Buffers = []
    budget, room = request.max_bytes, request.max_messages
    end = lane.end
    at = min(await store.locate(lane.stream, request.since_us, request.first, key), end)
    while at < end and room and (budget > 0 or not parts):
        read = await store.read(lane.stream, at, 1 if key else min(room, ROUND, end - at), max(budget, 1))
        for chunk in read.chunks:
            if request.until_us and chunk.appended_at_us >= request.until_us:
                return Found(parts, end, end), buffers
            part, some = wire_part(request.lane, 0, chunk, chunk.count)
            parts.append(part)
            buffers += some
            budget -= part.length
            room -= chunk.count
        at = max(read.next, at + 1)
        if key and at < end:
            at = min(await store.locate(lane.stream, 0, at, key), end)
    return Found(parts, at, end), buffers
