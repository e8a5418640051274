"""Producers and consumers that go on while brokers come and go, and what they saw."""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

import towline
from towline.errors import LeaseLost, TowlineError

__all__ = ["Load"]

PACE_S = 0.01
LATE_S = 0.05


class Load:
    """Blocking: producers that batch, and consumers that ack what they pulled. Every message is a number of its own."""

    def __init__(
        self,
        url: str,
        topic: str,
        *,
        producers: int = 3,
        consumers: int = 2,
        pause_s: float = 0.002,
        delivery_timeout_s: float = 100.0,
    ) -> None:
        self.topic = topic
        self.acked: list[tuple[float, int]] = []
        self.failed: list[tuple[int, TowlineError]] = []
        self.seen: list[tuple[float, int]] = []
        self.errors: list[BaseException] = []
        self.told: list[TowlineError] = []
        """What the consumers were told when they were to try again."""
        self.sent = 0
        self.refused = 0
        self._mq = towline.connect(url)
        self._lock = threading.Lock()
        self._pause_s = pause_s
        self._delivery_timeout_s = delivery_timeout_s
        self._sending = threading.Event()
        self._consuming = threading.Event()
        self._producers = [threading.Thread(target=self._guarded, args=(self._produce,)) for _ in range(producers)]
        self._consumers = [threading.Thread(target=self._guarded, args=(self._consume,)) for _ in range(consumers)]
        self._beats: list[float] = []
        self._pace = threading.Thread(target=self._keep_pace)
        for thread in (*self._consumers, *self._producers, self._pace):
            thread.start()

    @property
    def mq(self) -> Any:
        return self._mq

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)
            raise

    def _produce(self) -> None:
        with self._mq.producer(linger_ms=2, delivery_timeout=self._delivery_timeout_s) as producer:
            while not self._sending.is_set():
                with self._lock:
                    number, self.sent = self.sent, self.sent + 1
                producer.send(self.topic, b"%d" % number).add_done_callback(partial(self._done, number))
                time.sleep(self._pause_s)

    def _done(self, number: int, pending: Any) -> None:
        error = pending.exception()
        if error is None:
            self.acked.append((time.monotonic(), number))
        else:
            self.failed.append((number, error))

    def _consume(self) -> None:
        with self._mq.consumer(self.topic, "g") as consumer:
            while not self._consuming.is_set():
                try:
                    batch = consumer.pull(wait=0.3)
                except TowlineError as error:
                    if not error.retriable:
                        raise
                    self.told.append(error)
                    continue
                if batch:
                    now = time.monotonic()
                    self.seen.extend((now, int(body)) for body in batch.bodies())
                    try:
                        batch.ack()
                    except LeaseLost:
                        # A broker that was killed may have forgotten that we had them: they come again.
                        self.refused += len(batch)
                    except TowlineError as error:
                        if not error.retriable:
                            raise
                        self.told.append(error)

    def stop_sending(self) -> None:
        self._sending.set()
        for thread in self._producers:
            thread.join(150)

    def stop(self) -> None:
        self.stop_sending()
        self._consuming.set()
        for thread in (*self._consumers, self._pace):
            thread.join(150)
        self._mq.close()

    def longest_gap(self, of: list[tuple[float, int]], since: float, until: float) -> float:
        """The longest time in which nothing was acknowledged, or consumed; without that in which this machine had no
        time for anybody."""
        times = [since, *sorted(at for at, _ in list(of) if since <= at <= until), until]
        return max(after - before - self._stood_still(before, after) for before, after in pairwise(times))

    def _stood_still(self, since: float, until: float) -> float:
        """By how much a thread that only looks at the clock came late."""
        beats = [since, *(at for at in list(self._beats) if since < at < until), until]
        return sum(max(after - before - LATE_S, 0.0) for before, after in pairwise(beats))

    def _keep_pace(self) -> None:
        while not self._consuming.wait(PACE_S):
            self._beats.append(time.monotonic())

    def lost(self) -> set[int]:
        return {number for _, number in self.acked} - {number for _, number in self.seen}

    def stored(self) -> int:
        """How many messages the brokers have in all: a message that was stored twice counts twice."""
        return sum(lane.end for lane in self._mq.topic(self.topic).lanes)

    def doubled(self) -> list[int]:
        """Messages that were consumed more than once: what was pulled from a broker that died may come again."""
        return [number for number, count in Counter(number for _, number in self.seen).items() if count > 1]
