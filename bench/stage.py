"""Where a scenario plays: a folder, a broker, workers, and how long it may take."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from towline.load.broker import BrokerProcess
from towline.load.crew import run
from towline.load.job import Job, Tally

__all__ = ["Stage"]


BREAK_IN_BYTES = 350_000_000
"""For each second of a measurement at full speed."""


@dataclass
class Stage:
    """`seconds` is how long one measurement at full speed takes, `repeats` how often it is made."""

    folder: Path
    seconds: float
    repeats: int
    backlog: int
    """How many messages wait in the scenarios about large backlogs."""
    minutes: float = 10.0
    """How long the soak takes, and the groups and topics there are in it."""
    groups: int = 4_000
    topics: int = 10_000
    trace: Path | None = None
    """Where the soak writes what the broker's memory is made of."""

    @contextmanager
    def space(self) -> Iterator[Path]:
        """A folder of its own, gone afterwards."""
        path = Path(tempfile.mkdtemp(prefix="bench-", dir=self.folder))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def break_in(self) -> None:
        """Use memory as the page cache of a broker will. A virtual machine gets its memory when it is first touched,
        and that is ten times slower than writing to it again: neither a broker nor the raw limits should pay for it."""
        block = bytes(1 << 20)
        with self.space() as path, (path / "memory").open("wb", buffering=0) as file:
            for _ in range(int(self.seconds * self.repeats * BREAK_IN_BYTES) >> 20):
                file.write(block)

    @contextmanager
    def broker(self, **settings: Any) -> Iterator[BrokerProcess]:
        with self.space() as path, BrokerProcess(f"file:{path / 'data'}", log_level="warning", **settings) as broker:
            yield broker

    def run(self, broker: BrokerProcess, *jobs: Job) -> list[Tally]:
        """Let these jobs loose on a broker, all at once."""
        return run([msgspec.structs.replace(job, url=broker.url) for job in jobs])

    def fill(self, broker: BrokerProcess, topic: str, count: int, size: int = 100) -> Tally:
        """Send messages that are to wait there, in frames of up to half a megabyte."""
        batch = max(1, min(1_000, 512_000 // max(1, size)))
        return self.run(
            broker, Job(role="frames", topics=(topic,), count=count, size=size, batch=batch, durability="os")
        )[0]

    def repeat(self, *jobs: Job, **settings: Any) -> tuple[list[list[Tally]], str]:
        """The same jobs again and again, each time on a new broker in a new folder, so that no run has to wait for what
        the one before it left to be written. Gives the tallies, and what a message cost the broker."""
        runs, cpu_s = [], 0.0
        for _ in range(self.repeats):
            with self.broker(**settings) as broker:
                begin_s = broker.cpu_s
                runs.append(self.run(broker, *jobs))
                cpu_s += broker.cpu_s - begin_s
        cost_us = cpu_s * 1e6 / max(1, sum(tallies[-1].messages for tallies in runs))
        return runs, f"broker {cost_us:.3g} µs/msg of CPU"

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
