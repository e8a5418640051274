"""`kill -9` while messages wait, move, are cancelled and come due."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

import towline
from tests.inside.load import BrokerProcess
from tests.system.crash.load import PATIENCE_S, TOPIC, Worker
from towline.errors import Conflict
from towline.model import LANES


class Sender:
    """Sends messages for later, cancels and moves some; notes what it was promised."""

    def __init__(self, url: str, name: str, stop: threading.Event) -> None:
        self.earliest_us: dict[bytes, int] = {}
        self.acknowledged: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        self.too_late: set[bytes] = set()
        self._url, self._name, self._stop = url, name, stop
        self.worker = Worker(self._run)

    def _run(self) -> None:
        number = 0
        with towline.connect(self._url, timeout=PATIENCE_S) as client:
            while not self._stop.is_set():
                count = random.choice((1, 3, 100))
                bodies = [f"{self._name}-{n}".encode() for n in range(number, number + count)]
                number += count
                # What is due in more than two minutes waits in a slot of minutes: some is moved there and back.
                delays = [0.001 + random.random() * random.choice((0.1, 1, 3)) for _ in bodies]
                now_us = time.time_ns() // 1000
                self.earliest_us |= {b: now_us + int(d * 1e6) for b, d in zip(bodies, delays, strict=True)}
                receipts = client.send_many(TOPIC, bodies, delays=delays, priority=random.choice(LANES))
                self.acknowledged |= set(bodies)
                if random.random() < 0.3:
                    try:
                        assert client.cancel(TOPIC, receipts[-1]) == 1
                        self.cancelled.add(bodies[-1])
                    except Conflict:
                        self.too_late.add(bodies[-1])
                elif random.random() < 0.3:
                    self.earliest_us[bodies[0]] = min(self.earliest_us[bodies[0]], now_us + 500_000)
                    try:
                        client.reschedule(TOPIC, receipts[0], delay=200)
                        client.reschedule(TOPIC, receipts[0], delay=0.5)
                    except Conflict:
                        pass


@pytest.mark.timeout(900)
def test_a_broker_killed_again_and_again_neither_loses_nor_doubles_a_delayed_message(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills = max(request.config.getoption("--kills") // 4, 1)
    settings = {"durability": "os", "segment_bytes": 1 << 20, "maintenance_s": 0.2}
    with BrokerProcess(f"file:{tmp_path / 'data'}", **settings) as broker:
        stop = threading.Event()
        senders = [Sender(broker.url, f"p{n}", stop) for n in range(2)]
        for _ in range(kills):
            time.sleep(0.2 + random.random() * 0.5)
            broker.kill()
            broker.start()
        stop.set()
        for sender in senders:
            sender.worker.join()
        with towline.connect(broker.url, timeout=PATIENCE_S) as client:
            deadline = time.monotonic() + 2 * PATIENCE_S
            # Those moved away and not back, because the broker was killed in between, go on waiting.
            while client.stat()["delayed"] and time.monotonic() < deadline:
                for entry in client.delayed(TOPIC, after=time.time() + 10):
                    client.reschedule(TOPIC, entry.id, delay=0.5)
                time.sleep(0.05)
            assert client.stat()["delayed"] == 0
            came: dict[bytes, int] = {}
            for lane in LANES:
                first = 0
                while page := client.browse(TOPIC, lane, first=first, max_messages=10_000):
                    for message in page:
                        assert message.body not in came, (message.body, "came twice")
                        came[message.body] = message.appended_at_us
                    first = page.next
    for sender in senders:
        lost = sender.acknowledged - sender.cancelled - came.keys()
        assert not lost, (len(lost), sorted(lost)[:10])
        assert not sender.cancelled & came.keys(), "cancelled, and delivered"
        assert sender.too_late <= came.keys(), "not cancelled, and not delivered"
        mine = sender.earliest_us.keys() & came.keys()
        early = [body for body in mine if came[body] < sender.earliest_us[body]]
        assert not early, early[:10]
    assert sum(len(sender.acknowledged) for sender in senders) > kills
