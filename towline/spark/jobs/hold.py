"""Retention that waits for the archive: a *hold*, which is a small file beside the broker's log.

`holds/NAME.json` says how far the archive has come, by stream. The broker reads it whenever it looks after retention
and keeps what is not archived; for how long, and how much of it, its settings bound (`hold_max_s`, `hold_max_bytes`),
so that an archive that died cannot fill the disk: see docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from towline.errors import BadRequest
from towline.model import check_group
from towline.spark.jobs.place import Place
from towline.spark.jobs.source import Source

__all__ = ["Hold"]


class Hold:
    def __init__(self, source: Source, name: str) -> None:
        if not source.path:
            raise BadRequest("a hold stands beside the broker's log: give the broker's folder (--path), not its URL")
        check_group(name)
        self._place = Place(Path(source.path) / "holds")
        self._name = f"{name}.json"

    def move(self, positions: Mapping[str, int], now_us: int) -> None:
        """What comes before these records of each stream is archived; of all other streams, nothing is."""
        self._place.replace(self._name, msgspec.json.encode({"at_us": now_us, "positions": positions}))
