"""How fast messages come out, alone and while others go in; and how long one is on its way."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Figure, middle, spread
from bench.stage import Stage
from towline.load.job import Job

__all__ = ["consume", "latency", "pubsub"]

PULL = 4_000
"""Messages a pull."""


def consume(stage: Stage) -> Iterator[Figure]:
    """A backlog, pulled in batches, gone through message by message, and acknowledged batch by batch."""
    count = int(1_000_000 * max(1.0, stage.seconds))
    with stage.broker(durability="os") as broker:
        stage.fill(broker, "bench", count)
        rates = []
        for repeat in range(stage.repeats):
            job = Job(
                role="consume", url=broker.url, topics=("bench",), count=count, batch=PULL, group=f"group-{repeat}"
            )
            rates.append(stage.measure(job)[0].rate)
    yield Figure(
        scenario="consume",
        name="backlog with acks, message objects",
        value=middle(rates),
        unit="msg/s",
        target=1_000_000,
        note=f"{count:,} × 100 B, pulls of {PULL:,}{spread(rates)}",
    )


def pubsub(stage: Stage) -> Iterator[Figure]:
    """A producer and a consumer at once: from the first send to the last acknowledged message."""
    count = int(500_000 * max(1.0, stage.seconds))
    rates = []
    with stage.broker(durability="os") as broker:
        for repeat in range(stage.repeats):
            topics = (f"bench-{repeat}",)
            sender = Job(role="frames", url=broker.url, topics=topics, count=count, durability="os")
            receiver = Job(role="consume", url=broker.url, topics=topics, count=count, batch=PULL, group="group")
            sent, received = stage.measure(sender, receiver)
            rates.append(received.messages / ((received.end_ns - sent.begin_ns) / 1e9))
    yield Figure(
        scenario="pubsub",
        name="both at once, end to end, os",
        value=middle(rates),
        unit="msg/s",
        target=500_000,
        note=f"{count:,} × 100 B{spread(rates)}",
    )


def latency(stage: Stage) -> Iterator[Figure]:
    """From send to handler at 1,000 messages a second."""
    seconds = max(2.0, stage.seconds * 2)
    runs = []
    with stage.broker(durability="os") as broker:
        for repeat in range(stage.repeats):
            topics = (f"bench-{repeat}",)
            count = int(1_000 * seconds)
            sender = Job(role="paced", url=broker.url, topics=topics, count=count, rate=1_000, durability="os")
            receiver = Job(role="handle", url=broker.url, topics=topics, count=count, group="group")
            _, received = stage.measure(sender, receiver)
            assert received.latency is not None
            runs.append(received.latency)
    note = f"{stage.repeats} × {seconds:g} s at 1,000 msg/s, os"
    for name, values, target in (
        ("p50", [run.p50 for run in runs], 0.4),
        ("p99", [run.p99 for run in runs], 1.5),
        ("p99.9", [run.p999 for run in runs], None),
    ):
        yield Figure(
            scenario="latency",
            name=f"send to handler, {name}",
            value=middle(values),
            unit="ms",
            target=target,
            less_is_better=True,
            note=f"{note}{spread(values)}",
        )
