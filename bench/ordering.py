"""Ordered topics: how much their order costs, beside a shared topic in the same run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import towline
from bench.figures import Figure, middle, spread
from bench.stage import Stage

__all__ = ["ordered"]

SHARDS = 64
BATCH = 4_000
SIZE = 100
KEYS = 1_000
TARGET = 0.5
ROUNDS = 3
"""For each repetition of other measurements: these are short."""


def ordered(stage: Stage) -> Iterator[Figure]:
    """Messages of 1,000 keys to 64 shards, then pulled and acked; against the same messages on a shared topic. Both by
    turns, in many short rounds, so that what the machine does meanwhile falls on both: the ratios of the rounds count.
    """
    count = int(200_000 * max(1.0, stage.seconds)) // BATCH * BATCH
    sent: dict[int, list[float]] = {0: [], SHARDS: []}
    pulled: dict[int, list[float]] = {0: [], SHARDS: []}
    cost_us = {0: [0.0, 0.0], SHARDS: [0.0, 0.0]}
    rounds = stage.repeats * ROUNDS
    for number in range(rounds):
        for shards in (0, SHARDS) if number % 2 else (SHARDS, 0):
            with stage.broker(durability="os") as broker, towline.connect(broker.url) as mq:
                mq.create_topic("bench", shards=shards)
                for which, rates, work in ((0, sent, _send), (1, pulled, _pull)):
                    before_s = broker.cpu_s + time.process_time()
                    rates[shards].append(work(mq, count))
                    cost_us[shards][which] += (broker.cpu_s + time.process_time() - before_s) / count / rounds * 1e6
    for which, (name, rates) in enumerate((("send_many, os", sent), ("pulled and acked", pulled))):
        shared, sharded = middle(rates[0]), middle(rates[SHARDS])
        ratios = [one / other for one, other in zip(rates[SHARDS], rates[0], strict=True)]
        yield Figure(
            scenario="ordered",
            name=f"{name}, {SHARDS} shards against shared",
            value=middle(ratios),
            unit="×",
            target=TARGET,
            note=f"{sharded:,.0f} against {shared:,.0f} msg/s; {count:,} × {SIZE} B, {BATCH:,} a call, one client; "
            f"{cost_us[SHARDS][which]:.3g} against {cost_us[0][which]:.3g} µs/msg of CPU, client and broker"
            f"{spread(ratios)}",
        )


def _send(mq: towline.Client, count: int) -> float:
    bodies = [os.urandom(SIZE) for _ in range(BATCH)]
    keys = [f"customer-{number % KEYS}" for number in range(BATCH)]
    begin = time.perf_counter()
    for _ in range(count // BATCH):
        mq.send_many("bench", bodies, keys=keys)
    return count / (time.perf_counter() - begin)


def _pull(mq: towline.Client, count: int) -> float:
    done = 0
    with mq.consumer("bench", group="group") as consumer:
        begin = time.perf_counter()
        while done < count:
            batch = consumer.pull(max_messages=BATCH, wait=5.0)
            if not batch:
                raise towline.TowlineError(f"{count - done} messages did not come")
            for message in batch:
                done += len(message.body) == SIZE
            batch.ack()
        consumer.flush()
        return count / (time.perf_counter() - begin)
