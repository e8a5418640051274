"""The Spark connector: reading beside Parquet, over the network beside the folder, and writing."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import towline
from bench.figures import Figure, spread
from bench.stage import Stage
from towline.client.bulk.publish import Addressed, Publisher
from towline.frame import encode
from towline.load.broker import BrokerProcess

__all__ = ["fill_rows", "spark", "spark_session", "watching"]

FRAME = 1_000
COLUMNS = "lane, seq, key, body, appended_at"
WRITTEN = 2_000_000
WARM = 40_000_000
"""Rows that each side reads before it counts. The JVM compiles what it does often; after a third of this it still got
faster."""
ROUNDS = 7
FASTER = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.extraJavaOptions": "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false",
}


def spark(stage: Stage) -> Iterator[Figure]:
    """Rows of a 100-byte body and a 12-byte key, in frames of 1,000."""
    rows = stage.backlog
    with stage.space() as folder, BrokerProcess(f"file:{folder / 'data'}", durability="os") as broker:
        fill_rows(broker, rows)
        with spark_session(folder) as session:
            yield from _reading(stage, session, broker, folder, rows)
            yield from _writing(stage, session, broker, folder, min(rows, WRITTEN))


def fill_rows(broker: BrokerProcess, rows: int) -> None:
    with towline.connect(broker.url) as mq:
        publisher = Publisher(mq)
        for first in range(0, rows, 8 * FRAME):
            frames = []
            for begin in range(first, min(first + 8 * FRAME, rows), FRAME):
                numbers = range(begin, min(begin + FRAME, rows))
                bodies, keys = [b"%0100d" % n for n in numbers], [f"key-{n:08}" for n in numbers]
                frames.append(Addressed("rows", 1, 0, encode(bodies, keys=keys, produced_at_us=1)))
            publisher.send(frames)
        publisher.settle()


@contextmanager
def spark_session(folder: Path) -> Iterator[Any]:
    """As the jobs have it, on two cores, with what docs/spark.md advises for reading much."""
    os.environ.update(
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
        PYTHONPATH=os.pathsep.join([str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]),
    )
    from towline.spark.jobs.session import session

    settings = {"spark.driver.memory": "2g", "spark.local.dir": str(folder / "local"), **FASTER}
    with session("bench", "local[2]", settings, quiet=True) as opened:
        yield opened


def _reading(stage: Stage, session: Any, broker: BrokerProcess, folder: Path, rows: int) -> Iterator[Figure]:
    def source(option: str, place: str) -> Any:
        return session.read.format("towline").options(topic="rows", columns=COLUMNS, **{option: place}).load()

    parquet = str(folder / "parquet")
    sources: dict[str, Callable[[], Any]] = {
        "parquet": lambda: session.read.parquet(parquet),
        "folder": lambda: source("path", str(folder / "data")),
        "network": lambda: source("url", broker.url),
    }
    # In files of a million rows each, whatever the source's own partitions are.
    session.read.format("towline").options(
        path=str(folder / "data"), topic="rows", columns=COLUMNS, rowsPerPartition="1000000"
    ).load().write.parquet(parquet)
    speeds: dict[str, list[float]] = {name: [] for name in sources}
    warming = min(max(1, -(-WARM // rows)), ROUNDS * 2)
    with watching() as peaks:
        for number in range(warming + max(ROUNDS, stage.repeats)):
            for name, read in sources.items():
                begun = time.perf_counter()
                read().write.format("noop").mode("overwrite").save()
                if number >= warming:
                    speeds[name].append(rows / (time.perf_counter() - begun))
    middle = {name: median(values) for name, values in speeds.items()}
    millions = f"{rows / 1e6:g} M rows, 100-byte bodies"
    for name in sources:
        yield Figure(
            scenario="spark",
            name=f"read to noop: {name}",
            value=middle[name],
            unit="rows/s",
            note=millions + spread(speeds[name]),
        )
    for name, than in (("folder", "parquet"), ("network", "folder")):
        pairs = [one / other for one, other in zip(speeds[name], speeds[than], strict=True)]
        yield Figure(
            scenario="spark",
            name=f"{name} ÷ {than}",
            value=median(pairs),
            unit="×",
            target=0.6,
            note="side by side" + spread(pairs),
        )
    yield Figure(
        scenario="spark",
        name="largest Python worker while reading",
        value=max(peaks, default=0) / 1e6,
        unit="MB",
        target=400,
        less_is_better=True,
        note=millions,
    )


def _writing(stage: Stage, session: Any, broker: BrokerProcess, folder: Path, rows: int) -> Iterator[Figure]:
    reader = session.read.format("towline").option("path", str(folder / "data")).option("topic", "rows")
    frame = reader.option("to", str(rows)).option("rowsPerPartition", str(rows // 2)).schema("key string, body binary")
    for mode in ("direct", "staged"):
        speeds = []
        for number in range(1 + max(1, stage.repeats - 1)):
            begun = time.perf_counter()
            writer = frame.load().write.format("towline").mode("append")
            writer.options(url=broker.url, topic=f"copy-{mode}", mode=mode).save()
            if number:
                speeds.append(rows / (time.perf_counter() - begun))
        yield Figure(
            scenario="spark",
            name=f"folder to broker, {mode}",
            value=median(speeds),
            unit="rows/s",
            note=f"{rows / 1e6:g} M rows, durability os" + spread(speeds),
        )


@contextmanager
def watching() -> Iterator[list[int]]:
    """The memory of this process's Python descendants, looked at now and then."""
    peaks: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            peaks.extend(_python_workers())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        over.set()
        watcher.join()


def _python_workers() -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"pyspark.daemon" in words:
                yield int((path / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            continue
