"""The soak: mixed load on a broker for as long as is asked for, and what became of it."""

from __future__ import annotations

import selectors
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bench.figures import Figure, shown
from bench.soak.gauges import read_gauges
from bench.soak.loads import LOADS, furnish
from bench.soak.probes import PROBES
from bench.soak.record import PARTS, Record, Turn
from bench.soak.task import Note, Task
from bench.soak.traced_broker import TracedBroker
from bench.soak.worker import Worker
from bench.stage import Stage
from tests.ports import free_port
from towline.errors import Timeout, TowlineError
from towline.load.broker import BrokerProcess

__all__ = ["soak"]

READ_S: Final = 5.0
SCRAPE_S: Final = 15.0
READY_S: Final = 120.0
KEPT_S: Final = 120.0
"""Of messages, and of dedup ids: short, so that a few minutes show what is let go of."""
SETTINGS: Final = {
    "log_level": "warning",
    "retention_s": KEPT_S,
    "open_max_s": KEPT_S / 2,
    "dedup_window_s": KEPT_S,
    "segment_bytes": 8 << 20,
}
DEDUP_IDS: Final = 100_000
TITLES: Final = (
    "min", "p50", "p99", "p99.9", "longest ms", ">20/50/100", "sleep ms", "disk ms", "msg/s", "cores", "MB", "files",
    "disk MB",
)  # fmt: skip


def soak(stage: Stage) -> Iterator[Figure]:
    """An hour in small: many kinds of load at once, and the longest stall, memory and disk (`--minutes`)."""
    metrics = f"127.0.0.1:{free_port()}"
    with stage.space() as folder:
        store = f"file:{folder / 'data'}"
        with (
            TracedBroker(store, stage.trace, metrics=metrics, **SETTINGS)
            if stage.trace is not None
            else BrokerProcess(store, metrics=metrics, **SETTINGS)
        ) as broker:
            task = Task(
                role="",
                url=broker.url,
                pid=broker.pid,
                folder=str(folder),
                topics=stage.topics,
                groups=stage.groups,
                dedup_ids=DEDUP_IDS,
                window_s=KEPT_S,
            )
            furnish(task, stage.say)
            record = _run(stage, broker, task, metrics)
            log = broker.log
        print_turns(record.turns())
        yield from record.figures(log)


def _run(stage: Stage, broker: BrokerProcess, task: Task, metrics: str) -> Record:
    """Let all workers loose, and listen to them."""
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        workers: list[Worker] = []
        for role in (*LOADS, *PROBES):
            workers.append(stack.enter_context(closing(Worker(msgspec.structs.replace(task, role=role)))))
            selector.register(workers[-1].notes, selectors.EVENT_READ, workers[-1])
        _until_ready(selector, len(workers))
        begin_s = time.perf_counter()
        record = Record(begin_s, begin_s + stage.minutes * 60)
        clock = _Clock(record, broker, Path(task.folder) / "data", metrics, stage)
        while (now_s := time.perf_counter()) < record.end_s:
            clock.strike(now_s)
            for worker, notes in _heard(selector, 1.0):
                if notes is None:
                    raise TowlineError(f"the worker of {worker.role} ended by itself")
                for note in notes:
                    record.note(note, time.perf_counter())
        for worker in workers:
            worker.stop()
        return record


def _heard(selector: selectors.BaseSelector, wait_s: float) -> Iterator[tuple[Worker, list[Note] | None]]:
    for key, _ in selector.select(wait_s):
        yield key.data, key.data.hear()


def _until_ready(selector: selectors.BaseSelector, missing: int) -> None:
    deadline_s = time.monotonic() + READY_S
    while missing:
        if time.monotonic() > deadline_s:
            raise Timeout("the workers were not ready in time")
        for worker, notes in _heard(selector, 1.0):
            if notes is None:
                raise TowlineError(f"the worker of {worker.role} did not begin")
            missing -= sum(note.ready for note in notes)


class _Clock:
    """Reads the gauges, scrapes the metrics, and says now and then how it goes."""

    def __init__(self, record: Record, broker: BrokerProcess, folder: Path, metrics: str, stage: Stage) -> None:
        self._record = record
        self._broker = broker
        self._folder = folder
        self._metrics = metrics
        self._stage = stage
        self._read_s = self._scrape_s = record.begin_s
        self._part_s = (record.end_s - record.begin_s) / PARTS
        self._say_s = record.begin_s + self._part_s

    def strike(self, now_s: float) -> None:
        if now_s >= self._read_s:
            self._read_s = now_s + READ_S
            self._record.readings.append(read_gauges(self._broker, self._folder))
        if now_s >= self._scrape_s:
            self._scrape_s = now_s + SCRAPE_S
            self._scrape()
        if now_s >= self._say_s:
            self._say_s += self._part_s
            last = self._record.readings[-1]
            stalls = len(self._record.stalls("bystander"))
            minutes = (now_s - self._record.begin_s) / 60
            self._stage.say(
                f"  {minutes:.1f} min: {last.rss_bytes / 1e6:.0f} MB, disk {last.disk_bytes / 1e6:.0f} MB, {stalls} "
                f"stalls over 20 ms"
            )

    def _scrape(self) -> None:
        try:
            with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=60) as answer:
                self._record.note_metrics(answer.read().decode())
        except OSError as error:
            self._record.failures["scrapes", f"{type(error).__name__}: {error}"] += 1


def print_turns(turns: list[Turn]) -> None:
    """The table by tenths of the run, to stderr."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", title="by tenths of the run")
    for title in TITLES:
        table.add_column(title, justify="right", no_wrap=True)
    for turn in turns:
        stalls = "/".join(map(str, turn.stalls))
        cells = [stalls if isinstance(one, tuple) else shown(one) for one in turn]
        table.add_row(*cells)
    Console(stderr=True, width=130).print(table)
