"""The database is away for a while under load: frozen, or stopped and started again. `--away-s 60` makes a minute."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.conftest import Brokers, eventually
from tests.cluster.load import Load
from tests.sql.server import MariaDb, needs_mariadb


@pytest.fixture
def server() -> Iterator[MariaDb]:
    needs_mariadb()
    made = MariaDb().install().start()
    try:
        made.sql("CREATE DATABASE queue")
        yield made
    finally:
        made.remove()


@pytest.mark.parametrize("how", ["frozen", "stopped"])
def test_while_the_database_is_away_clients_wait_or_are_told_and_all_recovers(
    server: MariaDb, how: str, cluster_of: Callable[..., Brokers], topic: str, request: pytest.FixtureRequest
) -> None:
    away_s: float = request.config.getoption("--away-s")
    brokers = cluster_of(2, "--realms", "2", stores=[server.url("queue")] * 2).start().wait_for()
    load = Load(brokers.url, topic, producers=2, consumers=1, delivery_timeout_s=away_s / 2)
    try:
        eventually(lambda: len(load.seen) > 100)
        left_at = time.monotonic()
        if how == "frozen":
            server.signal(signal.SIGSTOP)
        else:
            server.stop()
        time.sleep(away_s)
        if how == "frozen":
            server.signal(signal.SIGCONT)
        else:
            server.start()
        back_at = time.monotonic()
        acked = len(load.acked)
        eventually(lambda: bool(load.errors) or len(load.acked) > acked + 100, 60)
        answers_s = next(at for at, _ in load.acked if at > back_at) - back_at
        consumed = len(load.seen)
        eventually(lambda: bool(load.errors) or len(load.seen) > consumed + 50, 60)
        assert not load.errors
        load.stop_sending()
        eventually(lambda: not load.lost(), 60)
        gap = load.longest_gap(load.acked, left_at, time.monotonic())
        told = Counter(type(error).__name__ for _, error in load.failed)
        print(f"{how} for {away_s:g} s: {gap:.1f} s without a send, {answers_s:.1f} s after it was back; {dict(told)}")
        print("producers:", {type(error).__name__: str(error) for _, error in load.failed})
        print("consumers:", {type(error).__name__: str(error) for error in load.told})
        assert all(error.retriable for _, error in load.failed), told
        assert load.stored() <= load.sent, "nothing is stored twice"
        assert load.stored() >= len(load.acked)
    finally:
        if how == "frozen":
            server.signal(signal.SIGCONT)
        load.stop()
    assert not load.errors
