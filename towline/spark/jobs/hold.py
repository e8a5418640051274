"""Retention that waits for the archive: a *hold*, which is a small file among those of the broker.

`config/hold-NAME.json` says how far the archive has come, by stream. A broker that is started with `--holds NAME` reads
it whenever it looks after retention, and keeps what is not archived; for how long, and how much of it, its settings
bound: see `towline/broker/holds.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from towline.errors import BadName, BadRequest
from towline.spark.jobs.place import Place
from towline.spark.jobs.source import Source

__all__ = ["Hold"]


class Hold:
    def __init__(self, source: Source, name: str) -> None:
        if not source.path:
            raise BadRequest("a hold stands beside the broker's log: give the broker's folder (--path), not its URL")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,49}", name):
            raise BadName(f"hold {name[:80]!r}: use 1 to 50 letters, digits, dots and hyphens")
        self._place = Place(Path(source.path) / "config")
        self._name = f"hold-{name}.json"

    def move(self, positions: Mapping[str, int], now_us: int) -> None:
        """What comes before these records of each stream is archived; of all other streams, nothing is."""
        self._place.replace(self._name, msgspec.json.encode({"at_us": now_us, "positions": positions}))
