"""How fast messages go in: whole frames, single sends through the batching producer, one confirmed send at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from bench.figures import Figure, middle, spread
from bench.machine import ECHO, LOOPBACK, WRITE, WRITE_SYNC, echo
from bench.stage import Stage
from towline.load.job import Job

__all__ = ["large", "produce", "producer", "single"]

Level = Literal["os", "fsync"]
TARGETS: dict[Level, int] = {"os": 1_000_000, "fsync": 500_000}
IN_FLIGHT = 4


def produce(stage: Stage) -> Iterator[Figure]:
    """`send_many` of 1,000 messages of 100 bytes, several calls under way at a time."""
    for durability, target in TARGETS.items():
        with stage.broker() as broker:
            job = Job(
                role="frames",
                url=broker.url,
                topics=("bench",),
                seconds=stage.seconds,
                in_flight=IN_FLIGHT,
                durability=durability,
            )
            tallies, cost = stage.repeat(broker, job)
        rates = [tally.rate for tally in tallies]
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
    with stage.broker() as broker:
        job = Job(role="producer", url=broker.url, topics=("bench",), seconds=stage.seconds, durability="os")
        tallies, cost = stage.repeat(broker, job)
    rates = [tally.rate for tally in tallies]
    yield Figure(
        scenario="producer",
        name="send through the batching producer, os",
        value=middle(rates),
        unit="msg/s",
        target=150_000,
        note=cost + spread(rates),
    )


def single(stage: Stage) -> Iterator[Figure]:
    """Confirmed sends, one after the other, each between two measurements of the raw echo."""
    rates, shares = [], []
    last = None
    with stage.broker() as broker:
        job = Job(role="single", url=broker.url, topics=("bench",), seconds=stage.seconds / 2, durability="os")
        before = echo(stage.seconds / 4)
        busy_s, done = broker.cpu_s, 0
        for _ in range(stage.repeats):
            last = stage.measure(job)[0]
            after = echo(stage.seconds / 4)
            rates.append(last.rate)
            shares.append(last.rate / ((before + after) / 2))
            before, done = after, done + last.messages
        cost = f"broker {(broker.cpu_s - busy_s) * 1e6 / done:.0f} µs/msg of CPU"
        synced = stage.measure(Job(role="single", url=broker.url, topics=("bench",), seconds=stage.seconds / 2))[0]
    yield Figure(
        scenario="single",
        name="confirmed sends one at a time, os",
        value=middle(rates),
        unit="msg/s",
        target=5_000,
        limit=ECHO,
        share=middle(shares),
        note=cost + spread(rates),
    )
    yield Figure(
        scenario="single",
        name="the same, as a part of a raw echo",
        value=middle(shares),
        unit="of echo",
        target=0.6,
        note=spread(shares).lstrip("; "),
    )
    assert last is not None
    assert last.latency is not None
    yield Figure(scenario="single", name="round trip, os, p99", value=last.latency.p99, unit="ms")
    yield Figure(scenario="single", name="confirmed sends one at a time, fsync", value=synced.rate, unit="msg/s")


def large(stage: Stage) -> Iterator[Figure]:
    """Bodies of 1 KiB: bytes in and bytes out, beside what the machine can do at most."""
    from bench.machine import machine

    if LOOPBACK not in stage.limits:
        list(machine(stage))
    limits = stage.limits
    levels: tuple[tuple[Level, str], ...] = (("os", WRITE), ("fsync", WRITE_SYNC))
    for durability, disk in levels:
        with stage.broker(durability=durability) as broker:
            job = Job(
                role="frames",
                url=broker.url,
                topics=("bench",),
                seconds=stage.seconds,
                size=1024,
                batch=250,
                in_flight=IN_FLIGHT,
                durability=durability,
            )
            rates = [tally.bytes_rate / 1e6 for tally in stage.repeat(broker, job)[0]]
            yield _large(f"produce 1 KiB, {durability}", rates, min(LOOPBACK, disk, key=limits.__getitem__), limits)
            if durability == "os":
                rates = list(_consume_large(stage, broker.url))
                yield _large("consume 1 KiB", rates, LOOPBACK, limits)


def _consume_large(stage: Stage, url: str) -> Iterator[float]:
    for repeat in range(stage.repeats):
        job = Job(
            role="consume",
            url=url,
            topics=("bench",),
            seconds=stage.seconds,
            group=f"large-{repeat}",
            size=1024,
            batch=2_000,
        )
        yield stage.measure(job)[0].bytes_rate / 1e6


def _large(name: str, rates: list[float], limit: str, limits: dict[str, float]) -> Figure:
    share = middle(rates) / limits[limit]
    return Figure(
        scenario="large",
        name=name,
        value=middle(rates),
        unit="MB/s",
        target=0.6 * limits[limit],
        limit=limit,
        share=share,
        note=f"target: 0.6 of the binding limit{spread(rates)}",
    )
