"""Where a scenario plays: a folder, a broker, workers, and how long it may take."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from towline.load.broker import BrokerProcess
from towline.load.crew import run
from towline.load.job import Job, Tally

__all__ = ["Stage"]


@dataclass
class Stage:
    """`seconds` is how long one measurement at full speed takes, `repeats` how often it is made."""

    folder: Path
    seconds: float
    repeats: int
    backlog: int
    """How many messages wait in the scenarios about large backlogs."""
    limits: dict[str, float] = field(default_factory=dict)
    """The machine's own, by name, as far as they were measured."""

    @contextmanager
    def space(self) -> Iterator[Path]:
        """A folder of its own, gone afterwards."""
        path = Path(tempfile.mkdtemp(prefix="bench-", dir=self.folder))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def broker(self, **settings: Any) -> Iterator[BrokerProcess]:
        with self.space() as path, BrokerProcess(f"file:{path / 'data'}", log_level="warning", **settings) as broker:
            yield broker

    def fill(self, broker: BrokerProcess, topic: str, count: int, size: int = 100) -> Tally:
        """Send messages that are to wait there."""
        batch = max(1, min(1_000, (1 << 20) // max(1, size)))
        job = Job(role="frames", url=broker.url, topics=(topic,), count=count, size=size, batch=batch, durability="os")
        return run([job])[0]

    def measure(self, *jobs: Job) -> list[Tally]:
        return run(jobs)

    def repeat(self, broker: BrokerProcess, *jobs: Job) -> tuple[list[Tally], str]:
        """The same jobs again and again; the tallies of the last of them, and what a message cost the broker."""
        begin_s = broker.cpu_s
        tallies = [run(jobs)[-1] for _ in range(self.repeats)]
        cost_us = (broker.cpu_s - begin_s) * 1e6 / max(1, sum(tally.messages for tally in tallies))
        return tallies, f"broker {cost_us:.3g} µs/msg of CPU"

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
