"""Workers that measure how long something takes: a send by somebody who has nothing to do with the load, a sleep, a
write that is synced. Each is a generator of spans, one a round."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import towline
from bench.soak.task import Span, Task

__all__ = ["PROBES", "Probe"]

Probe = Callable[[Task], Iterator[Span]]

BODY: Final = bytes(100)


def _scheduled_ms(pid: int, thread: int) -> tuple[float, float]:
    """How long a thread has run, and how long it was ready to and had no processor, since it began (Linux)."""
    ran, waited, _ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii").split()
    return int(ran) / 1e6, int(waited) / 1e6


def bystander(task: Task, durability: str) -> Iterator[Span]:
    """One message at a time, each confirmed before the next."""
    me = os.getpid(), threading.get_native_id()
    with towline.connect(task.url) as mq:
        mq.send(f"bystander-{durability}", BODY, durability=durability)
        while True:
            ran_ms, waited_ms = _scheduled_ms(task.pid, task.pid)
            _, mine_ms = _scheduled_ms(*me)
            begin_s = time.perf_counter()
            mq.send(f"bystander-{durability}", BODY, durability=durability)
            took_ms = (time.perf_counter() - begin_s) * 1e3
            ran_after_ms, waited_after_ms = _scheduled_ms(task.pid, task.pid)
            _, mine_after_ms = _scheduled_ms(*me)
            yield Span(begin_s, took_ms, waited_after_ms - waited_ms + mine_after_ms - mine_ms, ran_after_ms - ran_ms)


def sleep(_: Task) -> Iterator[Span]:
    """How late a process is that wants to sleep for a millisecond, and does nothing else."""
    while True:
        begin_s = time.perf_counter()
        time.sleep(0.001)
        yield Span(begin_s, max(0.0, (time.perf_counter() - begin_s) * 1e3 - 1))


def disk(task: Task) -> Iterator[Span]:
    """How long a small write takes until it is on the disk that the broker writes to."""
    path = Path(task.folder) / "probe"
    with path.open("wb", buffering=0) as file:
        while True:
            begin_s = time.perf_counter()
            file.seek(0)
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            yield Span(begin_s, (time.perf_counter() - begin_s) * 1e3)


PROBES: Final[Mapping[str, tuple[float, Probe]]] = {
    "bystander": (100.0, partial(bystander, durability="os")),
    "durable bystander": (20.0, partial(bystander, durability="fsync")),
    "sleep": (0.0, sleep),
    "disk": (20.0, disk),
}
"""By role, how many rounds a second are made, and how; 0 is one after the other."""
