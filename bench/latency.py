"""How long one message is on its way."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.figures import Figure, middle, shown, spread
from bench.machine import RELAY, relay
from bench.stage import Stage
from towline.load.job import Job, Percentiles

__all__ = ["ROUNDS", "TARGET_P50", "TARGET_P99", "Paced", "latency", "paced"]

ROUNDS: Final = 3
"""For each repetition of other measurements: a machine that others use as well is quiet at times, and at times not."""
RELAY_S: Final = 1.0
QUIET_MS: Final = 0.5
"""A round is quiet if the machine's own relay, before and after it, keeps 99 of 100 messages below this."""
TARGET_P50: Final = 0.4
TARGET_P99: Final = 1.5


class Paced(NamedTuple):
    """One run at 1,000 messages a second."""

    latency: Percentiles
    cost_us: float
    """What a message cost the broker."""
    stolen: float
    """The share of the processors' time that a virtual machine's host gave to others meanwhile."""


class _Round(NamedTuple):
    before: Percentiles
    ours: Percentiles
    after: Percentiles

    @property
    def is_quiet(self) -> bool:
        return max(self.before.p99, self.after.p99) <= QUIET_MS


def latency(stage: Stage) -> Iterator[Figure]:
    """From send to handler at 1,000 messages a second, and beside each round what a raw relay of three processes
    takes."""
    seconds = max(2.0, stage.seconds * 2)
    rounds: list[_Round] = []
    runs: list[Paced] = []
    for _ in range(stage.repeats * ROUNDS):
        before = relay(RELAY_S)
        found = paced(stage, seconds)
        if found is not None:
            runs.append(found)
            rounds.append(_Round(before, found.latency, relay(RELAY_S)))
    cost = f"broker {middle([run.cost_us for run in runs]):.3g} µs/msg of CPU"
    stolen = f"{middle([run.stolen for run in runs]):.1%} of the processors' time went to others"
    yield from _figures("send to handler", rounds, f"{seconds:g} s at 1,000 msg/s, os; {cost}; {stolen}")
    quiet = [each for each in rounds if each.is_quiet]
    if quiet:
        note = f"{len(quiet)} of {len(rounds)} rounds, with a relay's p99 within {QUIET_MS:g} ms before and after"
        yield from _figures("the same in quiet rounds", quiet, note)


def paced(stage: Stage, seconds: float) -> Paced | None:
    count = int(1_000 * seconds)
    sender = Job(role="paced", topics=("bench",), count=count, rate=1_000, durability="os")
    receiver = Job(role="handle", topics=("bench",), count=count, group="group")
    with stage.broker(durability="os") as broker:
        begin_s, stolen_s, at = broker.cpu_s, _stolen_s(), time.perf_counter()
        received = stage.run(broker, sender, receiver)[1]
        stolen = (_stolen_s() - stolen_s) / (time.perf_counter() - at) / (os.cpu_count() or 1)
        cost_us = (broker.cpu_s - begin_s) * 1e6 / count
    return None if received.latency is None else Paced(received.latency, cost_us, stolen)


def _stolen_s() -> float:
    """Seconds in which a processor of this virtual machine had something to do, and its host let others run."""
    return int(Path("/proc/stat").read_text().splitlines()[0].split()[8]) / os.sysconf("SC_CLK_TCK")


def _figures(name: str, rounds: Sequence[_Round], note: str) -> Iterator[Figure]:
    for percentile, attribute, target in (
        ("p50", "p50", TARGET_P50),
        ("p99", "p99", TARGET_P99),
        ("p99.9", "p999", None),
    ):
        ours = [getattr(each.ours, attribute) for each in rounds]
        raw = [getattr(side, attribute) for each in rounds for side in (each.before, each.after)]
        yield Figure(
            scenario="latency",
            name=f"{name}, {percentile}",
            value=middle(ours),
            unit="ms",
            target=target,
            less_is_better=True,
            limit=RELAY,
            share=middle(raw) / middle(ours),
            note=f"{note}; a raw relay beside it {shown(middle(raw))} ms{spread(ours)}",
        )
