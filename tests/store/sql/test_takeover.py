"""Brokers as processes on one database: a frozen one is replaced, and when it wakes up it changes nothing and ends."""

from __future__ import annotations

import signal
import time

import towline
from tests.broker.process import BrokerProcess, failing_start
from tests.store.sql.server import mariadb, new_database
from towline.errors import TowlineError


def test_a_frozen_broker_is_replaced_within_seconds_and_ends_when_it_wakes_up() -> None:
    url = new_database()
    with BrokerProcess(store=url, name="first") as first:
        with towline.connect(f"towline://127.0.0.1:{first.port}") as mq:
            mq.send_many("orders", [b"%d" % index for index in range(100)])
        first.stop(signal.SIGSTOP)
        frozen = time.monotonic()
        with BrokerProcess(store=url, name="second") as second:
            taken_s = time.monotonic() - frozen
            with towline.connect(f"towline://127.0.0.1:{second.port}") as mq:
                mq.send_many("orders", [b"%d" % index for index in range(100, 200)])
                first.stop(signal.SIGCONT)
                assert first.wait() == 1, "it notices, and ends with an error"
                assert "belongs to another broker by now: second" in first.errors
                with mq.consumer("orders", group="billing", idle_timeout=2.0) as consumer:
                    bodies: list[bytes] = []
                    while len(bodies) < 200:
                        batch = consumer.pull(max_messages=500, wait=2.0)
                        bodies += [message.body for message in batch]
                        batch.ack()
                assert bodies == [b"%d" % index for index in range(200)]
    assert taken_s < 30, "the lease is 2 s; the rest is the start of a process on a busy machine"
    counted = mariadb().sql("SELECT COUNT(*), MAX(id) FROM msg_p_orders_middle", url.rpartition("/")[2])
    assert counted == [["200", "199"]]


def test_a_second_broker_on_the_same_database_is_told_who_has_it() -> None:
    url = new_database()
    with BrokerProcess(store=url, name="first", listen="127.0.0.1:0"):
        said = failing_start(store=url, name="second", log_level="error")
        assert "belongs to another broker: first at " in said


def test_a_killed_brokers_messages_are_there_for_the_next_one() -> None:
    url = new_database()
    sent = 0
    for round_ in range(3):
        with BrokerProcess(store=url) as broker, towline.connect(f"towline://127.0.0.1:{broker.port}") as mq:
            for _ in range(20):
                mq.send("orders", b"x", key=f"round-{round_}")
                sent += 1
            try:
                broker.stop(signal.SIGKILL)
                broker.wait()
            except TowlineError:
                pass
    with BrokerProcess(store=url) as broker, towline.connect(f"towline://127.0.0.1:{broker.port}") as mq:
        with mq.consumer("orders", group="all") as consumer:
            seen = 0
            while seen < sent:
                batch = consumer.pull(max_messages=500, wait=5.0)
                assert len(batch), "all that was acknowledged is there"
                seen += len(batch)
                batch.ack()
        assert seen == sent
