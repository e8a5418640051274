"""How fast messages come out, alone and while others go in."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Figure, middle, spread
from bench.stage import Stage
from towline.load.job import Job

__all__ = ["consume", "pubsub"]

PULL = 4_000
"""Messages a pull."""


def consume(stage: Stage) -> Iterator[Figure]:
    """A backlog, pulled in batches, gone through message by message, and acknowledged batch by batch."""
    count = int(1_000_000 * max(1.0, stage.seconds))
    rates = []
    with stage.broker(durability="os") as broker:
        stage.fill(broker, "bench", count)
        begin_s = broker.cpu_s
        for repeat in range(stage.repeats):
            job = Job(role="consume", topics=("bench",), count=count, batch=PULL, group=f"group-{repeat}")
            rates.append(stage.run(broker, job)[0].rate)
        cost_us = (broker.cpu_s - begin_s) * 1e6 / (count * stage.repeats)
    yield Figure(
        scenario="consume",
        name="backlog with acks, message objects",
        value=middle(rates),
        unit="msg/s",
        target=1_000_000,
        note=f"{count:,} × 100 B, pulls of {PULL:,}; broker {cost_us:.3g} µs/msg of CPU{spread(rates)}",
    )


def pubsub(stage: Stage) -> Iterator[Figure]:
    """A producer and a consumer at once: from the first send to the last acknowledged message."""
    count = int(500_000 * max(1.0, stage.seconds))
    sender = Job(role="frames", topics=("bench",), count=count, durability="os")
    receiver = Job(role="consume", topics=("bench",), count=count, batch=PULL, group="group")
    runs, cost = stage.repeat(sender, receiver, durability="os")
    rates = [received.messages / ((received.end_ns - sent.begin_ns) / 1e9) for sent, received in runs]
    yield Figure(
        scenario="pubsub",
        name="both at once, end to end, os",
        value=middle(rates),
        unit="msg/s",
        target=500_000,
        note=f"{count:,} × 100 B; {cost}{spread(rates)}",
    )
