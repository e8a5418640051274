"""Delayed messages: how fast they go in, how late they come, and what they cost while they wait."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import towline
from bench.figures import Figure
from bench.stage import Stage
from towline.load.broker import BrokerProcess

__all__ = ["delay_in", "delay_memory", "delay_minute", "delay_out"]

BATCH = 1_000
PADDING = bytes(92)
DUE = struct.Struct("<d")
RATE = 5_000
APART_S = 0.037
"""Far more than a tick of the schedule: each message has its own wake-up."""


def delay_in(stage: Stage) -> Iterator[Figure]:
    """`send_many` of 1,000 messages of 100 bytes: all with the same delay, and each with its own."""
    for name, target, wait_s in (("one delay", 200_000, _an_hour), ("own delays", 200_000, _within_a_day)):
        with stage.broker(durability="os") as broker:
            rate, busy_us = _fill(broker, stage.seconds, wait_s)
        yield Figure(
            scenario="delay-in",
            name=f"send_many, {name}, os",
            value=rate,
            unit="msg/s",
            target=target,
            note=f"1,000 × 100 B a frame, 4 threads; broker {busy_us:.3g} µs/msg of CPU",
        )


def _an_hour() -> float:
    return 3600.0


def _within_a_day() -> float:
    return random.random() * 86400


def _fill(broker: BrokerProcess, seconds: float, wait_s: Callable[[], float]) -> tuple[float, float]:
    sent = [0] * 4
    begin, busy_s = time.perf_counter(), broker.cpu_s

    def work(number: int) -> None:
        with towline.connect(broker.url) as mq:
            while time.perf_counter() - begin < seconds:
                mq.send_many("later", [PADDING] * BATCH, delays=[wait_s() for _ in range(BATCH)])
                sent[number] += BATCH

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(sent))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(sent)
    return total / (time.perf_counter() - begin), (broker.cpu_s - busy_s) / total * 1e6


def delay_out(stage: Stage) -> Iterator[Figure]:
    """How late messages come, when 5,000 are due a second, and when one is due at a time."""
    for durability in ("os", "fsync"):
        with stage.broker(durability=durability) as broker:
            late_ms, _ = _deliver(broker, count=int(RATE * stage.seconds * 3), begin_s=3.0, span_s=stage.seconds * 3)
        yield _late(f"{RATE:,} due/s", durability, late_ms)
    with stage.broker(durability="os") as broker:
        late_ms = _deliver_singly(broker, int(stage.seconds * 3 / APART_S))
    yield _late(f"one every {APART_S * 1000:g} ms", "os", late_ms)


def _late(how_many: str, durability: str, late_ms: list[float]) -> Figure:
    return Figure(
        scenario="delay-out",
        name=f"late at the consumer, {how_many}, p99, {durability}",
        value=_quantile(late_ms, 0.99),
        unit="ms",
        target=100,
        less_is_better=True,
        note=f"{_spread(late_ms)}, {sum(late < 0 for late in late_ms)} early",
    )


def _deliver_singly(broker: BrokerProcess, count: int) -> list[float]:
    """How late messages come of which only one is due at a time."""
    late_ms: list[float] = []
    with towline.connect(broker.url) as mq, mq.consumer("later", group="late", idle_timeout=30.0) as consumer:
        begin = time.time() + 1.0
        due = [begin + number * APART_S for number in range(count)]
        now = time.time()
        mq.send_many("later", [DUE.pack(at) + PADDING for at in due], delays=[at - now for at in due])
        for message in consumer:
            with message:
                late_ms.append((time.time() - DUE.unpack_from(message.body)[0]) * 1000)
            if len(late_ms) == count:
                return sorted(late_ms)
    raise towline.TowlineError("delayed messages did not come")


def delay_minute(stage: Stage) -> Iterator[Figure]:
    """Many messages due within a minute that is some minutes away when they are sent."""
    count = min(stage.backlog, 1_000_000)
    with stage.broker(durability="os") as broker:
        late_ms, last_s = _deliver(broker, count=count, begin_s=150.0, span_s=60.0)
    yield Figure(
        scenario="delay-minute",
        name=f"{count:,} due within 60 s, all delivered after",
        value=last_s,
        unit="s",
        target=60.5,
        less_is_better=True,
        note=f"late: {_spread(late_ms)}",
    )


def _deliver(broker: BrokerProcess, *, count: int, begin_s: float, span_s: float) -> tuple[list[float], float]:
    """Send messages due at random times within a span; how late each came, and when the last came, from its begin."""
    begin = time.time() + begin_s
    late_ms: list[float] = []
    last = 0.0
    with (
        towline.connect(broker.url) as mq,
        mq.consumer("later", group="late", max_messages=5_000) as consumer,
    ):
        for _ in range(count // BATCH):
            due = [begin + random.random() * span_s for _ in range(BATCH)]
            now = time.time()
            mq.send_many("later", [DUE.pack(at) + PADDING for at in due], delays=[at - now for at in due])
        if time.time() > begin:
            raise towline.TowlineError("the messages could not be sent before they were due")
        while len(late_ms) < count // BATCH * BATCH:
            batch = consumer.pull(wait=30.0 + begin_s)
            now = time.time()
            bodies = batch.bodies()
            if not bodies:
                raise towline.TowlineError("delayed messages did not come")
            late_ms += [(now - DUE.unpack_from(body)[0]) * 1000 for body in bodies]
            batch.ack()
            last = now - begin
    return sorted(late_ms), last


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def _spread(late_ms: list[float]) -> str:
    p50, p99 = _quantile(late_ms, 0.5), _quantile(late_ms, 0.99)
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {late_ms[-1]:.0f} ms"


def delay_memory(stage: Stage) -> Iterator[Figure]:
    """What the broker's memory grows by while messages wait."""
    count = stage.backlog
    with stage.broker(durability="os") as broker:
        with towline.connect(broker.url) as mq:
            for _ in range(100):
                mq.send_many("later", [PADDING] * BATCH, delays=[_within_a_day() for _ in range(BATCH)])
            before = _resident_mib(broker.pid)
            for _ in range(count // BATCH):
                mq.send_many("later", [PADDING] * BATCH, delays=[_within_a_day() * 30 for _ in range(BATCH)])
            waiting = mq.stat()["delayed"]
        after = _resident_mib(broker.pid)
    yield Figure(
        scenario="delay-memory",
        name=f"growth of the broker, {waiting:,} delayed messages waiting",
        value=after - before,
        unit="MiB",
        target=100,
        less_is_better=True,
        note=f"{before:.0f} → {after:.0f} MiB resident",
    )


def _resident_mib(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
