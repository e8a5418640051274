"""Clients of a broker that stands still, or stops: they go on at another one, and nothing is lost or stored twice."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import towline
from tests.client.either import do, each, entered
from tests.inside.client import Call, Flow
from tests.inside.protocol import PREFACE, VERSION, Decoder, Hello, ListBrokers, encode_envelope
from tests.store.sql.server import mariadb, new_database
from tests.system.cluster.conftest import Brokers, eventually

PATIENCE_S = 300
"""No call of these tests ends because it took too long."""
LARGE = bytes(500_000)

Work = Callable[[Any], Awaitable[Any]]


class Workers:
    """Each does its work in a thread of its own, with a client of its own."""

    def __init__(self, connect: Any, url: str) -> None:
        self._connect, self._url = connect, url
        self._threads: dict[str, threading.Thread] = {}
        self._ready: dict[str, threading.Event] = {}
        self._go = threading.Event()
        self.results: dict[str, Any] = {}

    def add(self, name: str, work: Work, prepare: Work | None = None) -> None:
        """What is prepared is given to the work, which begins with `go`; without it, work begins at once."""

        async def run() -> None:
            async with entered(self._connect(self._url, timeout=PATIENCE_S)) as mq:
                given = mq if prepare is None else await prepare(mq)
                self._ready[name].set()
                self._go.wait(PATIENCE_S)
                try:
                    self.results[name] = await work(given)
                except Exception as error:
                    self.results[name] = error

        self._ready[name] = threading.Event()
        self._threads[name] = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
        self._threads[name].start()

    def wait_until_ready(self) -> None:
        for name, ready in self._ready.items():
            assert ready.wait(60), name

    def go(self) -> None:
        self._go.set()

    def ended(self) -> dict[str, Any]:
        """What came of it, once all have come to their end."""
        eventually(lambda: self.results.keys() == self._threads.keys() or self._stuck(), holds=lambda one: one is True)
        assert not [error for error in self.results.values() if isinstance(error, Exception)], self.results
        return self.results

    def _stuck(self) -> list[str]:
        return sorted(self._threads.keys() - self.results.keys())


def _rows(brokers: Brokers, query: str) -> list[list[str]]:
    return mariadb().sql(query, brokers.stores[0].rpartition("/")[2])


def _holder(brokers: Brokers) -> str:
    """Who has the only realm."""
    rows = _rows(brokers, "SELECT address FROM mq_realm WHERE expires_at > NOW(6)")
    return rows[0][0] if rows else ""


def _owner(brokers: Brokers) -> int:
    address: str = eventually(lambda: _holder(brokers))
    return brokers.ports.index(int(address.rpartition(":")[2]))


def _is_elsewhere(brokers: Brokers, victim: int) -> bool:
    return _holder(brokers) not in ("", brokers.address(victim))


def _settled(brokers: Brokers) -> Brokers:
    """All are there for so long that each is given what ought to be its own."""
    brokers.wait_for()
    eventually(lambda: all(one.uptime_s > 4.0 for one in brokers.alive(0)))
    return brokers


def _stored(url: str, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with towline.connect(url, timeout=60) as mq:
        first = 0
        while page := mq.browse(topic, first=first, max_messages=1_000):
            found.update(message.body for message in page)
            first = page.next
    return found


def test_who_waits_for_a_frozen_broker_goes_on_at_the_one_that_took_over(
    connect: Any, cluster_of: Callable[..., Brokers], topic: str
) -> None:
    """The old connections stand, nobody beats for hours, and no call may take too long: only that another broker has
    the topics by now tells them."""
    flags = ("--heartbeat-s", "3600", "--realms", "1")
    brokers = _settled(cluster_of(2, *flags, stores=[new_database()] * 2).start())
    victim = _owner(brokers)
    workers = Workers(connect, brokers.url)

    async def met(mq: Any) -> Any:
        await do(mq.topic(topic))
        return mq

    async def send_many(mq: Any) -> None:
        await do(mq.send_many(topic, [b"many-%d" % number for number in range(100)]))

    async def send_much(mq: Any) -> None:
        await do(mq.send_many(topic, [b"much-%d-" % number + LARGE for number in range(60)]))

    async def produce(mq: Any) -> None:
        async with entered(mq.producer(delivery_timeout=PATIENCE_S)) as producer:
            for number in range(100):
                await do(producer.send(topic, b"produced-%d" % number))

    async def commit(mq: Any) -> None:
        tx = mq.transaction()
        await do(tx.begin())
        await do(tx.send(topic, b"committed"))
        await do(tx.commit())

    with towline.connect(brokers.url, timeout=60) as mq:
        mq.send(topic, b"first")
    workers.add("send", lambda mq: do(mq.send(topic, b"sent")), met)
    workers.add("send_many", send_many, met)
    workers.add("send_much", send_much, met)
    workers.add("produce", produce, met)
    workers.add("commit", commit, met)
    workers.add("topic", lambda mq: do(mq.topic(topic)), met)
    workers.wait_until_ready()
    brokers.freeze(victim)
    workers.go()
    workers.ended()
    assert _is_elsewhere(brokers, victim)
    brokers.thaw(victim)
    brokers.wait_for()
    stored = _stored(brokers.url, topic)
    assert set(stored.values()) == {1}, "nothing is stored twice"
    assert len(stored) == 1 + 1 + 100 + 60 + 100 + 1, "nothing is lost"


async def test_a_pull_that_waits_at_a_frozen_broker_goes_on_at_the_one_that_took_over(
    connect: Any, cluster_of: Callable[..., Brokers], topic: str
) -> None:
    flags = ("--heartbeat-s", "3600", "--realms", "1")
    brokers = _settled(cluster_of(2, *flags, stores=[new_database()] * 2).start())
    victim = _owner(brokers)
    workers = Workers(connect, brokers.url)
    seen: dict[str, list[bytes]] = {"pull": [], "iterate": []}
    waiting = {name: threading.Event() for name in seen}

    async def pull(mq: Any) -> None:
        async with entered(mq.consumer(topic, "pull")) as consumer:
            while len(seen["pull"]) < 6:
                batch = await do(consumer.pull(wait=PATIENCE_S))
                seen["pull"] += batch.bodies()
                await do(batch.ack())
                if len(seen["pull"]) == 3:
                    waiting["pull"].set()

    async def iterate(mq: Any) -> None:
        async with entered(mq.consumer(topic, "iterate")) as consumer:
            async for message in each(consumer):
                seen["iterate"].append(message.body)
                message.ack()
                if len(seen["iterate"]) == 3:
                    await do(consumer.flush())
                    waiting["iterate"].set()
                if len(seen["iterate"]) == 6:
                    return

    with towline.connect(brokers.url, timeout=PATIENCE_S) as mq:
        mq.send_many(topic, [b"0", b"1", b"2"])
        workers.add("pull", pull)
        workers.add("iterate", iterate)
        workers.go()
        for one in waiting.values():
            assert one.wait(60)
        brokers.freeze(victim)
        mq.send_many(topic, [b"3", b"4", b"5"])
        workers.ended()
        assert all(bodies == [b"0", b"1", b"2", b"3", b"4", b"5"] for bodies in seen.values()), seen
        brokers.thaw(victim)
        brokers.wait_for()
        for name in seen:
            group = mq.group(topic, name)
            assert (group.lag, group.in_flight, group.retrying, group.dead) == (0, 0, 0, 0)


def test_a_send_on_its_way_outlives_the_entry_of_its_broker_in_the_registry(
    connect: Any, cluster_of: Callable[..., Brokers], topic: str
) -> None:
    """The broker is dropped from the list of brokers before another one has its topics."""
    flags = ("--realms", "1", "--cluster-gone-s", "1")
    brokers = _settled(cluster_of(2, *flags, stores=[new_database()] * 2).start())
    victim = _owner(brokers)
    workers = Workers(connect, brokers.url)

    async def met(mq: Any) -> Any:
        await do(mq.send(topic, b"first"))
        return mq

    for number in range(3):
        body = b"sent-%d" % number
        workers.add(f"send-{number}", lambda mq, body=body: do(mq.send(topic, body)), met)  # type: ignore[misc]
    workers.wait_until_ready()
    brokers.freeze(victim)
    workers.go()
    workers.ended()
    brokers.thaw(victim)
    stored = _stored(f"towline://{brokers.address(1 - victim)}", topic)
    assert stored == {b"first": 3, b"sent-0": 1, b"sent-1": 1, b"sent-2": 1}


def test_a_frozen_broker_is_not_given_back_what_it_lost(cluster_of: Callable[..., Brokers], topic: str) -> None:
    """Its last beats are younger than the lease that it let run out."""
    brokers = _settled(cluster_of(2, "--realms", "8", "--cluster-beat-s", "1", stores=[new_database()] * 2).start())
    shared = "SELECT COUNT(DISTINCT address), COUNT(*) FROM mq_realm WHERE expires_at > NOW(6) AND address <> ''"
    eventually(lambda: _rows(brokers, shared) == [["2", "8"]])
    mine = f"SELECT name, epoch FROM mq_realm WHERE address = '{brokers.address(0)}'"
    before = {name: int(epoch) for name, epoch in _rows(brokers, mine)}
    brokers.freeze(0)
    eventually(lambda: not _rows(brokers, mine + " AND expires_at > NOW(6)"))
    eventually(lambda: len(brokers.alive(1)) == 1)
    eventually(lambda: _rows(brokers, shared) == [["1", "8"]])
    epochs = {name: int(epoch) for name, epoch in _rows(brokers, "SELECT name, epoch FROM mq_realm")}
    assert {name: epochs[name] for name in before} == {name: epoch + 1 for name, epoch in before.items()}
    brokers.thaw(0)
    eventually(lambda: _rows(brokers, shared) == [["2", "8"]])


def test_a_stopping_broker_gives_its_topics_away_before_its_connections_end(
    cluster_of: Callable[..., Brokers], topic: str
) -> None:
    """A topic stands still for no longer than it takes to move; whoever is slow to leave holds nothing up."""
    brokers = _settled(cluster_of(2, "--realms", "1", stores=[new_database()] * 2).start())
    victim = _owner(brokers)
    with (
        towline.connect(brokers.url, timeout=60) as mq,
        socket.create_connection(("127.0.0.1", brokers.ports[victim])) as slow,
    ):
        mq.send(topic, b"before")
        slow.sendall(PREFACE + encode_envelope(1, Hello(VERSION, VERSION, "", "", "slow")))
        assert Decoder(1 << 20).feed(slow.recv(1 << 16)), "it is let in"
        slow.settimeout(60)
        ending = threading.Thread(target=brokers.terminate, args=(victim,))
        ending.start()
        assert slow.recv(1 << 16), "its last word"
        assert _holder(brokers) != brokers.address(victim)
        mq.send(topic, b"after")
        ending.join()
        assert _stored(f"towline://{brokers.address(1 - victim)}", topic) == {b"before": 1, b"after": 1}


async def test_a_slow_broker_is_not_left_because_it_is_reached_under_another_name(
    connect: Any, cluster_of: Callable[..., Brokers]
) -> None:
    """It says of itself that it is at 127.0.0.1. What it takes long for must not be asked of it twice."""
    brokers = _settled(cluster_of(2, "--realms", "1", stores=[new_database()] * 2).start())
    async with entered(connect(f"towline://localhost:{brokers.ports[0]}", timeout=60)) as mq:
        link, known, asked = mq._link, 0, 0
        while known == 0 or asked != known:  # until there was nothing new for three seconds
            known, asked = asked, (await do(link.run(_brokers(asked, 3_000)))).mark
            assert link.cause is None
        assert link.at == f"localhost:{brokers.ports[0]}"


def _brokers(mark: int, wait_ms: int) -> Flow[Any]:
    return (yield Call(ListBrokers(mark, wait_ms)))
