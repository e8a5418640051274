"""A consumer in a process of its own, and the other end of it. It reports its work on its stdout, one line of JSON an
order."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import msgspec

__all__ = ["FLAKY", "POISON", "THIRD", "TOPIC", "Consumer", "Told", "consume"]

TOPIC = "orders"
FLAKY = 100
"""Every so manyeth order fails until its third attempt."""
THIRD = 3
POISON = 577
"""This order fails at every attempt, until the handler is mended."""


class Told(msgspec.Struct, frozen=True):
    """The consumer's report about one order."""

    order: int
    attempt: int
    failed: bool
    at_s: float
    """By the clock on the wall."""


class HandlerFailed(Exception):
    pass


def consume(url: str, group: str, name: str, mended: str, hangs_at: str) -> None:
    import towline

    with towline.connect(url) as mq, mq.consumer(TOPIC, group=group, name=name, max_messages=20) as consumer:
        for message in consumer:
            order = int(message.body)
            try:
                with message:
                    if int(hangs_at) and order >= int(hangs_at):
                        time.sleep(3600)
                    fails = _fails(order, message.attempt, Path(mended)) if group == "billing" else False
                    _tell(Told(order, message.attempt, fails, time.time()))
                    if fails:
                        raise HandlerFailed(f"order {order}: the bank does not answer")
            except HandlerFailed:
                pass  # The message was nacked: it comes back, or it dies.


def _fails(order: int, attempt: int, mended: Path) -> bool:
    if order == POISON:
        return not mended.exists()
    return order % FLAKY == 0 and attempt < THIRD


def _tell(told: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


class Consumer:
    """The other end of a consumer process: keeps its reports."""

    def __init__(self, group: str, name: str, url: str, mended: Path, hangs_at: int) -> None:
        self.group, self.name = group, name
        self.told: list[Told] = []
        command = [sys.executable, "-m", "towline.demo", "consume", url, group, name, str(mended), str(hangs_at)]
        # A process group of its own: Ctrl-C is for the demo, which then ends its consumers.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0)  # noqa: S603 our own module
        assert self.process.stdout is not None
        self._listener = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self._listener.start()

    def _listen(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                self.told.append(msgspec.json.decode(line, type=Told))

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self._listener.join()

    @property
    def handled(self) -> list[Told]:
        return [told for told in list(self.told) if not told.failed]
