"""The progress of a query, reported to a broker, so that its lag shows beside that of other groups."""

from __future__ import annotations

from collections.abc import Mapping

from towline.client.bulk.nodes import node_of
from towline.client.bulk.publish import Publisher
from towline.spark.sources import ReadSource

__all__ = ["Progress"]


class Progress:
    def __init__(self, door: ReadSource, group: str) -> None:
        self._client = door.connect()
        self._group = group

    def tell(self, offset: Mapping[str, int]) -> None:
        """`offset` names lanes as `topic/lane`, or `topic/lane@broker`."""
        topics: dict[tuple[str, str], dict[str, int]] = {}
        for name, seq in offset.items():
            lane_name, _, node = name.partition("@")
            topic, _, lane = lane_name.partition("/")
            topics.setdefault((node, topic), {})[lane] = seq
        for (node, topic), positions in topics.items():
            link = node_of(self._client, node).link
            Publisher(self._client, link=link).report(topic, self._group, positions)

    def close(self) -> None:
        self._client.close()
