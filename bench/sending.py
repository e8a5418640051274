"""How fast messages go in: whole frames, single sends through the batching producer, one confirmed send at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from bench.figures import Figure, middle, spread
from bench.machine import ECHO, RECEIVE, REPLAY, SYNC, echo, receive_limit, replay_limit, sync_limit
from bench.stage import Stage
from towline.load.job import Job

__all__ = ["large", "produce", "producer", "single"]

Level = Literal["os", "fsync"]
TARGETS: dict[Level, int] = {"os": 1_000_000, "fsync": 500_000}
IN_FLIGHT = 4
LARGE = 1024


def produce(stage: Stage) -> Iterator[Figure]:
    """`send_many` of 1,000 messages of 100 bytes, several calls under way at a time."""
    for durability, target in TARGETS.items():
        job = Job(role="frames", topics=("bench",), seconds=stage.seconds, in_flight=IN_FLIGHT, durability=durability)
        runs, cost = stage.repeat(job)
        rates = [sent.rate for (sent,) in runs]
        yield Figure(
            scenario="produce",
            name=f"send_many, {durability}",
            value=middle(rates),
            unit="msg/s",
            target=target,
            note=f"1,000 × 100 B a frame, {IN_FLIGHT} calls in flight (threads); {cost}{spread(rates)}",
        )


def producer(stage: Stage) -> Iterator[Figure]:
    """Single `send` calls through the batching producer."""
    runs, cost = stage.repeat(Job(role="producer", topics=("bench",), seconds=stage.seconds, durability="os"))
    rates = [sent.rate for (sent,) in runs]
    yield Figure(
        scenario="producer",
        name="send through the batching producer, os",
        value=middle(rates),
        unit="msg/s",
        target=150_000,
        note=cost + spread(rates),
    )


def single(stage: Stage) -> Iterator[Figure]:
    """Confirmed sends, one after the other, each run between two measurements of the raw echo."""
    rates, shares, slowest = [], [], []
    with stage.broker() as broker:
        job = Job(role="single", topics=("bench",), seconds=stage.seconds / 2, durability="os")
        before, busy_s, done = echo(stage.seconds / 4), broker.cpu_s, 0
        for _ in range(stage.repeats):
            (sent,) = stage.run(broker, job)
            after = echo(stage.seconds / 4)
            rates.append(sent.rate)
            shares.append(sent.rate / ((before + after) / 2))
            assert sent.latency is not None
            slowest.append(sent.latency.p99)
            before, done = after, done + sent.messages
        cost = f"broker {(broker.cpu_s - busy_s) * 1e6 / done:.0f} µs/msg of CPU"
        (synced,) = stage.run(broker, Job(role="single", topics=("bench",), seconds=stage.seconds / 2))
    name = "confirmed sends one at a time"
    yield Figure(
        scenario="single",
        name=f"{name}, os",
        value=middle(rates),
        unit="msg/s",
        target=5_000,
        note=cost + spread(rates),
    )
    yield Figure(
        scenario="single",
        name="the same ÷ a raw echo",
        value=middle(shares),
        unit="×",
        target=0.6,
        limit=ECHO,
        share=middle(shares),
        note=spread(shares).lstrip("; "),
    )
    yield Figure(scenario="single", name="round trip, os, p99", value=middle(slowest), unit="ms")
    yield Figure(scenario="single", name=f"{name}, fsync", value=synced.rate, unit="msg/s")


def large(stage: Stage) -> Iterator[Figure]:
    """Bodies of 1 KiB: bytes in and bytes out, each run beside what the machine can do at most at that moment."""
    seconds = stage.seconds / 2
    levels: tuple[Level, ...] = ("os", "fsync")
    for durability in levels:
        job = Job(
            role="frames",
            topics=("bench",),
            seconds=seconds,
            size=LARGE,
            batch=500,
            in_flight=IN_FLIGHT,
            durability=durability,
        )
        limit, measure = (RECEIVE, receive_limit) if durability == "os" else (SYNC, sync_limit)
        pairs = []
        for _ in range(stage.repeats):
            most = measure(stage, seconds / 2)
            with stage.broker() as broker:
                pairs.append((stage.run(broker, job)[0].bytes_rate / 1e6, most))
        yield _large(f"produce 1 KiB, {durability}", pairs, limit)
    with stage.broker(durability="os") as broker:
        count = int(stage.seconds * 150_000)
        stage.fill(broker, "bench", count, LARGE)
        pairs = []
        for repeat in range(stage.repeats):
            job = Job(role="consume", topics=("bench",), count=count, group=f"group-{repeat}", size=LARGE, batch=1_000)
            most = replay_limit(stage, seconds / 2)
            pairs.append((stage.run(broker, job)[0].bytes_rate / 1e6, most))
    yield _large("consume 1 KiB", pairs, REPLAY)


def _large(name: str, pairs: list[tuple[float, float]], limit: str) -> Figure:
    rates, most = ([pair[side] for pair in pairs] for side in (0, 1))
    return Figure(
        scenario="large",
        name=name,
        value=middle(rates),
        unit="MB/s",
        target=0.6 * middle(most),
        limit=limit,
        share=middle([rate / bound for rate, bound in pairs]),
        note=f"target: 0.6 of {limit}, beside it {middle(most):,.0f} MB/s{spread(rates)}",
    )
