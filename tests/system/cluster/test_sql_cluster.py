"""Three brokers on one database: each topic has one of them at a time, whatever happens to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import towline
from tests.broker.raw_client import RawClient
from tests.client.either import do, each, entered
from tests.eventually import DEADLINE_S, eventually_done
from tests.inside.broker import TOPIC, Broker, Realms
from tests.inside.ground import BrokerSettings
from tests.inside.protocol import Brokers as Told
from tests.inside.protocol import BrokerState, ListBrokers, TopicInfo
from tests.store.sql.server import mariadb, new_database
from tests.system.cluster.conftest import Brokers, eventually
from tests.system.cluster.load import Load
from towline.errors import BadRequest, NotOwner, Unavailable

REALMS = 8
TAKEOVER_S = 3.0


@pytest.fixture(scope="module")
def _sql_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    stores = [new_database()] * 3
    made = Brokers(tmp_path_factory.mktemp("sql"), 3, "--realms", str(REALMS), stores=stores)
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture
def brokers(_sql_brokers: Brokers) -> Brokers:
    for number in list(_sql_brokers.stopped):
        _sql_brokers.thaw(number)
    dead = [number for number, process in enumerate(_sql_brokers.processes) if process is None]
    brokers = _sql_brokers.start(*dead) if dead else _sql_brokers
    brokers.wait_for()
    eventually(lambda: len(holders_of(brokers)) == REALMS and len(set(holders_of(brokers).values())) > 1)
    return brokers


def holders_of(brokers: Brokers) -> dict[str, str]:
    """Who has which realm, by the address."""
    database = brokers.stores[0].rpartition("/")[2]
    rows = mariadb().sql("SELECT name, address FROM mq_realm WHERE expires_at > NOW(6) AND address <> ''", database)
    return {row[0]: row[1] for row in rows}


def owner_of(brokers: Brokers, topic: str) -> int:
    from crc32c import crc32c

    number = crc32c(topic.encode()) % REALMS
    # It may be on its way from one broker to the next.
    address: str = eventually(lambda: holders_of(brokers).get("main" if not number else f"realm-{number}"))
    return brokers.ports.index(int(address.rpartition(":")[2]))


async def test_everything_works_whatever_broker_a_client_is_given(connect: Any, brokers: Brokers, topic: str) -> None:
    async with entered(connect(f"towline://{brokers.address(1)}", timeout=20)) as mq:
        names = [f"{topic}-{number}" for number in range(6)]
        for name in names:
            await do(mq.send(name, name.encode(), key="k"))
            await do(mq.send_many(name, [b"%d" % number for number in range(100)]))
        shown = {state.config.name: sum(lane.end for lane in state.lanes) for state in await do(mq.topics())}
        assert {name: shown[name] for name in names} == dict.fromkeys(names, 101)
        async with entered(mq.producer()) as producer:
            for number in range(200):
                await do(producer.send(names[number % 6], b"p%d" % number))
        for name in names:
            async with entered(mq.consumer(name, "g", idle_timeout=5.0)) as consumer:
                seen = 0
                async for message in each(consumer):
                    message.ack()
                    seen += 1
                    if seen == 101 + sum(number % 6 == names.index(name) for number in range(200)):
                        break
                assert seen >= 134
        assert len(await do(mq.browse(names[0], max_messages=10))) == 10
        await do(mq.pause(names[1], "g"))
        assert (await do(mq.group(names[1], "g"))).config.paused
        tx = mq.transaction()
        await do(tx.begin())
        for name in names:
            await do(tx.send(name, b"x"))
        with pytest.raises(BadRequest, match="different realms"):
            await do(tx.commit())


def test_a_killed_brokers_topics_are_taken_over(brokers: Brokers, topic: str) -> None:
    load = Load(brokers.url, topic)
    try:
        eventually(lambda: len(load.seen) > 200)
        killed_at = time.monotonic()
        brokers.kill(owner_of(brokers, topic))
        acked, seen = len(load.acked), len(load.seen)
        eventually(lambda: len(load.acked) > acked + 10 and len(load.seen) > seen + 10, 20)
        gap = load.longest_gap(load.acked, killed_at, time.monotonic())
        assert gap < TAKEOVER_S, gap
        load.stop_sending()
        assert not load.failed
        eventually(lambda: not load.lost())
        assert load.stored() == load.sent
    finally:
        load.stop()
    assert not load.errors


def test_a_stopping_broker_hands_its_topics_over(brokers: Brokers, topic: str) -> None:
    load = Load(brokers.url, topic)
    try:
        eventually(lambda: len(load.seen) > 200)
        begun = time.monotonic()
        brokers.terminate(owner_of(brokers, topic))
        acked = len(load.acked)
        eventually(lambda: len(load.acked) > acked + 10, 20)
        assert load.longest_gap(load.acked, begun, time.monotonic()) < TAKEOVER_S
        load.stop_sending()
        assert not load.failed
        eventually(lambda: not load.lost())
        assert load.stored() == load.sent
    finally:
        load.stop()


async def test_a_producer_whose_connection_is_full_follows_its_topic(
    connect: Any, brokers: Brokers, topic: str
) -> None:
    """The broker stands still, and what is on its way to it fills the connection, when another one takes the topic."""
    numbers, lanes = range(60), ("high", "middle", "low")
    async with entered(connect(brokers.url, timeout=30)) as mq:
        await do(mq.send_many(topic, [b"0"]))
        victim = owner_of(brokers, topic)
        async with entered(mq.producer(linger_ms=50, max_batch_bytes=4 << 20)) as producer:
            for lane in lanes:
                await do(producer.send(topic, b"0", priority=lane))
            await do(producer.flush(30))
            brokers.freeze(victim)
            for number in numbers:
                for lane in lanes:
                    await do(producer.send(topic, b"%d" % number + bytes(200_000), priority=lane))
                # The first ones are more than the connection holds.
                if number >= 20:
                    await asyncio.sleep(0.08)
            await do(producer.flush(60))
            brokers.thaw(victim)
        ends = [lane.end for lane in (await do(mq.topic(topic))).lanes]
        assert ends == [61, 62, 61], "each is stored once"
        for lane in lanes:
            seen: list[int] = []
            first = 1 + (lane == "middle")
            while len(seen) < len(numbers):
                page = await do(mq.browse(topic, lane, first=first + len(seen)))
                seen += [int(message.body.rstrip(b"\0")) for message in page]
            assert seen == list(numbers)


def test_a_zombie_changes_nothing(brokers: Brokers, topic: str) -> None:
    load = Load(brokers.url, topic)
    try:
        eventually(lambda: len(load.seen) > 200)
        victim = owner_of(brokers, topic)
        brokers.freeze(victim)
        acked = len(load.acked)
        eventually(lambda: len(load.acked) > acked + 50, 20)
        assert owner_of(brokers, topic) != victim
        brokers.thaw(victim)
        time.sleep(1.0)
        load.stop_sending()
        assert not load.failed
        eventually(lambda: not load.lost())
        assert load.stored() == load.sent
    finally:
        load.stop()
    assert _holes(brokers, topic) == 0


def _holes(brokers: Brokers, topic: str) -> int:
    database = brokers.stores[0].rpartition("/")[2]
    holes = 0
    for lane in ("high", "middle", "low"):
        found = mariadb().sql(f"SHOW TABLES LIKE 'msg\\_p\\_{topic.replace('-', '%')}\\_{lane}'", database)
        for [table] in found:
            [[count, last]] = mariadb().sql(f"SELECT COUNT(*), COALESCE(MAX(id) + 1, 0) FROM `{table}`", database)
            holes += int(last) - int(count)
    return holes


def test_the_number_of_realms_is_for_good(brokers: Brokers, cluster_of: Callable[..., Brokers], topic: str) -> None:
    with towline.connect(brokers.url) as mq:
        for number in range(8):
            mq.send(f"{topic}-{number}", b"x")
    other = cluster_of(1, "--realms", str(REALMS + 1), stores=[brokers.stores[0]])
    for number in range(3):
        brokers.kill(number)
    other.start()
    eventually(lambda: "number of realms" in (other.folder / "0.log").read_text())


def test_brokers_and_consumers_are_in_the_registry_table(brokers: Brokers, topic: str) -> None:
    database = brokers.stores[0].rpartition("/")[2]

    def registered() -> dict[str, tuple[int, int]]:
        """The consumers of the topic, with their rank and how many there are."""
        rows = mariadb().sql(
            "SELECT JSON_VALUE(data, '$.consumer'), JSON_VALUE(data, '$.rank'), JSON_VALUE(data, '$.total') "
            f"FROM mq_registry WHERE kind = 'consumer' AND JSON_VALUE(data, '$.topic') = '{topic}' "
            "AND beat_at > NOW(6) - INTERVAL 60 SECOND",
            database,
        )
        return {name: (int(rank), int(total)) for name, rank, total in rows}

    def shown(mq: towline.Client) -> dict[str, tuple[int, int]]:
        return {one.consumer: (one.rank, one.total) for one in mq.clients(topic, "g")}

    def addresses() -> set[str]:
        return {row[0] for row in mariadb().sql("SELECT address FROM mq_registry WHERE kind = 'broker'", database)}

    try:
        eventually(lambda: addresses() >= {brokers.address(number) for number in range(3)})
    except AssertionError as error:
        logs = [(brokers.folder / f"{number}.log").read_text()[-3000:] for number in range(3)]
        raise AssertionError((addresses(), brokers.ports, *logs)) from error
    with towline.connect(brokers.url, timeout=20) as mq:
        mq.send(topic, b"x")
        with mq.consumer(topic, "g", name="ann") as ann:
            ann.pull(wait=0.1)
            with mq.consumer(topic, "g", name="bob") as bob:
                bob.pull(wait=0.1)
                eventually(lambda: registered().keys() == {"ann", "bob"})
                eventually(lambda: registered() == {"ann": (0, 2), "bob": (1, 2)})
                # The topic may be about to move to another broker, to which its consumers follow.
                eventually(lambda: shown(mq) == {"ann": (0, 2), "bob": (1, 2)})
            eventually(lambda: registered().keys() == {"ann"})
    eventually(lambda: not registered())


def test_spark_reads_all_realms_and_writes_to_each_once(brokers: Brokers, topic: str) -> None:
    """An epoch whose commit was cut short is finished by the next attempt, whose rows come in another order."""
    from tests.inside.client import Addressed
    from tests.inside.frame import encode
    from tests.inside.spark import BrokerSource, ReadSource, Selection, SinkRouting, cut, members_of, publish

    with towline.connect(brokers.url) as mq:
        for whole, order in ((False, range(40)), (True, range(39, -1, -1))):
            outlets = SinkRouting(mq, -1, f"sink:{topic}", 0, False, members_of(mq))
            for n in order:
                outlets.add(Addressed(f"{topic}.{n % 5}", 1, 0, encode([b"%d" % n])))
            staged = outlets.settle()
            assert sum(bool(one.records) for one in staged) == (3 if whole else 5), "two were published before"
            publish(mq, -1, f"sink:{topic}", 0, staged if whole else staged[:2])
    place = BrokerSource(ReadSource(url=brokers.url))
    try:
        lanes = place.lanes(Selection((f"{topic}.*",)))
        spans = [span for lane in lanes for span in cut(lane, lane.first, lane.end, 1 << 40)]
        assert {lane.topic: lane.end for lane in lanes if lane.lane == "middle"} == {
            f"{topic}.{n}": 8 for n in range(5)
        }
        assert sum(piece.count for span in spans for piece in place.records(span)) == 40
    finally:
        place.close()


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_an_unnamed_consumer_goes_on_at_its_place_when_another_broker_takes_over(
    connect: Any, brokers: Brokers, topic: str, start: str
) -> None:
    async with (
        entered(connect(brokers.url, timeout=60)) as near,
        entered(connect(brokers.url, timeout=60)) as far,
    ):
        await do(near.send(topic, b"early"))
        async with entered(far.consumer(topic, start=start)) as consumer:
            if start == "earliest":
                await do((await do(consumer.pull(wait=60))).ack())
            await do(near.send_many(topic, [b"done", b"held", b"acked in vain"]))
            done, _, in_vain = await do(consumer.pull(wait=60))
            done.ack()
            await do(consumer.flush())
            await do(near.send(topic, b"waits"))
            brokers.kill(owner_of(brokers, topic))
            in_vain.ack()
            await do(near.send(topic, b"last"))
            seen: list[bytes] = []
            while len(seen) < 3:
                batch = await do(consumer.pull(wait=60))
                assert batch, seen
                seen += batch.bodies()
                await do(batch.ack())
            assert seen == [b"held", b"waits", b"last"]
            assert consumer.lost == 1


async def test_a_realm_that_could_not_be_taken_to_its_end_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for as long as a lease that nobody gives back is renewed."""
    realms = await Realms.open(BrokerSettings(store=new_database(), realms=1))
    instruct, failures = realms.front.instruct, [Unavailable("the database is away for a moment")]

    async def fail_first(broker: Broker) -> None:
        if failures:
            raise failures.pop()
        await instruct(broker)

    monkeypatch.setattr(realms.front, "instruct", fail_first)
    realms.start("127.0.0.1:1")
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not realms.owned:
                await asyncio.sleep(0.05)
        assert not failures
    finally:
        await realms.front.close()


async def test_a_broker_that_leaves_says_who_has_its_realms_from_now_on() -> None:
    realms = await Realms.open(BrokerSettings(store=new_database(), realms=2))
    realms.start("127.0.0.1:1")
    try:
        await eventually_done(lambda: len(realms.owned) == 2)
        realms.front.registry.heard(BrokerState("heir", "heir", "127.0.0.1:2"))
        await realms.leave()
        for topic in ("orders", "payments", "returns"):
            with pytest.raises(NotOwner) as refused:
                realms.choose(TopicInfo(topic), TOPIC, {})
            assert refused.value.address == "127.0.0.1:2"
        assert [one.address for one in (await realms.brokers(ListBrokers())).realms] == ["127.0.0.1:2"] * 2
    finally:
        await realms.front.close()


def test_one_question_of_a_connection_waits_for_news_and_no_more(brokers: Brokers) -> None:
    with RawClient.hello(brokers.ports[0]) as client:
        for _ in range(5):  # there may be news just now
            mark = client.call(ListBrokers(), Told).mark
            first, second = (client.post(ListBrokers(mark, 10_000)) for _ in range(2))
            answers = [client.read(), client.read()]
            numbers = [answer[0] for answer in answers if answer is not None]
            if numbers == [second, first]:
                return
    raise AssertionError("the second waited as well")
