"""`kill -9` amid transactions over shards and messages that are delayed into them."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from itertools import groupby
from pathlib import Path

import pytest

import towline
from tests.inside.client import shard_of
from tests.inside.load import BrokerProcess
from tests.system.crash.load import PATIENCE_S, Worker, kill_under_load

TOPIC, SHARDS = "ledger", 4
KEYS = {"a": 3, "b": 2, "c": 1}
"""How many messages of each transaction have which key."""


class Clerk:
    """Commits transactions, every other a prepared one; each over shards, with a message for later."""

    def __init__(self, url: str, name: str, stop: threading.Event) -> None:
        self.booked: list[bytes] = []
        self.due_us: dict[bytes, int] = {}
        self.sent = 0
        self._url, self._name, self._stop = url, name, stop
        self.worker = Worker(self._run)

    def _run(self) -> None:
        with towline.connect(self._url, timeout=PATIENCE_S) as mq:
            while not self._stop.is_set():
                body = f"{self._name}-{len(self.booked)}".encode()
                delay = random.choice((0.05, 0.3, 1.0))
                tx = mq.transaction().begin() if len(self.booked) % 2 else mq.prepare("clerks")
                for key, count in KEYS.items():
                    tx.send_many(TOPIC, [body] * count, shard_keys=[f"{self._name}-{key}"] * count)
                tx.send(TOPIC, body + b"-later", shard_key=f"{self._name}-later", delay=delay, dedup_id=body.decode())
                if isinstance(tx, towline.PreparedTransaction):
                    tx.store()
                # A delay counts from the commit.
                self.due_us[body + b"-later"] = time.time_ns() // 1000 + int(delay * 1e6)
                tx.commit()
                self.booked.append(body)
                mq.send(TOPIC, b"%d" % self.sent, shard_key=f"{self._name}-a")
                self.sent += 1


@pytest.mark.timeout(900)
def test_shards_get_transactions_and_delayed_messages_whole_and_once(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills = max(request.config.getoption("--kills") // 8, 1)
    settings = {"durability": "os", "segment_bytes": 1 << 20, "maintenance_s": 0.2, "tx_check_after_s": 3600}
    with BrokerProcess(f"file:{tmp_path / 'data'}", **settings) as broker:
        with towline.connect(broker.url, timeout=PATIENCE_S) as mq:
            mq.create_topic(TOPIC, shards=SHARDS)
        stop = threading.Event()
        clerks = [Clerk(broker.url, f"c{n}", stop) for n in range(2)]
        kill_under_load(broker, kills, lambda: sum(len(clerk.booked) for clerk in clerks), 0.3)
        stop.set()
        for clerk in clerks:
            clerk.worker.join()
        with towline.connect(broker.url, timeout=PATIENCE_S) as mq:
            deadline = time.monotonic() + 120
            while mq.stat()["delayed"]:
                assert time.monotonic() < deadline, broker.log[-2000:]
                time.sleep(0.02)
            came: dict[str, list[bytes]] = defaultdict(list)
            arrived_us: dict[bytes, int] = {}
            for shard in range(SHARDS):
                first, lane = 0, list[bytes]()
                while page := mq.browse(TOPIC, shard, first=first, max_messages=10_000):
                    for message in page:
                        assert shard_of(TOPIC, SHARDS, None, message.shard_key, "middle") == shard
                        came[message.shard_key or ""].append(message.body)
                        arrived_us[message.body] = message.appended_at_us
                        lane.append(message.body)
                    first = page.next
                _contiguous(lane, shard)
    for number, clerk in enumerate(clerks):
        for key, count in KEYS.items():
            expected = [(body, count) for body in clerk.booked]
            found = [(body, len(list(run))) for body, run in groupby(came[f"c{number}-{key}"]) if not body.isdigit()]
            assert found == expected, "torn, doubled, lost, or out of order"
        plain = [int(body) for body in came[f"c{number}-a"] if body.isdigit()]
        assert plain == list(range(clerk.sent))
        later = Counter(came[f"c{number}-later"])
        assert later == Counter(body + b"-later" for body in clerk.booked)
        early = [body for body, due_us in clerk.due_us.items() if arrived_us[body] < due_us]
        assert not early


def _contiguous(lane: list[bytes], shard: int) -> None:
    """All that a transaction has in a shard lies together there."""
    ours = {f"c{n}-{key}": shard_of(TOPIC, SHARDS, None, f"c{n}-{key}", "middle") for n in range(2) for key in KEYS}
    for body, run in groupby(lane):
        if b"-" in body and not body.endswith(b"-later"):
            name = body.decode().split("-")[0]
            wanted = sum(count for key, count in KEYS.items() if ours[f"{name}-{key}"] == shard)
            assert len(list(run)) == wanted, (body, "torn, or something between")
