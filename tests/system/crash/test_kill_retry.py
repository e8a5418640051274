"""`kill -9` of broker and consumers while messages fail, are tried again, die and are sent again."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import towline
from tests.inside.load import BrokerProcess
from tests.system.crash.load import PATIENCE_S, TOPIC, Worker
from towline.model import GroupConfig, RetryPolicy

GROUP = "billing"
MESSAGES = 200
ATTEMPTS = 4


class Clerk:
    """Fails, acks and gives up by chance; notes what it was told is settled, and what came that should not have."""

    def __init__(self, url: str, name: str, stop: threading.Event, book: Book, chance: random.Random) -> None:
        self._url, self._name, self._stop, self._book, self._chance = url, name, stop, book, chance
        self.worker = Worker(self._run)

    def _run(self) -> None:
        with (
            towline.connect(self._url, timeout=PATIENCE_S) as client,
            client.consumer(TOPIC, group=GROUP, name=self._name) as consumer,
        ):
            while not self._stop.is_set():
                batch = consumer.pull(max_messages=5, wait=0.1)
                # All at once: while it works on one, the lease of the others may go to somebody else.
                faults = [self._book.fault_of(message.body, message.attempt) for message in batch]
                for message, fault in zip(batch, faults, strict=True):
                    body, attempt = message.body, message.attempt
                    verdict = self._judge(message)
                    consumer.flush()
                    if message.lost:
                        # A kill undid the pull, and they are somebody else's; or it took the answer to this verdict.
                        self._book.unsure.add(body)
                    else:
                        self._book.told(body, attempt, verdict, fault)

    def _judge(self, message: towline.Message) -> str:
        dice = self._chance.random()
        if dice < 0.4:
            message.nack("by chance", delay=self._chance.choice((None, 0.0, 0.05)))
            return "failed"
        if dice < 0.5:
            message.dead("never")
            return "dead"
        message.ack()
        return "done"


class Book:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.settled: dict[bytes, str] = {}
        self.least: defaultdict[bytes, int] = defaultdict(int)
        """The attempt that was reached: it never goes back."""
        self.unsure: set[bytes] = set()
        """Whose verdict may count, or may not: its consumer had lost the lease when it was to be told."""
        self.faults: list[str] = []

    def fault_of(self, body: bytes, attempt: int) -> str | None:
        """What is wrong with it that this message came; unless it turns out that a kill undid its pull."""
        with self._lock:
            if body in self.settled:
                return f"{body!r} came again after it was {self.settled[body]}"
            if attempt <= self.least[body]:
                return f"{body!r} came in attempt {attempt} after attempt {self.least[body]} had failed"
            return None

    def told(self, body: bytes, attempt: int, verdict: str, fault: str | None) -> None:
        if fault:
            self.faults.append(fault)
        with self._lock:
            if verdict == "failed":
                self.least[body] = max(attempt, self.least[body])
            else:
                self.settled[body] = verdict


@pytest.mark.timeout(900)
def test_retries_and_dead_letters_outlive_kills_and_are_there_once(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills = max(request.config.getoption("--kills") // 10, 1)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    settings = {"durability": "os", "segment_bytes": 1 << 20, "maintenance_s": 0.2, "heartbeat_s": 10.0}
    sent = {f"m{number}".encode() for number in range(MESSAGES)}
    with BrokerProcess(f"file:{tmp_path / 'data'}", **settings) as broker, towline.connect(broker.url) as client:
        client.create_topic(TOPIC)
        client.put_group(GroupConfig(TOPIC, GROUP, retry=RetryPolicy(ATTEMPTS, (0.01, 0.05))))
        client.send_many(TOPIC, sorted(sent))
        stop, book = threading.Event(), Book()
        clerks = [Clerk(broker.url, f"c{n}", stop, book, random.Random(seed + n)) for n in range(3)]
        for _ in range(kills):
            before, deadline = len(book.settled), time.monotonic() + 60
            while len(book.settled) == before and client.group(TOPIC, GROUP).lag and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(chance.random() * 0.05)
            broker.kill()
            broker.start()
        deadline = time.monotonic() + 60
        while client.group(TOPIC, GROUP).lag and time.monotonic() < deadline:
            time.sleep(0.02)
        assert client.group(TOPIC, GROUP).lag == 0
        stop.set()
        for clerk in clerks:
            clerk.worker.join()
        letters = Counter(letter.body for letter in client.dead_letters(TOPIC, GROUP))
        assert max(letters.values(), default=1) == 1, "a dead letter was written twice"
        done = {body for body, what in book.settled.items() if what == "done"}
        assert not book.faults, book.faults[:5]
        assert not done & letters.keys(), "acked, and dead"
        assert {body for body, what in book.settled.items() if what == "dead"} <= letters.keys(), (
            "a dead letter is lost"
        )
        assert done | letters.keys() | book.unsure == sent, "a message is neither done nor dead"
        assert client.resend(TOPIC, GROUP) == len(letters)
        broker.kill()
        broker.start()
        with client.consumer(TOPIC, group=GROUP, name="last") as consumer:
            again: Counter[bytes] = Counter()
            while again.total() < len(letters):
                batch = consumer.pull(wait=5.0)
                assert batch, f"{again.total()} of {len(letters)} came again"
                again.update(message.body for message in batch)
                batch.ack()
            assert again == letters
            assert not consumer.pull(wait=0.2)
