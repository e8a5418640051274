"""The database is away for a while under load: frozen, or stopped and started again. `--away-s 60` makes a minute."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import towline
from tests.store.sql.server import MariaDb, needs_mariadb, new_server
from tests.system.cluster.conftest import Brokers, eventually
from tests.system.cluster.load import Load
from towline.errors import Unavailable


@pytest.fixture
def server() -> Iterator[MariaDb]:
    needs_mariadb()
    made = new_server().install().start()
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


def test_who_is_not_served_because_the_database_is_away_is_told_so(
    server: MariaDb, cluster_of: Callable[..., Brokers], topic: str
) -> None:
    brokers = cluster_of(2, "--store-wait-s", "1", stores=[server.url("queue")] * 2).start().wait_for()
    with towline.connect(brokers.url, timeout=30) as mq:
        mq.send(topic, b"x")
    [[owner]] = server.sql("SELECT address FROM mq_realm", "queue")
    victim = brokers.ports.index(int(owner.rpartition(":")[2]))
    server.stop()
    brokers.kill(victim)

    def told() -> bool:
        with (
            towline.connect(f"towline://{brokers.address(1 - victim)}", timeout=2) as mq,
            pytest.raises(Unavailable) as caught,
        ):
            mq.send(topic, b"y")
        return "queue cannot be reached: " in str(caught.value)

    eventually(told)
    server.start()
    with towline.connect(f"towline://{brokers.address(1 - victim)}", timeout=30) as mq:
        mq.send(topic, b"z")
        assert [message.body for message in mq.browse(topic)] == [b"x", b"z"]
