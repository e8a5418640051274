"""Drivers and brokers killed at random: each row arrives once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import towline
from tests.inside.load import BrokerProcess
from tests.parts import need
from tests.spark.cluster import PATIENCE_S, kill_group
from tests.spark.session import ROOT, environment

ROWS = 20_000


@contextmanager
def driver(master: str, url: str, how: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """In a process group of its own, with its JVM and its workers, so that all of it can be killed at once."""
    log = (folder / "driver.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.copy_driver", master, url, how, str(folder)],
        cwd=ROOT,
        env=os.environ | environment(),
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_group(process)
        log.close()


def fill(url: str) -> None:
    with towline.connect(url) as mq:
        for first in range(0, ROWS, 1_000):
            numbers = range(first, first + 1_000)
            mq.send_many("orders", [b"%d" % n for n in numbers], keys=[f"k{n % 7}" for n in numbers])


def copies(url: str) -> list[int]:
    found: list[int] = []
    with towline.connect(url, timeout=60) as mq:
        if "copies" not in [topic.config.name for topic in mq.topics()]:
            return []
        while page := mq.browse("copies", first=len(found), max_messages=10_000):
            found += [int(message.body) for message in page]
    return found


def wait_for(what: str, happened: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, f"{what}: {(folder / 'driver.log').read_text()[-3000:]}"
        if process.poll() is not None:
            assert happened(), f"{what}: {(folder / 'driver.log').read_text()[-3000:]}"
            return
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_drivers_and_brokers_neither_lose_nor_repeat_a_row(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    need("java")
    rounds = max(1, request.config.getoption("--kills") // 50)
    dice = random.Random(4)
    offsets, done = tmp_path / "checkpoint" / "offsets", tmp_path / "done"
    with BrokerProcess(f"file:{tmp_path / 'data'}", durability="os") as broker:
        fill(broker.url)
        for _ in range(rounds):
            before = len(list(offsets.glob("[0-9]*")))
            with driver("local[2,3]", broker.url, "shuffled", tmp_path) as process:

                def begun(before: int = before) -> bool:
                    return len(list(offsets.glob("[0-9]*"))) > before or done.exists()

                wait_for("the query begins", begun, process, tmp_path)
                time.sleep(dice.uniform(0, 2))  # anywhere in a batch
                broker.kill()
                time.sleep(dice.uniform(0, 0.5))
                if dice.random() < 0.5:
                    kill_group(process)
                    broker.start()
                else:
                    broker.start()
                    time.sleep(dice.uniform(0, 2))
        done.unlink(missing_ok=True)
        with driver("local[2,3]", broker.url, "shuffled", tmp_path) as process:
            wait_for("the query ends", done.exists, process, tmp_path)
        assert sorted(copies(broker.url)) == list(range(ROWS))
