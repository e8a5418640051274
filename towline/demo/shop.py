"""The shop: sends orders at a steady pace, each confirmed before the next, through whatever happens to the broker."""

from __future__ import annotations

import queue
import threading
import time

from towline.demo.consumer import TOPIC
from towline.model import Priority

__all__ = ["ORDERS", "PATIENCE_S", "Shop", "priority_of"]

ORDERS = 1_000
PACE_S = 0.008
PATIENCE_S = 60.0


def priority_of(order: int) -> Priority:
    return "high" if order % 10 == 0 else "low" if order % 10 == 7 else "middle"


class Shop(threading.Thread):
    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.sent = 0
        self.at_s: list[float] = []
        """When each order was confirmed."""
        self.slowest_s = 0.0
        self.error: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def run(self) -> None:
        import towline

        try:
            with towline.connect(self._url, timeout=PATIENCE_S) as mq:
                for order in range(1, ORDERS + 1):
                    begin = time.monotonic()
                    mq.send(TOPIC, str(order).encode(), key=f"order-{order}", priority=priority_of(order))
                    self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
                    self.at_s.append(time.time())
                    self.sent = order
                    time.sleep(PACE_S)
        except Exception as error:
            self.error.put(error)
