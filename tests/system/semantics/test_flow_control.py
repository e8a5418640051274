"""What is bounded, and what happens at the bounds; and where a new group begins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import towline
from tests.client.conftest import Served
from tests.client.either import do, entered
from towline.errors import QueueFull


@pytest.mark.parametrize("store", ["memory:", "file"])
async def test_many_connections_together_are_held_back_and_lose_nothing(
    serve: Callable[..., Served], tmp_path: Path, store: str
) -> None:
    """More is sent at once than all connections together may have on their way: all of it arrives."""
    where = store if store == "memory:" else f"file:{tmp_path / 'data'}"
    served = serve("--store", where, "--max-pending-total-bytes", str(1 << 20))
    url, body = f"towline://{served.address}", bytes(100_000)

    def send(number: int) -> None:
        with towline.connect(url) as mq, mq.producer(max_in_flight=10, max_batch_bytes=200_000) as producer:
            for _ in range(20):
                producer.send(f"t{number % 3}", body)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    async with towline.aio.connect(url) as mq:
        assert sum(lane.end for topic in await mq.topics() for lane in topic.lanes) == 120


async def test_a_full_memory_store_holds_producers_back_until_there_is_room(connect: Any, topic: str) -> None:
    async with entered(connect(f"memory:{topic}?capacity_messages=100")) as mq:
        await do(mq.create_topic(topic))
        async with entered(mq.consumer(topic, group="g", max_messages=10)) as consumer:
            await do(mq.send_many(topic, [b"x"] * 90))
            with pytest.raises(QueueFull):
                await do(mq.send_many(topic, [b"y"] * 20))
            async with entered(mq.producer(linger_ms=0)) as producer:
                pending = [await do(producer.send(topic, b"%d" % number)) for number in range(30)]
                got = 0
                while got < 120:
                    batch = await do(consumer.pull(10, wait=60))
                    got += len(batch)
                    await do(batch.ack())
                await do(producer.flush(timeout=30))
            assert all(one.exception() is None for one in pending)


async def test_a_consumer_holds_no_more_than_its_group_allows(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"x"] * 50))
        async with entered(mq.consumer(topic, group="g", max_in_flight=20)) as consumer:
            batches = [await do(consumer.pull(15, wait=0.2)) for _ in range(3)]
            assert [len(batch) for batch in batches] == [15, 5, 0]
            await do(batches[0].ack())
            assert len(await do(consumer.pull(100, wait=60))) == 15


@pytest.mark.parametrize("by", ["consumer", "topic", "nobody"])
async def test_a_new_group_begins_where_it_is_told_to(connect: Any, url: str, topic: str, by: str) -> None:
    async with entered(connect(url)) as mq:
        await do(mq.send(topic, b"old"))
        if by == "topic":
            config = (await do(mq.topic(topic))).config
            await do(mq.put_topic(msgspec.structs.replace(config, start="latest")))
        options = {"start": "latest"} if by == "consumer" else {}
        async with entered(mq.consumer(topic, group="g", **options)) as consumer:
            await do(mq.send(topic, b"new"))
            batch = await do(consumer.pull(wait=60))
            assert batch.bodies()[-1] == b"new"
            assert len(batch) == (2 if by == "nobody" else 1)
            assert consumer.config.start == ("earliest" if by == "nobody" else "latest")
        async with entered(mq.consumer(topic, group="other", start="earliest")) as consumer:
            assert (await do(consumer.pull(wait=60))).bodies() == [b"old", b"new"]


async def test_a_broker_says_where_new_groups_begin(serve: Callable[..., Served], topic: str) -> None:
    served = serve("--store", "memory:", "--group-start", "latest")
    async with towline.aio.connect(f"towline://{served.address}") as mq:
        await mq.send(topic, b"old")
        async with mq.consumer(topic, group="g") as consumer:
            await mq.send(topic, b"new")
            assert (await consumer.pull(wait=60)).bodies() == [b"new"]
