"""Reading whole streams, for bulk readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from towline.broker.access.permissions import resources_of_stream, topic_of_stream
from towline.broker.consume.fetch import Buffers, fitting, next_of, wire_part
from towline.errors import BadFrame, NotFound
from towline.protocol.scan import LocatedIn, LocateIn, Scan, Scanned, Streams, StreamState, Survey

if TYPE_CHECKING:
    from towline.broker.access.rules import May
    from towline.broker.topics.topic import Topic
    from towline.store import Store

__all__ = ["StreamScanner"]


def _may_see(stream: str, may: May) -> bool:
    found = resources_of_stream(stream)
    return all(may("describe", *one) for one in found) if found else may("describe", "cluster", "")


class StreamScanner:
    """The streams of a store: those of existing topics, and those that belong to no topic."""

    def __init__(self, store: Store, topics: Callable[[], Mapping[str, Topic]]) -> None:
        self._store = store
        self._topics = topics

    async def survey(self, request: Survey, may: May | None = None) -> Streams:
        """Streams of existing topics, as far as the caller may describe them: what deleted ones have left behind is
        hidden."""
        names = {name for name in self._store.streams(request.prefix) if name > request.after}
        # A lane without a message has no stream yet, but readers of the topic must know of it.
        for topic in self._topics().values():
            names.update(
                lane.stream
                for lane in topic.lanes
                if lane.stream.startswith(request.prefix) and lane.stream > request.after
            )
        chosen = [name for name in sorted(names) if self._exists(name) and (may is None or _may_see(name, may))]
        states = [StreamState(name, *self._bounds(name)) for name in chosen[: request.limit]]
        return Streams(states, len(chosen) > request.limit)

    def _exists(self, name: str) -> bool:
        topic = topic_of_stream(name)
        return not topic or topic in self._topics()

    def _bounds(self, name: str) -> tuple[int, int, int]:
        """Of a lane, only the visible messages."""
        first, end, size_bytes = self._store.bounds(name)
        kind, _, rest = name.partition("/")
        topic = self._topics().get(rest.partition("/")[0])
        if kind == "lane" and topic is not None:
            end = next((lane.end for lane in topic.lanes if lane.stream == name), end)
        return min(first, end), end, size_bytes

    async def scan(self, request: Scan) -> tuple[Scanned, Buffers]:
        if not self._exists(request.stream):
            raise NotFound(f"there is no topic {topic_of_stream(request.stream)}")
        begin, end, _ = self._bounds(request.stream)
        at, stop = request.first, min(request.end, end)
        lost: list[tuple[int, int, str]] = []
        if at < min(begin, stop):
            lost.append((at, min(begin, stop) - at, "it is not kept any more"))
            at = min(begin, stop)
        if at >= stop:
            return Scanned([], at, lost), []
        read = await self._store.read(request.stream, at, stop - at, request.max_bytes)
        parts, buffers = [], []
        chunks = fitting(read.chunks, request.max_bytes)
        behind = next_of(read, chunks)
        for chunk in chunks:
            try:
                part, some = wire_part(0, 0, chunk, chunk.count)
            except BadFrame as error:
                lost.append((chunk.first, chunk.count, str(error)))
                continue
            parts.append(part)
            buffers += some
        lost += [(one.first, one.count, one.reason) for one in read.lost if one.first < behind]
        began = min([part.first for part in parts] + [one[0] for one in lost if one[0] >= at], default=behind)
        if began > at:
            # Retention dropped it in this very moment.
            lost.append((at, began - at, "it is not kept any more"))
        return Scanned(parts, max(behind, at), sorted(lost)), buffers

    async def locate_in(self, request: LocateIn) -> LocatedIn:
        _, end, _ = self._bounds(request.stream)
        return LocatedIn(min(await self._store.locate(request.stream, request.time_us), end))
