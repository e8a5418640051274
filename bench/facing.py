"""What looking costs: the console's overview open and the metrics scraped, while messages go in and out."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import towline
from bench.figures import Figure, middle, spread
from bench.stage import Stage
from towline.load.broker import BrokerProcess
from towline.load.job import Job

__all__ = ["console"]

TOPICS = 100
OVERVIEW_S = 3.0
"""As often as the console's overview asks."""
SCRAPE_S = 1.0
"""Prometheus asks every 15 or 60 s, unless told otherwise."""
PAIRS = 5
PACE = 50_000
"""Messages a second while the processor time of looking is measured: at full speed, how the messages happen to come
together costs more or less than looking does."""


def console(stage: Stage) -> Iterator[Figure]:
    """The broker's processor time, with somebody who looks and with nobody, in turns: at a pace, and at full speed."""
    port = _free_port()
    with stage.broker(durability="os", metrics=f"127.0.0.1:{port}") as broker:
        _settle_in(broker)
        _work(stage, broker, 0)
        paced = list(_turns(stage, broker, port, PACE))
        full = list(_turns(stage, broker, port, 0))
    shares = [1 + watched.cores - alone.cores for alone, watched in paced]
    yield Figure(
        scenario="console",
        name="CPU of a broker at full speed, overview open and metrics scraped ÷ nobody looks",
        value=middle(shares),
        unit="×",
        target=1.03,
        less_is_better=True,
        note=f"1 + what looking takes of the one core that a broker has, seen at {PACE:,} msg/s; {TOPICS} topics, "
        f"overview every {OVERVIEW_S:g} s, scrape every {SCRAPE_S:g} s{spread(shares)}",
    )
    ratios = [watched.message_us / alone.message_us for alone, watched in full]
    yield Figure(
        scenario="console",
        name="CPU a message at full speed, the same",
        value=middle(ratios),
        unit="×",
        note=f"{middle([one.message_us for _, one in full]):.3f} ÷ {middle([one.message_us for one, _ in full]):.3f} µs"
        f"{spread(ratios)}",
    )


class Cost(NamedTuple):
    cores: float
    """Processor time a second."""
    message_us: float


def _turns(stage: Stage, broker: BrokerProcess, port: int, pace: float) -> Iterator[tuple[Cost, Cost]]:
    """With nobody who looks, and with somebody; which comes first changes."""
    for turn in range(max(PAIRS, stage.repeats)):
        costs = {}
        for watched in (False, True) if turn % 2 else (True, False):
            with _watching(broker.url, port) if watched else nullcontext():
                costs[watched] = _work(stage, broker, pace)
        yield costs[False], costs[True]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def _settle_in(broker: BrokerProcess) -> None:
    """Topics with a group and a backlog each, as there are beside the busy ones."""
    with towline.connect(broker.url) as mq:
        for number in range(TOPICS):
            mq.send_many(f"topic-{number:03}", [b"x"] * 10)
            with mq.consumer(f"topic-{number:03}", group="group") as consumer:
                consumer.pull(max_messages=5, wait=1).ack()


def _work(stage: Stage, broker: BrokerProcess, pace: float) -> Cost:
    begin_s = broker.cpu_s
    sent, _ = stage.run(
        broker,
        Job(role="frames", topics=("busy",), seconds=stage.seconds, durability="os", rate=pace),
        Job(role="consume", topics=("busy",), group="busy", seconds=stage.seconds, batch=4_000, idle_s=1.0),
    )
    spent_s = broker.cpu_s - begin_s
    return Cost(spent_s / sent.seconds, spent_s * 1e6 / max(1, sent.messages))


@contextmanager
def _watching(url: str, port: int) -> Iterator[None]:
    over = threading.Event()
    looking = [
        threading.Thread(target=_overview, args=(url, over)),
        threading.Thread(target=_scrape, args=(port, over)),
    ]
    for each in looking:
        each.start()
    try:
        yield
    finally:
        over.set()
        for each in looking:
            each.join()


def _overview(url: str, over: threading.Event) -> None:
    """The requests of `console/pages/overview.py`, without the browser that would take processor time from the load."""
    with towline.connect(url) as mq:
        mq.alarms(), mq.brokers(), mq.storage()
        while True:
            mq.pulse()
            mq.survey("groups", sort="lag", descending=True, limit=8)
            if over.wait(OVERVIEW_S):
                return


def _scrape(port: int, over: threading.Event) -> None:
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            answer.read()
        if over.wait(SCRAPE_S):
            return
