"""What a broker takes of the machine: memory, processor, open files, disk (Linux)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from towline.load.broker import BrokerProcess

__all__ = ["Reading", "read_gauges"]


class Reading(NamedTuple):
    at_s: float
    """On the steady clock."""
    rss_bytes: int
    anonymous_bytes: int
    """Of these, what is no file's: Python's objects, and what the C library keeps."""
    cpu_s: float
    files: int
    disk_bytes: int
    stolen_s: float
    """In which a processor of this virtual machine had something to do, and its host let others run."""


def read_gauges(broker: BrokerProcess, folder: Path) -> Reading:
    process = Path(f"/proc/{broker.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text(encoding="ascii").splitlines())
    return Reading(
        time.perf_counter(),
        int(status["VmRSS"].split()[0]) << 10,
        int(status["RssAnon"].split()[0]) << 10,
        broker.cpu_s,
        sum(1 for _ in (process / "fd").iterdir()),
        _disk_bytes(folder),
        int(Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[8]) / os.sysconf("SC_CLK_TCK"),
    )


def _disk_bytes(folder: Path) -> int:
    """Blocks, not lengths: files are laid out ahead."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:  # gone meanwhile
            continue
    return total
