"""A topic that was made at one broker only, where each has its own disk: the others hear of it when they need it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import towline
from tests.client.either import do, each, entered
from tests.inside.client import Call, ClusterBrokers, requests
from tests.inside.frame import encode
from tests.inside.protocol import FrameHead, Send
from tests.system.cluster.conftest import Brokers
from towline.errors import BadRequest, WrongShard
from towline.model import TopicConfig

SHARDS = 16


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    made = Brokers(tmp_path_factory.mktemp("two"), 2)
    try:
        yield made.start().wait_for()
    finally:
        made.remove()


def made_at(brokers: Brokers, number: int, topic: str, shards: int = SHARDS, group: str = "") -> None:
    """The other one does not hear of it, unless they are just meeting."""
    with towline.connect(f"towline://{brokers.address(number)}") as one:
        one._link.run(requests.create_topic(topic, 1234.0, shards=shards))
        if group:
            one._link.run(requests.put_group(towline.GroupConfig(topic, group, max_in_flight=77)))


def found_at(brokers: Brokers, number: int, topic: str) -> TopicConfig | None:
    with towline.connect(f"towline://{brokers.address(number)}") as one:
        states = one._link.run(requests.topics())
        return next((state.config for state in states if state.config.name == topic), None)


def asks_first(mq: Any, brokers: Brokers, number: int) -> None:
    """Make a client ask this broker before the other, whatever the topic is."""
    fleet: ClusterBrokers = mq._cluster.fleet
    chosen = next(one.id for one in fleet.members if one.address == brokers.address(number))
    pick = fleet.pick
    fleet.pick = lambda key, but=(): chosen if chosen not in but else pick(key, but)  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["send", "send_many", "producer", "transaction", "prepare"])
async def test_what_is_sent_by_way_of_a_broker_that_does_not_know_an_ordered_topic_is_in_order(
    connect: Any, two: Brokers, topic: str, how: str
) -> None:
    made_at(two, 0, topic)
    bodies = [b"%d" % number for number in range(60)]
    keys = [f"k{number % 20}" for number in range(60)]
    async with entered(connect(two.url, timeout=60)) as mq:
        asks_first(mq, two, 1)
        await _send(mq, topic, how, bodies, keys)
        seen: defaultdict[str, list[int]] = defaultdict(list)
        async with entered(mq.consumer(topic, "g")) as consumer:
            async for message in each(consumer):
                with message:
                    assert message.lane.isdigit()
                    seen[message.key].append(int(message.body))
                if sum(map(len, seen.values())) == 60:
                    break
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert len(seen) == 20
    # Every key has one broker, and the one that had not heard of the topic has it as the other has it.
    for number in range(2):
        config = found_at(two, number, topic)
        assert config is not None
        assert (config.shards, config.retention_s) == (SHARDS, 1234.0)


async def _send(mq: Any, topic: str, how: str, bodies: list[bytes], keys: list[str]) -> None:
    if how == "send_many":
        receipts = await do(mq.send_many(topic, bodies, keys=keys))
        assert all(receipt.lane.isdigit() for receipt in receipts)
    elif how == "producer":
        async with entered(mq.producer()) as producer:
            for body, key in zip(bodies, keys, strict=True):
                await do(producer.send(topic, body, key=key))
    else:
        for body, key in zip(bodies, keys, strict=True):
            if how == "send":
                await do(mq.send(topic, body, key=key))
            elif how == "transaction":
                async with entered(mq.transaction()) as tx:
                    await do(tx.send(topic, body, key=key))
            else:
                prepared = mq.prepare(f"{topic}-shop")
                await do(prepared.send(topic, body, key=key))
                await do(prepared.store())
                await do(prepared.commit())


async def test_a_consumer_brings_a_topic_to_the_brokers_that_do_not_know_it(
    connect: Any, two: Brokers, topic: str
) -> None:
    made_at(two, 1, topic, group="g")
    async with entered(connect(two.url, timeout=60)) as mq, entered(mq.consumer(topic, "g")) as consumer:
        await do(mq.send_many(topic, [b"x"] * 40, keys=[f"k{number}" for number in range(40)]))
        seen = 0
        async for message in each(consumer):
            message.ack()
            seen += 1
            if seen == 40:
                break
        assert {state.config.max_in_flight for state in await do(mq.groups(topic))} == {77}
    config = found_at(two, 0, topic)
    assert config is not None
    assert config.shards == SHARDS


def test_a_broker_that_does_not_know_a_topic_asks_before_it_takes_it_for_a_shared_one(two: Brokers, topic: str) -> None:
    """Whatever its sender thinks, who could ask nobody."""
    made_at(two, 0, topic, group="g")
    with towline.connect(f"towline://{two.address(1)}") as one:
        message = Send([FrameHead(topic, 1, len(frame := encode([b"x"])), 0)])
        with pytest.raises(WrongShard, match=f"ordered, with {SHARDS} shards"):
            one._link.run(_asked(message, frame))
        assert [state.config.name for state in one._link.run(requests.groups(topic))] == ["g"]
    # A transaction with many topics that nobody knows makes them all.
    with towline.connect(two.url, timeout=60) as mq:
        with mq.transaction() as tx:
            for number in range(50):
                tx.send(f"{topic}.{number}", b"x")
        assert sum(state.config.name.startswith(f"{topic}.") for state in mq.topics()) == 50


def _asked(request: Send, frame: bytes) -> Any:
    yield Call(request, [frame])


async def test_a_topic_that_nobody_knows_is_made_by_the_first_send_as_a_shared_one(
    connect: Any, two: Brokers, topic: str
) -> None:
    async with entered(connect(two.url, timeout=60)) as mq:
        with pytest.raises(BadRequest, match="not an ordered one"):
            await do(mq.send(topic, b"x", shard_key="k"))
        assert (await do(mq.send(topic, b"x", key="k"))).lane == "middle"


async def test_a_topic_that_becomes_ordered_is_sent_to_the_homes_of_its_shards(
    connect: Any, two: Brokers, topic: str
) -> None:
    async with entered(connect(two.url, timeout=60)) as mq:
        await do(mq.send(topic, b"x", key="k"))
        with towline.connect(two.url) as other:
            other.delete_topic(topic)
            other.create_topic(topic, shards=SHARDS)
        receipts = await do(mq.send_many(topic, [b"x"] * 40, keys=[f"k{number}" for number in range(40)]))
        assert all(receipt.lane.isdigit() for receipt in receipts)
        all_at_home(mq, two, topic)


def all_at_home(mq: Any, brokers: Brokers, topic: str) -> None:
    """Every shard has messages at the one broker that it belongs to, and nowhere else."""
    fleet: ClusterBrokers = mq._cluster.fleet
    for number in range(2):
        for lane in _lanes(brokers, number, topic):
            if lane.end > lane.first:
                home = fleet.get(fleet.home(topic, int(lane.lane)))
                assert home is not None
                assert home.address == brokers.address(number)


async def in_order(mq: Any, topic: str, count: int) -> None:
    """All messages are there, those of each key in the order of their numbers."""
    seen: defaultdict[str, list[int]] = defaultdict(list)
    async with entered(mq.consumer(topic, "in-order", start="earliest")) as consumer:
        async for message in each(consumer):
            with message:
                seen[message.key].append(int(message.body))
            if sum(map(len, seen.values())) == count:
                break
    assert sorted(number for numbers in seen.values() for number in numbers) == list(range(count))
    assert all(numbers == sorted(numbers) for numbers in seen.values())


@pytest.mark.parametrize(("before", "after"), [(0, SHARDS), (3, SHARDS), (SHARDS, 3)])
async def test_a_producer_goes_on_with_a_topic_that_was_made_anew_with_other_shards(
    connect: Any, two: Brokers, topic: str, before: int, after: int
) -> None:
    async with entered(connect(two.url, timeout=60)) as mq, entered(mq.producer()) as producer:
        await do(mq.create_topic(topic, shards=before))
        for number in range(40):
            await do(producer.send(topic, b"%d" % number, key=f"k{number % 20}"))
        await do(producer.flush())
        with towline.connect(two.url) as other:
            other.delete_topic(topic)
            other.create_topic(topic, shards=after)
        sent = []
        for number in range(400):
            sent.append(await do(producer.send(topic, b"%d" % number, key=f"k{number % 20}")))
            if not number % 50:
                await asyncio.sleep(0.05)  # so that some are sent before it is known, and some after
        await do(producer.flush())
        assert all(one.exception() is None for one in sent)
        assert {one.result().lane.isdigit() for one in sent} == {True}
        all_at_home(mq, two, topic)
        await in_order(mq, topic, 400)


async def test_a_producer_that_sent_while_nobody_could_be_asked_puts_everything_where_it_belongs(
    connect: Any, topic: str, cluster_of: Callable[..., Brokers]
) -> None:
    brokers = cluster_of(2).start().wait_for()
    async with entered(connect(brokers.url, timeout=2)) as mq:
        await do(mq.create_topic(topic, shards=SHARDS))
        for number in range(2):
            brokers.kill(number)
        async with entered(mq.producer()) as producer:
            sent = [await do(producer.send(topic, b"%d" % number, key=f"k{number % 20}")) for number in range(100)]
            keyless = await do(producer.send(topic, b"x"))
            brokers.start(0)
            sent += [
                await do(producer.send(topic, b"%d" % number, key=f"k{number % 20}")) for number in range(100, 200)
            ]
            brokers.start(1)
            with pytest.raises(BadRequest, match="give a shard_key"):
                await do(producer.flush())
            assert isinstance(keyless.exception(), BadRequest)
            await do(producer.flush())
            assert all(one.exception() is None for one in sent)
        all_at_home(mq, brokers, topic)
        await in_order(mq, topic, 200)


def _lanes(brokers: Brokers, number: int, topic: str) -> list[Any]:
    with towline.connect(f"towline://{brokers.address(number)}") as one:
        return list(one._link.run(requests.topic(topic)).lanes)
