"""Retention that waits for the archive: a *hold*, which is a small document among those of the broker.

It holds the progress of the archive, by stream. It is sent to the broker, or written to its folder as
`config/hold-NAME.json`. A broker that is started with `--holds NAME` reads it in each round of retention, and keeps
records that are not archived; for how long, and how much of it, its settings bound: see
`towline/broker/retention/holds.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from towline.client.bulk.nodes import node_of
from towline.client.bulk.publish import Publisher
from towline.errors import BadName
from towline.spark.jobs.archive.archive_folder import ArchiveFolder
from towline.spark.jobs.source import Source

__all__ = ["Hold"]


class Hold:
    def __init__(self, source: Source, name: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,49}", name):
            raise BadName(f"hold {name[:80]!r}: use 1 to 50 letters, digits, dots and hyphens")
        self._source, self._name = source, name

    def move(self, positions: Mapping[str, int], now_us: int) -> None:
        """Records before these of each stream are archived. Retention waits for no other stream."""
        if self._source.path:
            place = ArchiveFolder(Path(self._source.path) / "config")
            document = {"at_us": now_us, "positions": positions}
            place.replace(f"hold-{self._name}.json", msgspec.json.encode(document))
            return
        by_broker: dict[str, dict[str, int]] = {}
        for key, position in positions.items():
            stream, _, broker = key.partition("@")
            by_broker.setdefault(broker, {})[stream] = position
        with self._source.door.connect() as client:
            for broker, some in by_broker.items():
                Publisher(client, link=node_of(client, broker).link).move_hold(self._name, some)
