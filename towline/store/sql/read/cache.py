"""The frames that were written or read last, in memory: consumers that keep up do not query the database."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict

from towline.store.spi import Chunk

__all__ = ["FrameCache"]


class FrameCache:
    """Whole frames by stream and number, up to so many bytes; those used longest ago go first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._chunks: OrderedDict[tuple[int, int], Chunk] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}
        self._bytes = 0

    def put(self, stream_id: int, chunk: Chunk) -> None:
        assert not chunk.start, chunk
        length = len(chunk.frame)
        key = (stream_id, chunk.first)
        if length > self._limit // 4 or key in self._chunks:
            return
        self._chunks[key] = chunk
        firsts = self._firsts.setdefault(stream_id, [])
        if not firsts or chunk.first > firsts[-1]:
            firsts.append(chunk.first)
        else:
            insort(firsts, chunk.first)
        self._bytes += length
        while self._bytes > self._limit:
            self._forget(*next(iter(self._chunks)))

    def find(self, stream_id: int, seq: int) -> Chunk | None:
        """The frame that holds this record, if it is here."""
        firsts = self._firsts.get(stream_id)
        index = bisect_right(firsts, seq) - 1 if firsts else -1
        if firsts is None or index < 0:
            return None
        key = (stream_id, firsts[index])
        chunk = self._chunks[key]
        if seq >= chunk.first + chunk.count:
            return None
        self._chunks.move_to_end(key)
        return chunk

    def drop_before(self, stream_id: int, first: int) -> None:
        """Forget frames of which all records are before this one."""
        firsts = self._firsts.get(stream_id, [])
        while firsts and firsts[0] + self._chunks[stream_id, firsts[0]].count <= first:
            self._forget(stream_id, firsts[0])

    def _forget(self, stream_id: int, first: int) -> None:
        self._bytes -= len(self._chunks.pop((stream_id, first)).frame)
        firsts = self._firsts[stream_id]
        del firsts[bisect_right(firsts, first) - 1]
        if not firsts:
            del self._firsts[stream_id]
