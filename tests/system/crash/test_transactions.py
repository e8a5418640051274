"""`kill -9` of the broker and of producers, amid transactions: each is whole or absent, and there once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

import towline
from tests.inside.load import BrokerProcess
from tests.system.crash.load import PATIENCE_S, Worker, kill_under_load
from towline.model import Priority

ROOT = Path(__file__).resolve().parents[3]
SIZES = {("orders", "middle"): 3, ("stock", "high"): 2, ("stock", "low"): 1}
"""How many messages of each transaction go to which lane."""


def everything(mq: towline.Client, topic: str, priority: Priority) -> list[bytes]:
    found: list[bytes] = []
    while True:
        page = mq.browse(topic, priority, first=len(found), max_messages=10_000)
        found += [message.body for message in page]
        if page.next >= page.end:
            return found


class Buyer:
    """Commits one transaction after another; notes those that were acknowledged."""

    def __init__(self, url: str, name: str, stop: threading.Event) -> None:
        self.acknowledged: list[bytes] = []
        self.tried: list[bytes] = []
        self._url, self._name, self._stop = url, name, stop
        self.worker = Worker(self._run)

    def _run(self) -> None:
        with towline.connect(self._url, timeout=PATIENCE_S) as mq:
            while not self._stop.is_set():
                body = f"{self._name}-{len(self.tried)}".encode()
                self.tried.append(body)
                with mq.transaction() as tx:
                    for (topic, priority), count in SIZES.items():
                        tx.send_many(topic, [body] * count, priority=priority)  # type: ignore[arg-type]
                mq.send("orders", b"between")
                self.acknowledged.append(body)


@pytest.mark.timeout(900)
def test_transactions_are_whole_or_absent_however_often_the_broker_is_killed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills = max(request.config.getoption("--kills") // 4, 1)
    settings = {"durability": "os", "segment_bytes": 1 << 20, "maintenance_s": 0.2}
    with BrokerProcess(f"file:{tmp_path / 'data'}", **settings) as broker:
        stop = threading.Event()
        buyers = [Buyer(broker.url, f"b{n}", stop) for n in range(3)]
        kill_under_load(broker, kills, lambda: sum(len(buyer.acknowledged) for buyer in buyers), 0.1)
        stop.set()
        for buyer in buyers:
            buyer.worker.join()
        with towline.connect(broker.url) as mq:
            for (topic, priority), count in SIZES.items():
                found = everything(mq, topic, priority)  # type: ignore[arg-type]
                runs = [(body, len(list(run))) for body, run in groupby(found) if body != b"between"]
                assert all(length == count for _, length in runs), "torn, or something between"
                whole = Counter(body for body, _ in runs)
                assert max(whole.values()) == 1, "stored twice"
                assert whole.keys() == {body for buyer in buyers for body in buyer.acknowledged}


@pytest.mark.timeout(300)
def test_a_dead_shops_transactions_are_decided_by_another_of_its_group(tmp_path: Path) -> None:
    """Shops and the broker are killed at any moment. In the end the messages are those of the orders in the ledger."""
    ledger = tmp_path / "ledger"
    ledger.touch()
    settings = {"durability": "os", "maintenance_s": 0.2, "tx_check_after_s": 0.2, "tx_max_checks": 100}
    chance = random.Random(random.randrange(1 << 32))
    dead: set[str] = set()

    def what_became(check: towline.Check) -> str | None:
        if check.name.split("-")[0] not in dead:
            # It may still be about to write to the ledger.
            return None
        return "commit" if check.name in ledger.read_text().split() else "rollback"

    with BrokerProcess(f"file:{tmp_path / 'data'}", **settings) as broker:
        for number in range(6):
            with _shop(broker.url, ledger, f"s{number}") as shop:
                assert shop.stdout is not None
                assert shop.stdout.readline() == b"open\n"
                time.sleep(0.05 + chance.random() * 0.2)
                shop.kill()
            if number % 3 == 1:
                broker.kill()
                broker.start()
            dead.add(f"s{number}")
        with towline.connect(broker.url) as mq:
            left = len(mq.transactions())
            mq.on_check("shop", what_became)  # type: ignore[arg-type]
            deadline = time.monotonic() + 60
            while mq.transactions():
                assert time.monotonic() < deadline, (mq.transactions(), broker.log[-2000:])
                time.sleep(0.01)
            orders = ledger.read_text().encode().split()
            assert sorted(everything(mq, "orders", "middle")) == sorted(orders)
            assert sorted(everything(mq, "stock", "high")) == sorted(orders)
            assert len(orders) > 6
            assert left <= 6, "each shop works on one order at a time"


def _shop(url: str, ledger: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.system.crash.shop", url, str(ledger), name]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
