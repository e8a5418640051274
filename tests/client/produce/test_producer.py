"""The batching producer, on both clients and every broker."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import towline
from tests.client.either import do, entered
from towline.errors import BadName, BadRequest, Closed, QueueFull, Timeout, TooLarge


async def test_everything_sent_arrives_in_order(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        async with entered(mq.producer(max_batch_messages=700)) as producer:
            pending = [await do(producer.send(topic, b"%d" % number, key=str(number))) for number in range(3000)]
        assert all(one.done() for one in pending)
        assert [one.result().seq for one in pending] == list(range(3000))
        page = await do(mq.browse(topic, max_messages=10_000))
        assert [(message.body, message.key) for message in page] == [(b"%d" % n, str(n)) for n in range(3000)]


async def test_each_message_has_its_own_receipt(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, entered(mq.producer()) as producer:
        high = await do(producer.send(topic, b"a", priority="high", headers={"h": "1"}))
        low = await do(producer.send(topic, b"b", priority="low"))
        other = await do(producer.send(f"{topic}-other", b"c"))
        await do(producer.flush(timeout=60))
        assert [one.result().id for one in (high, low, other)] == [
            f"{topic}/high/0",
            f"{topic}/low/0",
            f"{topic}-other/middle/0",
        ]
        assert high.exception() is None
        (message,) = await do(mq.browse(topic, "high"))
        assert message.headers == {"h": "1"}


async def test_a_callback_is_called_once_it_is_done(connect: Any, url: str, topic: str) -> None:
    done: list[object] = []
    async with entered(connect(url)) as mq, entered(mq.producer()) as producer:
        pending = await do(producer.send(topic, b"a"))
        pending.add_done_callback(done.append)
        pending.add_done_callback(lambda _: 1 / 0)
        await do(producer.flush())
        while not done:
            await do(producer.flush())
        pending.add_done_callback(done.append)
        assert done == [pending, pending]


async def test_a_message_that_cannot_be_is_refused_at_once(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, entered(mq.producer()) as producer:
        with pytest.raises(BadName):
            await do(producer.send("No!", b"x"))
        with pytest.raises(TypeError, match="encode"):
            await do(producer.send(topic, "text"))
        with pytest.raises(BadRequest):
            await do(producer.send(topic, b"x", priority="urgent"))
        with pytest.raises(TypeError):
            await do(producer.send(topic, b"x", key=b"bytes"))
        await do(producer.send(topic, b"fine"))


async def test_an_error_that_nobody_looked_at_is_raised_by_flush(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq, entered(mq.producer()) as producer:
        await do(producer.send(topic, bytes(17 << 20)))
        good = await do(producer.send(topic, b"fine"))
        with pytest.raises(TooLarge) as caught:
            await do(producer.flush())
        assert "1 messages" in caught.value.__notes__[0]
        # It was told, and is not told again.
        await do(producer.flush())
        assert good.result().seq == 0

        bad = await do(producer.send(topic, bytes(17 << 20)))
        while not bad.done():
            try:
                await do(producer.flush())
            except TooLarge:
                break
        assert isinstance(bad.exception(), TooLarge)


async def test_a_closed_producer_says_so(connect: Any, url: str, topic: str) -> None:
    async with entered(connect(url)) as mq:
        async with entered(mq.producer()) as producer:
            pass
        with pytest.raises(Closed, match="producer was closed"):
            await do(producer.send(topic, b"x"))
        await do(producer.close())


async def test_a_full_queue_is_waited_for(connect: Any, topic: str) -> None:
    url = f"memory:{topic}?capacity_messages=1000"
    async with (
        entered(connect(url)) as mq,
        entered(mq.producer(max_batch_messages=100)) as producer,
        entered(mq.consumer(topic, group="g")) as consumer,
    ):
        sent = [await do(producer.send(topic, b"%d" % number)) for number in range(2000)]
        with pytest.raises(Timeout):
            await do(producer.flush(timeout=0.3))
        seen: list[bytes] = []
        while len(seen) < 2000:
            batch = await do(consumer.pull(wait=60))
            seen += batch.bodies()
            await do(batch.ack())
        assert seen == [b"%d" % number for number in range(2000)]
        await do(producer.flush(timeout=60))
        assert [one.result().seq for one in sent] == list(range(2000))


@pytest.mark.parametrize("max_block", [0, 0.2])
async def test_a_full_buffer_is_waited_for_no_longer_than_one_may(connect: Any, topic: str, max_block: float) -> None:
    url = f"memory:{topic}?capacity_messages=20"
    async with entered(connect(url)) as mq:
        await do(mq.send_many(topic, [b"x"] * 20))
        producer = mq.producer(max_block=max_block, max_buffer_messages=10, delivery_timeout=60)
        for _ in range(10):
            await do(producer.send(topic, b"y"))
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(QueueFull, match=r"buffer is full.* with 10 messages"):
                await do(producer.send(topic, b"y"))
            assert time.monotonic() - began >= max_block
        async with entered(mq.consumer(topic, group="g")) as consumer:
            await do((await do(consumer.pull(wait=20))).ack())
            await do(producer.flush(timeout=60))
            await do(producer.send(topic, b"z"))
            await do(producer.close())


async def test_a_full_buffer_lets_in_who_waits_when_there_is_room(connect: Any, topic: str) -> None:
    url = f"memory:{topic}?capacity_messages=20"
    async with entered(connect(url)) as mq, towline.aio.connect(url) as other:
        await do(mq.send_many(topic, [b"x"] * 20))
        async with entered(mq.producer(max_buffer_messages=10)) as producer, other.consumer(topic, "g") as consumer:

            async def send_all() -> None:
                for _ in range(30):
                    await producer.send(topic, b"y")

            def send_all_here() -> None:
                for _ in range(30):
                    producer.send(topic, b"y")

            aio = connect is towline.aio.connect
            sending = asyncio.create_task(send_all() if aio else asyncio.to_thread(send_all_here))
            got = 0
            while got < 50:
                batch = await consumer.pull(5, wait=20)
                got += len(batch)
                await batch.ack()
            await sending


async def test_waiting_for_room_has_a_limit_that_makes_sense(connect: Any) -> None:
    async with entered(connect("memory:")) as mq:
        for wrong in (-1, 1e6):
            with pytest.raises(BadRequest, match="max_block"):
                mq.producer(max_block=wrong)


def test_threads_may_share_a_producer(topic: str) -> None:
    with towline.connect("memory:") as mq:
        with mq.producer(max_batch_messages=50, max_buffer_messages=100) as producer:

            def send(name: int) -> None:
                for number in range(500):
                    producer.send(topic, b"%d %d" % (name, number))

            threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        bodies = [tuple(map(int, message.body.split())) for message in mq.browse(topic, max_messages=10_000)]
        assert len(bodies) == 2000
        for name in range(4):
            assert [number for who, number in bodies if who == name] == list(range(500))
