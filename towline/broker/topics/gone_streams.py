"""Streams of deleted topics and groups: their names and next numbers are kept, so that no number is given twice when
one is made anew. They take memory, so their number is bounded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from towline.broker.topics.catalog import Catalog
from towline.clock import in_slices
from towline.errors import TooMany
from towline.model import (
    ARRIVED_STREAMS,
    DEAD_STREAMS,
    LANE_STREAMS,
    LANES,
    OWN_STREAMS,
    PRIVATE,
    TopicConfig,
    arrived_stream,
    dead_stream,
    lane_names,
    lane_stream,
    own_stream,
    pull_stream,
)
from towline.store import Store
from towline.store.spi import kind_of

__all__ = ["GoneStreams", "may_forget", "streams_of_group", "streams_of_topic", "trim_group"]

_NO_NAME: Final = "-/-/-"
"""No stream has this name: its bounds are the floor of its kind."""


class GoneStreams:
    def __init__(self, store: Store, catalog: Catalog, most: int) -> None:
        self._store = store
        self._catalog = catalog
        self._most = most
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._names)

    async def recover(self) -> None:
        topics, groups = self._catalog.topics, self._catalog.groups
        for kind in (LANE_STREAMS, ARRIVED_STREAMS):
            self._names.update(
                [one async for one in in_slices(self._store.streams(kind)) if one.split("/")[1] not in topics]
            )
        for kind in (OWN_STREAMS, DEAD_STREAMS):
            self._names.update(
                [one async for one in in_slices(self._store.streams(kind)) if tuple(one.split("/")[1:3]) not in groups]
            )

    def left(self, streams: Iterable[str]) -> None:
        """The owner of these streams is gone."""
        self._names.update([stream for stream in streams if self._is_there(stream)])

    def _is_there(self, stream: str) -> bool:
        return self._store.bounds(stream).end != self._store.bounds(kind_of(stream) + _NO_NAME).end

    def check(self, streams: Iterable[str], what: str) -> None:
        """Refuse to make an owner of these streams, unless it was there before."""
        if len(self._names) >= self._most and self._names.isdisjoint(streams):
            raise TooMany(
                f"{len(self._names)} streams of deleted topics and groups are remembered, so that no number is given "
                f"twice: {what} is not made. Names that were deleted may be used again; --max-gone-streams is how many "
                "are remembered"
            )

    def taken(self, streams: Iterable[str]) -> None:
        """The owner of these streams exists now."""
        self._names.difference_update(streams)

    def figures(self) -> dict[str, Any]:
        return {"gone_streams": len(self._names), "gone_streams_max": self._most}


def streams_of_topic(config: TopicConfig) -> list[str]:
    lanes = [lane_stream(config.name, lane) for lane in lane_names(config.shards)]
    return [*lanes, arrived_stream(config.name)]


def streams_of_group(topic: str, group: str) -> list[str]:
    return [dead_stream(topic, group), *(own_stream(topic, group, lane) for lane in LANES)]


async def trim_group(store: Store, topic: str, group: str) -> None:
    """The streams of a deleted group are trimmed. Its pull log goes last: it tells that this is not done yet."""
    owns = (own_stream(topic, group, lane) for lane in LANES)
    for stream in (dead_stream(topic, group), *owns, pull_stream(topic, group)):
        first, end, _ = store.bounds(stream)
        if may_forget(stream) or first < end:
            await store.trim(stream, end, forget=may_forget(stream))


def may_forget(stream: str) -> bool:
    """Whether a stream may be forgotten. A reader that continues from an old number must be able to tell that it is
    another stream: of pull logs their first event says so, and dead letters of a group may be looked for by their
    numbers."""
    kind, _, group = stream.split("/")[:3]
    return kind == "pull" or (kind == "dead" and group.startswith(PRIVATE))
