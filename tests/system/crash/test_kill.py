"""`kill -9` at any moment, under load, again and again."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

import towline
from tests.inside.load import BrokerProcess
from tests.system.crash.load import GROUP, TOPIC, Consumer, Producer, Settled, check


@pytest.mark.timeout(900)
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_broker_killed_again_and_again_loses_doubles_and_reorders_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, durability: str
) -> None:
    kills = max(request.config.getoption("--kills") // 2, 1)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    settings = {"durability": durability, "segment_bytes": 1 << 20, "maintenance_s": 0.2, "heartbeat_s": 5.0}
    with BrokerProcess(f"file:{tmp_path / 'data'}", **settings) as broker:
        stop_producing, stop_consuming, settled = threading.Event(), threading.Event(), Settled()
        producers = [Producer(broker.url, f"p{n}", stop_producing) for n in range(2)]
        consumers = [Consumer(broker.url, f"c{n}", stop_consuming, settled) for n in range(2)]
        for _ in range(kills):
            before = len(settled.acks)
            deadline = time.monotonic() + 60
            while len(settled.acks) == before and time.monotonic() < deadline:
                _raise_early(producers, consumers)
                time.sleep(0.001)
            assert len(settled.acks) > before, "nothing moves after a restart: " + broker.log[-2000:]
            time.sleep(chance.random() * 0.1)
            broker.kill()
            broker.start()
        stop_producing.set()
        for producer in producers:
            producer.worker.join()
        with towline.connect(broker.url) as client:
            deadline = time.monotonic() + 60
            while client.group(TOPIC, GROUP).lag and time.monotonic() < deadline:
                time.sleep(0.01)
        stop_consuming.set()
        for consumer in consumers:
            consumer.worker.join()
    check(producers, settled)
    assert sum(len(producer.acknowledged) for producer in producers) > kills


def _raise_early(producers: list[Producer], consumers: list[Consumer]) -> None:
    for worker in [one.worker for one in producers] + [one.worker for one in consumers]:
        if worker.error is not None:
            raise worker.error
