"""The state that all scenes share: the broker, the consumers, the log of what happened, and broken promises."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from towline.demo.consumer import TOPIC, Consumer
from towline.demo.shop import PATIENCE_S, Shop
from towline.load.broker import BrokerProcess

if TYPE_CHECKING:
    from rich.console import Console

    from towline.client._sync.client import Client

__all__ = ["GROUPS", "Story"]

GROUPS = ("billing", "shipping")


class Story:
    def __init__(self, console: Console, folder: Path) -> None:
        self.console = console
        self.begin_s = time.time()
        self.folder = folder
        self.mended = folder / "mended"
        self.broker = BrokerProcess(f"file:{folder / 'data'}", log_level="warning")
        self.broker.process_group = 0
        self.shop = Shop("")
        self.consumers: list[Consumer] = []
        self.due_s: dict[int, float] = {}
        """Orders for later, and from when on they may be handled."""
        self.expected: set[int] = set()
        """Orders that both groups must have handled at the end, and no other."""
        self.marks: list[tuple[float, str]] = []
        """Events for the picture: when, and what."""
        self.promises: list[tuple[str, bool]] = []
        self._open = ExitStack()

    @property
    def faults(self) -> list[str]:
        return [what for what, kept in self.promises if not kept]

    def connect(self) -> Client:
        import towline

        self.mq = self._open.enter_context(towline.connect(self.broker.url, timeout=PATIENCE_S))
        return self.mq

    def tell(self, text: str, mark: str = "") -> None:
        now_s = time.time()
        if mark:
            self.marks.append((now_s, mark))
        self.console.print(f"[dim]{now_s - self.begin_s:5.1f} s[/dim]  {text}", highlight=False)

    def promise(self, what: str, kept: bool) -> None:
        """A condition that must hold. It stands in the report, and the demo fails if it does not."""
        self.promises.append((what, kept))

    def until(self, what: str, happened: Callable[[], bool]) -> float:
        begin = time.monotonic()
        while not happened():
            if not self.shop.error.empty():
                raise SystemExit(f"the shop failed: {self.shop.error.get()}")
            if time.monotonic() - begin > PATIENCE_S:
                raise SystemExit(f"waited in vain until {what}")
            time.sleep(0.02)
        return time.monotonic() - begin

    def hire(self, group: str, name: str, hangs_at: int = 0) -> Consumer:
        consumer = Consumer(group, name, self.broker.url, self.mended, hangs_at)
        self.consumers.append(consumer)
        return consumer

    def handled(self, group: str) -> Counter[int]:
        return Counter(told.order for each in self.consumers if each.group == group for told in each.handled)

    def lag(self, group: str) -> int:
        return self.mq.group(TOPIC, group).lag

    def close(self) -> None:
        for consumer in self.consumers:
            if consumer.process.poll() is None:
                consumer.kill()
        if self.broker.running:
            self.broker.kill()
        self._open.close()
