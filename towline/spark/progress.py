"""Telling a broker how far a query has come, so that its lag shows beside that of other groups."""

from __future__ import annotations

from collections.abc import Mapping

from towline.client.publishing import Publisher
from towline.spark.reading import Door

__all__ = ["Progress"]


class Progress:
    def __init__(self, door: Door, group: str) -> None:
        self._client = door.connect()
        self._publisher = Publisher(self._client)
        self._group = group

    def tell(self, offset: Mapping[str, int]) -> None:
        """`offset` names lanes as `topic/lane`."""
        topics: dict[str, dict[str, int]] = {}
        for name, seq in offset.items():
            topic, _, lane = name.partition("/")
            topics.setdefault(topic, {})[lane] = seq
        for topic, positions in topics.items():
            self._publisher.report(topic, self._group, positions)

    def close(self) -> None:
        self._client.close()
