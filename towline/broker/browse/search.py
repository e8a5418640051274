"""Finding messages of a lane: by key, by time, or both."""

from __future__ import annotations

from typing import Final

from towline.broker.consume.fetch import Buffers, fitting, next_of, wire_part
from towline.broker.topics.lane import Lane
from towline.frame.layout import unpacked_bytes
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
    if request.until_us:
        end = min(await store.locate(lane.stream, request.until_us), end)
    at = min(await store.locate(lane.stream, request.since_us, request.first, key), end)
    while at < end and room and (budget > 0 or not parts):
        read = await store.read(lane.stream, at, 1 if key else min(room, ROUND, end - at), max(budget, 1))
        chunks = fitting(read.chunks, budget)
        if parts and chunks and unpacked_bytes(chunks[0].frame) > max(budget, len(chunks[0].frame)):
            break
        for chunk in chunks:
            part, some = wire_part(request.lane, 0, chunk, chunk.count)
            parts.append(part)
            buffers += some
            budget -= max(part.length, unpacked_bytes(chunk.frame) if len(some) == 1 else 0)
            room -= chunk.count
        at = max(next_of(read, chunks), at + 1)
        if key and at < end:
            at = min(await store.locate(lane.stream, 0, at, key), end)
    return Found(parts, at, end), buffers
