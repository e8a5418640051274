"""The SQL store beside the queue that people build on a table, on the same server, in turns."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

import towline
from bench.figures import Figure, middle, spread
from bench.stage import Stage
from bench.table_queue import BATCH
from tests.store.sql.server import MariaDb, new_server
from towline.load.broker import BrokerProcess
from towline.load.job import Job
from towline.model import GroupConfig
from towline.store.sql import open_sql, parse_url

__all__ = ["sql", "sql_backlog"]

PULL = 4_000
FEW = 5_000
IN_FLIGHT = 16
"""Calls of 500 messages under way at a time: they share transactions, which is what the store is for. The fastest when
measured, as the number of connections of the table queue is."""
_numbers = itertools.count()


@contextmanager
def _server(stage: Stage) -> Iterator[MariaDb]:
    """A server with its files on the disk that the benchmark is about, as durable as it is by default."""
    with stage.space() as path:
        server = new_server("--innodb-buffer-pool-size=1G", folder=path)
        server.options += (f"{server.log_size}=512M",)
        try:
            yield server.install().start()
        finally:
            server.stop()


@contextmanager
def _broker(server: MariaDb) -> Iterator[BrokerProcess]:
    with BrokerProcess(server.url(_database(server)), log_level="warning") as broker:
        yield broker


def _database(server: MariaDb) -> str:
    name = f"bench{next(_numbers)}"
    server.sql(f"CREATE DATABASE {name}")
    return name


def _plain(server: MariaDb, database: str, count: int, *roles: str) -> list[tuple[int, int]]:
    """Let the table queue work; when each role began and ended."""
    command = [sys.executable, "-m", "bench.table_queue"]
    workers = [
        subprocess.Popen([*command, role, str(server.port), database, str(count)], stdout=subprocess.PIPE, text=True)
        for role in roles
    ]
    times = []
    for worker in workers:
        said, _ = worker.communicate()
        assert worker.returncode == 0, said
        begin, end = map(int, said.split())
        times.append((begin, end))
    return times


def _rate(count: int, begin_ns: int, end_ns: int) -> float:
    return count * 1e9 / (end_ns - begin_ns)


def _make_table(stage: Stage, broker: BrokerProcess) -> None:
    """The table queue has its table before the clock begins; so have we."""
    stage.run(broker, Job(role="frames", topics=("bench",), count=1, batch=1))


def sql(stage: Stage) -> Iterator[Figure]:
    """Produce, consume, and both at once: Towline on a database, and a table queue on the same server."""
    count = int(150_000 * max(1.0, stage.seconds)) // 1000 * 1000
    ours: dict[str, list[float]] = {"produce": [], "consume": [], "both at once": []}
    theirs: dict[str, list[float]] = {name: [] for name in ours}
    with _server(stage) as server:
        for _ in range(stage.repeats):
            database = _database(server)
            for role in ("produce", "consume"):
                theirs[role].append(_rate(count, *_plain(server, database, count, role)[0]))
            (begin, _), (_, end) = _plain(server, database, count, "produce", "consume")
            theirs["both at once"].append(_rate(count, begin, end))
            server.sql(f"DROP DATABASE {database}")
            sender = Job(role="frames", topics=("bench",), count=count, batch=BATCH, in_flight=IN_FLIGHT)
            receiver = Job(role="consume", topics=("bench",), count=count, batch=PULL, group="group")
            with _broker(server) as broker:
                _make_table(stage, broker)
                ours["produce"].append(stage.run(broker, sender)[0].rate)
                broker.stop()
                broker.start()  # so that nothing is in its memory
                ours["consume"].append(stage.run(broker, receiver)[0].rate)
            with _broker(server) as broker:
                _make_table(stage, broker)
                sent, received = stage.run(broker, sender, receiver)
                ours["both at once"].append(_rate(count, sent.begin_ns, received.end_ns))
    targets = {"produce": 1.0, "consume": 3.0, "both at once": 1.5}
    for name, target in targets.items():
        shares = [mine / plain for mine, plain in zip(ours[name], theirs[name], strict=True)]
        yield Figure(
            scenario="sql",
            name=f"{name} ÷ a table queue",
            value=middle(shares),
            unit="×",
            target=target,
            note=f"{middle(ours[name]):,.0f} ÷ {middle(theirs[name]):,.0f} msg/s, {count:,} × 100 B, {BATCH} a call, "
            f"{IN_FLIGHT} calls under way{spread(shares)}",
        )


def sql_backlog(stage: Stage) -> Iterator[Figure]:
    """What a pull reads, with millions of rows waiting and with a few thousand; nothing in the broker's memory."""
    many = stage.backlog // 2
    with _server(stage) as server:
        with _broker(server) as broker:
            database = broker.store.rpartition("/")[2]
            for topic, count in (("few", FEW), ("many", many)):
                begin = time.monotonic()
                stage.run(broker, Job(role="frames", topics=(topic,), count=count, batch=500, in_flight=IN_FLIGHT))
                stage.say(f"  {count:,} rows written in {time.monotonic() - begin:.1f} s")
            with towline.connect(broker.url) as mq:
                for topic in _SHORT:
                    for _ in range(FEW // BATCH):
                        mq.send_many(topic, [bytes(100)] * BATCH)
            broker.stop()
            broker.start()  # so that nothing is in its memory
            pulls_s = _pull_in_turns(broker.url)
        times_s = asyncio.run(_read_in_turns(server.url(database)))
    few, lots = (middle(times_s[topic]) for topic in ("few", "many"))
    shares = [a / b for a, b in zip(times_s["few"], times_s["many"], strict=True)]
    yield Figure(
        scenario="sql-backlog",
        name=f"pull with {many / 1e6:g} M rows waiting ÷ with {FEW:,}",
        value=few / lots,
        unit="×",
        target=0.9,
        note=f"{lots * 1e3:.2f} against {few * 1e3:.2f} ms for {BATCH} messages at median of {len(shares):,} reads "
        "each, in turns, from the beginning on, nothing in the broker's memory",
    )
    few, lots = (middle(pulls_s[topic]) for topic in ("few", "many"))
    yield Figure(
        scenario="sql-backlog",
        name=f"the same, pulled by a consumer from a broker: {many / 1e6:g} M ÷ {FEW:,}",
        value=few / lots,
        unit="×",
        target=0.9,
        note=f"{lots * 1e3:.2f} against {few * 1e3:.2f} ms for {BATCH} messages, pulled and acked, at median of "
        f"{len(pulls_s['few'])} pulls each, in turns; a topic of {FEW:,} for each {FEW // BATCH} pulls",
    )


READS = 1_000
_SHORT = tuple(f"few-{number}" for number in range(20))


def _pull_in_turns(url: str) -> dict[str, list[float]]:
    """How long a pull of 500 takes and its ack, from a long lane and from short ones that were not read before."""
    times_s: dict[str, list[float]] = {"few": [], "many": []}
    with towline.connect(url) as mq:
        for topic in ("many", *_SHORT):
            mq.put_group(GroupConfig(topic, "pulling", start="earliest"))
        with mq.consumer("many", "pulling") as long:
            for topic in _SHORT:
                with mq.consumer(topic, "pulling") as short:
                    for _ in range(FEW // BATCH):
                        for name, consumer in (("few", short), ("many", long)):
                            begin = time.perf_counter()
                            batch = consumer.pull(max_messages=BATCH, wait=10)
                            batch.ack()
                            times_s[name].append((time.perf_counter() - begin) * BATCH / len(batch))
    return times_s


async def _read_in_turns(url: str) -> dict[str, list[float]]:
    """Read as a consumer does that is far behind: the next 500 each time, of the short lane again and again."""
    settings = msgspec.structs.replace(parse_url(url), cache_bytes=0, ahead_bytes=0)
    store = await open_sql(settings, owner="bench")
    times_s: dict[str, list[float]] = {"few": [], "many": []}
    try:
        for number in range(READS):
            for topic in ("few", "many") if number % 2 else ("many", "few"):
                stream = f"lane/{topic}/middle"
                first = number * BATCH % (store.bounds(stream).end // BATCH * BATCH)
                begin = time.perf_counter()
                read = await store.read(stream, first, BATCH, BATCH * 110)
                times_s[topic].append(time.perf_counter() - begin)
                assert read.next == first + BATCH, (topic, first, read.next)
    finally:
        await store.close()
    return times_s
