"""Whole streams for those who read many messages, past all delivery."""

from __future__ import annotations

from collections.abc import Mapping

from towline.broker.delivering import Buffers, wire_part
from towline.broker.topic import Topic
from towline.errors import BadFrame, NotFound
from towline.protocol.scanning import LocatedIn, LocateIn, Scan, Scanned, Streams, StreamState, Survey
from towline.store import Store

__all__ = ["locate_in", "resources_of_prefix", "resources_of_stream", "scan", "survey"]

_OF_TOPICS = ("lane", "pull", "dead", "own")


def resources_of_stream(name: str) -> tuple[str, ...]:
    """What one must be allowed to look at to read a stream: its topic, or all if it is no topic's."""
    kind, _, rest = name.partition("/")
    topic, _, _ = rest.partition("/")
    return (topic,) if kind in _OF_TOPICS and topic else ("*",)


def resources_of_prefix(prefix: str) -> tuple[str, ...]:
    """Of a prefix that names a whole topic, that one; of any other, all."""
    return resources_of_stream(prefix) if prefix.count("/") >= 2 else ("*",)


def survey(store: Store, topics: Mapping[str, Topic], request: Survey) -> Streams:
    """Streams of topics that exist: what deleted ones have left behind is nobody's business."""
    names = {name for name in store.streams(request.prefix) if name > request.after}
    # A lane without a message has no stream yet, but whoever follows the topic must know of it.
    for topic in topics.values():
        names.update(
            lane.stream
            for lane in topic.lanes
            if lane.stream.startswith(request.prefix) and lane.stream > request.after
        )
    chosen = [name for name in sorted(names) if _exists(name, topics)]
    states = [StreamState(name, *_bounds(store, topics, name)) for name in chosen[: request.limit]]
    return Streams(states, len(chosen) > request.limit)


def _exists(name: str, topics: Mapping[str, Topic]) -> bool:
    resource = resources_of_stream(name)[0]
    return resource == "*" or resource in topics


def _bounds(store: Store, topics: Mapping[str, Topic], name: str) -> tuple[int, int, int]:
    """Of a lane, only what may be delivered."""
    first, end, size_bytes = store.bounds(name)
    kind, _, rest = name.partition("/")
    topic = topics.get(rest.partition("/")[0])
    if kind == "lane" and topic is not None:
        end = next((lane.end for lane in topic.lanes if lane.stream == name), end)
    return min(first, end), end, size_bytes


async def scan(store: Store, topics: Mapping[str, Topic], request: Scan) -> tuple[Scanned, Buffers]:
    if not _exists(request.stream, topics):
        raise NotFound(f"there is no topic {resources_of_stream(request.stream)[0]}")
    begin, end, _ = _bounds(store, topics, request.stream)
    at, stop = request.first, min(request.end, end)
    lost: list[tuple[int, int, str]] = []
    if at < min(begin, stop):
        lost.append((at, min(begin, stop) - at, "it is not kept any more"))
        at = min(begin, stop)
    if at >= stop:
        return Scanned([], at, lost), []
    read = await store.read(request.stream, at, stop - at, request.max_bytes)
    parts, buffers = [], []
    for chunk in read.chunks:
        try:
            part, some = wire_part(0, 0, chunk, chunk.count)
        except BadFrame as error:
            lost.append((chunk.first, chunk.count, str(error)))
            continue
        parts.append(part)
        buffers += some
    lost += [(one.first, one.count, one.reason) for one in read.lost]
    began = min([part.first for part in parts] + [one[0] for one in lost if one[0] >= at], default=read.next)
    if began > at:
        # Retention dropped it in this very moment.
        lost.append((at, began - at, "it is not kept any more"))
    return Scanned(parts, max(read.next, at), sorted(lost)), buffers


async def locate_in(store: Store, topics: Mapping[str, Topic], request: LocateIn) -> LocatedIn:
    _, end, _ = _bounds(store, topics, request.stream)
    return LocatedIn(min(await store.locate(request.stream, request.time_us), end))
