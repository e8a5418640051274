"""Scattered retries: every second message was acknowledged, the rest is delivered again."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

import towline
from bench.figures import Figure, middle, spread
from bench.stage import Stage
from towline.load.broker import BrokerProcess

__all__ = ["fragments"]

COUNT = 100_000
BATCH = 10_000
SINGLE = 10_000
"""Fresh messages that were sent one by one."""
PULL = 5_000
BODY = bytes(100)
PACE_S = 0.005
CUT_S = 60.0
"""So long a broker is given to deliver them all."""
ALONE_S = 2.0


class _Bystander:
    """Sends single messages in a process of its own, one after the other."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def pause(self) -> tuple[int, float]:
        """How many messages since it was asked last, and how long one of them took at most (ms), the one on its way
        included."""
        self._pipe.send(None)
        found: tuple[int, float] = self._pipe.recv()
        return found


@contextmanager
def _bystander(url: str) -> Iterator[_Bystander]:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_stand_by, args=(url, theirs), daemon=True)
    process.start()
    try:
        bystander = _Bystander(ours)
        bystander.pause()
        yield bystander
    finally:
        process.terminate()
        process.join()


def _stand_by(url: str, pipe: Connection) -> None:
    with towline.connect(url, timeout=300) as mq:
        mq.send("bystander", BODY)
        sent, longest_s = 0, 0.0
        while True:
            if pipe.poll():
                pipe.recv()
                pipe.send((sent, longest_s * 1e3))
                sent, longest_s = 0, 0.0
            begin_s = time.perf_counter()
            mq.send("bystander", BODY)
            longest_s = max(longest_s, time.perf_counter() - begin_s)
            sent += 1
            time.sleep(PACE_S)


class _Run(NamedTuple):
    fresh_us: float
    scattered_us: float
    took_s: float
    missing: int
    longest_ms: float
    peak_bytes: int


def fragments(stage: Stage) -> Iterator[Figure]:
    """Of 100,000 messages every second one is acknowledged, and their consumer leaves; another one gets the rest."""
    runs = []
    for _ in range(stage.repeats):
        with stage.broker(durability="os") as broker:
            runs.append(_run(broker))
    scattered_us, fresh_us = [one.scattered_us for one in runs], [one.fresh_us for one in runs]
    took_s, missing = [one.took_s for one in runs], max(one.missing for one in runs)
    cut = f"; cut off after {CUT_S:g} s, {missing:,} were still missing" if missing else ""
    values = (
        (
            "a scattered retry, broker",
            scattered_us,
            "µs of CPU",
            f"a fresh message, sent by itself, {middle(fresh_us):.3g} µs{cut}",
        ),
        (f"until all {COUNT // 2:,} are consumed", took_s, "s", f"pulls of up to {PULL:,}{cut}"),
        ("longest send of a bystander meanwhile", [one.longest_ms for one in runs], "ms", f"one each {PACE_S:g} s"),
        ("most memory of the broker", [one.peak_bytes / 1e6 for one in runs], "MB", f"{COUNT:,} × {len(BODY)} B"),
    )
    for name, found, unit, note in values:
        yield Figure(
            scenario="fragments",
            name=name,
            value=middle(found),
            unit=unit,
            less_is_better=True,
            note=note + spread(found),
        )


def _run(broker: BrokerProcess) -> _Run:
    with towline.connect(broker.url, timeout=300) as mq, _bystander(broker.url) as bystander:
        for _ in range(COUNT // BATCH):
            mq.send_many("scattered", [BODY] * BATCH)
        for _ in range(SINGLE):
            mq.send("single", BODY)
        with mq.consumer("scattered", group="g") as consumer:
            left = COUNT
            while left:
                batch = consumer.pull(BATCH, wait=10.0)
                for message in list(batch)[::2]:
                    message.ack()
                left -= len(batch)
        bystander.pause()
        begin_s = broker.cpu_s
        time.sleep(ALONE_S)
        send_s = (broker.cpu_s - begin_s) / max(1, bystander.pause()[0])
        fresh_us, _, missing, _ = _consume(mq, broker, bystander, "single", SINGLE, send_s)
        assert not missing, "what is fresh comes at once"
        return _Run(fresh_us, *_consume(mq, broker, bystander, "scattered", COUNT // 2, send_s), broker.peak_bytes)


def _consume(
    mq: towline.Client, broker: BrokerProcess, bystander: _Bystander, topic: str, count: int, send_s: float
) -> tuple[float, float, int, float]:
    """What a message cost the broker beside what the bystander did, how long it took, how many did not come, and the
    bystander's longest send."""
    bystander.pause()
    begin_s, spent_s, left = time.perf_counter(), broker.cpu_s, count
    with mq.consumer(topic, group="g") as consumer:
        while left and time.perf_counter() - begin_s < CUT_S:
            batch = consumer.pull(PULL, wait=1.0)
            batch.ack()
            left -= len(batch)
    took_s = time.perf_counter() - begin_s
    sent, longest_ms = bystander.pause()
    spent_s = broker.cpu_s - spent_s - sent * send_s
    return spent_s * 1e6 / max(1, count - left), took_s, left, longest_ms
