"""Producers and consumers that go on through every crash, and remember exactly what they were promised."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count

import towline
from tests.inside.load import BrokerProcess
from towline.errors import LeaseLost, TowlineError

TOPIC = "orders"
GROUP = "billing"
PATIENCE_S = 60.0


class Worker:
    """A thread that ends by itself once `stop` is set; what it raised is raised by `join`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(PATIENCE_S * 2)
        assert not self._thread.is_alive(), "it does not end"
        if self.error is not None:
            raise self.error


def kill_under_load(broker: BrokerProcess, kills: int, done: Callable[[], int], pause_s: float) -> None:
    """Kill the broker so often, each time once more was done since it came back, after a moment of chance."""
    for _ in range(kills):
        before = done()
        deadline = time.monotonic() + 2 * PATIENCE_S
        while done() == before:
            assert time.monotonic() < deadline, "nothing moves after a restart: " + broker.log[-2000:]
            time.sleep(0.001)
        time.sleep(random.random() * pause_s)
        broker.kill()
        broker.start()


class Producer:
    """Sends numbered messages in small and large frames, one after another; notes those that were acknowledged."""

    def __init__(self, url: str, name: str, stop: threading.Event) -> None:
        self.name = name
        self.sent: list[bytes] = []
        """Everything that was ever handed to `send`."""
        self.acknowledged: dict[bytes, int] = {}
        """Body to sequence number."""
        self._url = url
        self._stop = stop
        self.worker = Worker(self._run)

    def _run(self) -> None:
        numbers = count()
        with towline.connect(self._url, timeout=PATIENCE_S) as client:
            for size in (1, 3, 200) * 1_000_000:
                if self._stop.is_set():
                    return
                bodies = [f"{self.name}-{next(numbers):08d}".encode() for _ in range(size)]
                self.sent += bodies
                receipts = client.send_many(TOPIC, bodies)
                for body, receipt in zip(bodies, receipts, strict=True):
                    self.acknowledged[body] = receipt.seq


class Consumer:
    """Pulls and acks; notes what it was given, and what it was told is settled."""

    def __init__(self, url: str, name: str, stop: threading.Event, settled: Settled) -> None:
        self.name = name
        self._url = url
        self._stop = stop
        self._settled = settled
        self.worker = Worker(self._run)

    def _run(self) -> None:
        with (
            towline.connect(self._url, timeout=PATIENCE_S) as client,
            client.consumer(TOPIC, group=GROUP, name=self.name) as consumer,
        ):
            while True:
                batch = consumer.pull(max_messages=150, wait=0.2)
                if not batch:
                    if self._stop.is_set():
                        return
                    continue
                self._settled.got([(message.seq, message.body) for message in batch])
                try:
                    batch.ack()
                except LeaseLost:
                    continue
                self._settled.acked([message.seq for message in batch])


class Settled:
    """What all consumers of a group saw together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bodies: dict[int, bytes] = {}
        self.acks: Counter[int] = Counter()
        self.faults: list[str] = []

    def got(self, messages: list[tuple[int, bytes]]) -> None:
        with self._lock:
            for seq, body in messages:
                if self.bodies.setdefault(seq, body) != body:
                    self.faults.append(f"message {seq} was {self.bodies[seq]!r} and is {body!r} now")
                if self.acks[seq]:
                    self.faults.append(f"message {seq} came again after its ack was confirmed")
            order = [seq for seq, _ in messages]
            if order != sorted(order):
                self.faults.append(f"messages came out of order in one pull: {order}")

    def acked(self, seqs: list[int]) -> None:
        with self._lock:
            self.acks.update(seqs)


def check(producers: list[Producer], settled: Settled) -> None:
    """Nothing acknowledged was lost, nothing invented, nothing reordered, nothing delivered again after its ack."""
    assert not settled.faults, settled.faults[:10]
    sent = {body for producer in producers for body in producer.sent}
    delivered = set(settled.bodies.values())
    invented = delivered - sent
    assert not invented, sorted(invented)[:10]
    doubled = [body for body, times in Counter(settled.bodies.values()).items() if times > 1]
    assert not doubled, ("stored twice", sorted(doubled)[:10])
    for producer in producers:
        lost = producer.acknowledged.keys() - delivered
        assert not lost, (len(lost), sorted(lost)[:10])
        misplaced = [body for body, seq in producer.acknowledged.items() if settled.bodies.get(seq) != body]
        assert not misplaced, misplaced[:10]
        mine = [body for _, body in sorted(settled.bodies.items()) if body.startswith(producer.name.encode() + b"-")]
        assert mine == sorted(mine), f"messages of {producer.name} were reordered in their lane"
    assert settled.acks.keys() == settled.bodies.keys(), "a message was never settled"
    assert sorted(settled.bodies) == list(range(len(settled.bodies))), "the lane has holes"


__all__ = ["GROUP", "TOPIC", "Consumer", "Producer", "Settled", "TowlineError", "check"]
