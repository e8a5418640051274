"""Connections that break at any byte: nothing is lost, nothing is stored twice, nothing goes out of order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.breaking_proxy import RoughRoad
from tests.client.either import do, each, entered
from tests.eventually import eventually_done

COUNT = 3000


@pytest.fixture(params=range(3))
def road(request: pytest.FixtureRequest, shared_broker: Any) -> Iterator[RoughRoad]:
    road = RoughRoad(shared_broker.port, request.param)
    yield road
    road.close()


async def everything(mq: Any, topic: str) -> list[bytes]:
    bodies: list[bytes] = []
    first = 0
    while page := await do(mq.browse(topic, first=first, max_messages=10_000)):
        bodies += [message.body for message in page]
        first = page.next
    return bodies


async def test_every_send_is_stored_once(connect: Any, road: RoughRoad, shared_broker: Any, topic: str) -> None:
    async with entered(connect(road.url)) as mq:
        for number in range(COUNT // 10):
            await do(mq.send(topic, b"%d" % number + b" " * 300))
        many = [b"%d" % number for number in range(COUNT // 10, COUNT)]
        for at in range(0, len(many), 100):
            await do(mq.send_many(topic, many[at : at + 100]))
    async with entered(connect(f"towline://{shared_broker.address}")) as mq:
        assert [int(body) for body in await everything(mq, topic)] == list(range(COUNT))
    assert road.breaks


async def test_the_producer_keeps_order(connect: Any, road: RoughRoad, shared_broker: Any, topic: str) -> None:
    async with entered(connect(road.url)) as mq, entered(mq.producer(max_batch_messages=37)) as producer:
        pending = [await do(producer.send(topic, b"%d" % number)) for number in range(COUNT)]
        await do(producer.flush(timeout=60))
        assert [one.result().seq for one in pending] == list(range(COUNT))
    async with entered(connect(f"towline://{shared_broker.address}")) as mq:
        assert [int(body) for body in await everything(mq, topic)] == list(range(COUNT))
    assert road.breaks


async def test_a_consumer_sees_everything_and_what_it_acked_is_acked(
    connect: Any, road: RoughRoad, shared_broker: Any, topic: str
) -> None:
    async with entered(connect(f"towline://{shared_broker.address}")) as direct:
        await do(direct.send_many(topic, [b"%d" % number + b" " * 100 for number in range(COUNT)]))
        async with (
            entered(connect(road.url)) as mq,
            entered(mq.consumer(topic, group="g", max_messages=50, ack_interval=0.01)) as consumer,
        ):
            acked = []
            async for message in each(consumer):
                message.ack()
                acked.append(int(message.body))
                if len(set(acked)) == COUNT:
                    break
            await do(consumer.flush())
            assert sorted(set(acked)) == list(range(COUNT))
            # What came twice had been lost in between, and was reported.
            assert len(acked) - COUNT <= consumer.lost
            road.mend()
        await eventually_done(lambda: do(direct.group(topic, "g")), holds=lambda group: not group.lag)
    assert road.breaks


def test_threads_share_a_client_on_a_rough_road(road: RoughRoad, shared_broker: Any, topic: str) -> None:
    import towline

    with towline.connect(road.url) as mq:
        receipts: list[int] = []

        def send() -> None:
            receipts.extend(mq.send(topic, b" " * 300).seq for _ in range(100))

        threads = [threading.Thread(target=send) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(receipts) == list(range(600))
    with towline.connect(f"towline://{shared_broker.address}") as mq:
        assert mq.topic(topic).lanes[1].end == 600
