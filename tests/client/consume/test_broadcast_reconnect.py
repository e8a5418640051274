"""An unnamed consumer, which has an ephemeral group of its own, comes back after the broker has given it up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.breaking_proxy import RoughRoad
from tests.client.conftest import Served
from tests.client.either import do, entered
from tests.eventually import eventually_done
from towline.model import RetryPolicy


@pytest.fixture(scope="module")
def broker() -> Iterator[Served]:
    """Gives a consumer up as soon as its connection breaks."""
    served = Served("--store", "memory:", "--reconnect-grace-s", "0", "--heartbeat-s", "600")
    yield served
    served.stop()


@pytest.fixture
def road(broker: Served) -> Iterator[RoughRoad]:
    road = RoughRoad(broker.port, 0)
    road.mend()
    yield road
    road.close()


async def is_given_up(mq: Any, topic: str) -> bool:
    return not any(group.members for group in await do(mq.groups(topic)))


async def bodies(consumer: Any, count: int) -> list[tuple[bytes, int]]:
    found: list[tuple[bytes, int]] = []
    while len(found) < count:
        batch = await do(consumer.pull(wait=30))
        assert batch, f"nothing came after {found}"
        found += [(message.body, message.attempt) for message in batch]
        await do(batch.ack())
    return sorted(found)


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("subscribed", ["to a topic", "by prefix"])
async def test_an_unnamed_consumer_that_was_given_up_resumes_at_its_place(
    connect: Any, broker: Served, road: RoughRoad, topic: str, start: str, subscribed: str
) -> None:
    topic = f"{topic}.all"
    pattern = topic if subscribed == "to a topic" else topic.replace("all", "*")
    async with entered(connect(f"towline://{broker.address}")) as near, entered(connect(road.url)) as far:
        await do(near.send(topic, b"early"))
        options = {"start": start, "retry": RetryPolicy(5, (0.0,))}
        async with entered(far.consumer(pattern, **options)) as consumer:
            if start == "earliest":
                assert await bodies(consumer, 1) == [(b"early", 1)]
            await do(near.send_many(topic, [b"done", b"failed"]))
            done, failed = await do(consumer.pull(wait=60))
            done.ack()
            failed.nack("again", delay=0.0)
            await do(consumer.flush())
            road.block()
            await eventually_done(lambda: is_given_up(near, topic))
            await do(near.send(topic, b"meanwhile"))
            road.unblock()
            assert await bodies(consumer, 2) == [(b"failed", 2), (b"meanwhile", 1)]
            await do(near.send(topic, b"last"))
            assert await bodies(consumer, 1) == [(b"last", 1)]


async def test_a_topic_that_is_made_while_an_unnamed_consumer_is_away_is_new_to_it(
    connect: Any, broker: Served, road: RoughRoad, topic: str
) -> None:
    async with entered(connect(f"towline://{broker.address}")) as near, entered(connect(road.url)) as far:
        await do(near.send(f"{topic}.old", b"early"))
        async with entered(far.consumer(f"{topic}.*", start="latest")) as consumer:
            road.block()
            await eventually_done(lambda: is_given_up(near, f"{topic}.old"))
            await do(near.send(f"{topic}.new", b"meanwhile"))
            road.unblock()
            assert await bodies(consumer, 1) == [(b"meanwhile", 1)]
