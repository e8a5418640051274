"""How long one message is on its way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bench.figures import Figure, middle, shown, spread
from bench.machine import RELAY, relay
from bench.stage import Stage
from towline.load.job import Job, Percentiles

__all__ = ["latency"]

ROUNDS: Final = 3
"""For each repetition of other measurements: a machine that others use as well is quiet at times, and at times not."""
RELAY_S: Final = 1.0
QUIET_MS: Final = 0.5
"""A round is quiet if the machine's own relay, before and after it, keeps 99 of 100 messages below this."""
TARGET_P50: Final = 0.4
TARGET_P99: Final = 1.5


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
    count = int(1_000 * seconds)
    sender = Job(role="paced", topics=("bench",), count=count, rate=1_000, durability="os")
    receiver = Job(role="handle", topics=("bench",), count=count, group="group")
    rounds: list[_Round] = []
    for _ in range(stage.repeats * ROUNDS):
        before = relay(RELAY_S)
        with stage.broker(durability="os") as broker:
            begin_s = broker.cpu_s
            received = stage.run(broker, sender, receiver)[1]
            cost = f"broker {(broker.cpu_s - begin_s) * 1e6 / count:.3g} µs/msg of CPU"
        if received.latency is not None:
            rounds.append(_Round(before, received.latency, relay(RELAY_S)))
    yield from _figures("send to handler", rounds, f"{seconds:g} s at 1,000 msg/s, os; {cost}")
    quiet = [each for each in rounds if each.is_quiet]
    if quiet:
        note = f"{len(quiet)} of {len(rounds)} rounds, with a relay's p99 within {QUIET_MS:g} ms before and after"
        yield from _figures("the same in quiet rounds", quiet, note)


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
